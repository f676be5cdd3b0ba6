/* dlcoll.h: collective operations between the workers of a job.
 *
 *     dlcoll_comm *comm;
 *     if (dlcoll_init(&comm, NULL) < 0) ...
 *     dlcoll_all_reduce(x, x, n, DLCOLL_F32, DLCOLL_SUM, comm, NULL, NULL);
 *     dlcoll_finalize(comm);
 *     dlcoll_destroy(comm);
 *
 * Results. Functions that return an int return 0 on success, a positive value for "in progress" and
 * a negative DLCOLL_E... on failure. dlcoll_last_error() then names the rank at fault and the
 * reason in one line for people. The library never exits, aborts or raises a signal (SIGPIPE
 * included). On standard error it prints one line when dlcoll_init() has waited 10 s for other
 * ranks; with DLCOLL_DEBUG=1 in the environment it logs there.
 *
 * Counts are in elements of the given type; times are in milliseconds.
 *
 * Operations. Every rank of a communicator must call the same operations in the same order, with
 * the same count, type, reduction and root. Ranks that call different ones get DLCOLL_EMISMATCH.
 * The error's text has both calls and, where most ranks agree on one, names the rank that does not;
 * the library asks the ranks for that, for at most a second. A rank that waits for no other rank
 * (it only sends, or its count is 0) gets DLCOLL_EMISMATCH in the next operation in which all ranks
 * wait for all others.
 *
 * A count of 0 is legal and does nothing; the call need not be made on all ranks at the same time.
 * In gather_v, scatter_v and all_to_all_v, whose counts only some ranks know, a rank without
 * elements takes part all the same: its type, too, must be that of the other ranks.
 *
 * The arguments `opts` and `work` may be NULL: the call uses default options, and returns when the
 * operation is complete on this rank and its buffers may be reused. Buffers stay the caller's; the
 * library keeps no pointer to them after the operation.
 *
 * In place means that send == recv, or what the operation's comment states. Buffers that overlap
 * in another way are refused.
 *
 * Reductions are computed in an order that does not depend on timing. Every rank gets the same
 * bits; and gets them again in every run with the same number of ranks, on nodes of the same sizes,
 * with the same count and type, if the ranks share memory as before and the rules are the same
 * (DLCOLL_SHM, DLCOLL_ALGO, DLCOLL_TUNE_FILE).
 *
 * After an operation has failed with anything but DLCOLL_EINVAL, DLCOLL_ENOSUP, DLCOLL_ENOMEM or
 * DLCOLL_ECANCELED, the contents of its receive buffer are undefined and the communicator can no
 * longer be used: every later operation returns DLCOLL_ESTATE at once, and dlcoll_last_error()
 * still has the cause.
 * DLCOLL_ENOMEM in the middle of an operation is such a failure, too: the next call returns
 * DLCOLL_ESTATE. After DLCOLL_ENOMEM of a split or a shrink the other ranks may wait for this rank
 * until their timeout.
 *
 * Threads. One thread at a time uses a communicator; a second one gets DLCOLL_ESTATE
 * (dlcoll_abort() and dlcoll_last_error() may be called from any thread). Different communicators
 * may be used at the same time. With DLCOLL_THREAD_MULTIPLE, a flag of dlcoll_init(), any number of
 * threads uses the same one: their messages (send, recv, batch, probes) neither wait for those of
 * other threads nor for a collective operation that another thread is in. The other operations on
 * host memory are carried out one after the other, in the order of their calls: a call with a
 * handle returns at once, whatever another thread waits for, and groups are made beside them. All
 * other calls take turns, each until it returns. The program sees to it that the collective ones
 * have the same order on every rank, and those that make groups. Messages of several threads are as
 * those of one: only tags tell them apart. dlcoll_last_error() has the last failure of any of them.
 * Operations with a work handle progress in the thread that waits for them, or in the library's
 * progress thread: one for the process, however many communicators and operations there are,
 * started with the first such operation that does not complete at once, and ended with the last
 * communicator of its dlcoll_init(). While it waits it uses no CPU. A thread inside a call must not
 * be cancelled (pthread_cancel()): it would leave locks behind on which every other call blocks.
 * dlcoll_abort() from another thread ends the call. A fork()'s child may not use its parent's
 * communicators and handles (DLCOLL_ESTATE); it may free them, which changes nothing for the
 * parent.
 *
 * Cost. A communicator has no thread of its own, and no descriptor at first. It then has a TCP
 * connection (times DLCOLL_SOCKETS) to each rank with which it has exchanged data other than
 * through shared memory, and another one to each rank with which it has exchanged messages (send,
 * recv) that way. Without dlaunch, the communicators of a dlcoll_init() have together a descriptor
 * for each other rank of their node. A group whose ranks share memory opens some of these
 * connections while it is made, and reserves up to 64 GB of address space, of which only the pages
 * that are used take memory. dlcoll_destroy() returns all of it.
 *
 * Structs begin with their size and a version, and are filled in by their initialiser macro, so
 * that a program works with an older or a newer library than it was compiled for. */
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

/* --------------------------------------------------------------------------------------- errors */

enum {
    DLCOLL_OK = 0,
    DLCOLL_INPROGRESS = 1,
    DLCOLL_EINVAL = -1,     /* an argument or an environment variable is wrong */
    DLCOLL_ESTATE = -2,     /* in use by another thread, failed before, or in a fork()'s child */
    DLCOLL_ENOMEM = -3,     /* out of memory; repeat the call unless the communicator has failed */
    DLCOLL_ENOSUP = -4,     /* not supported, or not for this type and reduction */
    DLCOLL_ETIMEDOUT = -5,  /* a rank did not arrive in time */
    DLCOLL_EPEER = -6,      /* a rank has died or left */
    DLCOLL_EABORTED = -7,   /* the job was told to stop */
    DLCOLL_EMISMATCH = -8,  /* ranks called different operations or have different settings */
    DLCOLL_ENET = -9,       /* a rank cannot be reached, or this host is out of sockets */
    DLCOLL_EBACKEND = -10,  /* a device library failed */
    DLCOLL_EINTERNAL = -11, /* a defect of this library */
    DLCOLL_ECANCELED = -12  /* a receive was cancelled; the communicator stays in use */
};

/* The code as a short fixed text: "a rank has died or left". Never NULL, also for an unknown code.
 * Any thread. */
DLCOLL_API const char *dlcoll_strerror(int code);

typedef struct dlcoll_error {
    size_t size;
    uint32_t version;
    int32_t code;      /* DLCOLL_E..., or 0: nothing has failed */
    int32_t rank;      /* the rank at fault; on ETIMEDOUT the rank waited for, which may itself wait
                          for a third. A rank of dlcoll_init()'s communicator; -1: unknown, or no
                          rank in particular */
    int32_t pid;       /* that rank's process on its host; 0: unknown */
    int32_t signal;    /* that killed it; 0: none, or unknown */
    int32_t exit_code; /* its exit status; -1: it has not exited, or unknown */
    uint64_t seq;      /* number of the communicator's operation, from 1; 0: none */
    char op[32];       /* its name, or "" */
    char host[256];    /* that rank's host, or "" */
    char text[512];    /* all of this in one line, without a newline */
} dlcoll_error;

#define DLCOLL_ERROR_VERSION 1
#define DLCOLL_ERROR_INIT                                                         \
    {                                                                             \
        sizeof(dlcoll_error), DLCOLL_ERROR_VERSION, 0, -1, 0, 0, -1, 0, {0}, {0}, \
        {                                                                         \
            0                                                                     \
        }                                                                         \
    }

/* -------------------------------------------------------------------------------------- handles */

typedef struct dlcoll_comm dlcoll_comm;   /* ranks that work together */
typedef struct dlcoll_work dlcoll_work;   /* an operation under way */
typedef struct dlcoll_store dlcoll_store; /* the job's key-value store */

/* ---------------------------------------------------------------------------- types, operations */

/* Values are NCCL's where NCCL has the type. f16, bf16 and the two 8-bit floats are reduced in f32
 * and rounded to the nearest, ties to even; a value that is too large becomes an infinity, or a NaN
 * in f8e4m3, which has no infinity. */
