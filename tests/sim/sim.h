/* sim.h: a job on a virtual clock: the real rules of a coordinator, of its members, of how they
 * reach it, by etcd as well, of their agents and of dlaunch -H, with workers that are made up. A
 * scenario is a cluster and what happens to it: connections are cut, hosts fall silent, links drop
 * one direction, hold back, or deliver twice, launchers freeze, die and come back, nodes leave and
 * join late, no two clocks run alike; workers fail, by themselves or of the death of others, hang,
 * hang in exec, cannot be executed, ignore SIGTERM, do not die of SIGKILL, keep their pipes open,
 * leave processes behind; users, schedulers and --timeout stop the job. The same seed is always the
 * same scenario.
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
 *        member_state_check(), agent_rules_check() and their other assertions)
 *   I17  a worker that has succeeded is not run again in its round
 *   I18  nothing is started on a node that has left, or that was told that the job ends
 *   I19  a request to stop ends the node's workers within its grace, whatever hangs
 *   I20  a job succeeds only if all workers of its last round have; the report of a failed one has
 *        what the schedule let happen, at the time at which that was, and nothing else; the failure
 *        that is named first is the one that the order of these times makes the cause, and the
 *        status is that failure's; a job that still has restarts ends for no other
 *   I21  the agent reports the end of a round when no process of the round is left, and reads all
 *        output first
 *   I22  dlaunch -H ends with the status of the coordinator that was elected last, of those whose
 *        result its hosts have told, in whatever order they tell; all that tell of one coordinator
 *        tell the same; a status of its own has a reason
 *   I23  a coordinator that has begun no round is given up when an elected one of the job says
 *        where it is, and its node goes there
 *   I24  etcd votes for no candidate within the dead time of its vote for another coordinator of
 *        the job, unless that one is known to have ended, be it that etcd has forgotten its vote;
 *        and no launcher takes its own line in etcd for another's
 *   I25  a job that ends for want of time goes into Slurm's queue once, by one of its launchers, or
 *        a launcher says why it does not; and no other job does
 *   I26  a launcher that comes to a job that has begun, in the place of one that was killed, is
 *        not turned away for good: that it is gone need not be known yet
 *
 * And when the faults have stopped:
 *   I7   everything comes to an end in time
 *
 *     sim_event.c        chance, the heap of events, the trace
 *     sim_net.c          connections and what may happen to what is under way
 *     sim_coordinator.c  drives rdzv_state, and stands for the workers' store
 *     sim_member.c       drives member_state
 *     sim_reach.c        drives reach, which finds the coordinator or makes one
 *     sim_etcd.c         drives etcd_rules, and stands for etcd
 *     sim_beat.c         stands for the threads of the heartbeats
 *     sim_agent.c        drives agent_rules
 *     sim_requeue.c      drives requeue_rules, and stands for Slurm
 *     sim_worker.c       stands for the workers
 *     sim_guardian.c     stands for the guardian
 *     sim_head.c         drives head_rules
 *     sim_fault.c        what goes wrong
 *     sim_check.c        the invariants
 *     sim_scenario.c     a scenario from its seed to its end, and the jobs of which sim/all/
 * searches all states */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "agent/rules/agent_rules.h"
#include "core/mem.h"
#include "launcher/hosts/head_rules.h"
#include "launcher/options/requeue_rules.h"
#include "rendezvous/rules/etcd_rules.h"
#include "rendezvous/rules/keep.h"
#include "rendezvous/rules/member_state.h"
#include "rendezvous/rules/reach.h"
#include "rendezvous/rules/rdzv_state.h"
#include "tests/lib/nsec.h"

#define ROUNDS 512 /* in one scenario */

/* --------------------------------------------------------------------------------------- events */

