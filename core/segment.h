/* segment.h: what the agent prepares for the workers of one round and hands down by descriptor, so
 * that dlcoll_init() under dlaunch needs no network round trip.
 *
 * The segment is a memfd, made anew for each round, sealed against resizing, inherited by every
 * worker of the node. The environment says where things are (dlaunch(1), ENVIRONMENT):
 *     DLAUNCH_SEGMENT_FD  the segment
 *     DLAUNCH_LISTEN_FD   this worker's listening data socket
 * Both sides are one build of one version; `magic`, `version` and `total_bytes` are checked all the
 * same, and every offset and count is checked against total_bytes before it is used: whoever has
 * the descriptor may have written to it.
 *
 * Layout: header, then nodes[nnodes], then ports[world_size], then local[nlocal], then `heap`: room
 * for the collectives, theirs to lay out. Written once by the agent before the first worker starts,
 * except: the abort record (agent), local[i] (worker i, and the agent its `exited`),
 * exit_word_count, warned and heap (workers). */
#ifndef CORE_SEGMENT_H
#define CORE_SEGMENT_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/protocols.h"

#include "core/bell.h"

#define SEGMENT_MAGIC   0x31474553u /* "SEG1" */
#define SEGMENT_VERSION PROTOCOL_SEGMENT

#define SEGMENT_ENV_FD     "DLAUNCH_SEGMENT_FD"
#define SEGMENT_ENV_LISTEN "DLAUNCH_LISTEN_FD"

/* The reason for which operations under way must end now. `word` is 0 while all is well; the agent
 * fills in the rest first, then stores 1 to `word` with release order and wakes `word` as a futex.
 * Every wait loop reads it. */
struct segment_abort {
    _Atomic uint32_t word;
    int32_t rank;   /* the rank that died or failed; -1: no single rank */
    int32_t pid;    /* the pid of the rank's process on its host; 0: unknown */
    int32_t signal; /* the signal that ended the process, or 0 */
    int32_t exit_code;
    char host[256];
    char text[488]; /* one line, as the report says it */
};

struct segment_node {
    char host[64]; /* for people; longer names are cut */
    char addr[64]; /* textual IP address of the data sockets */
    int32_t base_rank;
    int32_t nproc;
};

enum segment_local_state {
    SEGMENT_LOCAL_NEW,    /* not in dlcoll_init yet */
    SEGMENT_LOCAL_READY,  /* in the program */
    SEGMENT_LOCAL_CALL,   /* inside an operation */
    SEGMENT_LOCAL_FAILED, /* an operation returned an error; cause_rank says whose fault, or -1 */
    SEGMENT_LOCAL_DONE,   /* finalized */
};

/* One operation in a worker's flight recorder. Texts are padded with NULs, and terminated. */
struct segment_op {
    _Alignas(128) _Atomic uint64_t number; /* from 1; 0: empty; UINT64_MAX: being written */
    uint64_t group;                        /* the communicator; 0: that of all workers */
    uint64_t seq;                          /* of the communicator's operations */
    uint64_t count, bytes;
    uint64_t start_ns;       /* CLOCK_MONOTONIC */
    _Atomic uint64_t end_ns; /* 0: under way */
    _Atomic int32_t result;  /* once the operation has ended */
    int32_t peer;            /* the root or peer of the operation; -1: none */
    char op[20], dtype[8], reduction[12], group_name[20];
    uint32_t device; /* enum segment_op_device */
};

/* Operations on device memory are not ordered with operations on host memory. */
enum segment_op_device {
    SEGMENT_OP_HOST,
    SEGMENT_OP_DEVICE,   /* the host's times: from the call until enqueued or done */
    SEGMENT_OP_ENQUEUED, /* not begun by the device; start_ns: of the call
                          */
    SEGMENT_OP_BEGUN,    /* the times are the device's */
};

#define SEGMENT_OPS              16 /* that are kept of each worker */
#define SEGMENT_EXIT_MUTEX_BYTES 56

/* One worker's own line, read by the agent and the other workers, written by that worker alone
 * except for the fields marked as the agent's. */
struct segment_local {
    _Alignas(128) _Atomic uint32_t state;
    _Atomic int32_t cause_rank;
    _Atomic int32_t cause_code; /* DLCOLL_E..., of the failure */
    _Atomic int32_t pid;
    _Atomic uint64_t seq;  /* operations of the communicator of all workers that were started */
    _Atomic uint64_t nops; /* operations recorded; number n is, or was, in ops[n % SEGMENT_OPS] */
    /* The number of threads that sleep in a poll of the listening socket. A thread counts itself
     * before its last look at the abort word; the agent raises the abort word before it reads this
     * number. */
    _Atomic uint32_t polling;
    /* The agent's: the worker has ended with status 0. The abort record does not report such an
     * end, which harms only ranks that wait for the worker; these ranks read this field now and
     * then. */
    _Atomic uint32_t exited;
    /* A robust mutex that the worker has locked for good, and the offset in the mutex of the word
     * that the kernel marks with FUTEX_OWNER_DIED when the worker begins to end; 0: not locked yet.
     * The agent can reap the process only when the kernel has freed all its memory, 100 ms for each
     * GB. */
    _Atomic uint32_t exit_notify_word; /* 1 + the offset of the word */
    _Atomic uint32_t worlds;           /* that have been made, by one process or several in turn */
    _Atomic uint32_t settings; /* 1 + the settings of the worker's calls (op_signature.h); 0: not in
                                  dlcoll_init() yet */
    /* The agent's: whether the worker has to count its time in operations, and to read exact
     * times. */
    _Atomic uint32_t watched;
    /* Nanoseconds that the worker has spent in operations, less the beginning (CLOCK_MONOTONIC) of
     * each call that the worker is in now: negative while there is such a call. */
    _Atomic int64_t waited_ns;
    _Alignas(8) unsigned char exit_mutex[SEGMENT_EXIT_MUTEX_BYTES];
    struct bell bell; /* the bell of the worker's progress thread, rung by the other workers */
    /* Calls of NCCL of whose operations the profiler plug-in is not told: they may be under way. */
    _Atomic uint32_t hidden;
    struct segment_op ops[SEGMENT_OPS];
};

struct segment_header {
    uint32_t magic, version;
    uint64_t total_bytes;
    uint64_t epoch; /* the round's generation */
    uint32_t counter;
    int32_t nnodes, world_size;
    int32_t group_rank;  /* of this node */
    int32_t nlocal;      /* workers on this node */
    int32_t base_rank;   /* global rank of local rank 0 */
    int32_t usable_cpus; /* affinity and cgroup quota of this node's agent */
    uint64_t off_nodes, off_ports, off_local, off_heap; /* from the start of the segment */
    uint64_t heap_bytes;
    _Atomic uint32_t exit_word_count; /* rises with each exit_notify_word; woken by the last worker,
                                         and to end */
    _Atomic uint32_t warned;          /* enum segment_warning: what this node has been warned of */
    struct segment_abort abort;
};

/* Warnings that are printed once on each node, by the process that finds the cause first. */
enum segment_warning {
    SEGMENT_WARNED_NCCL_TWICE = 1,
    SEGMENT_WARNED_COMPUTE_MODE = 2,
    SEGMENT_WARNED_MEMLOCK = 4,
};

#endif
