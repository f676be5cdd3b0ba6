/* stdio_fold.h: lines that several workers print alike, shown once with the set of their ranks.
 *
 * A unit is a line, or a Python traceback. Units that differ only in numbers and addresses are one
 * group: "[0-3]: rank 0..3 of 4 is ready", with the smallest and the largest of the numbers that
 * differ. A group is shown when every worker that is shown has joined it, or a window after its
 * first unit, and what stands in front of it with it. Groups stand in the order in which they
 * began except that a worker's own ones make way for it to join one in front of them; it joins only
 * groups behind those that it shares with others: the order of each worker's lines stays. Both
 * streams of a worker count as one where they lead to one console.
 *
 * A worker of whose lines many are shown alone is passed over for a while, so that a flood of
 * different lines costs next to nothing. Its lines, and unfinished ones, do not come here.
 *
 * Groups go to a console (fold_console.h), or to another fold, of the whole job (stdio_job.h):
 * fold_join() takes a unit that several workers have in common already.
 *
 * For the pump's thread, but for fold_expect(). */
#ifndef AGENT_OUTPUT_STDIO_FOLD_H
#define AGENT_OUTPUT_STDIO_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "agent/output/fold_text.h"
#include "agent/base/rank_set.h"
#include "agent/output/stdio_label.h"
#include "core/bytes.h"

#define FOLD_WINDOW_NS UINT64_C(200000000)

struct fold;

/* A group that is to be shown. */
struct fold_shown {
    struct stdio_label *label;      /* of the first worker */
    const void *writer;             /* likewise, as for console_put() */
    const struct rank_set *workers; /* by local rank, */
    int first_rank;                 /* and the rank in the job of local rank 0 */
    const struct fold_text *text;   /* whole lines */
    uint64_t since_ns;              /* when the group's first unit came */
};

struct fold_out {
    void (*show)(void *arg, const struct fold_shown *g, uint64_t now_ns);
    void *arg;
    uint64_t window_ns;
    bool by_stream; /* the two streams of a worker do not lead to one place */
};

/* One stream of one worker. */
struct fold_source {
    const void *writer; /* as for console_put() */
    struct stdio_label *label;
    struct buf unit;  /* the traceback that has begun */
    size_t margin;    /* text in front of the lines, as PyTorch's "[rank0]: " */
    uint64_t last_ns; /* when the unit last grew */
    bool open;        /* in the list of the sources with such a traceback */
    TAILQ_ENTRY(fold_source) link;
};

/* nworkers: of the node. A fold for fold_join() begins with 0; its local ranks are the job's. */
struct fold *fold_new(const struct fold_out *out, int nworkers);
void fold_free(struct fold *f); /* NULL is allowed; discards held units */

/* Whether lines of the worker come here; at first the lines of every worker do. A group waits for
 * no other worker. For the thread that opens workers, and no other. */
void fold_expect(struct fold *f, int local_rank, bool comes);

/* Takes whole lines. Returns how many bytes it took: less than len if the worker is passed over;
 * nothing of it is held then, and the rest goes straight to the console. */
size_t fold_put(struct fold *f, struct fold_source *s, const uint8_t *p, size_t len,
                uint64_t now_ns);

/* Takes a unit of several workers: two of their texts, the second of which may be empty. It is
 * shown at due_ns at the latest. */
struct fold_unit {
    struct stdio_label *label; /* as in struct fold_shown */
    const void *writer;
    const struct rank_set *workers;
    const uint8_t *text[2];
    size_t len[2];
    uint64_t since_ns, due_ns;
};
void fold_join(struct fold *f, const struct fold_unit *u, uint64_t now_ns);
void fold_reserve(struct fold *f, int nworkers);   /* there are so many at least */
void fold_set_shown(struct fold *f, int nworkers); /* of which so many are shown */

/* Shows all that is held up to the worker's last unit: something of it goes to the console next. */
void fold_settle(struct fold *f, struct fold_source *s, uint64_t now_ns);
void fold_settle_worker(struct fold *f, int local_rank, uint64_t now_ns); /* for fold_join() */

/* The stream has ended: its unfinished traceback becomes a unit. */
void fold_end(struct fold *f, struct fold_source *s, uint64_t now_ns);

uint64_t fold_due_ns(const struct fold *f); /* when fold_show() has something to do; 0: never */
void fold_show(struct fold *f, uint64_t now_ns);
void fold_show_all(struct fold *f, uint64_t now_ns);

#endif
