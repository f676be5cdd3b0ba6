/* libnvidia-ml.so.1 as far as dlaunch uses it. The file named by FAKE_NVML says what there is, a
 * line per GPU, read anew at every call:
 *
 *     BUS UUID USED_MIB TOTAL_MIB STATE ECC XID PID
 *
 * STATE: ok, lost, gone (no such device), stuck (the call does not return), exclusive or prohibited
 * (the compute mode), remapped or pending (rows of its memory that could not, or have to, be
 * remapped), nolink (one of its two NVLinks is down), hot (95 C, and slowed down
 * for it), noisy (its NVLinks have errors), narrow (PCI Express lanes are missing). XID:
 * 0, or one that the next wait for events gets, once. PID: 0, or a process that uses it. Behind a
 * GPU that MIG divides, "mig UUID USED_MIB TOTAL_MIB" per instance; a UUID "-" is a place without
 * an instance. Makes the file that FAKE_NVML_LOOKED names when it is asked how busy a GPU is. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/device/nvml.h"

#define EXPORT __attribute__((visibility("default")))
#define GPUS   16

struct nvmlDevice_st {
    char bus[16], uuid[96], state[16];
    unsigned long long used, total, ecc;
    int xid, pid, told;
    int parent; /* of an instance: its GPU; else -1 */
};

static struct nvmlDevice_st g_gpu[GPUS];

static int read_all(void)
{
    FILE *f = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "/nonexistent", "r");
    int n = 0;
    for (struct nvmlDevice_st *g = g_gpu; f && n < GPUS; g++, n++) {
        int told = g->told;
        if (fscanf(f, "%15s %95s %llu %llu", g->bus, g->uuid, &g->used, &g->total) != 4)
            break;
        g->parent = -1;
        if (strcmp(g->bus, "mig") == 0) {
            g->parent = n - 1;
            while (g_gpu[g->parent].parent >= 0)
                g->parent--;
            strcpy(g->state, "ok");
            g->pid = g->xid = 0;
            g->ecc = 0;
        } else if (fscanf(f, "%15s %llu %d %d", g->state, &g->ecc, &g->xid, &g->pid) != 4) {
            break;
        }
        g->told = told;
        while (strcmp(g->state, "stuck") == 0)
            pause();
    }
    if (f)
        fclose(f);
    return n;
}

/* The i-th GPU, or the i-th instance of one. NULL: there are fewer. */
static struct nvmlDevice_st *find(int parent, unsigned i)
{
    int n = read_all();
    for (int k = 0; k < n; k++) {
        if (g_gpu[k].parent == parent && i-- == 0)
            return &g_gpu[k];
    }
    return NULL;
}

static int state_of(struct nvmlDevice_st *g)
{
    read_all();
    return strcmp(g->state, "lost") == 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

#define CALL EXPORT int
CALL nvmlInit_v2(void);
CALL nvmlInit_v2(void)
{
    return getenv("FAKE_NVML") ? NVML_SUCCESS : 9;
}

CALL nvmlShutdown(void);
CALL nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetCount_v2(unsigned *n);
CALL nvmlDeviceGetCount_v2(unsigned *n)
{
    for (*n = 0; find(-1, *n);)
        ++*n;
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *out);
CALL nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *out)
{
    return (*out = find(-1, i)) ? NVML_SUCCESS : 2;
}

