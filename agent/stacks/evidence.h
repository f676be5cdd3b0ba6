/* evidence.h: what libraries of the workers write down about a failure: PyTorch's flight recorder
 * the operations of each rank, when one times out, and NCCL its warnings. Where workers have log
 * files, both are told to write there, unless the user has told them something. What they have
 * written is added to the records of the workers, so that the report has it of all nodes and names
 * the rank that was in another operation. */
#ifndef AGENT_STACKS_EVIDENCE_H
#define AGENT_STACKS_EVIDENCE_H

#include "agent/base/feature.h"

extern const struct feature evidence_feature;

#endif
