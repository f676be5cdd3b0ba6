#include "rendezvous/rules/rank_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/map.h"

void rank_table_init(struct rank_table *t)
{
    memset(t, 0, sizeof(*t));
}

int rank_table_alloc(struct rank_table *t, int nnodes)
{
    t->nodes = calloc(nnodes > 0 ? (size_t)nnodes : 1, sizeof(*t->nodes));
    if (!t->nodes)
        return -ENOMEM;
    t->nnodes = nnodes;
    return 0;
}

int rank_table_alloc_ports(struct rank_table_node *node)
{
    node->ports = calloc((size_t)node->nproc, sizeof(*node->ports));
    return node->ports ? 0 : -ENOMEM;
}

void rank_table_fini(struct rank_table *t)
{
    for (int i = 0; i < t->nnodes; i++)
        free(t->nodes[i].ports);
    free(t->nodes);
    rank_table_init(t);
}

/* ---------------------------------------------------------------------------------------- ranks */

/* Workers counted so far in a role. */
struct role {
    int workers;
};

/* The role's counter, made when the role is new. The last one is looked at first: neighbours mostly
 * share a role. */
static struct role *role_of(struct map *roles, const char *name, const char **last_name,
                            struct role **last)
{
    if (*last_name && strcmp(*last_name, name) == 0)
        return *last;
    void **value = map_put(roles, name, strlen(name));
    if (!value || (!*value && !(*value = calloc(1, sizeof(struct role)))))
        return NULL;
    *last_name = name;
    *last = *value;
    return *last;
}

static int compute_roles(struct rank_table *t, struct map *roles)
{
    const char *last_name = NULL;
    struct role *role = NULL;
    for (int i = 0; i < t->nnodes; i++) {
        struct rank_table_node *n = &t->nodes[i];
        if (!role_of(roles, n->role, &last_name, &role))
            return -ENOMEM;
        n->role_base_rank = role->workers;
        role->workers += n->nproc;
    }
    for (int i = 0; i < t->nnodes; i++) {
        if (!role_of(roles, t->nodes[i].role, &last_name, &role))
            return -ENOMEM;
        t->nodes[i].role_world_size = role->workers;
    }
    return 0;
}

int rank_table_compute(struct rank_table *t, struct err *e)
{
    int world = 0;
    for (int i = 0; i < t->nnodes; i++) {
        struct rank_table_node *n = &t->nodes[i];
        if (n->nproc < 1 || n->nproc > NPROC_MAX)
            return err_set(e, -EINVAL, "node %s has %d workers (1 to %d are possible)", n->host,
                           n->nproc, NPROC_MAX);
        if (n->nproc > WORLD_SIZE_MAX - world)
            return err_set(e, -EINVAL, "the job has more than %d workers", WORLD_SIZE_MAX);
        n->base_rank = world;
        world += n->nproc;
    }
    t->world_size = world;

    struct map roles;
    map_init(&roles);
    int rc = compute_roles(t, &roles);
    map_fini(&roles, free);
    return rc < 0 ? err_sys(e, -rc, "rank table") : 0;
}

/* ------------------------------------------------------------------------------------- codec
 *
 *     u64 epoch  u32 counter  u32 restart_count  str master_addr  u16 master_port  u8 agent_store
 *     u32 nnodes
 *     per node: name host, name addr, name role, u32 pid, u16 nproc, u8 has_ports, u16 ports[nproc]
 *
 * A name is written against that of the node before it: how many bytes at its head and how many at
 * its tail are the same (u8 each), how many differ between them (u8), and those. Every node gets
 * the whole table, so its size counts with the square of the number of nodes, and neighbours have
 * nearly the same names. */

_Static_assert(HOST_MAX <= 256 && ADDR_STRLEN <= 256 && ROLE_MAX <= 256, "name lengths are u8");

#define NODE_BYTES_MIN 16u /* an encoded node is never shorter */

static void put_name(struct buf *b, const char *before, const char *name)
{
    size_t head = 0, tail = 0, len = strlen(name), len_before = strlen(before);
    while (before[head] && before[head] == name[head])
        head++;
    while (tail < len - head && tail < len_before - head &&
           before[len_before - tail - 1] == name[len - tail - 1])
        tail++;
    buf_u8(b, (uint8_t)head);
    buf_u8(b, (uint8_t)tail);
    buf_u8(b, (uint8_t)(len - head - tail));
    buf_put(b, name + head, len - head - tail);
}

