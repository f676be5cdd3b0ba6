/* torch_recorder.h: what PyTorch's flight recorder says of a worker's operations, where the user
 * has set TORCH_NCCL_DEBUG_INFO_PIPE_FILE: the worker writes a dump when a byte comes through that
 * pipe, within a second or so, by a thread of its own. dlaunch asks for a dump when samples are
 * taken; the dump serves the next samples. */
#ifndef AGENT_INSPECT_TORCH_RECORDER_H
#define AGENT_INSPECT_TORCH_RECORDER_H

#include "agent/inspect/sample.h"

#define TORCH_RECORDER_FRESH_S 3 /* an older dump does not describe the present */

/* The operation in a dump that the worker waits in, the oldest that has not ended, else its newest
 * one. now_ns: CLOCK_REALTIME. False: it has none, or cannot be read. */
bool torch_recorder_parse(const void *dump, size_t len, uint64_t now_ns, struct sample_op *out);

/* The same of the dump in a file, of whatever age. */
bool torch_recorder_read(const char *path, struct sample_op *out);

/* Puts the operation of a fresh dump into the sample of a process with that environment, or asks
 * for a dump. */
void torch_recorder_look(const char *environment, struct sample *s);

#endif
