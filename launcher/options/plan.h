/* plan.h: prints for people what dlaunch would do: --print_config, --print_binding and
 * --dry_run. */
#ifndef LAUNCHER_OPTIONS_PLAN_H
#define LAUNCHER_OPTIONS_PLAN_H

#include <stdio.h>

#include "agent/base/job_spec.h"
#include "launcher/options/options.h"

/* Every value with where it comes from, aligned. 0, or -errno when `out` could not be written. */
int plan_print_config(FILE *out, const struct options *o);

/* Nodes, ranks, rendezvous, command, environment and binding, as far as they are known before the
 * nodes have met; unknown ranks are shown as if this were the first node. */
int plan_print(FILE *out, const struct job_spec *job, const struct options *o, struct err *e);

/* --print_binding: one line for each worker of this node. */
int plan_print_binding(FILE *out, const struct job_spec *job, struct err *e);

#endif
