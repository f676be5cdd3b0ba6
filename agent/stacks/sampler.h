/* sampler.h: samples of this node's workers, taken by a helper process (helper.h) with a deadline.
 * Nothing is done before the first request. */
#ifndef AGENT_STACKS_SAMPLER_H
#define AGENT_STACKS_SAMPLER_H

#include <uv.h>

#include "agent/process/spawn.h"
#include "agent/stacks/sample.h"

#define SAMPLER_MS 1500 /* for all workers of a node */

struct sampler;

struct sampler_worker {
    int rank, pid;
    bool recorded; /* its operations are, so that NCCL and PyTorch need not be asked */
};

/* Borrows the loop and the spawner. */
struct sampler *sampler_new(uv_loop_t *loop, struct spawner *spawner);

/* Takes samples of these workers. on_done is called once, later: with a sample of each, of which
 * one that could not be taken has only a note; it may take what is in *all. While samples are being
 * taken, a further call gets those that are under way. */
void sampler_take(struct sampler *s, const struct sampler_worker *w, size_t n,
                  void (*on_done)(void *arg, const struct samples *all), void *arg);

/* The helper's process; 0: none runs. */
pid_t sampler_pid(const struct sampler *s);

/* Kills the helper and frees everything; on_done is not called any more. NULL: calls back at once.
 */
void sampler_close(struct sampler *s, void (*on_closed)(void *arg), void *arg);

#endif
