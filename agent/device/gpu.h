/* gpu.h: the NVIDIA GPUs of this host and those that a worker could use, without loading CUDA. */
#ifndef AGENT_DEVICE_GPU_H
#define AGENT_DEVICE_GPU_H

#include <stdbool.h>

#define GPU_PROC "/proc/driver/nvidia/gpus"

struct gpu {
    char bus[16];  /* "0000:5e:00.0" */
    char uuid[48]; /* "GPU-...", or "": not known */
};

/* The devices that CUDA_VISIBLE_DEVICES text names, by CUDA's rules: indices, or UUIDs beginning
 * with GPU- or MIG-; the first entry that is neither ends the list ("-1", ""); one given twice
 * makes it empty. An index is a device when there are more than so many (`present`; 0: not known).
 */
int gpu_count_visible(const char *text, int present);

/* Those of CUDA_VISIBLE_DEVICES (`visible`, NULL when it is not set), else those that the driver
 * lists in proc_dir, else those that NVML counts, if `nvml` allows to load it. *how says which. */
int gpu_count(const char *visible, const char *proc_dir, bool nvml, const char **how);

/* The GPUs that the driver lists in proc_dir, else those that NVML does, in the order of their
 * addresses, which is CUDA's for GPUs of one model. *out is malloc'ed (NULL: none). Returns how
 * many. */
int gpu_list(struct gpu **out, const char *proc_dir, bool nvml);

/* Which of n GPUs each entry of CUDA_VISIBLE_DEVICES (as above; NULL: all) is: order[0] is CUDA's
 * device 0; -1 for one that cannot be told (MIG). order has room for `max`. Returns how many. */
int gpu_visible(const char *visible, const struct gpu *all, int n, int *order, int max);

#endif
