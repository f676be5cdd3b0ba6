/* doctor.h: dlaunch --doctor: the nodes of a job meet as for the job, and instead of starting
 * workers they find out what would go wrong.
 *
 *     doctor_run: facts_start, rdzv_open --> on_prepare --> on_run, on the node with rank 0:
 *       every node is asked for its facts       (agent/doctor/facts.h)
 *       in rounds, pairs measure their path     (agent/doctor/path_test.h)
 *       paths that stand out are measured again
 *       the checks decide                       (agent/doctor/checks.h)
 *       every node gets the result              --> printed, rdzv_done --> on_finish
 *
 *   a node does not come       on_finish: the reason, and what this node's own facts show
 *   a node does not answer     it is named after FACTS_MS; the others are checked */
#ifndef AGENT_DOCTOR_DOCTOR_H
#define AGENT_DOCTOR_DOCTOR_H

#include "agent/base/job_spec.h"

#define DOCTOR_PROBLEMS 1 /* exit status */

/* Returns the exit status: 0 if nothing was found. */
int doctor_run(const struct job_spec *job);

#endif
