/* nccl_abi.c: what nccl_api.h says is compared with the real header, where the build has it. */
#ifdef HAVE_NCCL_H
#include <nccl.h>

#include "collectives/dlcoll.h"
#include "collectives/nccl/nccl_api.h"

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a " is not " #b)
SAME(NCCL_OK, ncclSuccess);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_ID_BYTES, NCCL_UNIQUE_ID_BYTES);
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_PROD, ncclProd);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_AVG, ncclAvg);
SAME(DLCOLL_I8, ncclInt8);
SAME(DLCOLL_U8, ncclUint8);
SAME(DLCOLL_I32, ncclInt32);
SAME(DLCOLL_U32, ncclUint32);
SAME(DLCOLL_I64, ncclInt64);
SAME(DLCOLL_U64, ncclUint64);
SAME(DLCOLL_F16, ncclFloat16);
SAME(DLCOLL_F32, ncclFloat32);
SAME(DLCOLL_F64, ncclFloat64);
SAME(DLCOLL_BF16, ncclBfloat16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 3)
SAME(DLCOLL_F8E4M3, ncclFloat8e4m3);
SAME(DLCOLL_F8E5M2, ncclFloat8e5m2);
#endif
SAME(NCCL_SCALAR_HOST, ncclScalarHostImmediate);
SAME(NCCL_CONFIG_UNDEF, NCCL_CONFIG_UNDEF_INT);
SAME(offsetof(struct nccl_config, blocking), offsetof(ncclConfig_t, blocking));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 1)
SAME(NCCL_SPLIT_NONE, NCCL_SPLIT_NOCOLOR);
SAME(offsetof(struct nccl_config, split_share), offsetof(ncclConfig_t, splitShare));
#endif
#endif

typedef int nccl_abi_is_never_empty;
