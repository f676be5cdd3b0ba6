/* rdzv_rules.h: checks a struct rdzv_config, and makes the rules of the coordinator and of a member
 * from it. */
#ifndef RENDEZVOUS_RDZV_RULES_H
#define RENDEZVOUS_RDZV_RULES_H

#include "rendezvous/rules/member_state.h"
#include "rendezvous/discovery/rdzv_config.h"
#include "rendezvous/rules/rdzv_state.h"

int rdzv_config_check(const struct rdzv_config *c, struct err *e); /* 0 or -EINVAL */

uint64_t rdzv_config_dead_ns(const struct rdzv_config *c);

/* Whether the nodes may choose another coordinator: the job must be able to go on without one node,
 * or to wait for another. */
bool rdzv_config_may_elect(const struct rdzv_config *c);

/* The caller adds where the coordinator is. Texts are the config's. */
struct rdzv_rules rdzv_config_rules(const struct rdzv_config *c);
struct member_rules rdzv_config_member_rules(const struct rdzv_config *c); /* a new node id */

#endif
