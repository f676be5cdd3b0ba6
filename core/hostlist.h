/* hostlist.h: Slurm's compressed lists of host names: "n[08-11,20]-ib,head"; and ClusterShell's
 * steps: "n[1-9/2]". */
#ifndef CORE_HOSTLIST_H
#define CORE_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

#define HOSTLIST_MAX 1000000 /* names in one list */

/* Calls each(arg, name) for the names in their order, duplicates included, until it returns false;
 * each may be NULL. *count receives how many names the list has, whether walked or not. Commas and
 * blanks part items; the zeros in front of a range's first number are kept; several brackets in one
 * item multiply, the rightmost fastest. -EINVAL with a text for a malformed list (nothing has been
 * called then), one of more than HOSTLIST_MAX names, or a name of HOST_MAX bytes. */
int hostlist_walk(const char *list, bool (*each)(void *arg, const char *name), void *arg,
                  size_t *count, struct err *e);

#endif
