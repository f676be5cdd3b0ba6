/* facts_gpu.h: the facts about GPUs. */
#ifndef AGENT_DOCTOR_FACTS_GPU_H
#define AGENT_DOCTOR_FACTS_GPU_H

#include <stdbool.h>

#include "agent/doctor/fact.h"

/* Fills in f->gpu, unless there is no GPU and f->gpus says that none is wanted. versions: of driver
 * and NCCL, too. */
void facts_gpu(struct node_facts *f, const char *root, bool versions);

#endif
