/* nccl_api.h: NCCL and the CUDA runtime, loaded when a communicator needs them; names and values
 * are those of their manuals, so that no header of theirs is needed to build. Where nccl.h is
 * there, nccl_abi.c compares. */
#ifndef COLLECTIVES_NCCL_API_H
#define COLLECTIVES_NCCL_API_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7, NCCL_ID_BYTES = 128 };
enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG };
enum { NCCL_U8 = 1, NCCL_F32 = 7, NCCL_F8E4M3 = 10 };
enum { NCCL_SPLIT_NONE = -1, NCCL_SCALAR_HOST = 1 };
enum { NCCL_LEAST = 21400, NCCL_WITH_F8 = 22400 };

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

/* The beginning of ncclConfig_t, as of 2.18; the library knows by size and version what is there.
 */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};
#define NCCL_CONFIG_MAGIC   0xcafebeef
#define NCCL_CONFIG_VERSION 21800
#define NCCL_CONFIG_UNDEF   (-2147483647 - 1)

typedef void *nccl_comm_t;
typedef void *cuda_stream;
typedef void *cuda_event;

enum { CUDA_OK = 0, CUDA_NOT_READY = 600, CUDA_NO_TIMING = 2, CUDA_COPY_ANY = 4 };
enum { CUDA_MEMORY_DEVICE = 2, CUDA_MEMORY_MANAGED = 3 };

struct cuda_pointer { /* cudaPointerAttributes and room for what is added behind */
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[28];
};

/* F: needed; O: NULL where the library has none. (name, result, arguments) */
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
    O(AlltoAll, int, (const void *, void *, size_t, int, nccl_comm_t, cuda_stream))             \
    O(Gather, int, (const void *, void *, size_t, int, int, nccl_comm_t, cuda_stream))          \
    O(Scatter, int, (const void *, void *, size_t, int, int, nccl_comm_t, cuda_stream))

#define CUDA_FUNCTIONS(F, O)                                            \
    F(GetDevice, int, (int *))                                          \
    F(SetDevice, int, (int))                                            \
    F(GetLastError, int, (void))                                        \
    F(GetErrorString, const char *, (int))                              \
    F(PointerGetAttributes, int, (struct cuda_pointer *, const void *)) \
    F(StreamCreate, int, (cuda_stream *))                               \
    F(StreamDestroy, int, (cuda_stream))                                \
    F(StreamWaitEvent, int, (cuda_stream, cuda_event, unsigned))        \
    F(EventCreateWithFlags, int, (cuda_event *, unsigned))              \
    F(EventDestroy, int, (cuda_event))                                  \
    F(EventRecord, int, (cuda_event, cuda_stream))                      \
    F(EventQuery, int, (cuda_event))                                    \
    F(Malloc, int, (void **, size_t))                                   \
    F(Free, int, (void *))                                              \
    F(MemcpyAsync, int, (void *, const void *, size_t, int, cuda_stream))

struct cuda_api {
#define API_DECLARE(name, result, args) result(*name) args;
    CUDA_FUNCTIONS(API_DECLARE, API_DECLARE)
};

struct nccl_api {
    NCCL_FUNCTIONS(API_DECLARE, API_DECLARE)
#undef API_DECLARE
    int version; /* 22809: 2.28.9 */
};

/* Both tables, filled once for the process. A library is the one that DLCOLL_NCCL_LIB or
 * DLCOLL_CUDART_LIB names, else the copy that the process has loaded already, else the loader's
 * libnccl.so.2 or libcudart.so. Any thread. 0, or -ENOENT with a text that says what is missing. */
int cuda_api_get(const struct cuda_api **out, struct err *e);
int nccl_api_get(const struct nccl_api **out, struct err *e);

/* Whether this host may have a GPU that CUDA can use: one system call. */
bool cuda_is_likely(void);

#endif
