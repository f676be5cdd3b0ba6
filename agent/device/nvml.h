/* nvml.h: NVIDIA's management library, loaded on demand. Names and values are those of its manual
 * (docs.nvidia.com/deploy/nvml-api), which guarantees them. Calls may take long, or forever if a
 * driver hangs, so none is made on the loop. */
#ifndef AGENT_DEVICE_NVML_H
#define AGENT_DEVICE_NVML_H

#include "core/err.h"

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

#define NVML_SUCCESS           0
#define NVML_ERROR_NOT_FOUND   6
#define NVML_ERROR_TIMEOUT     10
#define NVML_ERROR_GPU_IS_LOST 15
#define NVML_EVENT_XID         8ull
#define NVML_ECC_UNCORRECTED   1
#define NVML_ECC_SINCE_BOOT    0
#define NVML_MIG_ENABLED       1
#define NVML_NVLINKS_MAX       18 /* NVML_NVLINK_MAX_LINKS */
#define NVML_NVLINK_COUNTERS   4  /* nvmlNvLinkErrorCounter_t: two of replays, two of CRC errors */
#define NVML_TEMPERATURE_GPU   0
#define NVML_REASON_HW         0x08ull /* nvmlClocksEventReasonHwSlowdown, and so on */
#define NVML_REASON_SW_THERMAL 0x20ull
#define NVML_REASON_HW_THERMAL 0x40ull
#define NVML_REASON_HW_BRAKE   0x80ull
#define NVML_MODE_PROHIBITED   2
#define NVML_MODE_EXCLUSIVE    3

struct nvml_pci { /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

struct nvml_memory { /* nvmlMemory_t, bytes */
    unsigned long long total, free, used;
};

struct nvml_process { /* nvmlProcessInfo_t of the _v3 calls */
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct nvml_utilization { /* nvmlUtilization_t, percent of the last second or less */
    unsigned gpu, memory;
};

struct nvml_event { /* nvmlEventData_t */
    nvmlDevice_t device;
    unsigned long long type, data; /* data: the Xid */
    unsigned gpu_instance, compute_instance;
};

/* F(name, arguments): needed; O(name, arguments): NULL where this driver has none. */
#define NVML_FUNCTIONS(F, O)                                                                  \
    F(Init_v2, (void))                                                                        \
    F(Shutdown, (void))                                                                       \
    F(DeviceGetCount_v2, (unsigned *))                                                        \
    F(DeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))                                  \
    F(DeviceGetHandleByPciBusId_v2, (const char *, nvmlDevice_t *))                           \
    F(DeviceGetUUID, (nvmlDevice_t, char *, unsigned))                                        \
    F(DeviceGetPciInfo_v3, (nvmlDevice_t, struct nvml_pci *))                                 \
    F(DeviceGetMemoryInfo, (nvmlDevice_t, struct nvml_memory *))                              \
    O(DeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, struct nvml_process *)) \
    O(DeviceGetUtilizationRates, (nvmlDevice_t, struct nvml_utilization *))                   \
    O(DeviceGetHandleByUUID, (const char *, nvmlDevice_t *))                                  \
    O(DeviceGetComputeMode, (nvmlDevice_t, int *))                                            \
    O(DeviceGetMigMode, (nvmlDevice_t, unsigned *, unsigned *))                               \
    O(DeviceGetMaxMigDeviceCount, (nvmlDevice_t, unsigned *))                                 \
    O(DeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned, nvmlDevice_t *))              \
    O(DeviceGetTotalEccErrors, (nvmlDevice_t, int, int, unsigned long long *))                \
    O(DeviceGetName, (nvmlDevice_t, char *, unsigned))                                        \
    O(DeviceGetMinorNumber, (nvmlDevice_t, unsigned *))                                       \
    O(DeviceGetRemappedRows, (nvmlDevice_t, unsigned *corrected, unsigned *uncorrected,       \
                              unsigned *pending, unsigned *failed))                           \
    O(DeviceGetNvLinkState, (nvmlDevice_t, unsigned link, int *active))                       \
    O(DeviceGetNvLinkErrorCounter,                                                            \
      (nvmlDevice_t, unsigned link, int counter, unsigned long long *))                       \
    O(DeviceGetCurrentClocksThrottleReasons, (nvmlDevice_t, unsigned long long *))            \
    O(DeviceGetTemperature, (nvmlDevice_t, int sensor, unsigned *))                           \
    O(DeviceGetCurrPcieLinkGeneration, (nvmlDevice_t, unsigned *))                            \
    O(DeviceGetCurrPcieLinkWidth, (nvmlDevice_t, unsigned *))                                 \
    O(DeviceGetMaxPcieLinkWidth, (nvmlDevice_t, unsigned *))                                  \
    O(SystemGetDriverVersion, (char *, unsigned))                                             \
    O(EventSetCreate, (nvmlEventSet_t *))                                                     \
    O(EventSetFree, (nvmlEventSet_t))                                                         \
    O(DeviceRegisterEvents, (nvmlDevice_t, unsigned long long, nvmlEventSet_t))               \
    O(EventSetWait_v2, (nvmlEventSet_t, struct nvml_event *, unsigned))

struct nvml {
    void *lib;
#define NVML_DECLARE(name, args) int(*name) args;
    NVML_FUNCTIONS(NVML_DECLARE, NVML_DECLARE)
#undef NVML_DECLARE
};

/* -ENOENT: there is no such library; -EIO: it cannot be initialised. e may be NULL. */
int nvml_open(struct nvml *n, struct err *e);
void nvml_close(struct nvml *n);

/* Writes the PCI address of the device as the kernel does, or "". */
void nvml_bus(const struct nvml *n, nvmlDevice_t dev, char out[16]);

#endif
