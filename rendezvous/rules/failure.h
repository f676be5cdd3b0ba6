/* failure.h: the record of how one worker (or one node) ended, sent by agents to the coordinator
 * and shown in reports.
 *
 * Plain values; encode and decode are exact inverses. Text fields are truncated by their writers
 * with
 * "..." where that can happen, never by the codec: a longer one is a malformed message. */
#ifndef RENDEZVOUS_RULES_FAILURE_H
#define RENDEZVOUS_RULES_FAILURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"

enum failure_kind {
    FAILURE_EXIT, /* the worker exited with a code other than 0, or early with 0: before the others
                     of a round that failed */
    FAILURE_SIGNAL,  /* a signal that dlaunch did not send ended the worker */
    FAILURE_EXEC,    /* the program could not be started: exit_code is 125, 126 or 127 */
    FAILURE_STOPPED, /* dlaunch stopped the worker, after another failure or on request */
    FAILURE_NODE,    /* a whole node was lost: its launcher ended or fell silent; rank is -1 */
    FAILURE_KINDS,
};

#define FAILURE_HOST_MAX    256
#define FAILURE_ROLE_MAX    64
#define FAILURE_MESSAGE_MAX 2048
#define FAILURE_PATH_MAX    1024
#define FAILURE_TAIL_MAX    4096
#define FAILURE_OP_MAX      96

struct failure {
    enum failure_kind kind;
    int rank;       /* global rank; -1 for FAILURE_NODE */
    int local_rank; /* -1 for FAILURE_NODE */
    int node;       /* group rank of its node */
    int pid;        /* of the worker, or of the lost launcher */
    int attempt;    /* the restart count at the worker's start; of a node, the job's */
    int exit_code;  /* FAILURE_EXIT, FAILURE_EXEC */
    int signal;     /* FAILURE_SIGNAL; FAILURE_STOPPED when a signal ended it, else 0 */
    bool core_dumped;
    bool oom;      /* the kernel killed the worker for memory (from the cgroup's events) */
    bool mismatch; /* libdlcoll: other ranks called another operation than `operation` */
    bool gpu;      /* its GPU, or a link of it, failed while it ran: it ended because of that */
    bool says_how; /* FAILURE_EXIT: the first line of `message` says what it did, and not the exit
                      code: "called MPI_Abort with code 7" */
    int caused_by; /* the rank whose death it was a consequence of, as libdlcoll recorded; -1
                      unknown */

    /* The time at which the agent saw the failure. On the way to the coordinator seen_ns is a time
     * of that node's monotonic clock; the coordinator converts seen_ns to its own clock, by the
     * offset that it has measured, before it orders failures by seen_ns. */
    uint64_t seen_ns;
    uint64_t wall_ns; /* for display */

    char host[FAILURE_HOST_MAX];
    char role[FAILURE_ROLE_MAX];
    char operation[FAILURE_OP_MAX]; /* the last one that the worker began, of libdlcoll or by a dump
                                       of PyTorch; "": none */
    char message[FAILURE_MESSAGE_MAX];  /* the error file's message, or why exec failed; may hold \n
                                         */
    char log_path[FAILURE_PATH_MAX];    /* the worker's stderr file, or "" */
    char stderr_tail[FAILURE_TAIL_MAX]; /* the last lines of the worker's stderr; may hold \n */
};

/* A zeroed record with the "unknown" values set: rank -1, local_rank -1, caused_by -1. */
void failure_init(struct failure *f);

void failure_encode(struct buf *b, const struct failure *f);
bool failure_decode(struct rd *r, struct failure *f); /* false: malformed */

/* One line: "worker 5 (local rank 1) on node-b was killed by SIGSEGV". Text that the worker or its
 * node wrote is in it as it came. Returns out. */
#define FAILURE_TEXT_MAX 512
const char *failure_describe(const struct failure *f, char *out, size_t cap);

/* The features by which a failure is recognised as a repetition of another one, on whatever rank
 * and node: how the worker ended, and the last line of its stderr without the numbers in that
 * line. */
struct failure_likeness {
    enum failure_kind kind;
    int code, signal;
    bool oom, mismatch;
    uint64_t line; /* a digest */
};
struct failure_likeness failure_likeness(const struct failure *f);
bool failure_likeness_equal(const struct failure_likeness *a, const struct failure_likeness *b);

/* The worker exited with 0 while others did not. */
static inline bool failure_is_early_exit(const struct failure *f)
{
    return f->kind == FAILURE_EXIT && f->exit_code == 0 && !f->says_how;
}

/* The index of the record of the one rank whose operation differs from that of all the others,
 * which are equal and more than one; -1: there is no such rank. */
int failure_odd_one(const struct failure *f, size_t n);

/* The exit status that the job takes from it: exit code, 128+signal, 1 for a lost node. */
int failure_exit_status(const struct failure *f);

/* The index of the failure that came first, among n > 0 records of one round whose seen_ns are on
 * one clock. Not simply the earliest: two agents see two deaths with different delay, so a death
 * that is known to be a consequence (caused_by) never wins over its cause, FAILURE_STOPPED never
 * wins, an early exit with 0 only if another record names it as its cause, a failed GPU wins over
 * whatever was seen before it, because others wait for its rank until they fail, and a fatal fault
 * (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGKILL, out of memory), an exec failure or a lost node wins
 * over a plain exit or SIGABRT/SIGPIPE seen at most FAILURE_SKEW_NS before it: those are what
 * survivors do when a peer has gone. */
#define FAILURE_SKEW_NS 50000000u
size_t failure_first(const struct failure *f, size_t n);

/* Fills order[0..n-1] with the indexes of the records, the most informative first: the first
 * cause, hard faults, other failures, known consequences, then those that were stopped; each group
 * in the order of time. What does not fit into a report is cut from its end. */
void failure_order(const struct failure *f, size_t n, size_t *order);

#endif
