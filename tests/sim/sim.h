/* sim.h: a coordinator and its members, the real rules on both sides, on a virtual clock. A
 * scenario is a cluster and what happens to it: connections are cut, hosts fall silent, links drop
 * one direction, hold back, or deliver twice, launchers freeze, die and come back, workers fail,
 * nodes leave and join late, no two clocks run alike. The same seed is always the same scenario.
 *
 * After every event, for as long as it lasts:
 *   I1   the ranks of a round are unique and dense
 *   I2   all members of a round agree on its table
 *   I3   no worker of an older round is alive when one of a newer round starts, and every member is
 *        prepared before any worker starts
 *   I4   the workers' store takes nothing from a worker of another round than its own
 *   I5   no round has two ranks 0
 *   I6   generations never go back at a member, nor from one round to the next; epochs never repeat
 *   I8   the restart budgets are kept, and a lost node is not charged to the program
 *   I9   a node that has heard nothing of its coordinator until the lease is over has no workers
 *        but those of a job that has ended
 *   I10  tables, queues and messages stay within their limits
 *   I11  messages of a node per second, and calls without a pause, are limited
 *   I12  nothing ends without a reason that names a node or a rank, nothing for want of sense,
 *        and all are told the same
 *   I13  never do two rounds of one job have workers at the same time, by their time stamps
 *   I14  a launcher that was in no round does not end because a coordinator has lost its majority
 *   I15  a launcher that is told to leave, and has no workers, ends within seconds unless a
 *        coordinator answers
 *   I16  what the rules know of themselves is not at odds (rdzv_state_check(),
 *        member_state_check() and their other assertions)
 *
 * And when the faults have stopped:
 *   I7   everything comes to an end in time
 *
 *     sim_event.c        chance, the heap of events, the trace
 *     sim_net.c          connections and what may happen to what is under way
 *     sim_coordinator.c  drives rdzv_state, and stands for the workers' store
 *     sim_member.c       drives member_state
 *     sim_beat.c         stands for the threads of the heartbeats
 *     sim_agent.c        stands for the agent, its workers and its guardian
 *     sim_fault.c        what goes wrong
 *     sim_check.c        the invariants
 *     sim_scenario.c        a scenario from its seed to its end */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "core/mem.h"
#include "rendezvous/rules/member_state.h"
#include "rendezvous/rules/rdzv_state.h"
#include "tests/lib/nsec.h"

#define ROUNDS 512 /* in one scenario */

/* --------------------------------------------------------------------------------------- events */

enum sim_kind {
    EV_TO_COORDINATOR,  /* link, bytes */
    EV_TO_MEMBER,       /* link, bytes */
    EV_END_COORDINATOR, /* link; number: enum rdzv_end */
    EV_END_MEMBER,
    EV_CONNECT,          /* node */
    EV_CALL_LOST,        /* node; number: whether it called an elector */
    EV_TICK_COORDINATOR, /* node */
    EV_TICK_MEMBER,      /* node */
    EV_PREPARED,         /* node; number: its prepare count */
    EV_WORKERS,          /* node; number: its run count: they are done, or one fails */
    EV_STOPPED,          /* node; number: its run count */
    EV_STORE_WRITE,      /* node of the store; number: which of W.clients */
    /* Events that happen even while the process is frozen: */
    EV_BEAT,          /* link: its node's thread sends a heartbeat */
    EV_BEAT_UP,       /* link; number: when it was sent, second: what it has seen, lease */
    EV_BEAT_DOWN,     /* link; number: the same, second: when this was sent */
    EV_STORE_CONNECT, /* node; number: its run count: a worker of it reaches the store */
    EV_FAULT,
    EV_HEAL,  /* node: its cuts end */
    EV_CUT,   /* node: it is cut off; number: how */
    EV_OPEN,  /* node; number: its nth obstruction ends */
    EV_BREAK, /* link; number: 1 up, 0 down: the kernel gives up */
    EV_THAW,  /* node */
    EV_START, /* node: a launcher starts */
    EV_GUARD, /* node: its guardian looks at the lease */
    EV_WATCH, /* node; number: its run count: is it allowed to have workers? */
    EV_LEFT,  /* node: has it ended, since it leaves and nobody answers? */
};

struct sim_event {
    uint64_t at;
    uint64_t order; /* given by the first sim_push(): of two at once, the older one is first */
    enum sim_kind kind;
    int who; /* node or link */
    int incarnation;
    bool there; /* its host has it: no network is between */
    bool again; /* a message that comes a second time */
    uint64_t number, second;
    bool lease;
    struct buf bytes;
};

extern uint64_t now; /* of the world; every node's own clock runs otherwise */

uint64_t sim_chance(void);
void sim_chance_from(uint64_t seed);
static inline uint64_t below(uint64_t n)
{
    return n ? sim_chance() % n : 0;
}
static inline bool one_in(uint64_t n)
{
    return below(n) == 0;
}
uint64_t sim_delay(void); /* of one message */

