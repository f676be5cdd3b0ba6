/* gpu.h: the NVIDIA GPUs of this host and those that a worker could use, without loading CUDA.
 *
 * A GPU that MIG divides is not a device for CUDA: its instances are, and CUDA shows a process one
 * of them only. So each worker gets an instance of its own by CUDA_VISIBLE_DEVICES. */
#ifndef AGENT_DEVICE_GPU_H
#define AGENT_DEVICE_GPU_H

#include <stdbool.h>

#define GPU_PROC "/proc/driver/nvidia/gpus"
#define GPU_DEV  "/dev"

struct gpu {
    char bus[16];  /* "0000:5e:00.0" */
    char uuid[48]; /* "GPU-...", or "": not known */
    char mig[96];  /* "MIG-...": this is an instance of the GPU; else "" */
    int card;      /* CUDA's number of the GPU, which its instances share */
    int minor;     /* its device file is nvidia<minor>; -1: not known */
};

/* Counts the devices that CUDA_VISIBLE_DEVICES text names, by CUDA's rules: an entry is an index,
 * or a UUID that begins with GPU- or MIG-. The first entry that is neither ends the list ("-1",
 * ""); a repeated entry makes the list empty. An index counts only if it is below `present`, the
 * number of devices (0: not known). */
int gpu_count_visible(const char *text, int present);

/* Counts the devices of CUDA_VISIBLE_DEVICES (`visible`; NULL: not set), else the GPUs that the
 * driver lists in proc_dir, else those that NVML counts, if `nvml` permits loading it; of GPUs that
 * MIG divides, the instances. *how becomes the name of the source. *instances becomes NULL, or, if
 * any device is an instance, their names as a list, malloc'ed: "MIG-...,MIG-...,GPU-...". */
int gpu_count(const char *visible, const char *proc_dir, bool nvml, char **instances,
              const char **how);

/* Lists the GPUs that the driver lists in proc_dir, else those of NVML, in the order of their PCI
 * addresses, which is CUDA's order for GPUs of one model. NVML lists the instances of those that
 * MIG divides, in the GPU's place. In a container the driver's list has all GPUs of the host: those
 * without their device file in dev_dir are left out, unless it has the file of none (the driver
 * creates them at the first use). *out is malloc'ed (NULL: none). Returns how many. */
int gpu_list(struct gpu **out, const char *proc_dir, const char *dev_dir, bool nvml);

/* Finds the GPU of each entry of CUDA_VISIBLE_DEVICES (as above; NULL: all): order[0] is the index
 * of CUDA's device 0; -1 if it cannot be determined. An entry that names a GPU which MIG divides
 * stands for all its instances. order has room for `max`. Returns how many. */
int gpu_visible(const char *visible, const struct gpu *all, int n, int *order, int max);

#endif
