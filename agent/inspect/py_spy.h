/* py_spy.h: Python 3.8 to 3.10, and a 3.11 or 3.12 that python.h could not read, through an
 * installed py-spy, which reads without stopping (--nonblocking). Several run at once. */
#ifndef AGENT_INSPECT_PY_SPY_H
#define AGENT_INSPECT_PY_SPY_H

#include <stdbool.h>
#include <sys/types.h>

#include "agent/inspect/sample.h"

struct py_spy {
    pid_t pid; /* 0: not started */
    int fd;    /* py-spy's output */
};

/* $PYSPY_BIN; NULL: the one in PATH is taken. */
const char *py_spy_named(void);

/* Starts py-spy. False: py-spy cannot be started. */
bool py_spy_start(struct py_spy *p, int pid);

/* Waits for the end of py-spy, and adds the frames to the sample's threads. False: py-spy
 * failed. */
bool py_spy_finish(struct py_spy *p, struct sample *s);

#endif
