/* hang_watch.h: signs of life of a node's workers, and when their absence is suspicious. Pure: the
 * clock is handed in.
 *
 * A worker that uses libdlcoll lives when it begins an operation or prints; any other one also when
 * bytes flow through its sockets and when it uses CPU time. The usual time from one sign to the
 * next is learnt, by what the worker did last: the gap after a checkpoint is another one than that
 * within a step. */
#ifndef AGENT_STACKS_HANG_WATCH_H
#define AGENT_STACKS_HANG_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct hang_signs {
    uint64_t ops;     /* operations begun */
    uint64_t kind;    /* of the last operation: equal for operations of one form; 0: none */
    uint64_t output;  /* any number that changes when the worker prints */
    uint64_t traffic; /* bytes through its sockets */
    uint64_t cpu_ms;
    uint64_t at_ns; /* when the last traffic was; 0: not known */
    uint64_t sent;  /* the part that the worker has sent, and when it sent last */
    uint64_t sent_ns;
};

#define HANG_KINDS 32

/* The times from a sign of one kind to the next sign. */
struct hang_gap {
    uint64_t kind;
    uint64_t seen; /* of all gaps of the worker, the number of the newest of this kind */
    unsigned n;
    uint64_t early; /* the longest of the first HANG_EARLY */
    uint64_t later; /* the sum of the gaps behind them */
    uint64_t usual; /* of those behind them */
    uint64_t longest;
};

struct hang_rank {
    struct hang_signs last;
    uint64_t looked_ns, looked_cpu_ms;
    uint64_t alive_ns; /* when the last sign was seen; 0: the worker is not watched */
    uint64_t ngaps;
    struct hang_gap gaps[HANG_KINDS];
};

/* The first gaps of a kind are longer than later ones: ranks start one after the other, connect,
 * compile. They count until as many others are known; without recorded operations, until these have
 * taken as long, too. */
#define HANG_EARLY 8

/* The number of known gaps of a worker below which the limit is HANG_UNLEARNT times --hang_after,
 * and a minute at least: the first step compiles, loads and connects. */
#define HANG_LEARNT   8
#define HANG_UNLEARNT 20

void hang_rank_reset(struct hang_rank *r);

/* Takes note of the signs at `now`. */
void hang_rank_look(struct hang_rank *r, const struct hang_signs *s, uint64_t now);

/* The limit for a worker of which too little is known (HANG_LEARNT). */
uint64_t hang_unlearnt_limit(uint64_t after_ns);
/* The time for which the worker's silence may last: hang_unlearnt_limit() at first, then the
 * longest of `after`, three times the usual gap and twice the longest one of late. */
uint64_t hang_rank_limit(const struct hang_rank *r, uint64_t after_ns);
uint64_t hang_rank_silence(const struct hang_rank *r, uint64_t now);

#endif
