/* start.h: how tests start a job on this host: START=daemon or ssh in the environment has dlaunch
 * reach it by a daemon, or by a sshd, that the test starts for itself. */
#ifndef TESTS_LIB_START_H
#define TESTS_LIB_START_H

#include <stdbool.h>

/* Options for `dlaunch <line>`, as dlaunch_argv() takes them; "" without START, and for one of
 * several launchers that are started by hand. env, as proc_start() takes it, is to be the workers',
 * too. */
const char *start_options(const char *line, char *const env[]);

/* True with START: then it says that the rest of a test is skipped, for this reason. */
bool start_skips(const char *why);

#endif
