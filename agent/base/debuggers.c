#include "agent/base/debuggers.h"

#include <stdlib.h>

#include "agent/base/mpir.h"
#include "core/mem.h"

struct debuggers {
    struct node *n;
    uint64_t at; /* the next event for the table */
};

static int debuggers_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    if (!mpir_is_wanted())
        return 0;
    struct debuggers *d = xcalloc(1, sizeof(*d));
    d->n = n;
    n->log.wanted = true;
    *state = d;
    return 0;
}

static void debuggers_log_grown(void *state)
{
    struct debuggers *d = state;
    if (mpir_take_events(&d->n->log.job, &d->at))
        d->n->calls->show_processes(d->n);
}

const struct feature debuggers_feature = {
    .name = "debuggers",
    .open = debuggers_open,
    .log_grown = debuggers_log_grown,
    .free = free,
};