CALL nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *out);
CALL nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *out)
{
    int n = read_all();
    for (int i = 0; i < n; i++) {
        if (strcmp(g_gpu[i].bus, bus) == 0 && strcmp(g_gpu[i].state, "gone") != 0) {
            *out = &g_gpu[i];
            return state_of(*out);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

CALL nvmlDeviceGetUUID(nvmlDevice_t g, char *out, unsigned len);
CALL nvmlDeviceGetUUID(nvmlDevice_t g, char *out, unsigned len)
{
    snprintf(out, len, "%s", g->uuid);
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out);
CALL nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    int n = read_all();
    for (*out = g_gpu; *out < g_gpu + n; ++*out) {
        if (strcmp((*out)->uuid, uuid) == 0)
            return state_of(*out);
    }
    return NVML_ERROR_NOT_FOUND;
}

CALL nvmlDeviceGetComputeMode(nvmlDevice_t g, int *mode);
CALL nvmlDeviceGetComputeMode(nvmlDevice_t g, int *mode)
{
    *mode = strcmp(g->state, "exclusive") == 0    ? NVML_MODE_EXCLUSIVE
            : strcmp(g->state, "prohibited") == 0 ? NVML_MODE_PROHIBITED
                                                  : 0;
    return g->parent < 0 ? NVML_SUCCESS : 3;
}

CALL nvmlDeviceGetMigMode(nvmlDevice_t g, unsigned *now, unsigned *later);
CALL nvmlDeviceGetMigMode(nvmlDevice_t g, unsigned *now, unsigned *later)
{
    *now = *later = find((int)(g - g_gpu), 0) ? NVML_MIG_ENABLED : 0;
    return g->parent < 0 ? NVML_SUCCESS : 3;
}

CALL nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t g, unsigned *n);
CALL nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t g, unsigned *n)
{
    (void)g;
    *n = 7;
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t g, unsigned i, nvmlDevice_t *out);
CALL nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t g, unsigned i, nvmlDevice_t *out)
{
    *out = find((int)(g - g_gpu), i);
    return *out && strcmp((*out)->uuid, "-") ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

CALL nvmlDeviceGetPciInfo_v3(nvmlDevice_t g, struct nvml_pci *out);
CALL nvmlDeviceGetPciInfo_v3(nvmlDevice_t g, struct nvml_pci *out)
{
    *out = (struct nvml_pci){0};
    sscanf(g->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetMemoryInfo(nvmlDevice_t g, struct nvml_memory *out);
CALL nvmlDeviceGetMemoryInfo(nvmlDevice_t g, struct nvml_memory *out)
{
    int rc = state_of(g);
    *out = (struct nvml_memory){.total = g->total << 20, .used = g->used << 20};
    out->free = out->total - out->used;
    return rc;
}

/* As busy as its memory is full. */
CALL nvmlDeviceGetUtilizationRates(nvmlDevice_t g, struct nvml_utilization *out);
CALL nvmlDeviceGetUtilizationRates(nvmlDevice_t g, struct nvml_utilization *out)
{
    int rc = state_of(g);
    const char *note = getenv("FAKE_NVML_LOOKED");
    if (note)
        close(creat(note, 0644));
    out->gpu = g->total ? (unsigned)(100 * g->used / g->total) : 0;
    out->memory = 0;
    return rc;
}

CALL nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t g, unsigned *n, struct nvml_process *out);
CALL nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t g, unsigned *n, struct nvml_process *out)
{
    int rc = state_of(g);
    *n = g->pid ? 1 : 0;
    if (g->pid)
        out[0] = (struct nvml_process){.pid = (unsigned)g->pid, .used = g->used << 20};
    return rc;
}

CALL nvmlDeviceGetTotalEccErrors(nvmlDevice_t g, int kind, int since, unsigned long long *n);
CALL nvmlDeviceGetTotalEccErrors(nvmlDevice_t g, int kind, int since, unsigned long long *n)
{
    int rc = state_of(g);
    *n = kind == NVML_ECC_UNCORRECTED && since == NVML_ECC_SINCE_BOOT ? g->ecc : 0;
    return rc;
}

CALL nvmlDeviceGetName(nvmlDevice_t g, char *out, unsigned len);
CALL nvmlDeviceGetName(nvmlDevice_t g, char *out, unsigned len)
{
    snprintf(out, len, "Fake with %llu MiB", g->total);
    return NVML_SUCCESS;
}

/* In the order of the file; instances have none. */
CALL nvmlDeviceGetMinorNumber(nvmlDevice_t g, unsigned *minor);
CALL nvmlDeviceGetMinorNumber(nvmlDevice_t g, unsigned *minor)
{
    for (*minor = 0; find(-1, *minor) && find(-1, *minor) != g;)
        ++*minor;
    return g->parent < 0 ? NVML_SUCCESS : 3;
}

CALL nvmlDeviceGetRemappedRows(nvmlDevice_t g, unsigned *corrected, unsigned *uncorrected,
                               unsigned *pending, unsigned *failed);
CALL nvmlDeviceGetRemappedRows(nvmlDevice_t g, unsigned *corrected, unsigned *uncorrected,
                               unsigned *pending, unsigned *failed)
{
    *corrected = *uncorrected = 0;
    *pending = strcmp(g->state, "pending") == 0;
    *failed = strcmp(g->state, "remapped") == 0;
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetNvLinkState(nvmlDevice_t g, unsigned link, int *active);
CALL nvmlDeviceGetNvLinkState(nvmlDevice_t g, unsigned link, int *active)
{
    *active = link == 0 || strcmp(g->state, "nolink") != 0;
    return link < 2 ? NVML_SUCCESS : 2;
}

CALL nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t g, unsigned link, int counter,
                                     unsigned long long *n);
CALL nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t g, unsigned link, int counter,
                                     unsigned long long *n)
{
    *n = counter == 0 && strcmp(g->state, "noisy") == 0 ? 20 : 0;
    return link < 2 ? NVML_SUCCESS : 2;
}

