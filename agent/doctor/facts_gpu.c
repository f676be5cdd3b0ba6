#include "agent/doctor/facts_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/device/gpu.h"
#include "agent/device/nvml.h"
#include "core/mem.h"

#define VISIBLE_MAX 1024

static void look_at_gpu(struct gpu_facts *f, const struct nvml *n, const struct gpu *g)
{
    nvmlDevice_t dev;
    struct nvml_memory memory;
    struct nvml_process procs[64];
    unsigned count = ARRAY_LEN(procs), a, b, c, d;
    unsigned long long errors;
    int mode, rc = n->DeviceGetHandleByPciBusId_v2(g->bus, &dev);
    char name[96];
    f->bus = xstrdup(g->bus);
    f->mig = *g->mig != 0;
    if (rc == NVML_SUCCESS)
        rc = n->DeviceGetMemoryInfo(dev, &memory);
    f->lost = rc != NVML_SUCCESS;
    if (f->lost)
        return;
    if (n->DeviceGetName && n->DeviceGetName(dev, name, sizeof(name)) == NVML_SUCCESS)
        f->name = xstrdup(name);
    f->used_bytes = (double)memory.used;
    f->bytes = (double)memory.total;
    if (n->DeviceGetComputeRunningProcesses_v3 &&
        n->DeviceGetComputeRunningProcesses_v3(dev, &count, procs) == NVML_SUCCESS && count > 0) {
        f->processes = (double)count;
        f->pid = (double)procs[0].pid;
    }
    if (n->DeviceGetTotalEccErrors &&
        n->DeviceGetTotalEccErrors(dev, NVML_ECC_UNCORRECTED, NVML_ECC_SINCE_BOOT, &errors) ==
            NVML_SUCCESS)
        f->ecc_uncorrected = (double)errors;
    if (n->DeviceGetRemappedRows && n->DeviceGetRemappedRows(dev, &a, &b, &c, &d) == NVML_SUCCESS) {
        f->remap_pending = c != 0;
        f->remap_failed = d != 0;
    }
    if (n->DeviceGetComputeMode && n->DeviceGetComputeMode(dev, &mode) == NVML_SUCCESS)
        f->compute_mode = (double)mode;
    if (n->DeviceGetMigMode && n->DeviceGetMigMode(dev, &a, &b) == NVML_SUCCESS)
        f->mig_mode = a == NVML_MIG_ENABLED;
    if (n->DeviceGetCurrPcieLinkWidth && n->DeviceGetMaxPcieLinkWidth &&
        n->DeviceGetCurrPcieLinkWidth(dev, &a) == NVML_SUCCESS &&
        n->DeviceGetMaxPcieLinkWidth(dev, &b) == NVML_SUCCESS) {
        f->pcie_width = (double)a;
        f->pcie_width_max = (double)b;
    }
}

/* The version of the NCCL library that a program in C would load. */
static void find_nccl(struct fact_list *versions)
{
    void *lib = fact_word(versions, "NCCL") ? NULL : dlopen("libnccl.so.2", RTLD_LAZY);
    int (*get)(int *) = lib ? (int (*)(int *))dlsym(lib, "ncclGetVersion") : NULL;
    char text[32];
    int v;
    if (!get || get(&v) != 0)
        return;
    int major = v < 10000 ? v / 1000 : v / 10000, rest = v < 10000 ? v % 1000 : v % 10000;
    snprintf(text, sizeof(text), "%d.%d.%d", major, rest / 100, rest % 100);
    fact_add_word(versions, "NCCL", text);
}

void facts_gpu(struct node_facts *f, const char *root, bool versions)
{
    char proc[300], dev[300], driver[96];
    struct gpu *all;
    struct nvml n;
    struct err e = ERR_INIT;
    int order[VISIBLE_MAX];
    snprintf(proc, sizeof(proc), "%s%s", root, GPU_PROC);
    snprintf(dev, sizeof(dev), "%s%s", root, GPU_DEV);
    if (f->gpus <= 0 && access(proc, F_OK) < 0)
        return;
    if (nvml_open(&n, &e) < 0) {
        f->gpu.error = xstrdup(e.msg);
        return;
    }
    int count = gpu_list(&all, proc, dev, true);
    int visible = gpu_visible(getenv("CUDA_VISIBLE_DEVICES"), all, count, order, VISIBLE_MAX);
    f->gpu.present = count;
    f->gpu.visible = visible;
    for (int i = 0; i < visible; i++) {
        if (order[i] >= 0)
            look_at_gpu(fact_add_gpu(&f->gpu.list), &n, &all[order[i]]);
    }
    if (versions && n.SystemGetDriverVersion &&
        n.SystemGetDriverVersion(driver, sizeof(driver)) == NVML_SUCCESS)
        fact_add_word(&f->versions, "driver", driver);
    if (versions)
        find_nccl(&f->versions);
    free(all);
    nvml_close(&n);
}
