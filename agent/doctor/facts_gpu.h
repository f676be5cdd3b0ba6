/* facts_gpu.h: the facts about GPUs. */
#ifndef AGENT_DOCTOR_FACTS_GPU_H
#define AGENT_DOCTOR_FACTS_GPU_H

#include <jansson.h>
#include <stdbool.h>

/* {"error", "visible", "list": [{"bus", "state", "used_bytes", ...}]}; NULL: there is no GPU, and
 * none is wanted. Adds driver and NCCL to `versions` unless that is NULL. */
json_t *facts_gpu(const char *root, bool wanted, json_t *versions);

#endif
