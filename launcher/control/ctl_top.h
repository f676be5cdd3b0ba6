/* ctl_top.h: dlaunchctl top: one screen with what the nodes and ranks of a job are doing. */
#ifndef LAUNCHER_CONTROL_CTL_TOP_H
#define LAUNCHER_CONTROL_CTL_TOP_H

#include "launcher/control/ctl_jobs.h"

/* Redraws the screen every second until the job ends or the user stops it; once if standard output
 * is not a terminal. json: one object, once. Returns an exit status. */
int ctl_top(struct job *j, bool json);

#endif
