/* nccl_abi.c: compares nccl_api.h with the real headers where the build finds them. */
#ifdef HAVE_NCCL_H
#include <nccl.h>

#include "collectives/dlcoll.h"
#include "collectives/nccl/nccl_api.h"

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a " is not " #b)
SAME(NCCL_OK, ncclSuccess);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 3)
SAME(NCCL_TIMEOUT, ncclTimeout);
#endif
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
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
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 3) || defined(__CUDA_BF16_TYPES_EXIST__)
SAME(DLCOLL_BF16, ncclBfloat16);
#endif
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
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
SAME(offsetof(struct nccl_config, traffic_class), offsetof(ncclConfig_t, trafficClass));
SAME(offsetof(struct nccl_config, name), offsetof(ncclConfig_t, commName));
SAME(offsetof(struct nccl_config, nvls_ctas), offsetof(ncclConfig_t, nvlsCTAs));
SAME(NCCL_WINDOW_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
#endif
#if __has_include(<cuda.h>)
#include <cuda.h>
SAME(CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CUDA_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CUDA_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CUDA_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CUDA_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CUDA_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(CUDA_POINTER_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CUDA_POINTER_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CUDA_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CUDA_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(CUDA_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CUDA_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CUDA_MODE_EXCLUSIVE, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
SAME(CUDA_MODE_PROHIBITED, CU_COMPUTEMODE_PROHIBITED);
SAME(CUDA_UUID_BYTES, sizeof(CUuuid));
SAME(sizeof(cuda_ptr), sizeof(CUdeviceptr));

/* The header's macros choose the symbol: each must be the one that is looked up. CUDA 13's header
 * has a second version of cuEventElapsedTime, which drivers of CUDA 12 lack; the first is in all of
 * them. CUDA 12's header declares the second version of cuDeviceGetUuid, which tells instances of
 * MIG apart and is looked up, but does not choose it. */
#undef cuEventElapsedTime
#if CUDA_VERSION < 13000
_Static_assert(sizeof(&cuDeviceGetUuid_v2) > 0, "the header declares it");
#undef cuDeviceGetUuid
#define cuDeviceGetUuid cuDeviceGetUuid_v2
#endif
#define TEXT(x)  #x
#define TEXT2(x) TEXT(x)
#define SAME_NAME(name, suffix, result, args) \
    _Static_assert(__builtin_strcmp(TEXT2(cu##name), "cu" #name suffix) == 0, #name);
CUDA_FUNCTIONS(SAME_NAME, SAME_NAME)
#endif
#endif

typedef int nccl_abi_is_never_empty;
