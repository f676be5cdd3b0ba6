/* nccl_profiler_abi.h: NCCL's interface of profiler plug-ins, versions 1 to 6: what of it is used
 * here, as NCCL lays it out in memory. tests/integration/test_profiler_abi.sh compares it with
 * NCCL's headers.
 *
 * All versions have a table of the same shape, and events that begin alike; in versions 1 to 4 only
 * the first byte of `type` is there. */
#ifndef COLLECTIVES_PROFILER_NCCL_PROFILER_ABI_H
#define COLLECTIVES_PROFILER_NCCL_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NCCL_PROFILER_VERSIONS 6

enum nccl_event_type {
    NCCL_EVENT_GROUP = 1,
    NCCL_EVENT_COLL = 2,
    NCCL_EVENT_P2P = 4,
    NCCL_EVENT_PROXY_OP = 8,
    NCCL_EVENT_PROXY_STEP = 16,
    NCCL_EVENT_KERNEL_CH = 64, /* from version 3 on: one channel of a kernel runs */
    NCCL_EVENT_COLL_API = 512, /* from version 5 on: a call, parent of the operation */
};

/* Versions before 4: an operation begins with its communicator. */
struct nccl_coll_v1 {
    const char *comm_name;
    uint64_t comm;
    uint64_t seq;
    uint8_t func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    uint8_t dtype;
};

struct nccl_coll_v2 { /* and version 3 */
    const char *comm_name;
    uint64_t comm;
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *dtype;
};

struct nccl_coll_v4 { /* and later */
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *dtype;
    uint8_t nchannels, nwarps;
    const char *algo, *proto;
    void *parent_group; /* from version 5 on: what `parent` is in version 4 */
};

struct nccl_p2p_v1 {
    const char *comm_name;
    uint64_t comm;
    uint8_t func;
    void *buf;
    uint8_t dtype;
    size_t count;
    int peer;
};

struct nccl_p2p_v2 { /* and version 3 */
    const char *comm_name;
    uint64_t comm;
    const char *func;
    void *buf;
    const char *dtype;
    size_t count;
    int peer;
};

struct nccl_p2p_v4 { /* and later */
    const char *func;
    void *buf;
    const char *dtype;
    size_t count;
    int peer;
    uint8_t nchannels;
    void *parent_group; /* from version 5 on */
};

struct nccl_coll_api { /* from version 5 on */
    const char *func;
    size_t count;
    const char *dtype;
    int root;
    void *stream;
    bool captured;
};

struct nccl_event {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct nccl_coll_v1 coll_v1;
        struct nccl_coll_v2 coll_v2;
        struct nccl_coll_v4 coll_v4;
        struct nccl_p2p_v1 p2p_v1;
        struct nccl_p2p_v2 p2p_v2;
        struct nccl_p2p_v4 p2p_v4;
        struct nccl_coll_api coll_api;
        pid_t proxy_pid; /* of a PROXY_OP: the process that its parent is an event of */
    };
};

struct nccl_profiler {
    const char *name;
    union {
        int (*v1)(void **context, int *mask); /* to 3 */
        int (*v4)(void **context, int *mask, const char *comm_name, uint64_t comm, int nnodes,
                  int nranks, int rank, void *log);
        int (*v5)(void **context, uint64_t comm, int *mask, const char *comm_name, int nnodes,
                  int nranks, int rank, void *log);
    } init;
    int (*start)(void *context, void **handle, struct nccl_event *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, void *args);
    int (*finalize)(void *context);
};

#endif
