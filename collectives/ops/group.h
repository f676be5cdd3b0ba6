/* group.h: making communicators of another's ranks. */
#ifndef COLLECTIVES_OPS_GROUP_H
#define COLLECTIVES_OPS_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/base/op_signature.h"
#include "collectives/dlcoll.h"

int group_take_opts(dlcoll_comm *c, const dlcoll_group_opts *given, dlcoll_group_opts *o);

/* The group `id` of the n ranks of `parent`, of which this process is number `me`, as the
 * program asks for by `kind`. Takes `ranks` (malloc'ed). *made (may be NULL) is counted up as soon
 * as others may hear of it. The public code; the parent's last error says why, or the thread's when
 * the parent has failed. */
int group_make(dlcoll_comm *parent, uint64_t id, int *ranks, int n, int me,
               const dlcoll_group_opts *o, enum call_kind kind, uint64_t *made, dlcoll_comm **out);

#endif
