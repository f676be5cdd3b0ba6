/* python.h: the stacks of a Python program, read from outside while it runs: nothing is stopped, no
 * lock is taken, the program is not asked.
 *
 * Python 3.13 and later publish where their fields are, in the section .PyRuntime of the
 * interpreter, for readers like this one (cpython, Include/internal/pycore_debug_offsets.h; that
 * table's own layout belongs to a minor version: 3.13, 3.14). Of 3.11 and 3.12 this reader knows
 * where they are. 3.8 to 3.10 are left to py-spy. */
#ifndef AGENT_INSPECT_PYTHON_H
#define AGENT_INSPECT_PYTHON_H

#include <stdbool.h>

#include "agent/inspect/sample.h"

enum python_kind {
    PYTHON_NONE,     /* not a Python program */
    PYTHON_READABLE, /* the interpreter publishes its offsets, in a known layout */
    PYTHON_FIXED,    /* 3.11 and 3.12 */
    PYTHON_OLD,      /* 3.8 to 3.10 */
    PYTHON_OTHER,    /* a version that this reader does not know */
};

struct python {
    enum python_kind kind;
    int major, minor; /* 0: not known */
    uint64_t runtime; /* READABLE, FIXED: address of the section, which may have a table */
};

void python_find(int pid, struct python *out);

/* Adds the Python frames of its threads, which are in the sample. Returns how many threads got
 * some; 0: it has none yet, or its memory cannot be read. */
int python_read(const struct python *py, struct sample *s);

#endif
