/* top_asks.h: the questions of dlaunchctl top to all nodes of the job. The asking node sends a
 * request by way of the coordinator; every node answers with the rows of its own workers, and the
 * launchers between them add the rows up, so that what arrives is as small as the screen. */
#ifndef AGENT_REPORT_TOP_ASKS_H
#define AGENT_REPORT_TOP_ASKS_H

#include <uv.h>

#include "agent/report/top_rows.h"
#include "core/uvx.h"
#include "rendezvous/rules/rdzv_msg.h"

#define TOP_WAIT_MS 1500 /* for the answers of all nodes */

struct top_asks;

struct top_callbacks {
    void *arg;
    void (*own)(void *arg, struct top_rows *rows);            /* adds those of this node */
    bool (*request)(void *arg, const struct rdzv_request *r); /* false: no coordinator */
    void (*answer)(void *arg, const struct rdzv_answer *a);
};

/* The handles are the scope's to close. */
struct top_asks *top_asks_new(uv_loop_t *loop, struct uvx_scope *scope,
                              const struct top_callbacks *cb);

/* Asks nnodes nodes. on_done is called once, from the loop: with what has come, when all have
 * answered or the time is up, and `complete` if they have. After top_asks_stop(): with NULL, at
 * once. */
void top_ask(struct top_asks *t, int nnodes, size_t most,
             void (*on_done)(void *arg, const struct top_rows *rows, bool complete), void *arg);

/* An answer: u32, for how many rows of nodes and of ranks it was asked, 0: all, and the rows. */
void top_answer_encode(struct buf *b, uint32_t most, const struct top_rows *rows);
bool top_answer_decode(struct rd *r, uint32_t *most, struct top_rows *rows); /* adds to *rows */

/* Answers a question of some node for the rows of this node. */
void top_on_request(struct top_asks *t, const struct rdzv_request *r);
void top_on_answer(struct top_asks *t, const struct rdzv_answer *a);

/* Adds the rows of several answers up. False: one is malformed, or they are together too long. */
bool top_merge(const struct rdzv_answers *answers, struct buf *out);

/* on_done of all that is under way is called with NULL now. NULL is allowed. */
void top_asks_stop(struct top_asks *t);
void top_asks_free(struct top_asks *t); /* the scope is closed; NULL is allowed */

#endif