CALL nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t g, unsigned long long *reasons);
CALL nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t g, unsigned long long *reasons)
{
    *reasons = strcmp(g->state, "hot") == 0 ? NVML_REASON_HW | NVML_REASON_HW_THERMAL : 0;
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetTemperature(nvmlDevice_t g, int sensor, unsigned *celsius);
CALL nvmlDeviceGetTemperature(nvmlDevice_t g, int sensor, unsigned *celsius)
{
    *celsius = strcmp(g->state, "hot") == 0 ? 95 : 60;
    return sensor == NVML_TEMPERATURE_GPU ? NVML_SUCCESS : 2;
}

CALL nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t g, unsigned *n);
CALL nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t g, unsigned *n)
{
    *n = strcmp(g->state, "narrow") == 0 ? 1 : 5;
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t g, unsigned *n);
CALL nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t g, unsigned *n)
{
    *n = strcmp(g->state, "narrow") == 0 ? 4 : 16;
    return NVML_SUCCESS;
}

CALL nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t g, unsigned *n);
CALL nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t g, unsigned *n)
{
    (void)g;
    *n = 16;
    return NVML_SUCCESS;
}

CALL nvmlSystemGetDriverVersion(char *out, unsigned len);
CALL nvmlSystemGetDriverVersion(char *out, unsigned len)
{
    const char *version = getenv("FAKE_DRIVER");
    snprintf(out, len, "%s", version ? version : "550.54.15");
    return NVML_SUCCESS;
}

CALL nvmlEventSetCreate(nvmlEventSet_t *out);
CALL nvmlEventSetCreate(nvmlEventSet_t *out)
{
    *out = (nvmlEventSet_t)g_gpu;
    return NVML_SUCCESS;
}

CALL nvmlEventSetFree(nvmlEventSet_t set);
CALL nvmlEventSetFree(nvmlEventSet_t set)
{
    (void)set;
    return NVML_SUCCESS;
}

CALL nvmlDeviceRegisterEvents(nvmlDevice_t g, unsigned long long types, nvmlEventSet_t set);
CALL nvmlDeviceRegisterEvents(nvmlDevice_t g, unsigned long long types, nvmlEventSet_t set)
{
    (void)g, (void)set;
    return types == NVML_EVENT_XID ? NVML_SUCCESS : 2;
}

CALL nvmlEventSetWait_v2(nvmlEventSet_t set, struct nvml_event *out, unsigned ms);
CALL nvmlEventSetWait_v2(nvmlEventSet_t set, struct nvml_event *out, unsigned ms)
{
    (void)set;
    int n = read_all();
    for (int i = 0; i < n; i++) {
        if (g_gpu[i].xid && g_gpu[i].told != g_gpu[i].xid) {
            g_gpu[i].told = g_gpu[i].xid;
            *out = (struct nvml_event){.device = &g_gpu[i],
                                       .type = NVML_EVENT_XID,
                                       .data = (unsigned long long)g_gpu[i].xid};
            return NVML_SUCCESS;
        }
    }
    usleep(ms * 1000);
    return NVML_ERROR_TIMEOUT;
}
