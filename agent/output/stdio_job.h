/* stdio_job.h: one console for all nodes (--console job). What the workers of a node print is
 * folded there and sent to the node of the coordinator, which folds it once more, over all nodes,
 * and shows it.
 *
 *     the source, on every node:
 *       lines -> fold of the node -> put_unit() ----+-> pages -> agent -> connection -> ...
 *       others -> console_put() -> put_bytes() -----+
 *     the sink, on the node of the coordinator:
 *       ... -> agent -> stdio_job_add() -> stdio_job_take() -> fold of the job -> consoles
 *                                                           -> stream_feed() ------^
 *
 * The agent sends the pages to the coordinator (rdzv_output()), also those of the coordinator's own
 * node. They come before what the node says of its workers afterwards. Pages that no coordinator
 * takes are shown by the sink of their own node.
 *
 *   - the sink is slow: it says when it has taken the pages. A source that has
 *     STDIO_CONSOLE_BACKLOG bytes under way reads no more, as from a full pipe
 *   - the workers of a node have ended: what its fold holds goes out before the node says so
 *   - the sink's node ends: the source's next coordinator gets what was not taken
 *
 * Records, one after the other, numbers little-endian: u8 kind, then
 *
 *     UNIT   u8 of standard error, string prefix, u32 microseconds since it began, u32 ranges, of
 *            each u32 first and last rank, string two texts of fold_text_put(): the lowest and the
 *            highest numbers; the second is empty if no number differs
 *     BYTES  u8, string prefix, u32 rank, string bytes of the worker's
 *     END    u32 rank: no more comes of this worker
 *     BEGIN  u32 ranks that are shown: a round begins. From the sink's own agent only
 *
 * For the pump's thread, but for what stdio.h declares. */
#ifndef AGENT_OUTPUT_STDIO_JOB_H
#define AGENT_OUTPUT_STDIO_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/output/stdio_console.h"
#include "agent/output/stdio_stream.h"
#include "core/bytes.h"

#define STDIO_JOB_PAGE 65536 /* a page ends with the record that makes it as large */
/* The time after which a printed line is on the console, unless a machine is slow. */
#define STDIO_JOB_LATE_NS (2 * FOLD_WINDOW_NS)

struct stdio_job;

struct stdio_job_opts {
    struct console *route[2]; /* of the sink; borrowed, as the buffers */
    struct stream_buffers *buffers;
    int nworkers; /* of this node */
    int nranks;   /* of all nodes, at most: a record that names another rank is malformed */
    bool fold;
    void *arg;
    void (*on_page)(void *arg); /* there is a page for the agent */
    /* A stream of the sink has changed: stream_due_ns(). */
    void (*on_stream)(void *arg, struct stdio_stream *s);
};

struct stdio_job *stdio_job_new(const struct stdio_job_opts *opts);
void stdio_job_free(struct stdio_job *j); /* NULL is allowed */

/* The source. */
struct console *stdio_job_console(struct stdio_job *j);
struct fold *stdio_job_fold(struct stdio_job *j);     /* NULL: lines are not folded */
void stdio_job_forget(struct stdio_job *j, int rank); /* the worker has ended */
/* For the agent: returns the next page; empty: there is none. */
struct buf stdio_job_next_page(struct stdio_job *j);
/* For the agent: reports that a sink has taken `n` bytes of the pages. True: workers may have
 * waited for room. */
bool stdio_job_taken(struct stdio_job *j, size_t n);

/* The sink, for the agent: takes a page. False: the sink has enough for now. */
bool stdio_job_add(struct stdio_job *j, const void *records, size_t n);
void stdio_job_begin(struct stdio_job *j, int nshown);
/* Whether a page has come, and the consoles have room. */
bool stdio_job_waits(struct stdio_job *j);
/* Shows the page. True: there is room again. */
bool stdio_job_take(struct stdio_job *j, uint64_t now_ns);

/* For source and sink. */
uint64_t stdio_job_due_ns(const struct stdio_job *j); /* of stdio_job_show(); 0: never */
void stdio_job_show(struct stdio_job *j, uint64_t now_ns);
void stdio_job_show_source(struct stdio_job *j,
                           uint64_t now_ns); /* all units that the fold holds */
/* Ends both, with the pump: shows all pages that are here, and those that have not gone to the
 * agent; streams end. */
void stdio_job_end(struct stdio_job *j, uint64_t now_ns);

#endif
