/* dlcoll.h: collective operations between the workers of a job.
 *
 *     dlcoll_comm *comm;
 *     if (dlcoll_init(&comm, NULL) < 0) ...
 *     dlcoll_all_reduce(x, x, n, DLCOLL_F32, DLCOLL_SUM, comm, NULL, NULL);
 *     dlcoll_finalize(comm);
 *     dlcoll_destroy(comm);
 *
 * Results. Functions that return an int return 0 on success, a positive value for "in progress" and
 * a negative DLCOLL_E... on failure. dlcoll_last_error() then says whose fault it was and why, in
 * one line for people. The library never exits, never aborts, raises no signal (SIGPIPE included)
 * and writes nothing, unless DLCOLL_DEBUG=1 is in the environment: then it says what it does on
 * standard error.
 *
 * Counts are in elements of the given type; times are in milliseconds.
 *
 * Operations. Every rank of a communicator calls the same operations in the same order, with the
 * same count, type, reduction and root; only then do they meet. Ranks that call different ones get
 * DLCOLL_EMISMATCH with both calls in the text. A count of 0 is legal and does nothing. The
 * arguments `opts` and `work` may be NULL: default options, and the call returns when the operation
 * is complete on this rank (its buffers may then be reused). Buffers stay the caller's; the library
 * keeps no pointer to them after the operation.
 *
 * In place: send == recv. Buffers that overlap in another way are refused.
 *
 * Reductions are computed in an order that depends only on the ranks, the count and the type, never
 * on timing: every rank gets the same bits, and every run with as many ranks gets them again.
 *
 * After an operation has failed with anything but DLCOLL_EINVAL, DLCOLL_ENOSUP or DLCOLL_ENOMEM,
 * the contents of its receive buffer are undefined and the communicator is of no further use: every
 * later operation returns DLCOLL_ESTATE at once, and dlcoll_last_error() still has the cause.
 *
 * Threads. A communicator is used by one thread at a time: a second one that comes in meanwhile
 * gets DLCOLL_ESTATE. Different communicators may be used at the same time. A child made by fork()
 * may not use its parent's communicators (DLCOLL_ESTATE); it may destroy them.
 *
 * Structs begin with their size and a version, and are filled in by their initialiser macro, so
 * that a program keeps working with a later library and the other way round. */
#ifndef DLCOLL_H
#define DLCOLL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DLCOLL_API __attribute__((visibility("default")))
#else
#define DLCOLL_API
#endif

/* ------------------------------------------------------------------------------------- errors */

enum {
    DLCOLL_OK = 0,
    DLCOLL_INPROGRESS = 1,
    DLCOLL_EINVAL = -1,    /* an argument or an environment variable is wrong */
    DLCOLL_ESTATE = -2,    /* not now: used by another thread, failed before, in a fork()'s child */
    DLCOLL_ENOMEM = -3,    /* no memory; nothing was sent and the call may be repeated */
    DLCOLL_ENOSUP = -4,    /* this library, or this type with this reduction, cannot do it */
    DLCOLL_ETIMEDOUT = -5, /* some rank did not come in time */
    DLCOLL_EPEER = -6,     /* a rank has died or left */
    DLCOLL_EABORTED = -7,  /* the job was told to stop */
    DLCOLL_EMISMATCH = -8, /* ranks called different operations */
    DLCOLL_ENET = -9,      /* a rank cannot be reached, or this host is out of sockets */
    DLCOLL_EBACKEND = -10, /* a device library failed */
    DLCOLL_EINTERNAL = -11 /* a fault of this library */
};

/* The code as a short fixed text: "a rank has died or left". Never NULL. */
DLCOLL_API const char *dlcoll_strerror(int code);

typedef struct dlcoll_error {
    size_t size;
    uint32_t version;
    int32_t code;      /* DLCOLL_E..., or 0: nothing has failed */
    int32_t rank;      /* whose fault it was, on ETIMEDOUT who was waited for (and may itself wait
                          for a third); -1: unknown, or nobody in particular */
    int32_t pid;       /* of that rank on its host; 0: unknown */
    int32_t signal;    /* that ended it; 0: none, or unknown */
    int32_t exit_code; /* with which it exited; -1: it did not, or unknown */
    uint64_t seq;      /* which operation of the communicator, from 1; 0: none */
    char op[32];       /* its name, or "" */
    char host[256];    /* that rank's host, or "" */
    char text[512];    /* all of it as one line, without a newline */
} dlcoll_error;

#define DLCOLL_ERROR_VERSION 1
#define DLCOLL_ERROR_INIT                                                         \
    {                                                                             \
        sizeof(dlcoll_error), DLCOLL_ERROR_VERSION, 0, -1, 0, 0, -1, 0, {0}, {0}, \
        {                                                                         \
            0                                                                     \
        }                                                                         \
    }

/* ------------------------------------------------------------------------------------- handles */

typedef struct dlcoll_comm dlcoll_comm;   /* ranks that work together */
typedef struct dlcoll_work dlcoll_work;   /* an operation under way */
typedef struct dlcoll_store dlcoll_store; /* the job's key-value store */

/* ------------------------------------------------------------------------------ types, operations
 */

