/* bootstrap.h: the ways in which a worker learns of its world. Each fills in *w, which is zeroed
 * but for listen_fd (-1), made and instance, and leaves what it has opened in it: the caller ends
 * it with world_fini() on failure too. */
#ifndef COLLECTIVES_BOOTSTRAP_BOOTSTRAP_H
#define COLLECTIVES_BOOTSTRAP_BOOTSTRAP_H

#include "core/err.h"

struct world;
struct world_opts;

/* Reads the world from the launcher's segment and sockets: DLAUNCH_SEGMENT_FD, DLAUNCH_LISTEN_FD,
 * LOCAL_RANK. Sends nothing. -EBUSY: another communicator of this process is using it. */
int bootstrap_segment(struct world *w, struct err *e);
void bootstrap_segment_leave(struct world *w); /* nothing when *w has no segment */

/* For ranks without a launcher, which publish themselves in a store, by the way that the options or
 * the environment name. */
int bootstrap_store(struct world *w, const struct world_opts *o, struct err *e);

#endif
