/* nccl_api.h: NCCL and the CUDA driver (libcuda), loaded when a communicator needs them. Names and
 * values come from their manuals, so the build needs no header of NVIDIA; nccl_abi.c compares them
 * with nccl.h and cuda.h where the build finds these.
 *
 * The library calls the driver rather than the runtime: a program may have linked a runtime
 * statically, or have loaded another version of it, but a process has one driver, which sees all
 * memory. */
#ifndef COLLECTIVES_NCCL_NCCL_API_H
#define COLLECTIVES_NCCL_NCCL_API_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

enum { NCCL_OK = 0, NCCL_SYSTEM_ERROR = 2, NCCL_INTERNAL = 3, NCCL_INVALID_ARGUMENT = 4 };
enum { NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7, NCCL_TIMEOUT = 8 /* from 2.30 on */ };
enum { NCCL_ID_BYTES = 128 };
enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG };
enum { NCCL_U8 = 1, NCCL_F32 = 7, NCCL_F8E4M3 = 10 };
enum { NCCL_SPLIT_NONE = -1, NCCL_SCALAR_HOST = 1 };
enum {
    NCCL_LEAST = 21900,
    NCCL_TELLS_GROUPS = 22304,
    NCCL_WITH_F8 = 22400,
    NCCL_WITH_NAME = 22700
};
enum { NCCL_F8_CAPABILITY = 90, NCCL_WINDOW_SYMMETRIC = 1, NCCL_WINDOW_ALIGN = 4096 };

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

/* ncclConfig_t as of 2.27. A library before that gets it up to split_share only: `size` and
 * `version` report how much is filled in. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *name;
    int collnet, cta_policy, shrink_share, nvls_ctas;
};
#define NCCL_CONFIG_MAGIC   0xcafebeef
#define NCCL_CONFIG_VERSION 21800
#define NCCL_CONFIG_UNDEF   (-2147483647 - 1)

typedef void *nccl_comm_t;
typedef void *cuda_stream;
typedef void *cuda_event;

typedef void *cuda_context;
typedef unsigned long long cuda_ptr;

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_DEINITIALIZED = 4,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_NOT_READY = 600
};
enum {
    CUDA_NO_TIMING = 2,
    CUDA_NON_BLOCKING = 1,
    CUDA_CAPTURE_RELAXED = 2,
    CUDA_ATTACH_GLOBAL = 1
};
enum {
    CUDA_MEMORY_HOST = 1, /* that the device can use, too */
    CUDA_MEMORY_DEVICE = 2,
    CUDA_POINTER_TYPE = 2,
    CUDA_POINTER_MANAGED = 8,
    CUDA_POINTER_DEVICE = 9
};
enum { CUDA_COMPUTE_MODE = 20, CUDA_CAPABILITY_MAJOR = 75, CUDA_CAPABILITY_MINOR = 76 };
enum { CUDA_MODE_EXCLUSIVE = 3, CUDA_MODE_PROHIBITED = 2, CUDA_UUID_BYTES = 16 };

/* F: required; O: NULL where the library lacks the function. (name, result, arguments) */
#define NCCL_FUNCTIONS(F, O)                                                                    \
    F(GetVersion, int, (int *))                                                                 \
    F(GetUniqueId, int, (struct nccl_id *))                                                     \
    F(GetErrorString, const char *, (int))                                                      \
    F(GetLastError, const char *, (nccl_comm_t))                                                \
    F(CommInitRankConfig, int, (nccl_comm_t *, int, struct nccl_id, int, struct nccl_config *)) \
    F(CommFinalize, int, (nccl_comm_t))                                                         \
    F(CommDestroy, int, (nccl_comm_t))                                                          \
    F(CommAbort, int, (nccl_comm_t))                                                            \
    F(CommGetAsyncError, int, (nccl_comm_t, int *))                                             \
    F(AllReduce, int, (const void *, void *, size_t, int, int, nccl_comm_t, cuda_stream))       \
    F(Reduce, int, (const void *, void *, size_t, int, int, int, nccl_comm_t, cuda_stream))     \
    F(Broadcast, int, (const void *, void *, size_t, int, int, nccl_comm_t, cuda_stream))       \
    F(AllGather, int, (const void *, void *, size_t, int, nccl_comm_t, cuda_stream))            \
    F(ReduceScatter, int, (const void *, void *, size_t, int, int, nccl_comm_t, cuda_stream))   \
    F(Send, int, (const void *, size_t, int, int, nccl_comm_t, cuda_stream))                    \
    F(Recv, int, (void *, size_t, int, int, nccl_comm_t, cuda_stream))                          \
    F(GroupStart, int, (void))                                                                  \
    F(GroupEnd, int, (void))                                                                    \
    F(RedOpCreatePreMulSum, int, (int *, void *, int, int, nccl_comm_t))                        \
    F(RedOpDestroy, int, (int, nccl_comm_t))                                                    \
    O(CommSplit, int, (nccl_comm_t, int, int, nccl_comm_t *, struct nccl_config *))             \
    O(CommInitRankScalable, int,                                                                \
      (nccl_comm_t *, int, int, int, struct nccl_id *, struct nccl_config *))                   \
    O(CommRegister, int, (nccl_comm_t, void *, size_t, void **))                                \
    O(CommDeregister, int, (nccl_comm_t, void *))                                               \
    O(CommWindowRegister, int, (nccl_comm_t, void *, size_t, void **, int))                     \
    O(CommWindowDeregister, int, (nccl_comm_t, void *))                                         \
    O(MemAlloc, int, (void **, size_t))                                                         \
    O(MemFree, int, (void *))                                                                   \
    O(AlltoAll, int, (const void *, void *, size_t, int, nccl_comm_t, cuda_stream))             \
    O(Gather, int, (const void *, void *, size_t, int, int, nccl_comm_t, cuda_stream))          \
    O(Scatter, int, (const void *, void *, size_t, int, int, nccl_comm_t, cuda_stream))

