/* facts.h: what a node is like, as far as a job depends on it: the facts that the doctor checks
 * (checks.h). A helper process collects them, because a name server, a driver or a file system may
 * not answer. A fact that cannot be found out is left out. */
#ifndef AGENT_DOCTOR_FACTS_H
#define AGENT_DOCTOR_FACTS_H

#include <jansson.h>
#include <uv.h>

#include "agent/base/job_spec.h"
#include "agent/process/spawn.h"

/* dlaunch runs as the helper under this name. */
#define FACTS_NAME "dlaunch-facts"

#define FACTS_MS 4000 /* for all facts but --check_command */

/* The helper's main function: argv[1] is the question, the facts go to standard output. */
int facts_main(int argc, char **argv);

/* The question for the helper about this job; owned. brief: without the program, the versions of
 * software and the endpoint's name. */
json_t *facts_question(const struct job_spec *job, bool brief);

/* Collects the facts in this process. "root" in the question is put in front of the paths of /proc,
 * /sys and /dev. */
json_t *facts_collect(const json_t *question);

struct facts_run;
/* Has a helper collect them. Calls back once, from the loop, with the facts; NULL: there are none,
 * because of `why`. */
struct facts_run *facts_start(uv_loop_t *loop, struct spawner *spawner, const json_t *question,
                              void (*on_done)(void *arg, json_t *facts, const char *why),
                              void *arg);
pid_t facts_pid(const struct facts_run *r);
/* Ends the helper if it runs; on_done is not called any more. NULL is closed already. */
void facts_close(struct facts_run *r, void (*on_closed)(void *arg), void *arg);

#endif
