#include "agent/doctor/facts_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/device/gpu.h"
#include "agent/device/nvml.h"
#include "agent/report/json_text.h"
#include "core/mem.h"

#define VISIBLE_MAX 1024

static void set_integer(json_t *j, const char *key, unsigned long long n)
{
    json_object_set_new(j, key, json_integer((json_int_t)n));
}

static json_t *one_gpu(const struct nvml *n, const struct gpu *g)
{
    json_t *j = json_pack("{s:s,s:b}", "bus", g->bus, "mig", *g->mig != 0);
    nvmlDevice_t dev;
    struct nvml_memory memory;
    struct nvml_process procs[64];
    unsigned count = ARRAY_LEN(procs), a, b, c, d;
    unsigned long long errors;
    int mode, rc = n->DeviceGetHandleByPciBusId_v2(g->bus, &dev);
    char name[96];
    if (rc == NVML_SUCCESS)
        rc = n->DeviceGetMemoryInfo(dev, &memory);
    if (rc != NVML_SUCCESS) {
        json_object_set_new(j, "lost", json_true());
        return j;
    }
    if (n->DeviceGetName && n->DeviceGetName(dev, name, sizeof(name)) == NVML_SUCCESS)
        json_object_set_new(j, "name", json_of_text(name));
    set_integer(j, "used_bytes", memory.used);
    set_integer(j, "bytes", memory.total);
    if (n->DeviceGetComputeRunningProcesses_v3 &&
        n->DeviceGetComputeRunningProcesses_v3(dev, &count, procs) == NVML_SUCCESS && count > 0) {
        set_integer(j, "processes", count);
        set_integer(j, "pid", procs[0].pid);
    }
    if (n->DeviceGetTotalEccErrors &&
        n->DeviceGetTotalEccErrors(dev, NVML_ECC_UNCORRECTED, NVML_ECC_SINCE_BOOT, &errors) ==
            NVML_SUCCESS)
        set_integer(j, "ecc_uncorrected", errors);
    if (n->DeviceGetRemappedRows && n->DeviceGetRemappedRows(dev, &a, &b, &c, &d) == NVML_SUCCESS) {
        json_object_set_new(j, "remap_pending", json_boolean(c));
        json_object_set_new(j, "remap_failed", json_boolean(d));
    }
    if (n->DeviceGetComputeMode && n->DeviceGetComputeMode(dev, &mode) == NVML_SUCCESS)
        set_integer(j, "compute_mode", (unsigned long long)mode);
    if (n->DeviceGetMigMode && n->DeviceGetMigMode(dev, &a, &b) == NVML_SUCCESS)
        json_object_set_new(j, "mig_mode", json_boolean(a == NVML_MIG_ENABLED));
    if (n->DeviceGetCurrPcieLinkWidth && n->DeviceGetMaxPcieLinkWidth &&
        n->DeviceGetCurrPcieLinkWidth(dev, &a) == NVML_SUCCESS &&
        n->DeviceGetMaxPcieLinkWidth(dev, &b) == NVML_SUCCESS) {
        set_integer(j, "pcie_width", a);
        set_integer(j, "pcie_width_max", b);
    }
    return j;
}

/* The version of the NCCL library that a program in C would load. */
static void nccl_of(json_t *versions)
{
    void *lib = json_object_get(versions, "NCCL") ? NULL : dlopen("libnccl.so.2", RTLD_LAZY);
    int (*get)(int *) = lib ? (int (*)(int *))dlsym(lib, "ncclGetVersion") : NULL;
    char text[32];
    int v;
    if (!get || get(&v) != 0)
        return;
    int major = v < 10000 ? v / 1000 : v / 10000, rest = v < 10000 ? v % 1000 : v % 10000;
    snprintf(text, sizeof(text), "%d.%d.%d", major, rest / 100, rest % 100);
    json_object_set_new(versions, "NCCL", json_string(text));
}

json_t *facts_gpu(const char *root, bool wanted, json_t *versions)
{
    char proc[300], dev[300], driver[96];
    struct gpu *all;
    struct nvml n;
    struct err e = ERR_INIT;
    int order[VISIBLE_MAX];
    snprintf(proc, sizeof(proc), "%s%s", root, GPU_PROC);
    snprintf(dev, sizeof(dev), "%s%s", root, GPU_DEV);
    if (!wanted && access(proc, F_OK) < 0)
        return NULL;
    json_t *j = json_object(), *list = json_array();
    if (nvml_open(&n, &e) < 0) {
        json_object_set_new(j, "error", json_of_text(e.msg));
        json_decref(list);
        return j;
    }
    int count = gpu_list(&all, proc, dev, true);
    int visible = gpu_visible(getenv("CUDA_VISIBLE_DEVICES"), all, count, order, VISIBLE_MAX);
    json_object_set_new(j, "present", json_integer(count));
    json_object_set_new(j, "visible", json_integer(visible));
    for (int i = 0; i < visible; i++) {
        if (order[i] >= 0)
            json_array_append_new(list, one_gpu(&n, &all[order[i]]));
    }
    json_object_set_new(j, "list", list);
    if (versions && n.SystemGetDriverVersion &&
        n.SystemGetDriverVersion(driver, sizeof(driver)) == NVML_SUCCESS)
        json_object_set_new(versions, "driver", json_of_text(driver));
    if (versions)
        nccl_of(versions);
    free(all);
    nvml_close(&n);
    return j;
}
