/* warm_pool.h: Python interpreters that have imported what the program imports first, and become
 * the workers of the next round (--warm).
 *
 * The first interpreter is spawned when a round runs; for a PyTorch program before the first one,
 * whose workers then share its memory. If what it has imported can be forked and
 * does not depend on the rank, it makes a child for each worker of the node; the children are
 * forked twice, so that they are this process's, a subreaper's, own. Else one interpreter is
 * spawned for each worker. All of them hold a socket to this process and nothing of a round: they
 * end when the socket is closed. warm_pool.py is what they run.
 *
 *   an interpreter dies, or an import fails    no warm starts in this job; a line of --verbose
 *   it dies later, or a file has changed       the next round spawns another one
 *   an interpreter is missing or dead          the worker is spawned
 *   a variable or file differs at the start    the interpreter executes the command
 */
#ifndef AGENT_PROCESS_WARM_POOL_H
#define AGENT_PROCESS_WARM_POOL_H

#include "agent/base/feature.h"

extern const struct feature warm_feature;

#endif
