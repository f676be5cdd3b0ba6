#include "rendezvous/discovery/backends.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/mem.h"
#include "rendezvous/discovery/rdzv_etcd.h"
#include "rendezvous/discovery/rdzv_file.h"
#include "rendezvous/discovery/rdzv_name.h"

const struct rdzv_backend_ops *rdzv_backend_ops(enum rdzv_backend backend)
{
    static const struct rdzv_backend_ops *const table[] = {
        [RDZV_STATIC] = &rdzv_static_ops,
        [RDZV_C10D] = &rdzv_c10d_ops,
        [RDZV_FILE] = &rdzv_file_ops,
        [RDZV_ETCD] = &rdzv_etcd_ops,
    };
    return table[backend];
}

struct rdzv_discovery *rdzv_discovery_new(const struct rdzv_config *c)
{
    struct rdzv_discovery *f = xcalloc(1, sizeof(*f));
    f->ops = rdzv_backend_ops(c->backend);
    f->host = c->endpoint_host ? xstrdup(c->endpoint_host) : NULL;
    f->path = c->endpoint_path ? xstrdup(c->endpoint_path) : NULL;
    f->run_id = xstrdup(c->run_id);
    f->node_name = xstrdup(c->host);
    f->local_addr = c->local_addr ? xstrdup(c->local_addr) : NULL;
    f->port = c->endpoint_port;
    f->max_nodes = c->max_nodes + c->spares;
    f->node_rank = c->node_rank;
    f->is_host = c->is_host;
    f->listen_fd = c->listen_fd;
    f->lock_fd = -1;
    if (f->ops->open)
        f->ops->open(f, c);
    if (f->local_addr)
        f->have_local = netaddr_parse_ip(&f->local, f->local_addr, 0);
    return f;
}

void rdzv_discovery_free(struct rdzv_discovery *f)
{
    if (!f)
        return;
    if (f->lock_fd >= 0)
        close(f->lock_fd);
    if (f->ops->close)
        f->ops->close(f);
    free(f->host);
    free(f->path);
    free(f->run_id);
    free(f->node_name);
    free(f->local_addr);
    free(f);
}
