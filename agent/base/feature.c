#include "agent/base/feature.h"

#include <stdlib.h>

#include "core/fd.h"
#include "core/mem.h"

void variables_add(struct variables *v, char *owned)
{
    v->v = xrealloc(v->v, (v->n + 2) * sizeof(*v->v));
    v->v[v->n++] = owned;
    v->v[v->n] = NULL;
}

void variables_fini(struct variables *v)
{
    for (size_t i = 0; i < v->n; i++)
        free(v->v[i]);
    free(v->v);
    *v = (struct variables){0};
}

void pids_add(struct pids *p, pid_t pid)
{
    p->v = xrealloc(p->v, (p->n + 1) * sizeof(*p->v));
    p->v[p->n++] = pid;
}

void pids_fini(struct pids *p)
{
    free(p->v);
    *p = (struct pids){0};
}

void worker_extras_fini(struct worker_extras *x)
{
    variables_fini(&x->env);
    while (x->nfds > 0)
        close_fd(&x->fds[--x->nfds]);
}