static void get_name(struct rd *r, const char *before, char *name, size_t cap)
{
    size_t head = rd_u8(r), tail = rd_u8(r), middle = rd_u8(r), len_before = strlen(before);
    const uint8_t *p = rd_take(r, middle);
    if (!p || head + tail > len_before || head + middle + tail >= cap || memchr(p, 0, middle)) {
        r->bad = true;
        name[0] = '\0';
        return;
    }
    memcpy(name, before, head);
    memcpy(name + head, p, middle);
    memcpy(name + head + middle, before + len_before - tail, tail);
    name[head + middle + tail] = '\0';
}

int rank_table_find(const struct rank_table *t, int rank)
{
    int low = 0, high = t->nnodes;
    while (low < high) {
        int i = low + (high - low) / 2;
        const struct rank_table_node *n = &t->nodes[i];
        if (rank < n->base_rank)
            high = i;
        else if (rank >= n->base_rank + n->nproc)
            low = i + 1;
        else
            return i;
    }
    return -1;
}

static const struct rank_table_node no_node;

void rank_table_encode(struct buf *b, const struct rank_table *t)
{
    buf_u64(b, t->gen.epoch);
    buf_u32(b, t->gen.counter);
    buf_u32(b, (uint32_t)t->restart_count);
    buf_str(b, t->master_addr);
    buf_u16(b, (uint16_t)t->master_port);
    buf_u8(b, t->agent_store);
    buf_u32(b, (uint32_t)t->nnodes);
    const struct rank_table_node *before = &no_node;
    for (int i = 0; i < t->nnodes; i++) {
        const struct rank_table_node *n = &t->nodes[i];
        put_name(b, before->host, n->host);
        put_name(b, before->addr, n->addr);
        put_name(b, before->role, n->role);
        buf_u32(b, (uint32_t)n->pid);
        buf_u16(b, (uint16_t)n->nproc);
        buf_u8(b, n->ports != NULL);
        for (int k = 0; n->ports && k < n->nproc; k++)
            buf_u16(b, n->ports[k]);
        before = n;
    }
}

static int decode_node(struct rd *r, const struct rank_table_node *before,
                       struct rank_table_node *n)
{
    get_name(r, before->host, n->host, sizeof(n->host));
    get_name(r, before->addr, n->addr, sizeof(n->addr));
    get_name(r, before->role, n->role, sizeof(n->role));
    n->pid = (int)rd_u32(r);
    n->nproc = rd_u16(r);
    unsigned has_ports = rd_u8(r);
    if (r->bad || n->pid < 0 || n->nproc < 1 || n->nproc > NPROC_MAX || has_ports > 1)
        return -EPROTO;
    if (!has_ports)
        return 0;
    const uint8_t *ports = rd_take(r, 2 * (size_t)n->nproc);
    if (!ports)
        return -EPROTO;
    if (rank_table_alloc_ports(n) < 0)
        return -ENOMEM;
    for (int k = 0; k < n->nproc; k++)
        n->ports[k] = (uint16_t)(ports[2 * k] | ports[2 * k + 1] << 8);
    return 0;
}

static int decode(struct rd *r, struct rank_table *t)
{
    t->gen.epoch = rd_u64(r);
    t->gen.counter = rd_u32(r);
    t->restart_count = (int)rd_u32(r);
    rd_str(r, t->master_addr, sizeof(t->master_addr));
    t->master_port = rd_u16(r);
    unsigned agent_store = rd_u8(r);
    uint32_t nnodes = rd_u32(r);
    if (r->bad || t->restart_count < 0 || agent_store > 1 || nnodes < 1 || nnodes > NNODES_MAX ||
        nnodes > (size_t)(r->end - r->p) / NODE_BYTES_MIN)
        return -EPROTO;
    t->agent_store = agent_store;
    if (rank_table_alloc(t, (int)nnodes) < 0)
        return -ENOMEM;
    const struct rank_table_node *before = &no_node;
    for (uint32_t i = 0; i < nnodes; i++) {
        int rc = decode_node(r, before, &t->nodes[i]);
        if (rc < 0)
            return rc;
        before = &t->nodes[i];
    }
    return 0;
}

int rank_table_decode(struct rd *r, struct rank_table *t, struct err *e)
{
    rank_table_init(t);
    int rc = decode(r, t);
    if (rc == -EPROTO)
        err_set(e, rc, "malformed rank table");
    else if (rc < 0)
        err_sys(e, -rc, "rank table");
    else
        rc = rank_table_compute(t, e);
    if (rc < 0)
        rank_table_fini(t);
    return rc;
}