enum sim_kind {
    EV_TO_COORDINATOR,  /* link, bytes */
    EV_TO_MEMBER,       /* link, bytes */
    EV_END_COORDINATOR, /* link; number: enum rdzv_end */
    EV_END_MEMBER,
    EV_REACH,            /* node: the next attempt to reach a coordinator begins */
    EV_LOOK_FOUND,       /* node; number: whether it asks those who listen */
    EV_CALL,             /* node; number: whom it calls */
    EV_CALL_LOST,        /* node; number: who has not answered */
    EV_REDIRECT,         /* node, which has been a candidate */
    EV_TICK_COORDINATOR, /* node */
    EV_TICK_MEMBER,      /* node */
    EV_TICK_AGENT,       /* node */
    EV_PREPARED,         /* node; number: its prepare count */
    EV_BEGUN,            /* node; number: its run count */
    EV_LOOKED,           /* node */
    EV_ENDED,            /* node; number: its run count */
    EV_WRITTEN,          /* node */
    EV_FAILING,          /* node; number: which start of a worker, second: which worker */
    EV_REAPED,           /* the same */
    EV_DRAINED,          /* the same */
    EV_REQUEST,          /* node; number: enum sim_request */
    EV_STORE_WRITE,      /* node of the store; number: which of W.clients */
    EV_KEEP,             /* node: its keeper renews the coordinator's address in etcd */
    EV_ETCD_ANSWER,      /* node; number: which question */
    EV_ETCD_LOST,        /* the same: there was no answer in time */
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
    EV_EXEC,  /* node; number: which start of a worker, second: which worker: its program begins */
    EV_EXIT,  /* the same: it exits by itself */
    EV_DIES,  /* the same: of a signal */
    EV_FREED, /* the same: the kernel has freed its memory */
    EV_GONE,  /* node; number: how long a request may take: has it ended the workers? */
    EV_BORED, /* node: its user stops what hangs */
    EV_ETCD_ASKED,  /* node; number: which question */
    EV_HEAD_HEARS,  /* host; number: what it tells the head */
    EV_HOST_HEARS,  /* host; number: what the head tells it */
    EV_HEAD_SIGNAL, /* number: the signal */
    EV_HEAD_TICK,
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
/* Those under way, in no order, and one of them taken out. */
size_t sim_events(void);
const struct sim_event *sim_event(size_t k);
struct sim_event sim_take(size_t k);
#define SIM_QUEUE_BYTES 48
void *sim_queue(void); /* so many bytes: all that there is of it outside the heap */
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
    bool arbiter;           /* there is none: a coordinator counts etcd as a witness */
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

/* What somebody tells an agent. */
enum sim_request {
    ASK_SIGTERM,
    ASK_SIGQUIT,
    ASK_CTL,      /* dlaunchctl stop */
    ASK_TIME,     /* the scheduler's signal at the end of the job's time */
    ASK_WARNING,  /* --end_warning */
    ASK_KILL,     /* dlaunchctl kill */
    ASK_INTERNAL, /* something on the node ends the job */
    ASK_GUARDIAN, /* the guardian is gone */
    ASKS,
};

#define WORKERS 3 /* of a node, at most */

/* A worker: its process, and what it does, which is drawn when it starts. */
struct sim_worker {
    uint64_t start;     /* which start of the node it is; events of older ones are of no account */
    bool alive;         /* there is a process */
    bool in_exec;       /* which has not begun its program, */
    bool no_program;    /* and cannot */
    bool dying;         /* it ends, and executes nothing any more */
    bool fails;         /* when it exits, */
    bool hangs;         /* which it does not by itself */
    bool stubborn;      /* SIGTERM does not end it, */
    bool unkillable;    /* and neither does SIGKILL */
    bool freeing;       /* the kernel takes a while to free its memory, */
    bool abandoned;     /* or the agent goes on without it */
    bool keeps_pipes;   /* a process that it leaves behind does */
    bool unread;        /* its end was told, and not yet that its output is read */
    bool ok, succeeded; /* its exit; whether it has exited with 0 in this round */
    int blames;         /* the rank of whose death it fails; -1 */
    int orphans;        /* processes that it leaves behind */
    struct failure failure;
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
    bool silent;         /* it died without a word: nothing of its host answers */
    uint64_t lingers_ns; /* until then one that was killed has its port and its connections */
    int eager;           /* calls without a pause, since it was answered */
    struct reach *reach;
    uint64_t moved_ns; /* when it was redirected, */
    int moved_to;      /* to this node's coordinator */
    int found;         /* the node that the last look has named */
    int job;           /* that of its own coordinator */
    int node_rank;
    int nproc;
    char run_id[16];

