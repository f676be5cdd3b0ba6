/* rdzv.h: how the agents of a job's nodes meet, and what they report to each other afterwards.
 *
 * One object per agent. It finds the coordinator (or becomes it: then this process also serves the
 * workers' store, on the same listener), joins, and from there on is pushed everything: the rank
 * table of each round, every failure, every stop. Nothing is polled.
 *
 *     rdzv_open --> on_prepare --> rdzv_prepared --> on_run --> rdzv_done ......> on_finish
 *                   ^                                  |
 *                   |                 rdzv_failed, or another node --> on_stop
 *                   |                                                     |
 *                   +----------------------- rdzv_stopped <---------------+
 *                                                 |
 *                                                 +--> (the job is over) .......> on_finish
 *
 * All functions and callbacks are on the loop's thread. A callback is never called from inside a
 * function of this header. on_finish is called once, and only when the agent has reported that none
 * of its workers is alive (or never started any); after it only rdzv_get_info(),
 * rdzv_events_changed(), rdzv_close() and then rdzv_hurry() may be called.
 *
 * The process has SIGPIPE blocked or ignored. When it ends without waiting for the loop, it does so
 * with _exit(2): a name server that does not answer would hold up exit(3), which joins libuv's
 * pool.
 */
#ifndef RENDEZVOUS_RDZV_H
#define RENDEZVOUS_RDZV_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "core/bytes.h"
#include "core/err.h"
#include "rendezvous/discovery/rdzv_config.h"
#include "rendezvous/rdzv_callbacks.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_types.h"

struct rdzv;

/* Starts to join. 0, or an error for what can be known at once (a bad --interface, a port in use
 * when this node must host). Says by log_notice(), every few seconds, who is here and who is
 * missing. */
int rdzv_open(struct rdzv **out, uv_loop_t *loop, const struct rdzv_config *config,
              const struct rdzv_callbacks *callbacks, struct err *e);

/* Answers on_prepare: ports[i] is worker i's data port, or 0. Borrows for the call. */
void rdzv_prepared(struct rdzv *r, const uint16_t *ports, int n);

/* A worker of the running round has failed. Call at once, with what is known at once (no tail, no
 * error file); the agent begins to stop its other workers without waiting for the answer, unless
 * the policy is RESTART_WORKER. Borrows for the call. */
void rdzv_failed(struct rdzv *r, const struct failure *f);

/* To be called when every worker of this node has exited with 0. */
void rdzv_done(struct rdzv *r);

/* To be called when no worker of the round is alive on this node. `all` has a full record of each
 * worker that did not exit with 0, those stopped by dlaunch included. Borrows for the call. */
void rdzv_stopped(struct rdzv *r, const struct failure *all, size_t n);

/* This launcher was told to stop (STOP_SIGNAL, STOP_TIMEOUT, STOP_REQUEST) or cannot go on
 * (STOP_INTERNAL); the agent is stopping its workers already and calls rdzv_stopped() after. The
 * other nodes go on without it when enough are left (not on STOP_TIMEOUT, STOP_REQUEST and
 * STOP_TIME_LIMIT, nor if it has the coordinator); else the job ends with exit_code. */
void rdzv_leave(struct rdzv *r, enum stop_reason reason, int exit_code, const char *text);

/* Asks all nodes, or the one that a REQUEST_MODEX is for; on_request comes here, too, if that is
 * this one. False: no coordinator is in reach. */
bool rdzv_request(struct rdzv *r, const struct rdzv_request *request);

/* Answers a request, on_answer comes on the node that made it. Lost without a coordinator. Borrows
 * for the call. */
void rdzv_answer(struct rdzv *r, const struct rdzv_answer *answer);

/* Begins an all-gather over the nodes of the round that runs, which all nodes call as often:
 * on_gathered brings the values, unless the round ends before. One at a time. Borrows for the call.
 */
void rdzv_gather(struct rdzv *r, const void *value, size_t len);

/* Output of this node's workers for the console of the job: on_output brings it on the node of the
 * coordinator, once and in its order, before anything that this node says afterwards. Takes the
 * content. */
void rdzv_output(struct rdzv *r, struct buf *output);
/* on_output may be called again. */
void rdzv_output_room(struct rdzv *r);

/* The log in the callbacks has changed. Cheap if nobody in the job wants events. */
void rdzv_events_changed(struct rdzv *r);

/* The port on 127.0.0.1 at which the workers of this node reach the store; 0: they reach the store
 * at the table's MASTER_ADDR. */
int rdzv_relay_port(const struct rdzv *r);

void rdzv_get_info(const struct rdzv *r, struct rdzv_info *out);

/* The process ends right after this, without its loop, and none of its workers is alive: lets the
 * other nodes know at once. Nothing but _exit() may follow. */
void rdzv_abandon(struct rdzv *r);

/* Leaves and frees everything, then calls back. Not before on_finish unless the process ends
 * anyway. */
void rdzv_close(struct rdzv *r, void (*on_closed)(void *arg), void *arg);

/* To be called between rdzv_close() and its callback: limits the wait for nodes that do not take
 * the result to one more second. */
void rdzv_hurry(struct rdzv *r);

#endif
