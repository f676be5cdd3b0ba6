/* kernel_side.h: what /proc says of a process and its threads: state, kernel function, system call,
 * CPU time, bytes. */
#ifndef AGENT_INSPECT_KERNEL_SIDE_H
#define AGENT_INSPECT_KERNEL_SIDE_H

#include "agent/inspect/sample.h"

/* The system call of a thread that was stopped while it slept: which one it was is not known. */
#define KERNEL_SIDE_RESTARTED "restarted call"

/* Adds the threads of s->pid, the main thread first, and the process's numbers. False: there is no
 * such process, or it is a zombie. */
bool kernel_side_read(struct sample *s);

/* The place of a process's main thread at this moment. */
enum kernel_side_place {
    KERNEL_SIDE_CPU,
    KERNEL_SIDE_DATA, /* the thread sleeps: state D, or a system call that is not about a socket */
    KERNEL_SIDE_NETWORK, /* in a system call of a socket */
    KERNEL_SIDE_PLACES,
    KERNEL_SIDE_UNKNOWN, /* the process has ended, or is stopped */
};
/* `call`, of SAMPLE_TEXT_MAX bytes: the call in which the thread sleeps, "read of a pipe"; "". */
enum kernel_side_place kernel_side_place(int pid, char *call);

/* The CPU time of all threads of a process; 0: there is none. */
uint64_t kernel_side_cpu_ms(int pid);

#endif
