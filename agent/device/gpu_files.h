/* gpu_files.h: which GPUs a worker uses, by the device files that it has open. A process that has
 * initialised CUDA has the files of all GPUs that it can see open; one that has none of them does
 * not use a GPU. */
#ifndef AGENT_DEVICE_GPU_FILES_H
#define AGENT_DEVICE_GPU_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct gpu_files {
    pid_t pid;       /* who has them open; 0: nobody */
    uint64_t minors; /* bit n: nvidia<n> in the folder of device files */
};

/* Looks at the process, and, if that has none open, at those that it has started: a worker may be a
 * shell. False: none has. Reads names only, and so never waits for the file of a dead server. */
bool gpu_files_of(pid_t pid, const char *dev_dir, struct gpu_files *out);

#endif
