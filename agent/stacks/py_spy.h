/* py_spy.h: Python 3.8 to 3.10, and a 3.11 or 3.12 that python.h could not read, through an
 * installed py-spy, which reads without stopping (--nonblocking). Several run at once. */
#ifndef AGENT_STACKS_PY_SPY_H
#define AGENT_STACKS_PY_SPY_H

#include <stdbool.h>
#include <sys/types.h>

#include "agent/stacks/sample.h"

struct py_spy {
    pid_t pid; /* 0: not started */
    int fd;    /* its output */
};

/* $PYSPY_BIN, else py-spy in PATH; NULL: there is none. */
const char *py_spy_path(void);

bool py_spy_start(struct py_spy *p, const char *path, int pid);

/* Waits for its end, and adds the frames to the sample's threads. False: it failed. */
bool py_spy_finish(struct py_spy *p, struct sample *s);

#endif