/* Values are NCCL's where NCCL has the type. */
typedef enum dlcoll_dtype {
    DLCOLL_I8 = 0,
    DLCOLL_U8 = 1,
    DLCOLL_I32 = 2,
    DLCOLL_U32 = 3,
    DLCOLL_I64 = 4,
    DLCOLL_U64 = 5,
    DLCOLL_F32 = 7,
    DLCOLL_F64 = 8
} dlcoll_dtype;

/* Values are NCCL's where NCCL has the operation. Integer sums and products wrap around. The
 * minimum or maximum of numbers with a NaN among them is a NaN. */
typedef enum dlcoll_op {
    DLCOLL_SUM = 0,
    DLCOLL_PROD = 1,
    DLCOLL_MAX = 2,
    DLCOLL_MIN = 3
} dlcoll_op;

/* Options of one operation. */
typedef struct dlcoll_opts {
    size_t size;
    uint32_t version;
    int64_t timeout_ms; /* 0: the communicator's; negative: none */
} dlcoll_opts;

#define DLCOLL_OPTS_VERSION 1
#define DLCOLL_OPTS_INIT                            \
    {                                               \
        sizeof(dlcoll_opts), DLCOLL_OPTS_VERSION, 0 \
    }

/* --------------------------------------------------------------------------------------- lifetime
 */

typedef struct dlcoll_init_opts {
    size_t size;
    uint32_t version;
    /* How long every operation may take: 0: DLCOLL_TIMEOUT from the environment ("30s", "10min";
     * a bare number is in seconds), without it 10 minutes; negative: no limit. */
    int64_t timeout_ms;
    /* How long dlcoll_init() waits for the other ranks; 0 and negative as above. */
    int64_t init_timeout_ms;
} dlcoll_init_opts;

#define DLCOLL_INIT_OPTS_VERSION 1
#define DLCOLL_INIT_OPTS_INIT                                    \
    {                                                            \
        sizeof(dlcoll_init_opts), DLCOLL_INIT_OPTS_VERSION, 0, 0 \
    }

/* Makes the communicator of all workers of the job. Every worker calls it. opts may be NULL.
 *
 *   - Started by dlaunch: rank, size, addresses and a listening socket come from the launcher; no
 *     message is exchanged. Only one such communicator may exist in a process at a time.
 *   - Else from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: the ranks meet through a TCPStore
 *     there, which rank 0 hosts in this process unless one is served there already
 *     (TORCHELASTIC_USE_AGENT_STORE=True: one surely is). Waits until all have come.
 *   - With none of them set: a world of one.
 *
 * One thread at a time may be in dlcoll_init().
 *
 * *comm is owned by the caller, who ends it with dlcoll_destroy(); it is NULL on failure, and
 * dlcoll_last_error(NULL, ...) has the reason. DLCOLL_EINVAL, ENOMEM, ESTATE, ETIMEDOUT, ENET. */
DLCOLL_API int dlcoll_init(dlcoll_comm **comm, const dlcoll_init_opts *opts);

/* Leaves in good order: waits until every rank has called it, so that nobody's leaving looks like a
 * death. No operation may follow. It is not needed before dlcoll_destroy() when a rank gives up.
 * Errors as of dlcoll_barrier(). */
DLCOLL_API int dlcoll_finalize(dlcoll_comm *comm);

/* Frees the communicator, in any state, at once: ranks that still wait for this one get
 * DLCOLL_EPEER. NULL is allowed. No other thread may be inside a call on it. */
DLCOLL_API void dlcoll_destroy(dlcoll_comm *comm);

/* Valid as long as the communicator is; DLCOLL_EINVAL for NULL. */
DLCOLL_API int dlcoll_rank(const dlcoll_comm *comm);       /* 0 <= rank < size */
DLCOLL_API int dlcoll_size(const dlcoll_comm *comm);       /* ranks in the communicator */
DLCOLL_API int dlcoll_local_rank(const dlcoll_comm *comm); /* among the workers of this node */

/* Why the last call on `comm` that failed did so; with NULL: why the last call of this thread that
 * had no communicator (dlcoll_init) did. Fills *out up to its size, which the caller has set
 * (DLCOLL_ERROR_INIT). out->code is 0 when nothing has failed. May be called from any thread while
 * no other one is inside a call on `comm`. 0, or DLCOLL_EINVAL. */
DLCOLL_API int dlcoll_last_error(const dlcoll_comm *comm, dlcoll_error *out);

/* ------------------------------------------------------------------------------------- operations
 *
 * Common errors: DLCOLL_EINVAL (NULL comm; NULL, overlapping or too long buffers; unknown type or
 * reduction; a root that is no rank), ENOSUP (work is not NULL: this version only blocks), ESTATE,
 * ENOMEM, ETIMEDOUT, EPEER, EABORTED, EMISMATCH, ENET, EINTERNAL. */

/* recv[i] = send[i] of rank 0 op send[i] of rank 1 op ..., on every rank.
 * send, recv: count elements. In place when send == recv. */
DLCOLL_API int dlcoll_all_reduce(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                                 dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                                 dlcoll_work **work);

/* recv = send of rank `root`, on every rank.
 * send: count elements on the root, ignored elsewhere. recv: count elements on every rank; on the
 * root it may be send itself. */
DLCOLL_API int dlcoll_broadcast(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                                int root, dlcoll_comm *comm, const dlcoll_opts *opts,
                                dlcoll_work **work);

/* Returns when every rank has called it. */
DLCOLL_API int dlcoll_barrier(dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);

#ifdef __cplusplus
}
#endif

#endif
