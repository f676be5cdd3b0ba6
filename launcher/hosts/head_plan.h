/* head_plan.h: dlaunch -H --dry_run: which hosts, how many workers, by which command. */
#ifndef LAUNCHER_HOSTS_HEAD_PLAN_H
#define LAUNCHER_HOSTS_HEAD_PLAN_H

#include "launcher/hosts/host_list.h"
#include "launcher/options/token.h"

/* 0, or -errno: it cannot be written, or the options contradict each other. */
int head_plan_print(struct options *o, const struct host_list *hosts,
                    const struct head_tokens *tokens, struct err *e);

#endif
