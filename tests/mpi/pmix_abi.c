/* The declarations of agent/mpi/pmix_api.h are those of pmix_server.h. */
#include <pmix_server.h>
#include <stddef.h>

#include "agent/mpi/pmix_api.h"

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)

SAME(PMIX_OK, PMIX_SUCCESS);
SAME(PMIX_FAILED, PMIX_ERROR);
SAME(PMIX_IS_UNKNOWN, PMIX_ERR_NOT_FOUND);
SAME(PMIX_IS_UNSUPPORTED, PMIX_ERR_NOT_SUPPORTED);
SAME(PMIX_DONE, PMIX_OPERATION_SUCCEEDED);
SAME(PMIX_T_BOOL, PMIX_BOOL);
SAME(PMIX_T_STRING, PMIX_STRING);
SAME(PMIX_T_U16, PMIX_UINT16);
SAME(PMIX_T_U32, PMIX_UINT32);
SAME(PMIX_T_INFO, PMIX_INFO);
SAME(PMIX_T_ARRAY, PMIX_DATA_ARRAY);
SAME(PMIX_T_RANK, PMIX_PROC_RANK);
SAME(PMIX_NAME_MAX, PMIX_MAX_NSLEN);
SAME(PMIX_KEY_MAX, PMIX_MAX_KEYLEN);
SAME(PMIX_ALL, PMIX_RANK_WILDCARD);

SAME(sizeof(struct pmix_name), sizeof(pmix_proc_t));
SAME(offsetof(struct pmix_name, rank), offsetof(pmix_proc_t, rank));
SAME(sizeof(struct pmix_array), sizeof(pmix_data_array_t));
SAME(offsetof(struct pmix_array, size), offsetof(pmix_data_array_t, size));
SAME(offsetof(struct pmix_array, array), offsetof(pmix_data_array_t, array));
SAME(sizeof(struct pmix_item), sizeof(pmix_info_t));
SAME(offsetof(struct pmix_item, flags), offsetof(pmix_info_t, flags));
SAME(offsetof(struct pmix_item, value), offsetof(pmix_info_t, value));
SAME(offsetof(struct pmix_item, value.data), offsetof(pmix_info_t, value.data));

#define AT(member, theirs) \
    SAME(offsetof(struct pmix_module, member), offsetof(pmix_server_module_t, theirs))
AT(client_connected, client_connected);
AT(client_finalized, client_finalized);
AT(abort, abort);
AT(fence, fence_nb);
AT(direct_modex, direct_modex);
AT(spawn, spawn);
/* A library that is newer than the header may know more functions: there are zeros for them. */
_Static_assert(sizeof(struct pmix_module) >= sizeof(pmix_server_module_t), "too short");

int main(void)
{
    return 0;
}
