/* sampler.h: samples of this node's workers, taken by dlaunch-inspect (agent/inspect/lines.h) with
 * a deadline. Nothing is done before the first request. */
#ifndef AGENT_STACKS_SAMPLER_H
#define AGENT_STACKS_SAMPLER_H

#include <uv.h>

#include "agent/process/spawn.h"
#include "agent/inspect/lines.h"

#define SAMPLER_MS 1500 /* for all workers of a node */

struct sampler;

/* Borrows the loop, the spawner and the path of dlaunch-inspect; NULL: the one that belongs to this
 * program. */
struct sampler *sampler_new(uv_loop_t *loop, struct spawner *spawner, const char *program);

/* Takes samples of these workers. on_done is called once, later: with a sample of each, of which
 * one that could not be taken has only a note; it may take what is in *all. While samples are being
 * taken, a further call gets those that are under way. */
void sampler_take(struct sampler *s, const struct inspect_worker *w, size_t n,
                  void (*on_done)(void *arg, const struct samples *all), void *arg);

/* The process of dlaunch-inspect; 0: none runs. */
pid_t sampler_pid(const struct sampler *s);

/* Kills dlaunch-inspect and frees everything; on_done is not called any more. NULL: calls back at
 * once. */
void sampler_close(struct sampler *s, void (*on_closed)(void *arg), void *arg);

#endif
