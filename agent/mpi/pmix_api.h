/* pmix_api.h: the server's part of OpenPMIx's libpmix.so.2, loaded for programs that are wired up
 * by PMIx (Open MPI). The names and values are those of the PMIx standard 4.1; the library keeps
 * its binary interface, so the build needs no header of PMIx. tests/mpi/pmix_abi.c compares them
 * with pmix_server.h. */
#ifndef AGENT_MPI_PMIX_API_H
#define AGENT_MPI_PMIX_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/err.h"

enum {
    PMIX_OK = 0,
    PMIX_FAILED = -1,
    PMIX_IS_UNKNOWN = -46,     /* PMIX_ERR_NOT_FOUND */
    PMIX_IS_UNSUPPORTED = -47, /* PMIX_ERR_NOT_SUPPORTED */
    PMIX_DONE = -157,          /* PMIX_OPERATION_SUCCEEDED: the callback will not be called */
};
enum {
    PMIX_T_BOOL = 1,
    PMIX_T_STRING = 3,
    PMIX_T_U16 = 13,
    PMIX_T_U32 = 14,
    PMIX_T_INFO = 24,
    PMIX_T_ARRAY = 39,
    PMIX_T_RANK = 40,
};
#define PMIX_NAME_MAX 255
#define PMIX_KEY_MAX  511
#define PMIX_ALL      (UINT32_MAX - 1) /* PMIX_RANK_WILDCARD */

struct pmix_name { /* pmix_proc_t */
    char nspace[PMIX_NAME_MAX + 1];
    uint32_t rank;
};

struct pmix_array { /* pmix_data_array_t */
    uint16_t type;
    size_t size;
    void *array;
};

struct pmix_item { /* pmix_info_t */
    char key[PMIX_KEY_MAX + 1];
    uint32_t flags;
    struct {
        uint16_t type;
        union {
            bool flag;
            uint16_t u16;
            uint32_t u32; /* PMIX_T_RANK, too */
            const char *string;
            struct pmix_array *array;
            struct {
                char *name, *value;
                char separator;
            } largest;
        } data;
    } value;
};

typedef void pmix_done_fn(int status, void *arg);
typedef void pmix_release_fn(void *arg);
typedef void pmix_blob_fn(int status, const char *data, size_t len, void *arg,
                          pmix_release_fn *release, void *release_arg);
typedef void pmix_found_fn(int status, char *data, size_t len, void *arg);

/* pmix_server_module_t: what libpmix asks of its host. */
struct pmix_module {
    int (*client_connected)(const struct pmix_name *who, void *object, pmix_done_fn *, void *);
    int (*client_finalized)(const struct pmix_name *who, void *object, pmix_done_fn *, void *);
    int (*abort)(const struct pmix_name *who, void *object, int status, const char *text,
                 struct pmix_name *victims, size_t nvictims, pmix_done_fn *, void *);
    int (*fence)(const struct pmix_name *who, size_t n, const struct pmix_item *, size_t,
                 char *data, size_t len, pmix_blob_fn *, void *);
    int (*direct_modex)(const struct pmix_name *of, const struct pmix_item *, size_t,
                        pmix_blob_fn *, void *);
    void *publish, *lookup, *unpublish;
    int (*spawn)(const struct pmix_name *who, const struct pmix_item *, size_t, const void *apps,
                 size_t napps, void *, void *);
    void *unused[32]; /* connect to client_connected2, and functions of later versions */
};

/* Return type, name, parameters. */
#define PMIX_FUNCTIONS(F)                                                                      \
    F(int, PMIx_server_init, (struct pmix_module *, struct pmix_item *, size_t))               \
    F(int, PMIx_server_finalize, (void))                                                       \
    F(int, PMIx_server_register_nspace,                                                        \
      (const char *nspace, int nlocal, struct pmix_item *, size_t, pmix_done_fn *, void *))    \
    F(void, PMIx_server_deregister_nspace, (const char *nspace, pmix_done_fn *, void *))       \
    F(int, PMIx_server_register_client,                                                        \
      (const struct pmix_name *, uid_t, gid_t, void *object, pmix_done_fn *, void *))          \
    F(void, PMIx_server_deregister_client, (const struct pmix_name *, pmix_done_fn *, void *)) \
    F(int, PMIx_server_setup_fork, (const struct pmix_name *, char ***env))                    \
    F(int, PMIx_server_dmodex_request, (const struct pmix_name *, pmix_found_fn *, void *))    \
    F(const char *, PMIx_Error_string, (int status))

struct pmix_api {
#define PMIX_MEMBER(type, name, params) type(*name) params;
    PMIX_FUNCTIONS(PMIX_MEMBER)
#undef PMIX_MEMBER
};

/* Loads the library, which stays loaded. */
int pmix_api_load(struct pmix_api *api, struct err *e);

#endif
