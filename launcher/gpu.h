/* gpu.h: how many NVIDIA GPUs a worker could use, without loading CUDA. */
#ifndef LAUNCHER_GPU_H
#define LAUNCHER_GPU_H

#include <stdbool.h>

#define GPU_PROC "/proc/driver/nvidia/gpus"

/* The devices that CUDA_VISIBLE_DEVICES text names, by CUDA's rules: indices, or UUIDs beginning
 * with GPU- or MIG-; the first entry that is neither ends the list ("-1", ""); one given twice
 * makes it empty. An index is a device when there are more than so many (`present`; 0: not known).
 */
int gpu_count_visible(const char *text, int present);

/* Those of CUDA_VISIBLE_DEVICES (`visible`, NULL when it is not set), else those that the driver
 * lists in proc_dir, else those that NVML counts, if `nvml` allows to load it. *how says which. */
int gpu_count(const char *visible, const char *proc_dir, bool nvml, const char **how);

#endif
