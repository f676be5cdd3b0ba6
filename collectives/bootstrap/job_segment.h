/* job_segment.h: the segment that the agent has prepared (core/segment.h), as a worker reads it.
 *
 * Whoever has the descriptor may have written to it: what the worker relies on is checked and
 * copied once at the start, and what it reads later is copied out and bounded. */
#ifndef COLLECTIVES_BOOTSTRAP_JOB_SEGMENT_H
#define COLLECTIVES_BOOTSTRAP_JOB_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/segment.h"

struct job_segment {
    uint8_t *base; /* mapped, shared; NULL: there is none */
    size_t bytes;
    struct segment_header header; /* as it was when it was checked */
};

/* Maps and checks. fd stays the caller's. -EINVAL with a text when it is not such a segment. */
int job_segment_init(struct job_segment *s, int fd, struct err *e);
void job_segment_fini(struct job_segment *s);

/* A copy of the node's row, its texts terminated. 0 <= node < nnodes. */
void job_segment_node(const struct job_segment *s, int node, struct segment_node *out);
int job_segment_node_of(const struct job_segment *s, int rank); /* 0 <= rank < world_size */
int job_segment_port(const struct job_segment *s, int rank);

/* The line of a worker of this node; NULL when the rank is on another one. */
struct segment_local *job_segment_local(const struct job_segment *s, int rank);

/* The word that the agent waits on until a worker has set `exit_notify_word`. */
_Atomic uint32_t *job_segment_exit_word_count(const struct job_segment *s);

/* The warnings that this node has printed; NULL without a segment. */
_Atomic uint32_t *job_segment_warned(const struct job_segment *s);

/* The word in the abort record that is 0 while all is well. */
const _Atomic uint32_t *job_segment_abort_word(const struct job_segment *s);
/* A copy of the record, its texts terminated. False while the word is 0. */
struct job_abort {
    int rank, pid, signal, exit_code;
    char host[256];
    char text[488];
};
bool job_segment_aborted(const struct job_segment *s, struct job_abort *out);

#endif
