#include "tests/integration/elastic_nodes.h"

void nodes_begin(struct nodes *c, const char *name)
{
    *c = (struct nodes){.port = free_port(), .up = xasprintf("%s/%s", tmpdir(), name)};
}

int nodes_add(struct nodes *c, const char *options, const char *job)
{
    int i = c->n++;
    dlaunch_start(&c->p[i], NULL,
                  "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --nproc_per_node 2 --rdzv_conf "
                  "is_host=%d,keep_alive_interval=0.2,keep_alive_max_attempt=15,"
                  "last_call_timeout=5,join_timeout=20 %s %%W append %s %s",
                  c->port, i == 0, options, c->up, job);
    return i;
}

void nodes_end(struct nodes *c)
{
    for (int i = 0; i < c->n; i++)
        proc_fini(&c->p[i]);
    free(c->up);
}

void nodes_expect(struct nodes *c, int i, int status)
{
    int got = proc_wait(&c->p[i], 20);
    ck_assert_msg(got == status, "node %d: exit %d instead of %d\n%s", i, got, status, c->p[i].err);
}
