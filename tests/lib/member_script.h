/* member_script.h: a member's rules under a script: the test is the coordinator and the agent, and
 * has a clock of its own. */
#ifndef TESTS_LIB_MEMBER_SCRIPT_H
#define TESTS_LIB_MEMBER_SCRIPT_H

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/member_state.h"
#include "tests/lib/nsec.h"
#include "tests/lib/test.h"

extern struct member_state *self;   /* the member under test */
extern uint64_t now_ns;             /* now */
extern struct generation round_gen; /* of the round that the coordinator is in */

/* The actions since the last drain(), one letter each: l log, h hello, v list of a round, s status,
 * d disconnect, p prepare, r run, w respawn, x stop, k fence, e end of the lease, f finish. */
extern char out[1024];

/* The newest of each action's contents. */
extern struct rdzv_hello said;
extern struct rdzv_peers told; /* a shallow copy */
extern struct rdzv_status status;
extern struct member_action last;
extern struct rdzv_stop stopped;
extern struct rdzv_result result;
extern char line[1024];
extern bool closed_in_order; /* by the newest MEMBER_ACT_DISCONNECT */
extern int respawned_rank;

/* Takes the member's actions into the variables above. */
void drain(void);

#define OUT(expected)                      \
    do {                                   \
        drain();                           \
        ck_assert_str_eq(out, (expected)); \
    } while (0)

/* Makes the member, with a dead time of 15 s. */
void make(enum restart_policy policy, bool lease);
void setup(void);
void teardown(void);

/* A view as the coordinator sends it now. */
struct rdzv_view view_of(enum rdzv_phase phase, int group_rank);
void view(enum rdzv_phase phase, int group_rank);

/* The rank table of a round of two nodes arrives. */
void table(void);

/* Take the member to the next phase: connected, prepared for a round; running() from the start. */
void connected(void);
void prepared(void);
void running(void);

struct failure failure_of(int local_rank, enum failure_kind kind);
void refused(bool retry, const char *text);
void report(int exit_code, const char *text);

/* Lets time pass, with the ticks of a driver, until the member disconnects, stops or finishes. */
void pass(uint64_t ns);

/* make() and running(), with a lease. */
void make_on_lease(void);
void running_on_lease(void);

#endif
