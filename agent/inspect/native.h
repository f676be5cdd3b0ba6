/* native.h: the stacks of a program in C or C++.
 *
 * A thread that sleeps is not touched: where it entered the kernel stands in /proc, and its stack
 * is copied while it sleeps. A thread that runs, or whose stack cannot be followed from there, is
 * stopped by ptrace for as long as it takes to copy its registers and the top of its stack, tens of
 * microseconds, and unwound afterwards. */
#ifndef AGENT_INSPECT_NATIVE_H
#define AGENT_INSPECT_NATIVE_H

#include "agent/inspect/sample.h"

/* Adds frames to the sample's threads that have none. Sets s->stopped_us, and s->note if there is
 * less than there could be. */
void native_read(struct sample *s);

#endif
