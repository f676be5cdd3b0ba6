/* copies.h: what goes to a host that lacks dlaunch (--bcast): dlaunch, filled up with zeros to a
 * multiple of COPIES_ALIGN, and dlaunch-inspect behind it. A host that has got both hands on the
 * same bytes. */
#ifndef LAUNCHER_HOSTS_COPIES_H
#define LAUNCHER_HOSTS_COPIES_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "launcher/options/options.h"

#define COPIES_ALIGN 65536u /* no kernel has larger pages */

struct copies {
    const uint8_t *p; /* the two files, mapped one behind the other */
    size_t n;
    size_t dlaunch, inspect; /* bytes of each; inspect 0: it is missing here */
    const uint8_t *program;  /* the job's, mapped, if it is a file here */
    size_t program_len;      /* 0: it is not copied */
};

/* inspect: the path of dlaunch-inspect; NULL: the one that belongs to this program. */
int copies_map(struct copies *c, const char *inspect, struct err *e);
void copies_unmap(struct copies *c);

/* What --bcast asks for; nothing without it. A program that is found by PATH is the other host's
 * own, and not copied. */
int copies_of_job(struct copies *c, const struct options *o, struct err *e);

#endif
