/* helper.h: the process that looks at workers. It can hang on a process that hangs and crash on
 * memory that changes under it; the agent is not hurt by either (sampler.h). */
#ifndef AGENT_STACKS_HELPER_H
#define AGENT_STACKS_HELPER_H

/* dlaunch runs as the helper under this name, with an argument RANK:PID:RECORDED for each
 * worker; RECORDED: as in sampler.h. */
#define HELPER_NAME "dlaunch-stacks"

/* The process's main function. Each worker's sample is written to standard output as soon as it is
 * complete: u32 length, then samples_encode() of one. */
int helper_main(int argc, char **argv);

#endif
