/* stdio_std.h: the texts of torchrun's output options, as values. Pure; any thread. */
#ifndef AGENT_OUTPUT_STDIO_STD_H
#define AGENT_OUTPUT_STDIO_STD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* --redirects, --tee: "0", "1", "2" or "3" (STD_* of job_spec.h) for every worker, or
 * "R:V,R:V..." for single local ranks, the others 0 and the last word on a rank counting. A local
 * rank that this node does not have is passed over: nodes of one job may differ in size. Fills in
 * out[0..nproc). -EINVAL otherwise. torchrun knows one-digit ranks only. */
int stdio_std_parse(const char *text, int nproc, uint8_t *out, struct err *e);

/* --local_ranks_filter: "0,2": whose output reaches the console; "" means everyone's. Fills in
 * show[0..nproc). -EINVAL otherwise. */
int stdio_ranks_parse(const char *text, int nproc, bool *show, struct err *e);

/* --duplicate_stdout_filters and the like: "a,b" -> {"a", "b", NULL}; ",," stands for a comma
 * within an item; empty items are left out. One malloc'ed block, to be freed with free(); NULL when
 * there is no item. */
char **stdio_list_parse(const char *text);

#define STDIO_PREFIX_DEFAULT "[${role_name}${local_rank}]:"

/* The prefix of a worker's console lines, malloc'ed: ${role_name}, ${local_rank}, ${rank} and
 * ${hostname} are filled in as Python's string.Template does it. template NULL: the default. */
char *stdio_prefix_new(const char *template, const char *role, int local_rank, int rank,
                       const char *hostname);

#endif