typedef enum dlcoll_dtype {
    DLCOLL_I8 = 0,
    DLCOLL_U8 = 1,
    DLCOLL_I32 = 2,
    DLCOLL_U32 = 3,
    DLCOLL_I64 = 4,
    DLCOLL_U64 = 5,
    DLCOLL_F16 = 6,
    DLCOLL_F32 = 7,
    DLCOLL_F64 = 8,
    DLCOLL_BF16 = 9,
    DLCOLL_F8E4M3 = 10,
    DLCOLL_F8E5M2 = 11,
    DLCOLL_I16 = 32,
    DLCOLL_U16 = 33,
    DLCOLL_BOOL = 34, /* a byte; anything but 0 is true */
    /* A value and an index, for DLCOLL_MINLOC and DLCOLL_MAXLOC, as C lays out a struct of the two:
     * struct { double value; int32_t index; } is DLCOLL_F64_I32, 16 bytes. MPI's SHORT_INT, 2INT,
     * LONG_INT, none, FLOAT_INT, DOUBLE_INT, none. */
    DLCOLL_I16_I32 = 40,
    DLCOLL_I32_I32 = 41,
    DLCOLL_I64_I32 = 42,
    DLCOLL_I64_I64 = 43,
    DLCOLL_F32_I32 = 44,
    DLCOLL_F64_I32 = 45,
    DLCOLL_F64_I64 = 46,
    DLCOLL_ELEMENT_0 = 1 << 20,
    DLCOLL_DTYPE_MAX = 0x7fffffff
} dlcoll_dtype;

/* The type of elements of the program's own, of 1 to 65536 bytes: complex numbers, structs, small
 * matrices. They are moved as they are, and only reductions of the program's own combine them.
 * Ranks compare the size; send and recv compare the bytes of the whole message. */
#define DLCOLL_ELEMENT(bytes) ((dlcoll_dtype)(DLCOLL_ELEMENT_0 + (bytes)))
#define DLCOLL_ELEMENT_MAX    65536

/* Values are NCCL's where NCCL has the operation. Integer sums and products wrap around. The
 * minimum or maximum of numbers with a NaN among them is a NaN. Bitwise and logical operations are
 * for integers and bool; a logical result is 0 or 1. For bool, sum is lor and prod is land, and
 * there is no avg. Pairs have minloc and maxloc only: the least or the greatest value and, of those
 * that are equal, the lowest index; a NaN comes before every number. DLCOLL_ENOSUP for a reduction
 * that the type does not have. */
typedef enum dlcoll_op {
    DLCOLL_SUM = 0,
    DLCOLL_PROD = 1,
    DLCOLL_MAX = 2,
    DLCOLL_MIN = 3,
    DLCOLL_AVG = 4, /* DLCOLL_SUM divided by the number of ranks; integers toward zero */
    DLCOLL_BAND = 32,
    DLCOLL_BOR = 33,
    DLCOLL_BXOR = 34,
    DLCOLL_LAND = 35,
    DLCOLL_LOR = 36,
    DLCOLL_LXOR = 37,
    DLCOLL_MINLOC = 38,
    DLCOLL_MAXLOC = 39,
    DLCOLL_OP_MAX = 0x7fffffff /* dlcoll_op_create_...() give values up to this one */
} dlcoll_op;

/* acc[i] = acc[i] op in[i] for count elements of `dtype`. Both are aligned for the type; elements
 * of the program's to the largest power of two that divides their size, at most 16. The library
 * calls it from a thread of the program's or of its own, with pieces of any count; it must not call
 * the library. One that takes long delays other operations with a handle. */
typedef void dlcoll_reduce_fn(void *acc, const void *in, size_t count, dlcoll_dtype dtype,
                              void *ctx);

#define DLCOLL_OP_ORDERED  1u /* not commutative: a op b differs from b op a */
#define DLCOLL_OP_MAY_FAIL 2u /* fn may call dlcoll_op_fail() */

/* Called by a dlcoll_reduce_fn that cannot go on: its operation ends with DLCOLL_EABORTED and this
 * text, of which 199 bytes are kept, and so does the communicator; fn is not called again. On every
 * rank, if each has made the reduction with DLCOLL_OP_MAY_FAIL: then all ranks meet once more
 * behind each operation with it. Without, the operation may have succeeded on other ranks.
 * Returns 0; DLCOLL_ESTATE: this thread is not inside a dlcoll_reduce_fn. */
DLCOLL_API int dlcoll_op_fail(const char *text);

/* Makes a reduction of the program's own. fn must be associative; without DLCOLL_OP_ORDERED in
 * `flags` also commutative. With it every rank's data is combined in the order of the ranks, which
 * excludes the fastest algorithms between hosts. Every rank makes its own, with a function that
 * does the same; the values of *op may differ between ranks. `ctx` is passed to fn.
 *
 * *op may be used with every communicator and type, from any thread, until dlcoll_op_free().
 * Returns 0; DLCOLL_EINVAL: op or fn is NULL, or a flag is unknown; DLCOLL_ENOMEM: 256 reductions
 * of the program's own exist. */
DLCOLL_API int dlcoll_op_create_user(dlcoll_op *op, dlcoll_reduce_fn *fn, void *ctx,
                                     unsigned flags);

/* Makes the sum of every rank's data times a factor of that rank: *scalar, one element of `dtype`,
 * which is copied. *op may be used with every communicator, for operations on that type alone, from
 * any thread, until dlcoll_op_free().
 * Returns 0; DLCOLL_EINVAL: op or scalar is NULL, or dtype is not a type of numbers; DLCOLL_ENOMEM:
 * 256 reductions of the program's own exist. */
DLCOLL_API int dlcoll_op_create_premul(dlcoll_op *op, const void *scalar, dlcoll_dtype dtype);

/* Frees what dlcoll_op_create_user() or dlcoll_op_create_premul() has made. No operation with the
 * reduction may be under way. Any thread.
 * Returns 0; DLCOLL_EINVAL: op is no such reduction, or has been freed already. */
DLCOLL_API int dlcoll_op_free(dlcoll_op op);

/* Where the elements of a buffer are, if not one after the other: in blocks of `length` elements
 * each, `stride` apart; or of lengths[i], where that is not NULL; at offsets[i], where that is not
 * NULL. All in elements, from the buffer's start. A column of a matrix of 5 rows and 8 columns:
 * {.blocks = 5, .length = 1, .stride = 8}. */
typedef struct dlcoll_layout {
    size_t size;
    uint32_t version;
    uint32_t unused;
    size_t blocks;
    size_t length, stride;
    const size_t *lengths, *offsets;
} dlcoll_layout;

#define DLCOLL_LAYOUT_VERSION 1
#define DLCOLL_LAYOUT_INIT                                             \
    {                                                                  \
        sizeof(dlcoll_layout), DLCOLL_LAYOUT_VERSION, 0, 0, 0, 0, 0, 0 \
    }

/* Options of one operation. */
typedef struct dlcoll_opts {
    size_t size;
    uint32_t version;
    int32_t tag;        /* messages: only equal tags match; >= 0, or DLCOLL_ANY_TAG */
    int64_t timeout_ms; /* 0: the communicator's; negative: none */
    void *stream; /* a cudaStream_t: the buffers are device memory, and the operation is enqueued on
                     it; NULL: see "device memory" in this file */
    /* Where the elements lie in `send` and `recv` of a collective operation on host memory; NULL:
     * one after the other. A layout has as many elements as the operation has in that buffer. The
     * library copies them to memory of its own and back; what lies between the blocks of recv stays
     * as it is. Where blocks of recv overlap, the later one remains. send and recv may overlap.
     * Read until the call returns. */
    const dlcoll_layout *send_layout, *recv_layout;
    uint32_t flags; /* DLCOLL_PERSISTENT, DLCOLL_SYNCHRONOUS */
    uint32_t unused;
} dlcoll_opts;

#define DLCOLL_OPTS_VERSION 2
#define DLCOLL_OPTS_INIT                                              \
    {                                                                 \
        sizeof(dlcoll_opts), DLCOLL_OPTS_VERSION, 0, 0, 0, 0, 0, 0, 0 \
    }

/* The call of a collective operation with a work handle only prepares it: dlcoll_start() begins it,
 * as often as the program likes. */
#define DLCOLL_PERSISTENT 1u
/* A send, or those of a batch, are complete only when the messages have been received. */
#define DLCOLL_SYNCHRONOUS 2u

/* The library's version, "0.1.0". Any thread, at any time. */
DLCOLL_API const char *dlcoll_version(void);
/* The library's version as a number that grows: DLCOLL_VERSION_NUMBER(1, 2, 3) for 1.2.3. Any
 * thread, at any time.
 */
#define DLCOLL_VERSION_NUMBER(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
DLCOLL_API int dlcoll_version_number(void);

/* ------------------------------------------------------------------------------- beginning, end */