    /* What it asks etcd: one question of one operation at a time. */
    struct sim_asker {
        struct etcd_rules *rules; /* NULL: there is no etcd */
        unsigned op, wanted;      /* under way; a bit for each that waits */
        size_t asked;             /* the question, from 1 on; 0: none */
        uint64_t cut_until;
        uint64_t keep_at;
        /* Its coordinator, for the newest renewal, and when that began. */
        struct etcd_coordinator by;
        uint64_t kept_ns, kept_clock; /* our time, its own */
        bool elected;
        unsigned hosted, kept_for; /* how many coordinators it has had; which one that was for */
        int arbiter;               /* a link; -1 */
    } etcd;

    /* The agent of the node. */
    struct agent_rules *agent;
    uint64_t agent_tick_at;
    struct sim_worker workers[WORKERS];
    uint64_t starts;      /* of workers */
    int orphans;          /* processes that workers have left behind, */
    int hard;             /* and those of them that cannot be killed */
    bool in_round;        /* it was told to run one, and has not reported its end */
    bool done, failed;    /* it has reported that all have succeeded; that one has failed */
    bool ending;          /* it was told that the job ends */
    bool looking;         /* a request waits until features have looked at its workers */
    bool writing, closed; /* its last output; it has ended */
    uint64_t prepares, runs, stops_told;
    struct generation asked, prepared, running;
    int round; /* of W.rounds; -1 */
    int group_rank, base_rank;
    char host[16];
    uint64_t grace_ns; /* between a request and SIGKILL, at most */
    uint64_t until_ns; /* its workers would end by themselves about then */
    uint32_t respawned;
    int requests;      /* that it has had */
    uint64_t asked_ns; /* the first of them */
    bool finished;
    struct rdzv_result result;
    uint64_t thawed_ns;
    uint64_t heard_ns; /* when it got the newest view, our time */
    uint64_t lease;    /* of its guardian, our time; 0: none */
    uint64_t guard_at; /* when that looks next */
    bool reset;        /* the network reset its connection: it may have been taken for dead */
    enum sim_obstruction obstruction;
    uint64_t obstructions;     /* how many there have been */
    int endpoint;              /* of W.endpoints, that it asks next for the coordinator */
    uint64_t idle_ns;          /* when its workers last ended */
    uint64_t left_ns;          /* when it was told to leave */
    enum requeue_part requeue; /* what its launcher does at its end */
    int follows;               /* the node whose coordinator it last joined; -1 */
    int follows_incarnation;
    uint64_t second; /* its messages in it: */
    int in_second;
};

struct sim_round {
    struct generation gen;
    int n;
    uint64_t table_hash;
    int alive;   /* processes of its workers */
    int world;   /* workers that it has, */
    int ok;      /* and those that have succeeded */
    int nfailed; /* failures in it, of these ranks: */
    struct sim_failed {
        enum failure_kind kind;
        int rank, status, blames;
        uint64_t at;
    } failed[32];
    uint64_t from_ns, until_ns; /* the first of its workers started, the last one ended */
    int rank0;                  /* a node */
    int *rank_of;               /* of each node; -1 */
};

/* A host of dlaunch -H, and its connection to the head. */
struct sim_host {
    int node; /* that it is; -1: it has no plan */
    uint64_t up_at, down_at;
    uint64_t cut_until;
    bool broken, closed; /* nothing is sent to the head any more; the head knows */
    bool gone;           /* the host knows */
    bool began, exited, reported, told;
    struct frame_exit exit;
};

struct sim_head {
    struct head_rules *rules; /* NULL: the job has no head */
    struct sim_host *hosts;
    int nhosts;
    uint64_t tick_at;
    bool planned, over, killed;
    bool began;      /* it has heard of workers that run */
    bool codes[256]; /* statuses for which it may end the job itself */
};

/* The servers of etcd, as one. */
#define ETCD_LEASES 64
#define ETCD_JOBS   64
struct sim_etcd {
    bool on;
    char key[32]; /* coordinator */
    int64_t lease;
    struct generation round;
    bool taken;
    int64_t revision, granted;
    struct sim_lease {
        int64_t id; /* 0: none */
        uint64_t end;
    } leases[ETCD_LEASES];
    struct sim_etcd *older;         /* a backup; NULL: none */
    uint64_t away_until, forgot_ns; /* it does not answer; it has lost data then */
    struct sim_vote {
        int job, node;
        uint64_t epoch, at;
    } voted[ETCD_JOBS]; /* by job: the newest vote that a coordinator has counted */
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
    struct sim_epoch {
        uint64_t epoch;
        int job; /* of launchers that went to another coordinator's instead: begun apart from it */
    } * epochs;
    int nepochs, cap_epochs, njobs;
    int half_from, half_n;
    struct sim_head head;
    struct sim_etcd etcd;
    struct sim_slurm {
        bool silent;   /* slurmctld does not answer, which is said */
        bool requeued; /* the job is in its queue again */
        bool said;     /* a launcher has said why it is not */
    } slurm;
    int endpoints; /* fresh launchers ask so many nodes in turn; 0: an oracle tells them */
    bool failover; /* coordinators die often */
    bool rehosts;  /* the first node hosts anew when its launcher is started again */
    bool replays;  /* messages may be delivered again */
    bool beats;    /* there are connections for heartbeats */
    bool internal; /* a node left because it had lost its own sense */
    bool look;     /* whether all has ended may have changed */
    int finished;  /* nodes that have had a result */
    int failures;  /* of workers */
    bool asked[STOP_REASONS]; /* what somebody wanted the end for, */
    bool codes[256];          /* and the statuses that this gives */
    bool small;               /* nothing is left to chance: all.c */
    bool survivors;           /* workers fail of the death of others */
    bool wild;                /* workers do all that workers can */
    bool ends;                /* users and schedulers stop jobs */
    uint64_t timeout_ns;      /* --timeout; 0: none */
    uint64_t seed, hash, events;
    bool loud;
};
extern struct sim_world W;

/* Counts of what the scenarios covered, over all seeds: a simulator in which nothing happens tests
 * nothing. */
struct sim_total {
    uint64_t events, faults, rounds, restarts, resumes, success, failed, spares, respawns, fenced,
        guarded, elected, replayed, beats, writes, refused_writes, obstructed, forged, longest_ns,
        starts, requests, in_exec, stubborn, unkillable, left_behind, abandoned, clock_error_ns,
        headed, head_results, moves, votes, forgotten, requeued, requeued_twice;
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
    return (clock - n->clock_offset) * 1000 / (uint64_t)(1000 + n->clock_rate) + !W.small;
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
int sim_new_link(struct sim_node *n, const struct sim_link *like);
bool sim_link_is_free(int link);    /* closed, and nothing is under way on it */
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

/* sim_reach.c */
void sim_reach_new(struct sim_node *n);
void sim_reach_wanted(struct sim_node *n);
void sim_reach_event(const struct sim_event *e);
void sim_reach_redirect(struct sim_node *n);

/* The look, or publishing, is done. to: the node that has been faster; -1: none. */
void sim_reach_looked(struct sim_node *n, enum reach_found found, const char *why);
void sim_reach_published(struct sim_node *n, int to);
/* Its coordinator is given up for that of the node. */
void sim_reach_redirected(struct sim_node *n, int to);

/* sim_etcd.c */
void sim_etcd_new(bool on);
void sim_etcd_free(void);
void sim_etcd_start(struct sim_node *n);
void sim_etcd_gone(struct sim_node *n);
void sim_etcd_look(struct sim_node *n);
void sim_etcd_publish(struct sim_node *n);
void sim_etcd_hosts(struct sim_node *n, bool elected);
void sim_etcd_advance(struct sim_node *n);
void sim_etcd_act(struct sim_node *n, const struct rdzv_action *a);
void sim_etcd_asked(const struct sim_event *e);
void sim_etcd_event(const struct sim_event *e);
void sim_etcd_fault(void);

/* sim_agent.c */
void sim_agent_new(struct sim_node *n);
void sim_agent_drain(struct sim_node *n);
void sim_agent_prepare(struct sim_node *n, const struct member_action *a);
void sim_agent_run(struct sim_node *n, const struct member_action *a);
void sim_agent_respawn(struct sim_node *n, const struct rdzv_respawn *r);
void sim_agent_stop(struct sim_node *n, const struct rdzv_stop *why);
void sim_agent_fence(struct sim_node *n);
void sim_agent_finish(struct sim_node *n, const struct rdzv_result *r);
void sim_agent_event(struct sim_event *e);
void sim_agent_request(struct sim_node *n, enum sim_request what);
void sim_agent_watch(struct sim_node *n, uint64_t run);
void sim_agent_leaves(struct sim_node *n); /* looks whether it ends in time */
void sim_agent_bored(struct sim_node *n);
/* Looks whether a request has ended its workers. */
void sim_agent_gone(struct sim_node *n, uint64_t within);

/* sim_head.c */
void sim_head_new(void); /* of the job of W.rules */
void sim_head_free(void);
void sim_head_event(const struct sim_event *e);
void sim_head_began(const struct sim_node *n);
void sim_head_exited(const struct sim_node *n, bool killed, bool silent);
void sim_head_fault(void);
void sim_head_orphan(int host);

/* sim_requeue.c */
void sim_requeue(struct sim_node *n); /* its launcher ends */
void sim_requeue_check(void);

/* sim_worker.c */
bool sim_worker_start(struct sim_node *n, int i); /* false: there is no process */
void sim_worker_cannot(struct sim_node *n, int i);
void sim_worker_signal(struct sim_node *n, int i, int signo);
void sim_worker_kill(struct sim_node *n, int i);
void sim_worker_event(struct sim_node *n, const struct sim_event *e);
bool sim_worker_reaped(struct sim_node *n, int i); /* whether it has succeeded */
int sim_worker_sweep(struct sim_node *n);
int sim_workers_alive(const struct sim_node *n); /* that may still do something */
void sim_workers_vanish(struct sim_node *n);     /* the guardian ends them all */

/* sim_guardian.c */
void sim_guardian_lease(struct sim_node *n, uint64_t until_ns);
void sim_guardian_look(struct sim_node *n);

/* sim_fault.c */
void sim_start(int i);
/* how: 0 orderly end of the connections, 1 reset, 2 silence (the host is gone), 3 the same as 0,
 * but later: its guardian was killed, and the agent takes a while to end what is left */
void sim_kill(int i, int how);
void sim_cut(int i, int how);
void sim_heal(int i);
void sim_open(int i, uint64_t number);
void sim_thaw(int i);
void sim_fault(void);
void sim_cut_link(int i, bool silent);

/* sim_check.c */
void sim_expect_assertions(void); /* one that fails breaks I16 */
void sim_check_round(struct sim_node *n, const struct rank_table *t, int rank);
struct sim_round *sim_round_of(const struct sim_node *n); /* which it runs */
void sim_check_start(struct sim_node *n, int i);
void sim_check_ended(struct sim_node *n); /* one of its workers */
void sim_check_failed(struct sim_node *n, int i);
void sim_check_again(struct sim_node *n, int i); /* it starts: what it did before is no end */
int sim_job_of(struct generation g);
void sim_check_coordinator(struct sim_node *n);
void sim_check_turned_away(const struct sim_node *coordinator, int who, const char *why);
void sim_check_message(struct sim_node *n, const struct buf *b);
void sim_check_result(struct sim_node *n, const struct rdzv_result *r);
void sim_check_head(void);
void sim_check_end(void);

/* sim_scenario.c: the hash of the trace. nodes: 0, or how many. */
uint64_t sim_scenario(uint64_t seed, int nodes);
void sim_step(struct sim_event *event);
bool sim_is_over(void);
/* One job of so many nodes for all.c, in which nothing has happened. */
#define SIM_SMALL_START 10000000000000000ull /* no other number is near it */
void sim_small_world(int nodes);
/* Events that a small world does without. */
bool sim_is_left_out(const struct sim_event *e);
void sim_free(void); /* what is kept from scenario to scenario */

#endif
