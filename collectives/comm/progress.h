/* progress.h: the one thread of a process that carries on what programs do not wait for. It runs
 * the tasks (task.h) of all communicators, and sleeps when none is ready, on what may ring for
 * them:
 *
 *     other processes  the bell of this rank, in memory that the node's ranks share (job.h)
 *     this process     task_ring()
 *     the launcher     its abort word, a futex
 *     sockets          epoll; while tasks wait for those and for shared memory, the thread looks at
 *                      the bells each millisecond
 *
 * So waiting costs nothing, however many tasks are parked. Each 10 ms (100 ms where a launcher runs
 * all ranks on one node), while tasks are parked, the thread accepts connections and looks whether
 * processes of this node have ended; then all tasks look for themselves.
 *
 * The thread starts with the first task of a process and ends with the last job that had one. */
#ifndef COLLECTIVES_COMM_PROGRESS_H
#define COLLECTIVES_COMM_PROGRESS_H

#include "collectives/base/task.h"

struct job;

/* Hands the task, whose `run` and `arg` are set, to the thread. 0, also if it has it already, or
 * -ENOMEM. */
int progress_join(struct job *job, struct task *t);
/* Waits until the task has returned, and takes it back. */
void progress_leave(struct task *t);

#endif