/* The library that carries out operations on device memory. */
typedef enum dlcoll_backend {
    DLCOLL_BACKEND_DEFAULT =
        0,                   /* DLCOLL_BACKEND from the environment (auto, cpu, nccl), else auto */
    DLCOLL_BACKEND_AUTO = 1, /* NCCL, loaded with the first of them */
    DLCOLL_BACKEND_CPU = 2,  /* nothing: all buffers are taken for host memory */
    DLCOLL_BACKEND_NCCL = 3, /* as auto; dlcoll_init() fails (DLCOLL_ENOSUP) where NCCL or CUDA is
                                missing, and says which */
    DLCOLL_BACKEND_MAX = 0x7fffffff
} dlcoll_backend;

typedef struct dlcoll_init_opts {
    size_t size;
    uint32_t version;
    /* Rank and number of ranks; world_size 0: from the environment (RANK, WORLD_SIZE). */
    int32_t rank;
    int32_t world_size;
    int32_t backend; /* dlcoll_backend */
    /* How long every operation may take: 0: DLCOLL_TIMEOUT from the environment ("30s", "10min";
     * a bare number is in seconds), without it 10 minutes; negative: no limit. */
    int64_t timeout_ms;
    /* How long dlcoll_init() waits for the other ranks: 0: DLCOLL_TIMEOUT from the environment,
     * without it 10 minutes; negative: no limit. */
    int64_t init_timeout_ms;
    /* How the ranks find each other; NULL: DLCOLL_INIT_METHOD from the environment, without it the
     * launcher or "env://". */
    const char *init_method;
    /* With it the ranks meet through this store, and rank and world_size must be given. Borrowed
     * until dlcoll_init() returns. */
    dlcoll_store *store;
    /* Distinguishes jobs that share a store; NULL: "". With a name several threads may be in
     * dlcoll_init() at the same time, as ranks of their own; the caller takes a new name for each
     * world made through the same store. Worlds without a name are counted, and each rank must make
     * equally many: a world of only some of the ranks needs a name. */
    const char *name;
    uint32_t flags; /* DLCOLL_THREAD_MULTIPLE */
    uint32_t unused;
} dlcoll_init_opts;

