/* rdzv_script.h: the coordinator's rules under a script: the test is all the nodes, and has a clock
 * of its own. Connection number i is node i. */
#ifndef TESTS_LIB_RDZV_SCRIPT_H
#define TESTS_LIB_RDZV_SCRIPT_H

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/rdzv_state.h"
#include "tests/lib/nsec.h"
#include "tests/lib/test.h"

#define CONNS 64

/* All that connection i, and so node i, has received. */
struct seen {
    struct rdzv_view view;
    struct rdzv_stop why; /* of the newest view that had one */
    int views, tables, reports, lists;
    struct rdzv_peers list; /* the newest, a shallow copy */
    struct rdzv_peers ran;  /* the view sent before the newest one */
    struct rdzv_result result;
    struct failure first; /* of the result */
    bool closed, refused, retry;
    char refusal[RDZV_TEXT_MAX];
    char notice[RDZV_NOTICE_MAX];
    struct rdzv_respawn order; /* the newest */
    uint64_t clock;            /* of the node: rises with every status */
};

extern struct rdzv_state *state;     /* the coordinator under test */
extern struct rdzv_rules next_rules; /* of the next start() */
extern uint64_t now_ns;              /* now */
extern struct seen seen[CONNS];
extern int rounds; /* started rounds */
extern bool finished;
extern char logs[65536];
extern struct rank_table table; /* the newest, a shallow copy */

/* The sender of a hello; zero is a plain node on another host. */
struct who {
    const char *host, *addr, *local_addr, *run_id, *version, *role;
    int id;    /* 0: the number of its connection + 1 */
    int rank1; /* node_rank + 1 */
    int nproc, pid, min, max, restarts1;
    uint16_t peer_port;
    uint64_t seen_epoch;
    bool own, same_host, no_store, relay, witness;
    enum restart_policy policy;
    enum mpi_kind mpi;
};

/* Carries out the coordinator's actions: fills seen[], logs, rounds, finished. */
void drain(void);

/* Sets next_rules to the rules of a job of min to max nodes, with a dead time of 15 s. */
void rules(enum rdzv_backend backend, int min, int max);

/* Makes a coordinator with the rules next_rules. */
void start(void);
void teardown(void);

/* Messages of node `conn`: a hello; a status; hello and the status IDLE; the status PREPARED. */
void hello(uint32_t conn, struct who w);
struct rdzv_status status_of(uint32_t conn, enum member_phase phase);
void tell(uint32_t conn, struct rdzv_status st);
void say(uint32_t conn, enum member_phase phase);
void join(uint32_t conn, struct who w);
void prepared(uint32_t conn);

/* The first n nodes prepare and run; they stop when asked to. */
void run_all(uint32_t n);
void stop_all(uint32_t n);

/* Starts a job of n nodes with the rules next_rules, and lets it run. */
void running_by_rules(uint32_t n);

/* start() with rules(backend, min, max). */
void running(enum rdzv_backend backend, int min, int max, uint32_t n, int max_restarts);

/* start() for an elastic job, which admits new nodes at once. */
void elastic(int min, int max, uint32_t n);

struct failure failure_of(int local_rank, enum failure_kind kind, int code_or_signal);

/* Sends a status with failures, which were seen `ago` ns before. */
void tell_failures(uint32_t conn, enum member_phase phase, uint32_t seq, const struct failure *f,
                   int n, uint64_t ago);
void worker_fails(uint32_t conn, enum failure_kind kind, int code_or_signal);
void leave(uint32_t conn, enum stop_reason reason, int code, const char *text, bool workers);

/* The connection ends. */
void closed(uint32_t conn, enum rdzv_end how);

/* Time passes, and the coordinator's timer fires. */
void tick_ms(uint64_t ms);
void tick(uint64_t seconds);

struct rdzv_state_info info(void);

/* Time passes, and n nodes keep reporting that they are idle. */
void beat(uint64_t seconds, const uint32_t *conns, int n);

#define PHASE(p)          ck_assert_int_eq(info().phase, p)
#define HAS(text, part)   ck_assert_msg(strstr(text, part), "'%s' is not in: %s", part, text)
#define LACKS(text, part) ck_assert_msg(!strstr(text, part), "'%s' is in: %s", part, text)

TCase *rules_case(Suite *s, const char *name, double timeout);

#endif