void sim_push(struct sim_event e);
struct sim_event sim_pop(void);
bool sim_any_event(void);
void sim_forget_events(void);
/* Adds a line to the scenario: part of its hash. */
void sim_trace(const char *what, int who, uint64_t number);

/* ---------------------------------------------------------------------------------------- world */

struct sim_link {
    int node, incarnation;
    int to, to_incarnation;           /* the coordinator's node */
    bool member_end, coordinator_end; /* still open there */
    uint64_t up_at, down_at; /* of the last message under way, each direction: first in first out */
    bool dead;               /* swallows everything */
    bool rejected[2];        /* down, up: something was rejected, and nothing follows it */
    uint64_t stalled_ns[2]; /* down, up: since when something waits for a cut to heal; 0: nothing */
    uint64_t held_until[2]; /* what has waited arrives then, and nothing before it */
    bool said_hello;        /* to the coordinator, */
    struct node_id id;      /* and who it was */
    bool beats;             /* there is one for heartbeats beside it */
    uint64_t beat_heard, beat_touch;               /* the coordinator's thread's, its clock */
    uint64_t beat_seen, beat_answered, beat_lease; /* the node's thread's */
};

/* Obstructions between a host's address and the others, which answer with resets that prove
 * nothing. */
enum sim_obstruction {
    NO_OBSTRUCTION,
    ADDRESS_REFUSES,  /* another host has its address, and nothing listens there */
    ADDRESS_CLOSES,   /* the same; a program listens there, which closes what it accepts */
    ADDRESS_SILENT,   /* the same; the program accepts, and stays silent */
    FIREWALL_REJECTS, /* a firewall answers every packet in both directions with a reset */
    OBSTRUCTIONS,
};

struct sim_node {
    struct member_state *m; /* NULL: not running */
    int incarnation;
    int link; /* -1 */
    bool connecting, frozen, left;
    bool stuck; /* frozen, but for its thread of heartbeats */
    uint64_t stuck_ns;
    uint64_t tick_at;
    uint64_t clock_offset;
    int clock_rate;         /* so many thousandths too fast */
    struct sim_event *held; /* while frozen */
    int nheld, cap_held;

    /* The coordinator, if this launcher has it. */
    struct rdzv_state *s;
    uint64_t s_tick_at;
    uint64_t s_epoch; /* 0: none yet */
    uint64_t grant;   /* its leases, by heartbeats */
    uint32_t store;   /* rises when the workers' store is emptied */
    uint32_t guests;  /* the store that W.guest is of */
    bool s_finished;
    bool silent;   /* it died without a word: nothing of its host answers */
    int candidate; /* whom of the electors it calls next */
    uint64_t candidate_ns;
    uint64_t retry_ns; /* between its calls; 0: the next one at once */
    int lost;          /* calls to the candidate that nothing has answered */
    int eager;         /* calls without a pause, since it was answered */
    int node_rank;
    int nproc;
    char run_id[16];

    /* The simulated agent of the node. */
    bool workers, done, stopping;
    bool prepare_open; /* asked to prepare, not yet answered */
    uint64_t prepares, runs, stops_told;
    struct generation asked, prepared, running;
    uint32_t respawned;
    bool finished;
    struct rdzv_result result;
    uint64_t thawed_ns;
    uint64_t heard_ns; /* when it got the newest view, our time */
    uint64_t lease;    /* of its guardian, our time; 0: none */
    uint64_t guard_at; /* when that looks next */
    bool reset;        /* the network reset its connection: it may have been taken for dead */
    enum sim_obstruction obstruction;
    uint64_t obstructions; /* how many there have been */
    int endpoint;          /* of W.endpoints, that it asks next for the coordinator */
    uint64_t idle_ns;      /* when its workers last ended */
    uint64_t left_ns;      /* when it was told to leave */
    int follows;           /* the node whose coordinator it last joined; -1 */
    int follows_incarnation;
    uint64_t second; /* its messages in it: */
    int in_second;
};

struct sim_round {
    struct generation gen;
    int n;
    uint64_t table_hash;
    int alive;                  /* nodes that have workers of it */
    uint64_t from_ns, until_ns; /* the first of its workers started, the last one ended */
    int rank0;                  /* a node */
    int *rank_of;               /* of each node; -1 */
};

/* A connection of a worker to the store. */
struct sim_client {
    struct generation gen;
    int to_incarnation;
    uint32_t store;
};

struct sim_world {
    struct rdzv_rules rules;
    struct sim_node *nodes;
    int n, cap;
    struct sim_link *links;
    int nlinks, cap_links;
    bool *cut;                 /* [from * n + to]: nothing passes */
    bool *guest;               /* [coordinator * n + node]: its workers may come to the store */
    struct sim_event *waiting; /* for a cut to heal */
    int nwaiting, cap_waiting;
    uint64_t faults_from, faults_until, end;
    struct sim_round rounds[ROUNDS];
    int nrounds;
    struct sim_client *clients;
    int nclients, cap_clients;
    uint64_t *epochs;
    int nepochs, cap_epochs;
    int half_from, half_n;
    int endpoints; /* fresh launchers ask so many nodes in turn; 0: an oracle tells them */
    bool failover; /* coordinators die often */
    bool replays;  /* messages may be delivered again */
    bool beats;    /* there are connections for heartbeats */
    bool internal; /* a node left because it had lost its own sense */
    bool look;     /* whether all has ended may have changed */
    int finished;  /* nodes that have had a result */
    int failures;  /* of workers */
    uint64_t seed, hash, events;
    bool loud;
};
extern struct sim_world W;