#define DLCOLL_INIT_OPTS_VERSION 2
#define DLCOLL_INIT_OPTS_INIT                                                            \
    {                                                                                    \
        sizeof(dlcoll_init_opts), DLCOLL_INIT_OPTS_VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Several threads may call on the same communicator at the same time: this one, and those made from
 * it. Of this process alone. See "Threads" at the beginning. */
#define DLCOLL_THREAD_MULTIPLE 1u

/* Makes the communicator of all workers of the job. Every worker calls it. opts may be NULL.
 *
 *   - Started by dlaunch: rank, size, addresses, a listening socket and shared memory come from the
 *     launcher; no message is exchanged. Only one such communicator may exist in a process at a
 *     time; for later ones the ranks agree on new memory and wait for each other.
 *   - "env://": from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: the ranks meet through a
 *     TCPStore there, which rank 0 hosts in this process unless one is served there already
 *     (TORCHELASTIC_USE_AGENT_STORE=True: a launcher serves one). Waits for all ranks.
 *   - "tcp://HOST:PORT[?rank=R&world_size=N]": the same with an address of the caller's.
 *   - "file:///PATH[?rank=R&world_size=N]": rank 0 writes its address into a file that all ranks
 *     can read, and removes it when they have met. A file that an earlier job has left there is
 *     detected and replaced; anything but a regular file is refused.
 *   - opts->store: through a store of the caller's.
 *   - With nothing set, in a task of a Slurm step (srun -n 8 ./program): by Slurm's variables. Rank
 *     0 hosts the TCPStore on the step's first node, at one of four ports derived from job and
 *     step; MASTER_ADDR and MASTER_PORT override them.
 *   - With nothing set, in a process that another starter (Open MPI, MPICH, PMIx, Flux, PALS, ...)
 *     has started as one of several: DLCOLL_EINVAL, with the remedy.
 *   - With nothing set, otherwise: a world of one.
 *
 * One thread at a time may be in dlcoll_init(), unless opts->name is given.
 *
 * *comm is owned by the caller, who ends it with dlcoll_destroy(); it is NULL on failure, and
 * dlcoll_last_error(NULL, ...) has the reason. Returns 0; DLCOLL_EINVAL: an option or a variable
 * of the environment is wrong; DLCOLL_ENOMEM; DLCOLL_ENOSUP: see opts->backend; DLCOLL_ESTATE:
 * another thread is in dlcoll_init(); DLCOLL_ETIMEDOUT, EPEER: a rank has not arrived, or has
 * ended; DLCOLL_EMISMATCH: the ranks have different settings; DLCOLL_ENET. */
DLCOLL_API int dlcoll_init(dlcoll_comm **comm, const dlcoll_init_opts *opts);

/* Leaves in good order: waits until every rank has called it, so that no rank takes another one's
 * exit for a failure. No operation may follow. A rank that gives up calls dlcoll_destroy() alone:
 * so does one whose operation on device memory has failed with DLCOLL_EBACKEND, because the others
 * may wait for it inside NCCL, where they do not see that it is in here. Receives that no message
 * has matched end with DLCOLL_ECANCELED.
 * Returns 0; DLCOLL_ESTATE: operations are under way; or an error of dlcoll_barrier(). */
DLCOLL_API int dlcoll_finalize(dlcoll_comm *comm);
/* dlcoll_finalize() with a handle, behind the operations that have been called so far; no call may
 * follow. The handle is freed before dlcoll_destroy().
 * Returns 0; DLCOLL_EINVAL: work is NULL; DLCOLL_ESTATE: sends, or receives with a message, are
 * under way; DLCOLL_ENOSUP: the communicator is used on device memory; or an error of
 * dlcoll_barrier(). */
DLCOLL_API int dlcoll_finalize_async(dlcoll_comm *comm, const struct dlcoll_opts *opts,
                                     dlcoll_work **work);

/* Frees the communicator, in any state, at once: ranks that still wait for this one get
 * DLCOLL_EPEER, and this one's own operations under way end with DLCOLL_EABORTED. NULL is allowed.
 * No other thread may be inside a call on it. Communicators made from it stay valid. */
DLCOLL_API void dlcoll_destroy(dlcoll_comm *comm);

/* Numbers of this process, which do not change while the communicator lives. Any thread.
 * DLCOLL_EINVAL: comm is NULL. */
DLCOLL_API int dlcoll_rank(const dlcoll_comm *comm);       /* 0 <= rank < size */
DLCOLL_API int dlcoll_size(const dlcoll_comm *comm);       /* ranks in the communicator */
DLCOLL_API int dlcoll_local_rank(const dlcoll_comm *comm); /* number on its node, from 0 */
DLCOLL_API int
dlcoll_local_size(const dlcoll_comm *comm); /* the communicator's ranks on this node */
/* Returns the rank in the world (the communicator of dlcoll_init) of rank `rank` of `comm`. Any
 * thread. DLCOLL_EINVAL: comm is NULL, or has no such rank. */
DLCOLL_API int dlcoll_world_rank(const dlcoll_comm *comm, int rank);
/* Writes the name of a rank's host, cut to `size` bytes with the NUL, and the rank's pid on that
 * host (0: not known yet). Either pointer may be NULL. Returns 0; DLCOLL_EINVAL: comm is NULL, or
 * has no such rank. */
DLCOLL_API int dlcoll_rank_host(const dlcoll_comm *comm, int rank, char *host, size_t size,
                                int *pid);

/* Nodes: the ranks of one launcher on one host; without a launcher, those of one host. They are
 * numbered from 0 by their lowest rank. dlcoll_node_count() returns how many `comm` has.
 * DLCOLL_EINVAL: comm is NULL. */
DLCOLL_API int dlcoll_node_count(const dlcoll_comm *comm);
/* Returns the node of a rank of `comm`. DLCOLL_EINVAL: comm is NULL, or has no such rank. */
DLCOLL_API int dlcoll_node_of(const dlcoll_comm *comm, int rank);
/* Writes the ranks of a node, ascending, at most `max`. Returns how many the node has.
 * DLCOLL_EINVAL: comm is NULL, or has no such node. */
DLCOLL_API int dlcoll_node_ranks(const dlcoll_comm *comm, int node, int *ranks, int max);

/* The error of the last call on `comm` that failed. NULL: of the last call of this thread that had
 * no communicator (dlcoll_init); in a fork()'s child also of a call on a parent's communicator,
 * which may be given here, too. Fills *out up to its size, which the caller has set
 * (DLCOLL_ERROR_INIT). out->code is 0 when nothing has failed. May be called from any thread.
 * Returns 0; DLCOLL_EINVAL: out is NULL, or its size is too small for the code. */
DLCOLL_API int dlcoll_last_error(const dlcoll_comm *comm, dlcoll_error *out);

/* Ends what is under way, on every rank, with DLCOLL_EABORTED and the reason (a line for people;
 * NULL: none); the communicator can no longer be used. May be called from any thread, also
 * while another one is inside an operation.
 * Returns 0; DLCOLL_EINVAL: comm is NULL; DLCOLL_ESTATE: it has failed already. */
DLCOLL_API int dlcoll_abort(dlcoll_comm *comm, const char *reason);

/* ------------------------------------------------------------------------------------------ groups
 *
 * A group is a communicator of some of another's ranks. It has operations, errors and threads of
 * its own: different groups work side by side. */

typedef struct dlcoll_group_opts {
    size_t size;
    uint32_t version;
    uint32_t unused;
    int64_t timeout_ms; /* of its making and of its operations; 0: the parent's; negative: none */
    const char *name;   /* for messages: "dp"; NULL: none. The same on every rank */
} dlcoll_group_opts;

#define DLCOLL_GROUP_OPTS_VERSION 1
#define DLCOLL_GROUP_OPTS_INIT                                        \
    {                                                                 \
        sizeof(dlcoll_group_opts), DLCOLL_GROUP_OPTS_VERSION, 0, 0, 0 \
    }

#define DLCOLL_NO_COLOR (-1)

/* Ranks that give the same colour (>= 0) form one group, in the order of their keys and, where
 * these are equal, of their ranks. A rank with DLCOLL_NO_COLOR is in no group and gets NULL in
 * *group, which the caller ends with dlcoll_destroy(). Every rank of `comm` calls it.
 * Returns 0; DLCOLL_EINVAL: group is NULL, or the colour is less than DLCOLL_NO_COLOR; or a common
 * error of operations (see "operations" in this file). */
DLCOLL_API int dlcoll_comm_split(dlcoll_comm *comm, int color, int key, dlcoll_comm **group,
                                 const dlcoll_group_opts *opts);

typedef enum {
    DLCOLL_DOMAIN_NODE = 0, /* as dlcoll_node_of() */
    DLCOLL_DOMAIN_HOST = 1, /* one kernel and network, of several launchers too */
    DLCOLL_DOMAIN_MEMORY =
        2,                 /* ranks that reach each other's dlcoll_mem_alloc(); others are alone */
    DLCOLL_DOMAIN_NUMA = 3 /* the NUMA node of the CPU on which the caller runs */
} dlcoll_domain;

/* Writes the number of each rank's domain to domain_of, which has an entry for each rank. Domains
 * are numbered from 0 by their lowest rank. Returns how many there are: of two launchers on one
 * host the ranks are on two nodes and one host. Every rank of `comm` calls it with the same domain.
 * DLCOLL_EINVAL: the domain is unknown, or domain_of is NULL; or a common error of operations. */
DLCOLL_API int dlcoll_domains(dlcoll_comm *comm, dlcoll_domain domain, int *domain_of);

/* dlcoll_comm_split() into the groups of ranks that are in the same domain. Every rank of `comm`
 * calls it with the same domain. Its errors are those of dlcoll_comm_split(); DLCOLL_EINVAL also:
 * the domain is unknown. */
DLCOLL_API int dlcoll_comm_split_by(dlcoll_comm *comm, dlcoll_domain domain, int key,
                                    dlcoll_comm **group, const dlcoll_group_opts *opts);

/* The group of the n ranks listed: rank i of it is ranks[i] of `comm`. All listed ranks call it
 * with the same list; others may, and get NULL in *group. Ranks that make several groups in common
 * make them in the same order. Only the ranks that are listed wait for each other.
 * Returns 0; DLCOLL_EINVAL: group or the list is NULL, n is negative, a rank is out of range or
 * listed twice; or a common error of operations. */
DLCOLL_API int dlcoll_comm_new_group(dlcoll_comm *comm, const int *ranks, int n,
                                     dlcoll_comm **group, const dlcoll_group_opts *opts);

/* A group of all ranks of `comm`. work NULL: blocking. Returns 0; DLCOLL_EINVAL: group is NULL; or
 * a common error of operations. */
DLCOLL_API int dlcoll_comm_dup(dlcoll_comm *comm, dlcoll_comm **group,
                               const dlcoll_group_opts *opts, dlcoll_work **work);

/* dlcoll_comm_split() and dlcoll_comm_new_group() with a handle, in the order of the operations of
 * `comm`. *group is NULL until the handle is complete, and must be there as long. The list is read
 * until the call returns. Their errors are those of the blocking calls; DLCOLL_ENOSUP also: `comm`
 * is used on device memory. */
DLCOLL_API int dlcoll_comm_split_async(dlcoll_comm *comm, int color, int key, dlcoll_comm **group,
                                       const dlcoll_group_opts *opts, dlcoll_work **work);
DLCOLL_API int dlcoll_comm_new_group_async(dlcoll_comm *comm, const int *ranks, int n,
                                           dlcoll_comm **group, const dlcoll_group_opts *opts,
                                           dlcoll_work **work);

/* After a failure (DLCOLL_EPEER): the group of those ranks of `comm` that are alive, in their
 * order. Every survivor calls it. *group is a new communicator; `comm` remains to be destroyed.
 *
 * The lowest survivor decides on the list. Ranks that do not arrive within the timeout of opts
 * after it has arrived (at most a minute) are left out, and get DLCOLL_EPEER if they arrive later.
 * A host that answers nothing for 5 s is passed over, with all its ranks.
 *
 * A network may be cut, and both sides may call this. With dlaunch it decides which side goes on.
 * Without, that is the side with more than half of the ranks of `comm`, or with half of them and
 * the lowest; the other one gets DLCOLL_EPEER, for good. Ranks do not count whose process has
 * ended on the host of a rank that is there.
 *
 * DLCOLL_ETIMEDOUT: the lowest survivor has not arrived; the call may be repeated. DLCOLL_ESTATE:
 * `comm` has not failed. DLCOLL_EINVAL: comm or group is NULL. DLCOLL_ENOMEM. The text is that of
 * dlcoll_last_error(NULL, ...): the error of `comm` stays that of the first failure. */
DLCOLL_API int dlcoll_comm_shrink(dlcoll_comm *comm, dlcoll_comm **group,
                                  const dlcoll_group_opts *opts);

/* ------------------------------------------------------------------------------------- operations
 *
 * With work == NULL the call returns when the operation is complete on this rank. Else it returns
 * at once: 0, and *work is a handle, owned by the caller, for dlcoll_test() and dlcoll_wait(); the
 * buffers (and arrays of counts until the call returns) are the library's until it is complete.
 * Operations of one communicator are carried out in the order of their calls; send and recv run
 * independently of them.
 *
 * Where a rank's part has a count, S is `count` elements and the whole has size * S elements, rank
 * i's part at i * S. In the _v forms parts have counts of their own; displs (elements from the
 * buffer's start to each part) may be NULL: the parts lie one after the other. The displacement of
 * an empty part is ignored. Parts that are received must not overlap. Arguments that a rank does
 * not need (recv on other ranks than the root and so on) are ignored.
 *
 * Every operation returns 0 or one of these common errors: DLCOLL_EINVAL (NULL comm; NULL,
 * overlapping or too long buffers; unknown type or reduction; a root or peer out of range), ENOSUP
 * (this type with this reduction; not on device memory), ESTATE, ENOMEM, ETIMEDOUT, EPEER,
 * EABORTED, EMISMATCH, ENET, EINTERNAL; on device memory EBACKEND. The comment of an operation
 * names what its DLCOLL_EINVAL and further errors are for beside these. */

/* recv = send of rank `root`, on every rank.
 * send: count elements on the root, ignored elsewhere. recv: count elements on every rank; on the
 * root it may be send itself. */
DLCOLL_API int dlcoll_broadcast(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                                int root, dlcoll_comm *comm, const dlcoll_opts *opts,
                                dlcoll_work **work);

/* recv[i] = send[i] of all ranks, reduced, on rank `root`: in the order of the ranks if the op has
 * DLCOLL_OP_ORDERED, else in an order of the library's (see "Reductions" at this file's beginning).
 * send: count elements. recv: count elements on the root, ignored elsewhere. In place on the root
 * when send == recv. */
DLCOLL_API int dlcoll_reduce(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                             dlcoll_op op, int root, dlcoll_comm *comm, const dlcoll_opts *opts,
                             dlcoll_work **work);

/* recv[i] = send[i] of all ranks, reduced, on every rank; in the order that dlcoll_reduce() has.
 * send, recv: count elements; in place when send == recv. */
DLCOLL_API int dlcoll_all_reduce(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                                 dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                                 dlcoll_work **work);

typedef struct dlcoll_span {
    const void *send;
    void *recv; /* may be send */
    size_t count;
} dlcoll_span;

/* recv = send of ranks 0 to this one, reduced in the order of the ranks; an avg divides by the
 * ranks up to this one. send, recv: count elements; in place when send == recv. */
DLCOLL_API int dlcoll_scan(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                           dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                           dlcoll_work **work);

/* dlcoll_scan() without this rank's own data. On rank 0, before which there is none, recv stays as
 * it is, and may be NULL. */
DLCOLL_API int dlcoll_exscan(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                             dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                             dlcoll_work **work);

/* dlcoll_all_reduce() of n buffers of one type as one operation: many small ones cost as much as
 * one. The list is read until the call returns. DLCOLL_EINVAL also: the list is NULL, or a buffer
 * in it. */
DLCOLL_API int dlcoll_all_reduce_coalesced(const dlcoll_span *list, size_t n, dlcoll_dtype dtype,
                                           dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                                           dlcoll_work **work);

/* Part i of recv on rank `root` = send of rank i.
 * send: count elements. recv: size * count on the root. In place on the root when send is its part
 * of recv. */
DLCOLL_API int dlcoll_gather(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                             int root, dlcoll_comm *comm, const dlcoll_opts *opts,
                             dlcoll_work **work);
/* dlcoll_gather() with a count for each part. send_count is recv_counts[rank] of the root, which
 * alone gives recv_counts and recv_displs. DLCOLL_EINVAL also: the root's recv_counts is NULL, its
 * own entry is not send_count, or parts of recv overlap. */
DLCOLL_API int dlcoll_gather_v(const void *send, size_t send_count, void *recv,
                               const size_t *recv_counts, const size_t *recv_displs,
                               dlcoll_dtype dtype, int root, dlcoll_comm *comm,
                               const dlcoll_opts *opts, dlcoll_work **work);

/* Part i of recv = send of rank i, on every rank.
 * send: count elements. recv: size * count. In place when send is this rank's part of recv. */
DLCOLL_API int dlcoll_all_gather(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                                 dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);
/* dlcoll_all_gather() with a count for each part: send has counts[rank] elements; counts are the
 * same on every rank. DLCOLL_EINVAL also: counts is NULL, or parts of recv overlap. */
DLCOLL_API int dlcoll_all_gather_v(const void *send, void *recv, const size_t *counts,
                                   const size_t *displs, dlcoll_dtype dtype, dlcoll_comm *comm,
                                   const dlcoll_opts *opts, dlcoll_work **work);

/* recv of rank i = part i of send of rank `root`.
 * send: size * count elements on the root. recv: count. In place on the root when recv is its part
 * of send. */
DLCOLL_API int dlcoll_scatter(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                              int root, dlcoll_comm *comm, const dlcoll_opts *opts,
                              dlcoll_work **work);
/* dlcoll_scatter() with a count for each part. recv_count is send_counts[rank] of the root, which
 * alone gives send_counts and send_displs. DLCOLL_EINVAL also: the root's send_counts is NULL, or
 * its own entry is not recv_count. */
DLCOLL_API int dlcoll_scatter_v(const void *send, const size_t *send_counts,
                                const size_t *send_displs, void *recv, size_t recv_count,
                                dlcoll_dtype dtype, int root, dlcoll_comm *comm,
                                const dlcoll_opts *opts, dlcoll_work **work);

/* recv of rank i = part i of what dlcoll_all_reduce() of send would give.
 * send: size * count elements. recv: count. In place when recv is this rank's part of send; the
 * other parts of send are then kept. */
DLCOLL_API int dlcoll_reduce_scatter(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                                     dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                                     dlcoll_work **work);
/* dlcoll_reduce_scatter() with a count for each part. send holds the parts one after the other;
 * recv has counts[rank] elements; counts are the same on every rank. DLCOLL_EINVAL also: counts is
 * NULL. */
DLCOLL_API int dlcoll_reduce_scatter_v(const void *send, void *recv, const size_t *counts,
                                       dlcoll_dtype dtype, dlcoll_op op, dlcoll_comm *comm,
                                       const dlcoll_opts *opts, dlcoll_work **work);

/* Part i of recv = this rank's part of send of rank i.
 * send, recv: size * count elements; in place when send == recv. */
DLCOLL_API int dlcoll_all_to_all(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                                 dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);
/* dlcoll_all_to_all() with a count for each part: recv_counts[i] is send_counts[rank] of rank i. In
 * place when send == recv, whatever the counts and displacements of this rank. DLCOLL_EINVAL also:
 * counts is NULL, send_counts[rank] is not recv_counts[rank], or parts of recv overlap. */
DLCOLL_API int dlcoll_all_to_all_v(const void *send, const size_t *send_counts,
                                   const size_t *send_displs, void *recv, const size_t *recv_counts,
                                   const size_t *recv_displs, dlcoll_dtype dtype, dlcoll_comm *comm,
                                   const dlcoll_opts *opts, dlcoll_work **work);

/* dlcoll_all_to_all_v() with a type for each block: send_types[i] of what goes to rank i,
 * recv_types[i] of what comes from it. Displacements are in bytes. Ranks compare the bytes of each
 * block, not its type. DLCOLL_EINVAL also: counts or types are NULL. */
DLCOLL_API int dlcoll_all_to_all_w(const void *send, const size_t *send_counts,
                                   const size_t *send_displs, const dlcoll_dtype *send_types,
                                   void *recv, const size_t *recv_counts, const size_t *recv_displs,
                                   const dlcoll_dtype *recv_types, dlcoll_comm *comm,
                                   const dlcoll_opts *opts, dlcoll_work **work);

/* A directed graph whose nodes are the ranks, as one rank sees it: from which ranks it receives,
 * and to which it sends. A rank may be listed several times, and may list itself. Rank a lists b
 * among its dests as often as b lists a among its sources. */
typedef struct dlcoll_graph {
    size_t size;
    uint32_t version;
    uint32_t unused;
    const int *sources;
    size_t nsources;
    const int *dests;
    size_t ndests;
} dlcoll_graph;

#define DLCOLL_GRAPH_VERSION 1
#define DLCOLL_GRAPH_INIT                                         \
    {                                                             \
        sizeof(dlcoll_graph), DLCOLL_GRAPH_VERSION, 0, 0, 0, 0, 0 \
    }

/* Neighbour collectives. Every rank of `comm` calls them; data goes along the edges of the graph.
 * Block k of recv comes from sources[k]. Of several edges between two ranks, the blocks keep their
 * order. Buffers may not overlap. The graph and the counts are read until the call returns. Where
 * the ranks disagree on an edge, they get DLCOLL_EMISMATCH, or DLCOLL_ETIMEDOUT over TCP.
 * DLCOLL_EINVAL also: a rank of the graph is out of range, or counts is NULL.
 *
 * Block k of recv = send of rank sources[k]. send: count elements. */
DLCOLL_API int dlcoll_neighbor_all_gather(const void *send, void *recv, size_t count,
                                          dlcoll_dtype dtype, const dlcoll_graph *graph,
                                          dlcoll_comm *comm, const dlcoll_opts *opts,
                                          dlcoll_work **work);
/* recv_counts and recv_displs have an entry for each source; displs may be NULL. */
DLCOLL_API int dlcoll_neighbor_all_gather_v(const void *send, size_t send_count, void *recv,
                                            const size_t *recv_counts, const size_t *recv_displs,
                                            dlcoll_dtype dtype, const dlcoll_graph *graph,
                                            dlcoll_comm *comm, const dlcoll_opts *opts,
                                            dlcoll_work **work);
/* Block k of send goes to dests[k]. All blocks have count elements. */
DLCOLL_API int dlcoll_neighbor_all_to_all(const void *send, void *recv, size_t count,
                                          dlcoll_dtype dtype, const dlcoll_graph *graph,
                                          dlcoll_comm *comm, const dlcoll_opts *opts,
                                          dlcoll_work **work);
/* send_counts and send_displs have an entry for each destination. */
DLCOLL_API int dlcoll_neighbor_all_to_all_v(const void *send, const size_t *send_counts,
                                            const size_t *send_displs, void *recv,
                                            const size_t *recv_counts, const size_t *recv_displs,
                                            dlcoll_dtype dtype, const dlcoll_graph *graph,
                                            dlcoll_comm *comm, const dlcoll_opts *opts,
                                            dlcoll_work **work);

/* Returns (or is complete) when every rank has called it. */
DLCOLL_API int dlcoll_barrier(dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);

/* A barrier that names the ranks that are missing. On DLCOLL_ETIMEDOUT, missing[0 .. *n - 1] are
 * the ranks that have not arrived; *n is the room in `missing` on entry (size of the communicator:
 * enough). Both may be NULL. The error's text has their number and the names of the first of them,
 * with host and pid. Rank 0 collects the arrivals and reports to the others, up to a second after
 * the timeout. If it does not (it has not arrived, or has given up before this rank arrived), only
 * rank 0 is in `missing`, and the text states that other ranks may be missing, too. The
 * communicator stays in use after a timeout. Returns 0 or a common error of operations;
 * DLCOLL_EINVAL also: n is NULL, and missing is not. */
DLCOLL_API int dlcoll_monitored_barrier(dlcoll_comm *comm, int *missing, size_t *n,
                                        const dlcoll_opts *opts);

typedef struct dlcoll_bytes {
    void *data; /* NULL when len is 0 */
    size_t len;
} dlcoll_bytes;

/* Every rank gives `len` bytes and gets those of all: (*all)[i] are rank i's. The result is one
 * piece of memory, the caller's, who ends it with dlcoll_bytes_free(). *all is NULL on failure.
 * Returns 0 or a common error of operations; DLCOLL_EINVAL also: all is NULL, data is NULL and len
 * is not 0, or all ranks give more than 1 TB. */
DLCOLL_API int dlcoll_exchange_bytes(const void *data, size_t len, dlcoll_bytes **all,
                                     dlcoll_comm *comm, const dlcoll_opts *opts);
/* dlcoll_exchange_bytes() with a handle: *all is set once the handle is complete, and must be there
 * until then. `data` is read until the call returns. The errors are those of
 * dlcoll_exchange_bytes(). */
DLCOLL_API int dlcoll_exchange_bytes_async(const void *data, size_t len, dlcoll_bytes **all,
                                           dlcoll_comm *comm, const dlcoll_opts *opts,
                                           dlcoll_work **work);
DLCOLL_API void dlcoll_bytes_free(dlcoll_bytes *all); /* NULL is allowed */

/* ---------------------------------------------------------------------------------- point to point
 *
 * A message matches the first receive on `peer` that names its sender and its tag, or any. Messages
 * from one rank to another match in the order in which they were sent: of those that a receive
 * fits, it gets the first; one from any rank gets the one that has arrived first. Types must be
 * equal on both sides, and counts but for dlcoll_recv_upto() (DLCOLL_EMISMATCH). A send to this
 * rank itself needs a receive. */

/* Wildcards of receives and probes: for `peer`, and for the tag in the options. */
#define DLCOLL_ANY_SOURCE (-1)
#define DLCOLL_ANY_TAG    (-1)

/* Sends `count` elements to rank `peer`. Returns (or is complete) when `send` may be reused; the
 * receiver may not have the message yet. It may also wait for the receive of the message: it does
 * when the message is large, or the receiver has 4 MiB of this rank's messages already (each
 * counted as 128 bytes at least) that it has not called a receive for; and after some dozens of
 * messages, or what sockets hold, while the receiver has no receive or probe under way that names
 * this rank or any. So two ranks that first send to each other and then receive may block each
 * other. With DLCOLL_SYNCHRONOUS the receiver has it. */
DLCOLL_API int dlcoll_send(const void *send, size_t count, dlcoll_dtype dtype, int peer,
                           dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);
/* Receives a message of `count` elements from rank `peer`, or from any rank with DLCOLL_ANY_SOURCE.
 * DLCOLL_EPEER also: `peer` has left without sending such a message. */
DLCOLL_API int dlcoll_recv(void *recv, size_t count, dlcoll_dtype dtype, int peer,
                           dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);
/* dlcoll_recv() from any rank: *peer is the sender's rank once the operation is complete; NULL is
 * allowed. DLCOLL_EPEER when all others have left, or one of them has died. */
DLCOLL_API int dlcoll_recv_any(void *recv, size_t count, dlcoll_dtype dtype, int *peer,
                               dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);

/* A message that has been received or found. */
typedef struct dlcoll_message {
    size_t size;
    uint32_t version;
    int32_t source;     /* the sender's rank */
    int32_t tag;        /* the sender's */
    dlcoll_dtype dtype; /* the sender's; DLCOLL_U8 for elements of the program's own */
    size_t count;       /* whole elements: of the receive's type; of a probe, of `dtype` */
    size_t bytes;
    struct dlcoll_matched *matched; /* of dlcoll_mprobe(): for dlcoll_mrecv(); else NULL */
} dlcoll_message;

#define DLCOLL_MESSAGE_VERSION 1
#define DLCOLL_MESSAGE_INIT                                                        \
    {                                                                              \
        sizeof(dlcoll_message), DLCOLL_MESSAGE_VERSION, -1, -1, DLCOLL_U8, 0, 0, 0 \
    }

/* Receives a message of at most `count` elements; a longer one is DLCOLL_EMISMATCH. *message is
 * filled in when the operation is complete and must be there until then; NULL is allowed. */
DLCOLL_API int dlcoll_recv_upto(void *recv, size_t count, dlcoll_dtype dtype, int peer,
                                dlcoll_message *message, dlcoll_comm *comm, const dlcoll_opts *opts,
                                dlcoll_work **work);

/* Waits for a message that a receive with that peer and tag would get, describes it in *message
 * (NULL is allowed), and leaves it to be received. dlcoll_iprobe() does not wait:
 * DLCOLL_INPROGRESS, and *message is as before, when there is none. */
DLCOLL_API int dlcoll_probe(int peer, dlcoll_message *message, dlcoll_comm *comm,
                            const dlcoll_opts *opts);
DLCOLL_API int dlcoll_iprobe(int peer, dlcoll_message *message, dlcoll_comm *comm,
                             const dlcoll_opts *opts);
/* dlcoll_probe() and dlcoll_iprobe() that keep the message for dlcoll_mrecv(): no other receive or
 * probe gets it. DLCOLL_EINVAL also: message is NULL. */
DLCOLL_API int dlcoll_mprobe(int peer, dlcoll_message *message, dlcoll_comm *comm,
                             const dlcoll_opts *opts);
DLCOLL_API int dlcoll_improbe(int peer, dlcoll_message *message, dlcoll_comm *comm,
                              const dlcoll_opts *opts);
/* Receives the message that a probe on the same communicator has kept, as dlcoll_recv_upto() would;
 * message->matched is NULL then. DLCOLL_EINVAL also: message->matched is NULL, or of another
 * communicator. */
DLCOLL_API int dlcoll_mrecv(void *recv, size_t count, dlcoll_dtype dtype, dlcoll_message *message,
                            dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work);

/* Cancels a receive (not one of a batch) that no message has matched yet: its handle is complete
 * with DLCOLL_ECANCELED. DLCOLL_ESTATE: a message has matched it, or it is complete; it goes on as
 * without the call. DLCOLL_EINVAL: it is not a receive. */
DLCOLL_API int dlcoll_cancel(dlcoll_work *work);

typedef struct dlcoll_p2p {
    const void *send; /* exactly one of these two is not NULL: a send or a receive */
    void *recv;
    size_t count;
    dlcoll_dtype dtype;
    int32_t peer;
    int32_t tag;
    uint32_t unused;
} dlcoll_p2p;

/* Starts n sends and receives together; complete when all of them are. Their order does not
 * matter: a batch cannot block itself. The list is read until the call returns. DLCOLL_EINVAL also:
 * the list is NULL, or an entry has both buffers or none. */
DLCOLL_API int dlcoll_batch(const dlcoll_p2p *list, size_t n, dlcoll_comm *comm,
                            const dlcoll_opts *opts, dlcoll_work **work);

/* -------------------------------------------------------------------------------------- work
 *
 * A handle is used by one thread at a time, which need not be the one that started the operation.
 * The result of an operation is 0 or what its blocking form would have returned. The functions
 * below return DLCOLL_EINVAL for a NULL handle, DLCOLL_ESTATE for one of a fork()'s parent. */

/* Begins a persistent operation with the arguments of its call, on the data that its buffers have
 * then. The arrays and layouts of the call have been copied. Counts as a call: every rank starts
 * the same operations in the same order, persistent or not. Its timeout begins anew. Once it is
 * complete it may be started again; a wait for it returns the result of the last start, or 0 if
 * there was none. On host memory. Returns 0, or a common error of operations; DLCOLL_EINVAL also:
 * the handle is not a persistent operation's; DLCOLL_ESTATE also: the operation is under way. */
DLCOLL_API int dlcoll_start(dlcoll_work *work);

/* Returns DLCOLL_INPROGRESS, or the operation's result. Does not wait. */
DLCOLL_API int dlcoll_test(dlcoll_work *work);
/* Waits for the operation, and returns its result: DLCOLL_ETIMEDOUT when the operation's own
 * timeout is over. */
DLCOLL_API int dlcoll_wait(dlcoll_work *work);
/* Waits for at most timeout_ms (negative: no limit). Returns the result, or DLCOLL_INPROGRESS where
 * the operation is still under way then. */
DLCOLL_API int dlcoll_wait_for(dlcoll_work *work, int64_t timeout_ms);
/* Waits until one of n is complete: *index is which, and its result is returned; DLCOLL_INPROGRESS
 * after timeout_ms (negative: no limit). NULL entries are skipped; DLCOLL_EINVAL: all are NULL, or
 * index is. */
DLCOLL_API int dlcoll_wait_any(dlcoll_work *const *works, size_t n, size_t *index,
                               int64_t timeout_ms);
/* Waits until all n are complete. Returns 0, or the first result in the list that is not 0, or
 * DLCOLL_INPROGRESS after timeout_ms (negative: no limit). NULL entries are skipped. */
DLCOLL_API int dlcoll_wait_all(dlcoll_work *const *works, size_t n, int64_t timeout_ms);
/* Calls fn(arg) once, when the operation under way is complete: in the thread that completes it, or
 * in this call if it is complete already. fn must neither block nor call the library. It is called
 * for an operation, too, whose handle has been freed or whose communicator is destroyed, but never
 * in a fork()'s child. Returns 0; DLCOLL_EINVAL: work or fn is NULL; DLCOLL_ESTATE: a function is
 * set already; DLCOLL_ENOSUP: the operation is on device memory. */
DLCOLL_API int dlcoll_notify(dlcoll_work *work, void (*fn)(void *arg), void *arg);
/* Ends the handle, in any state: an operation under way goes on, and its buffers are the library's
 * until it is complete. NULL is allowed. Before dlcoll_destroy() of its communicator. */
DLCOLL_API void dlcoll_work_free(dlcoll_work *work);
/* dlcoll_work_free() for an owner that cannot keep the buffers any longer: cancels a receive that
 * no message has matched, and waits for any other operation first. */
DLCOLL_API void dlcoll_work_drop(dlcoll_work *work);

/* --------------------------------------------------------------------------------------- memory */

/* Memory that all ranks of this node can reach: operations whose buffers lie in it copy least. To
 * be freed by dlcoll_mem_free() before `comm` is destroyed. Aligned to a page, zeroed. No other
 * rank need call it. Any thread. Returns NULL when none is left, no memory is shared (malloc()
 * serves as well then), or comm is NULL or of a fork()'s parent. */
DLCOLL_API void *dlcoll_mem_alloc(dlcoll_comm *comm, size_t bytes);
DLCOLL_API void dlcoll_mem_free(dlcoll_comm *comm, void *p); /* NULL is allowed */

/* ------------------------------------------------------------------------------ device memory
 *
 * Buffers of an operation may be CUDA device memory, on all ranks or on none. Operations on
 * host memory go through shared memory and sockets, those on device memory through NCCL (2.19 or
 * later), loaded when it is needed from DLCOLL_NCCL_LIB, from what the process has loaded, or from
 * where the loader looks; and through the CUDA driver, which is loaded in the same way
 * (DLCOLL_CUDA_LIB, libcuda.so.1). The device is that of the first operation's buffer, else the one
 * that the thread has set (cudaSetDevice()); later operations may come from a thread with another
 * one. An operation on host memory never creates a CUDA context. A driver that cannot tell what a
 * buffer is (an earlier error of the program's kernels): DLCOLL_EBACKEND.
 *
 * Whether an operation is on device memory follows from a stream in its options; else from a buffer
 * in which this rank has elements; else from any buffer that is not NULL. In gather_v, scatter_v,
 * all_to_all_v, send and recv, a rank without elements and with NULL buffers has no such sign: its
 * operation counts as one on host memory as long as
 * the communicator has done nothing on device memory (where the others begin with it, all get
 * DLCOLL_EMISMATCH, with "nccl_init"), and is refused from then on: DLCOLL_EINVAL. An operation in
 * which no rank has elements does nothing either way, and neither does an empty send or recv on
 * device memory.
 *
 * With a stream in the options an operation is enqueued there and the call returns; a work handle,
 * if one is asked for, tells when it is complete. Without, it is enqueued on a stream of the
 * library's, after what the legacy default stream has, and a call without a handle waits. The
 * stream 1 is the legacy default stream and 2 the thread's (cudaStreamLegacy and
 * cudaStreamPerThread). Host and device operations of one communicator are not ordered among each
 * other. Every operation has its deadline, also one on the program's stream without a handle. An
 * operation may be captured into a graph, without a handle, once NCCL's communicator is there
 * (dlcoll_device_init()); the graph must be destroyed before the communicator.
 *
 * All buffers of an operation in which this rank has elements must be of one kind, and of the
 * device of the communicator (DLCOLL_EINVAL): device, managed or pinned memory where one is device
 * memory or where there is a stream. NCCL connects ranks as they need it: the first collective
 * waits, in the call, for all ranks, and the first message between two ranks for the other one. Two
 * ranks that begin with a message to each other so need dlcoll_batch(). An operation called between
 * the program's ncclGroupStart() and ncclGroupEnd() would not begin before the latter: in
 * non-blocking mode, from NCCL 2.23.4 on, that is refused (DLCOLL_EINVAL).
 *
 * As NCCL has it: no i16, u16, bitwise, logical (but bool's) or user's reductions, 8-bit floats
 * reduced from 2.24 on and on GPUs of compute capability 9.0 and later, no tags, no recv_any:
 * DLCOLL_ENOSUP. A bool is 0 or 1. Sends and receives need an operation of all ranks before them. A
 * barrier goes by NCCL when it has a stream. What NCCL lacks (the _v forms, older ones' all_to_all,
 * gather, scatter) is made of grouped sends and receives. Ranks are not compared as on the host:
 * different operations end in a timeout.
 *
 * As NCCL has it, too: whether min and max of a NaN give the NaN; sums of 16-bit and 8-bit floats
 * may be rounded at every hop; the sum of an average of integers wraps around before it is divided.
 *
 * When a rank dies, or the communicator fails for another reason, works that are under way end with
 * the reason at once on every rank, and NCCL's communicator is aborted, also for what is on streams
 * of the program's. dlcoll_destroy() waits for that abort for a second at most: NCCL's does not
 * return while a captured graph with its kernels is there. */

/* A unique id of NCCL's for a program that makes its own communicator of the ranks of `comm`: *id,
 * an ncclUniqueId (128 bytes), is the same on every rank. Needs no device. Returns 0;
 * DLCOLL_EINVAL: id is NULL; DLCOLL_ENOSUP: there is no NCCL; DLCOLL_EBACKEND: NCCL makes no id; or
 * a common error of operations. */
DLCOLL_API int dlcoll_nccl_unique_id(dlcoll_comm *comm, void *id);

typedef enum dlcoll_nccl_mode {
    DLCOLL_NCCL_MODE_DEFAULT = 0, /* DLCOLL_NCCL_BLOCKING from the environment (0, 1), else 0 */
    DLCOLL_NCCL_IS_BLOCKING = 1,
    DLCOLL_NCCL_IS_NON_BLOCKING = 2,
    DLCOLL_NCCL_MODE_MAX = 0x7fffffff
} dlcoll_nccl_mode;

/* Settings of NCCL's communicator, the same on every rank; 0: NCCL's own choice. */
typedef struct dlcoll_device_opts {
    size_t size;
    uint32_t version;
    int32_t blocking; /* dlcoll_nccl_mode; NCCL_COMM_BLOCKING in the environment overrides it */
    int32_t min_ctas, max_ctas, cga_cluster_size;
    int32_t traffic_class; /* from NCCL 2.27 on */
    int32_t split_share;   /* 1: groups share this communicator's resources */
    const char *name;      /* for NCCL's messages, from 2.27 on; NULL: the group's */
} dlcoll_device_opts;

#define DLCOLL_DEVICE_OPTS_VERSION 1
#define DLCOLL_DEVICE_OPTS_INIT                                                     \
    {                                                                               \
        sizeof(dlcoll_device_opts), DLCOLL_DEVICE_OPTS_VERSION, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Creates NCCL's communicator now, on this thread's device, instead of in the first operation on
 * device memory: needed before operations are captured into a graph. Every rank calls it. Where it
 * is there already, nothing is done. Returns 0; DLCOLL_EINVAL: `blocking` is not 0, 1 or 2; or a
 * common error of operations. */
DLCOLL_API int dlcoll_device_init(dlcoll_comm *comm, const dlcoll_device_opts *opts);

/* Lets the stream wait for an operation on device memory that has a handle; the host does not wait.
 * Returns 0; DLCOLL_EINVAL: work is NULL, or not on device memory, or the stream is being captured
 * into a graph; DLCOLL_ESTATE: it is that of a
 * fork()'s parent; DLCOLL_EBACKEND: CUDA refuses; or the result of an operation that has failed. */
DLCOLL_API int dlcoll_stream_wait(void *stream, dlcoll_work *work);

/* Device memory from ncclMemAlloc(), which NCCL can register best. To be called after
 * dlcoll_device_init() or an operation on device memory, on this rank alone; to be freed by
 * dlcoll_device_free() before `comm` is destroyed. *p is NULL on failure. Both return 0;
 * DLCOLL_ESTATE: NCCL's communicator does not exist yet, the communicator has failed, or another
 * thread is inside; DLCOLL_EBACKEND: NCCL refuses. dlcoll_device_alloc() also: DLCOLL_EINVAL: comm
 * or p is NULL; DLCOLL_ENOSUP: NCCL has no such call. */
DLCOLL_API int dlcoll_device_alloc(dlcoll_comm *comm, void **p, size_t bytes);
DLCOLL_API int dlcoll_device_free(dlcoll_comm *comm, void *p); /* NULL is allowed */

/* Registers symmetric device memory: every rank calls it, with memory of dlcoll_device_alloc() and
 * the same length. *window is for dlcoll_window_deregister(), before the memory is freed. Both
 * return 0; DLCOLL_EBACKEND: NCCL refuses; or a common error of operations.
 * dlcoll_window_register() also: DLCOLL_EINVAL: p or window is NULL, p is not aligned to 4096
 * bytes, or bytes is 0; DLCOLL_ENOSUP: NCCL before 2.27, or NCCL has no symmetric memory on the
 * ranks' devices; then *window is NULL, and the memory can be used without one. */
DLCOLL_API int dlcoll_window_register(dlcoll_comm *comm, void *p, size_t bytes, void **window);
DLCOLL_API int dlcoll_window_deregister(dlcoll_comm *comm, void *window);

/* Registers device memory with NCCL, which may then move it without copying. Every rank calls it.
 * *handle, which may be NULL where NCCL has no registration, is for dlcoll_mem_deregister(), before
 * the memory is freed. Both return 0; DLCOLL_EBACKEND: NCCL refuses; or a common error of
 * operations. dlcoll_mem_register() also: DLCOLL_EINVAL: p or handle is NULL. */
DLCOLL_API int dlcoll_mem_register(dlcoll_comm *comm, void *p, size_t bytes, void **handle);
DLCOLL_API int dlcoll_mem_deregister(dlcoll_comm *comm, void *handle);

/* ------------------------------------------------------------------------------------------- store
 *
 * A key-value store for the program's own use, TCPStore-compatible. Keys are texts of at most 8192
 * bytes, values at most 64 MiB (longer ones: DLCOLL_EINVAL, and nothing is sent).
 * A store is used by one thread at a time. Timeouts: 0: that of the store's opening; negative:
 * none. Every function that returns an int returns 0, unless its comment says otherwise, or
 * DLCOLL_EINVAL (a NULL argument, a key or value that is too long, a wrong URL), ENOMEM, ETIMEDOUT,
 * ENET; dlcoll_last_error(NULL, ...) has the text. */

/* Connects to the store at "tcp://HOST:PORT". host_it: serves it there first, in this process,
 * until dlcoll_store_close(). Owned by the caller. */
DLCOLL_API int dlcoll_store_open(dlcoll_store **store, const char *url, int host_it,
                                 int64_t timeout_ms);
DLCOLL_API void dlcoll_store_close(dlcoll_store *store); /* NULL is allowed */

/* *store is the job's own store; connected at the first call. Borrowed: valid as long as `comm` is.
 * The library's own keys in that store begin with "dlcoll/". DLCOLL_ESTATE also: in a fork()'s
 * child. */
DLCOLL_API int dlcoll_comm_store(dlcoll_comm *comm, dlcoll_store **store);

DLCOLL_API int dlcoll_store_set(dlcoll_store *store, const char *key, const void *value,
                                size_t len);
/* Waits until the key exists. *value is owned by the caller, who frees it with free(). */
DLCOLL_API int dlcoll_store_get(dlcoll_store *store, const char *key, void **value, size_t *len,
                                int64_t timeout_ms);
/* Adds to the number that is stored there as a text (0 when there is none); *sum is the result. If
 * the value is not a number, the server closes the connection (DLCOLL_ENET), and the store can only
 * be closed. */
DLCOLL_API int dlcoll_store_add(dlcoll_store *store, const char *key, int64_t delta, int64_t *sum);
/* Waits until all n keys exist. */
DLCOLL_API int dlcoll_store_wait(dlcoll_store *store, const char *const *keys, size_t n,
                                 int64_t timeout_ms);
/* Stores `value` if `expected` is stored now (len 0: if nothing is). *now is what is stored then;
 * the caller frees it with free(). now and now_len may be NULL. Where nothing is stored and
 * something is expected, nothing is changed and *now is `expected`, as with TCPStore: this does not
 * mean that it is stored. */
DLCOLL_API int dlcoll_store_compare_set(dlcoll_store *store, const char *key, const void *expected,
                                        size_t expected_len, const void *value, size_t len,
                                        void **now, size_t *now_len);
/* Deletes the key. Returns 1: deleted; 0: the key did not exist; or an error of stores. */
DLCOLL_API int dlcoll_store_delete(dlcoll_store *store, const char *key);

/* -------------------------------------------------------------------------------- introspection */

/* One operation in the flight recorder. */
typedef struct dlcoll_record {
    uint64_t group; /* the communicator's number; 0: that of dlcoll_init() */
    uint64_t seq;   /* from 1; sends and receives together have a count of their own, and
                       monitored barriers */
    uint64_t count;
    uint64_t bytes; /* of this rank's part */
    /* CLOCK_MONOTONIC; exact to a tick of the kernel (1 to 10 ms) where `bytes` is less than
     * 64 KB, except for the end of an operation that has failed. Of device memory: until it is
     * enqueued on the program's stream; with DLCOLL_DEVICE_TIMES=1, as the device began and ended
     * it, start_ns being that of the call until it has begun. */
    uint64_t start_ns;
    uint64_t end_ns; /* 0: under way */
    int32_t peer;    /* root or peer; -1: none */
    int32_t result;  /* valid once end_ns is not 0 */
    char op[24];     /* "all_reduce" */
    char dtype[8];   /* "f32", or "" */
    char reduction[12];
    char group_name[20];
} dlcoll_record;

/* The last operations of a rank of the world that is on this node, the newest first; rank -1: this
 * one. An operation whose record is being written at this moment is left out. Returns how many were
 * filled in, at most `max`; DLCOLL_EINVAL: comm or out is NULL, or there is no such rank;
 * DLCOLL_ENOSUP: that rank's records are not visible from here. From any thread. */
DLCOLL_API int dlcoll_recent(const dlcoll_comm *comm, int rank, dlcoll_record *out, int max);

/* The library's choices and their reasons, as lines "name: value" for people: ranks, nodes, memory,
 * for every operation the provider and algorithm at each size, and why others are not used
 * (dlcoll_info(1)). Writes at most `size` bytes with the NUL; returns the length of the whole text,
 * 0 if comm is NULL. To be called by the thread that uses `comm`. */
DLCOLL_API size_t dlcoll_describe(const dlcoll_comm *comm, char *out, size_t size);

#ifdef __cplusplus
}
#endif

#endif
