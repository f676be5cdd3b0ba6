/* remote.h: dlaunch --from_head: one host's part of a job that dlaunch -H has started elsewhere.
 *
 * A process of its own ("dl-host") stands between the head and the launcher proper, which is its
 * child: it hands the plan down, and carries input, output, signals and the end (frame.h). It holds
 * no policy. When standard input ends or breaks, the head is gone, and the launcher is told to stop
 * and killed GRACE_MS later; its guardian and agent see to the rest. When this process is killed,
 * the kernel kills the launcher.
 *
 * The daemon (serve.h) forks such a process, too: then standard input and output are a socket. */
#ifndef LAUNCHER_HOSTS_REMOTE_H
#define LAUNCHER_HOSTS_REMOTE_H

#include "launcher/hosts/host_stream.h"

/* The message by which the launcher reports that a coordinator has sent the job's result: epoch and
 * counter. */
#define REMOTE_DECIDED "X_DLAUNCH_DECIDED=%llx.%u"

/* The launcher of such a host has these besides its options. */
struct remote_job {
    int log_fd;    /* takes dlaunch's own lines (log_set_fd()) */
    int state_fd;  /* takes what systemd would be told, and REMOTE_DECIDED */
    int report_fd; /* takes the report for people */
    int columns;   /* of the terminal that it goes to, which may have colours; 0: it is none */
    char *const *programs; /* for programs_take() */
    const char *inspect;   /* as in job_spec */
    int listen_fd;         /* the rendezvous listens on this socket; 0: on one of its own */
};

/* A head that has connected to the daemon. */
struct remote_head {
    struct host_stream stream; /* the handshake is over */
    char here[64], there[64];  /* the addresses of the connection */
};

/* head: at the other end of the socket that standard input and output are; NULL: they are pipes.
 * launch: runs a job in this process, as the command line says. Returns the exit status. */
int remote_main(const struct remote_head *head,
                int (*launch)(const struct remote_job *job, int argc, char **argv));

#endif
