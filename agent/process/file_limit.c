#include "agent/process/file_limit.h"

#include <errno.h>
#include <sys/resource.h>

#define OWN_DESCRIPTORS 26 /* at least: of the agent itself, on one node */

static int descriptors_of_worker(const struct job_spec *job, int i)
{
    uint8_t files = job->redirects[i] | job->tee[i];
    int data_socket = job->rdzv.restart_policy == RESTART_WORKER; /* else closed after the start */
    data_socket += job->rdzv.mpi != MPI_NONE;
    return 1 + 2 + !!(files & STD_OUT) + !!(files & STD_ERR) + data_socket; /* pidfd, two pipes */
}

int file_limit_raise(const struct job_spec *job, struct err *e)
{
    struct rlimit r;
    rlim_t need = OWN_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return 0;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    for (int i = 0; i < job->nproc; i++)
        need += (rlim_t)descriptors_of_worker(job, i);
    if (r.rlim_cur >= need)
        return 0;
    return err_set(e, -EMFILE,
                   "%d worker%s need%s %llu open files, and the hard limit is %llu (ulimit -Hn)",
                   job->nproc, job->nproc == 1 ? "" : "s", job->nproc == 1 ? "s" : "",
                   (unsigned long long)need, (unsigned long long)r.rlim_cur);
}
