/* stdio_fold.h: lines that several workers print alike, shown once with the set of their ranks.
 *
 * A unit is a line, or a Python traceback. Units that differ only in numbers and addresses are one
 * group: "[0-3]: rank 0..3 of 4 is ready", with the smallest and the largest of the numbers that
 * differ. A group is shown when every worker that is shown has joined it, or FOLD_WINDOW_NS after
 * its first unit, and what stands in front of it with it. Groups stand in the order in which they
 * began except that a worker's own ones make way for it to join one in front of them; it joins only
 * groups behind those that it shares with others: the order of each worker's lines stays. Both
 * streams of a worker count as one where they lead to one console.
 *
 * A worker of whose lines many are shown alone is passed over for a while, so that a flood of
 * different lines costs next to nothing. Its lines, and unfinished ones, do not come here.
 *
 * For the pump's thread, but for fold_expect(). */
#ifndef AGENT_OUTPUT_STDIO_FOLD_H
#define AGENT_OUTPUT_STDIO_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "agent/output/stdio_console.h"
#include "agent/output/stdio_label.h"
#include "core/bytes.h"

#define FOLD_WINDOW_NS UINT64_C(200000000)
#define FOLD_LINES     40 /* shown of a unit of several workers, its head and its tail */

struct fold;

/* One stream of one worker. */
struct fold_source {
    const void *writer; /* as for console_put() */
    struct stdio_label *label;
    struct buf unit;  /* the traceback that has begun */
    size_t margin;    /* what stands in front of its lines, as PyTorch's "[rank0]: " */
    uint64_t last_ns; /* when it last grew */
    bool open;        /* in the list of the sources with such a traceback */
    TAILQ_ENTRY(fold_source) link;
};

/* console: where groups are shown; nworkers: of the node. */
struct fold *fold_new(struct console *c, int nworkers);
void fold_free(struct fold *f); /* NULL is allowed; discards what is held */

/* Whether lines of the worker come here; at first of each one they do. A group waits for no other
 * worker. For the thread that opens workers, and no other. */
void fold_expect(struct fold *f, int local_rank, bool comes);

/* Takes whole lines. Returns how many bytes it took: less than len if the worker is passed over;
 * nothing of it is held then, and the rest goes straight to the console. */
size_t fold_put(struct fold *f, struct fold_source *s, const uint8_t *p, size_t len,
                uint64_t now_ns);

/* Shows all that is held up to the worker's last unit: something of it goes to the console next. */
void fold_settle(struct fold *f, struct fold_source *s, uint64_t now_ns);

/* The stream has ended: its unfinished traceback becomes a unit. */
void fold_end(struct fold *f, struct fold_source *s, uint64_t now_ns);

uint64_t fold_due_ns(const struct fold *f); /* when fold_show() has something to do; 0: never */
void fold_show(struct fold *f, uint64_t now_ns);
void fold_show_all(struct fold *f, uint64_t now_ns);

#endif