/* The second column is what a header's macro appends to the name. */
#define CUDA_FUNCTIONS(F, O)                                               \
    F(GetErrorString, "", int, (int, const char **))                       \
    F(Init, "", int, (unsigned))                                           \
    F(CtxGetCurrent, "", int, (cuda_context *))                            \
    F(CtxPushCurrent, "_v2", int, (cuda_context))                          \
    F(CtxPopCurrent, "_v2", int, (cuda_context *))                         \
    F(CtxGetDevice, "", int, (int *))                                      \
    F(CtxGetStreamPriorityRange, "", int, (int *, int *))                  \
    F(DeviceGetCount, "", int, (int *))                                    \
    F(DeviceGetAttribute, "", int, (int *, int, int))                      \
    O(DeviceGetUuid, "_v2", int, (char *, int))                            \
    O(DeviceGetPCIBusId, "", int, (char *, int, int))                      \
    F(DevicePrimaryCtxGetState, "", int, (int, unsigned *, int *))         \
    F(DevicePrimaryCtxRetain, "", int, (cuda_context *, int))              \
    F(DevicePrimaryCtxRelease, "_v2", int, (int))                          \
    F(PointerGetAttributes, "", int, (unsigned, int *, void **, cuda_ptr)) \
    F(StreamCreateWithPriority, "", int, (cuda_stream *, unsigned, int))   \
    F(StreamDestroy, "_v2", int, (cuda_stream))                            \
    F(StreamWaitEvent, "", int, (cuda_stream, cuda_event, unsigned))       \
    F(StreamIsCapturing, "", int, (cuda_stream, int *))                    \
    F(StreamGetCtx, "", int, (cuda_stream, cuda_context *))                \
    F(ThreadExchangeStreamCaptureMode, "", int, (int *))                   \
    F(EventCreate, "", int, (cuda_event *, unsigned))                      \
    F(EventDestroy, "_v2", int, (cuda_event))                              \
    F(EventRecord, "", int, (cuda_event, cuda_stream))                     \
    F(EventQuery, "", int, (cuda_event))                                   \
    O(EventElapsedTime, "", int, (float *, cuda_event, cuda_event))        \
    F(MemAlloc, "_v2", int, (cuda_ptr *, size_t))                          \
    F(MemFree, "_v2", int, (cuda_ptr))                                     \
    F(MemcpyAsync, "", int, (cuda_ptr, cuda_ptr, size_t, cuda_stream))     \
    O(MemAllocAsync, "", int, (cuda_ptr *, size_t, cuda_stream))           \
    O(MemFreeAsync, "", int, (cuda_ptr, cuda_stream))

struct cuda_api {
#define CUDA_DECLARE(name, suffix, result, args) result(*name) args;
    CUDA_FUNCTIONS(CUDA_DECLARE, CUDA_DECLARE)
#undef CUDA_DECLARE
};

struct nccl_api {
#define API_DECLARE(name, result, args) result(*name) args;
    NCCL_FUNCTIONS(API_DECLARE, API_DECLARE)
#undef API_DECLARE
    int version; /* 22809: 2.28.9 */
};

/* These fill the tables once for the process, from the library that DLCOLL_NCCL_LIB or
 * DLCOLL_CUDA_LIB names, else from the copy that the process has loaded already, else from the
 * loader's libnccl.so.2 or libcuda.so.1. Any thread may call them. They return 0, or -ENOENT with a
 * text that names what is missing. */
int cuda_api_get(const struct cuda_api **out, struct err *e);
int nccl_api_get(const struct nccl_api **out, struct err *e);

/* Sets *out to the driver if the process has loaded it, else to NULL: without the driver, no
 * pointer can be device memory. Returns 0, or -ENOENT if the loaded driver lacks functions. */
int cuda_api_if_loaded(const struct cuda_api **out, struct err *e);

/* Returns the driver's text for an error, never NULL. */
const char *cuda_strerror(const struct cuda_api *cuda, int rc);

/* Returns whether this host may have a GPU that CUDA can use. Costs one system call. */
bool cuda_is_likely(void);

/* Whether this process has loaded another copy of NCCL than `used`: the files of both, of `size`
 * bytes each. */
bool nccl_is_loaded_twice(const struct nccl_api *api, char *used, char *other, size_t size);

#endif