/* Counts of what the scenarios covered, over all seeds: a simulator in which nothing happens tests
 * nothing. */
struct sim_total {
    uint64_t events, faults, rounds, restarts, resumes, success, failed, spares, respawns, fenced,
        guarded, elected, replayed, beats, writes, refused_writes, obstructed, forged, longest_ns;
};
extern struct sim_total sim_total;

static inline int sim_index(const struct sim_node *n)
{
    return (int)(n - W.nodes);
}
/* A node's clock, and the simulated time at which the clock shows a value. */
static inline uint64_t sim_clock(const struct sim_node *n)
{
    return n->clock_offset + now + (uint64_t)((int64_t)now * n->clock_rate / 1000);
}
static inline uint64_t sim_when(const struct sim_node *n, uint64_t clock)
{
    return (clock - n->clock_offset) * 1000 / (uint64_t)(1000 + n->clock_rate) + 1;
}

/* Ends the scenario, and the test, with what is wrong. */
void sim_broken(const char *invariant, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));
#define CHECK(invariant, cond, ...)             \
    do {                                        \
        if (!(cond))                            \
            sim_broken(invariant, __VA_ARGS__); \
    } while (0)

/* ------------------------------------------------------------------------------------ its parts */

/* sim_net.c */
bool sim_passes(int from, int to);
bool sim_rejects(int from, int to); /* what `from` sends is answered by a reset of somebody else */
bool sim_address_taken(int from, int to);
void sim_send_to_coordinator(struct sim_node *n, struct buf b);
void sim_send_to_member(int link, struct buf b);
void sim_member_closes(struct sim_node *n, enum rdzv_end how);
void sim_coordinator_closes(int link, enum rdzv_end how);
void sim_want_link(struct sim_node *n);
void sim_connect(struct sim_node *n);
void sim_call_lost(struct sim_node *n, bool elector);
bool sim_hold(struct sim_event *e); /* it waits: not now */
void sim_wait_for_heal(const struct sim_event *e);
void sim_wait_for_thaw(struct sim_node *n, const struct sim_event *e);
void sim_healed(void); /* what waits and may pass now is on its way */
void sim_break(int link, bool up);

/* sim_coordinator.c */
void sim_coordinator_new(struct sim_node *n, struct rdzv_state *s);
void sim_coordinator_drain(struct sim_node *n);
void sim_coordinator_event(struct sim_event *e);
void sim_coordinator_tick(struct sim_node *n);
void sim_store_connect(struct sim_node *n);
void sim_store_write(const struct sim_event *e);

/* sim_beat.c */
void sim_beat_begin(int link);
void sim_beat_event(struct sim_event *e);
void sim_beat_tell_coordinator(struct sim_node *t, const struct sim_link *l);
void sim_beat_tell_member(struct sim_node *n);

/* sim_member.c */
void sim_member_drain(struct sim_node *n);
void sim_member_event(struct sim_event *e);

/* sim_agent.c */
void sim_agent_prepare(struct sim_node *n, const struct member_action *a);
void sim_agent_run(struct sim_node *n, const struct member_action *a);
void sim_agent_stop(struct sim_node *n, const struct rdzv_stop *why);
void sim_agent_stop_workers(struct sim_node *n);
void sim_agent_fence(struct sim_node *n);
void sim_agent_lease(struct sim_node *n, uint64_t until_ns);
void sim_agent_finish(struct sim_node *n, const struct rdzv_result *r);
void sim_agent_event(struct sim_event *e);
void sim_agent_guard(struct sim_node *n);
void sim_agent_watch(struct sim_node *n, uint64_t run);
void sim_agent_leaves(struct sim_node *n); /* looks whether it ends in time */

/* sim_fault.c */
void sim_start(int i);
/* how: 0 orderly end of the connections, 1 reset, 2 silence (the host is gone) */
void sim_kill(int i, int how);
void sim_cut(int i, int how);
void sim_heal(int i);
void sim_open(int i, uint64_t number);
void sim_thaw(int i);
void sim_fault(void);

/* sim_check.c */
void sim_expect_assertions(void); /* one that fails breaks I16 */
void sim_check_round(struct sim_node *n, const struct rank_table *t, int rank);
void sim_check_workers_ended(struct sim_node *n);
void sim_check_coordinator(struct sim_node *n);
void sim_check_message(struct sim_node *n, const struct buf *b);
void sim_check_result(struct sim_node *n, const struct rdzv_result *r);
void sim_check_end(void);

/* sim_scenario.c: the hash of the trace. nodes: 0, or how many. */
uint64_t sim_scenario(uint64_t seed, int nodes);
void sim_free(void); /* what is kept from scenario to scenario */

#endif
