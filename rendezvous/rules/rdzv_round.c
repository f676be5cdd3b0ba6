#include "rendezvous/rules/rdzv_round.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/text.h"

/* ---------------------------------------------------------------------------------------- order */

static size_t digits(const char *s)
{
    size_t n = 0;
    while (isdigit((unsigned char)s[n]))
        n++;
    return n;
}

int rdzv_round_compare_hosts(const char *a, const char *b)
{
    const char *a0 = a, *b0 = b;
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            a += strspn(a, "0");
            b += strspn(b, "0");
            size_t na = digits(a), nb = digits(b);
            if (na != nb)
                return na < nb ? -1 : 1;
            int c = memcmp(a, b, na);
            if (c)
                return c;
            a += na;
            b += nb;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    if (*a || *b)
        return *a ? 1 : -1;
    return strcmp(a0, b0); /* node1 and node01 */
}

static int sign(bool less, bool more)
{
    return less ? -1 : more;
}

static int by_claim(const void *pa, const void *pb)
{
    const struct rdzv_node *a = *(struct rdzv_node *const *)pa, *b = *(struct rdzv_node *const *)pb;
    if (a->peer.own != b->peer.own)
        return a->peer.own ? -1 : 1;
    if ((a->prev_rank >= 0) != (b->prev_rank >= 0))
        return a->prev_rank >= 0 ? -1 : 1;
    if ((a->hello.node_rank >= 0) != (b->hello.node_rank >= 0))
        return a->hello.node_rank >= 0 ? -1 : 1;
    if (a->joined_ns != b->joined_ns)
        return sign(a->joined_ns < b->joined_ns, true);
    return memcmp(a->hello.id.b, b->hello.id.b, sizeof(a->hello.id.b));
}

void rdzv_round_choose(struct rdzv_node **nodes, int n)
{
    qsort(nodes, (size_t)n, sizeof(*nodes), by_claim);
}

/* The strength of a node's claim to a rank, strongest first: 0 the rank that it asked for, 1 its
 * rank in the last round, 2 no claim. */
static int claim_class(const struct rdzv_node *n)
{
    return n->hello.node_rank >= 0 ? 0 : n->prev_rank >= 0 ? 1 : 2;
}

static int by_rank_wanted(const void *pa, const void *pb)
{
    const struct rdzv_node *a = *(struct rdzv_node *const *)pa, *b = *(struct rdzv_node *const *)pb;
    int ca = claim_class(a), cb = claim_class(b), c = 0;
    if (ca != cb)
        return ca - cb;
    if (ca == 0)
        c = sign(a->hello.node_rank<b->hello.node_rank, a->hello.node_rank> b->hello.node_rank);
    else if (ca == 1)
        c = sign(a->prev_rank<b->prev_rank, a->prev_rank> b->prev_rank);
    else if (a->peer.own != b->peer.own)
        c = a->peer.own ? -1 : 1;
    if (c == 0)
        c = rdzv_round_compare_hosts(a->hello.host, b->hello.host);
    if (c == 0)
        c = rdzv_round_compare_hosts(a->peer.addr, b->peer.addr);
    if (c == 0)
        c = sign(a->hello.pid<b->hello.pid, a->hello.pid> b->hello.pid);
    return c ? c : memcmp(a->hello.id.b, b->hello.id.b, sizeof(a->hello.id.b));
}

/* Gives `count` nodes, in the order of the ranks they want, a rank among the free ranks
 * (ascending): the wanted rank or the next one, but never so high that a later node finds none. */
static void assign_ranks(struct rdzv_node *const *nodes, int count, const int *free_ranks,
                         int nfree, struct rdzv_node **by_rank)
{
    int at = 0;
    for (int i = 0; i < count; i++, at++) {
        const struct rdzv_node *n = nodes[i];
        int want = claim_class(n) == 0 ? n->hello.node_rank : n->prev_rank;
        int last = nfree - (count - i);
        while (at < last && free_ranks[at] < want)
            at++;
        by_rank[free_ranks[at]] = nodes[i];
    }
}

void rdzv_round_rank(struct rdzv_node **nodes, int n)
{
    struct rdzv_node **by_rank = xcalloc((size_t)n, sizeof(*by_rank));
    int *free_ranks = xcalloc((size_t)n, sizeof(*free_ranks));
    qsort(nodes, (size_t)n, sizeof(*nodes), by_rank_wanted);
    int begin = 0;
    for (int claim = 0; claim < 3; claim++) {
        int count = 0, nfree = 0;
        while (begin + count < n && claim_class(nodes[begin + count]) == claim)
            count++;
        for (int rank = 0; rank < n; rank++) {
            if (!by_rank[rank])
                free_ranks[nfree++] = rank;
        }
        assign_ranks(nodes + begin, count, free_ranks, nfree, by_rank);
        begin += count;
    }
    memcpy(nodes, by_rank, (size_t)n * sizeof(*nodes));
    free(by_rank);
    free(free_ranks);
}

/* ------------------------------------------------------------------------------------ addresses */

/* The address at which all nodes of the round reach the coordinator. */
static const char *coordinator_addr(struct rdzv_node *const *nodes, int n, bool several_hosts,
                                    const struct rdzv_place *p)
{
    if (p->bound_addr[0])
        return p->bound_addr;
    if (p->local_addr[0] && !(several_hosts && netaddr_names_loopback(p->local_addr)))
        return p->local_addr;
    for (int i = 0; several_hosts && i < n; i++) {
        if (!nodes[i]->peer.same_host)
            return nodes[i]->peer.via;
    }
    return "127.0.0.1";
}

static const char *node_addr(const struct rdzv_node *n, bool several_hosts, const char *coordinator)
{
    if (n->hello.local_addr[0] && !(several_hosts && netaddr_names_loopback(n->hello.local_addr)))
        return n->hello.local_addr;
    /* A node on the coordinator's host has the coordinator's address. */
    return n->peer.same_host ? coordinator : n->peer.addr;
}

static void set_master(struct rank_table *t, struct rdzv_node *const *nodes, bool several_hosts,
                       const char *coordinator, const struct rdzv_place *p, char *note, size_t cap)
{
    t->agent_store = p->agent_store;
    if (!p->agent_store) {
        strcpy(t->master_addr, t->nodes[0].addr);
        t->master_port = nodes[0]->free_port;
        return;
    }
    t->master_port = p->port;
    if (p->master_addr && !(several_hosts && netaddr_names_loopback(p->master_addr))) {
        text_set(t->master_addr, sizeof(t->master_addr), "%s", p->master_addr);
        return;
    }
    strcpy(t->master_addr, coordinator);
    if (p->master_addr)
        text_set(note, cap,
                 "--master_addr %s is this host only and the nodes are on several: MASTER_ADDR is "
                 "%s",
                 p->master_addr, coordinator);
}

/* An upper limit of the size of an encoded row. */
static size_t row_bytes(const struct rank_table_node *row)
{
    return 32 + strlen(row->host) + strlen(row->addr) + strlen(row->role) +
           (row->ports ? 2 * (size_t)row->nproc : 0);
}

int rdzv_round_table(struct rank_table *t, struct rdzv_node *const *nodes, int n,
                     const struct rdzv_place *place, char *note, size_t cap, struct err *e)
{
    bool several_hosts = false;
    size_t bytes = 2 * HOST_MAX;
    note[0] = '\0';
    if (rank_table_alloc(t, n) < 0)
        return err_sys(e, ENOMEM, "rank table");
    for (int i = 0; i < n; i++)
        several_hosts |= !nodes[i]->peer.same_host;
    const char *coordinator = coordinator_addr(nodes, n, several_hosts, place);
    for (int i = 0; i < n; i++) {
        struct rank_table_node *row = &t->nodes[i];
        const struct rdzv_node *node = nodes[i];
        const char *addr = node_addr(node, several_hosts, coordinator);
        if (node->hello.local_addr[0] && strcmp(addr, node->hello.local_addr) != 0)
            text_set(note, cap,
                     "--local_addr %s of node %s is its own host only and the nodes are on "
                     "several: %s is used",
                     node->hello.local_addr, node->hello.host, addr);
        strcpy(row->host, node->hello.host);
        strcpy(row->addr, addr);
        strcpy(row->role, node->hello.role);
        row->pid = node->hello.pid;
        row->nproc = node->hello.nproc;
        if (node->ports && rank_table_alloc_ports(row) < 0)
            return err_sys(e, ENOMEM, "rank table");
        if (node->ports)
            memcpy(row->ports, node->ports, (size_t)row->nproc * sizeof(*row->ports));
        bytes += row_bytes(row);
    }
    if (bytes > RDZV_FRAME_MAX)
        return err_set(e, -EMSGSIZE, "the rank table of %d nodes does not fit into %u bytes", n,
                       RDZV_FRAME_MAX);
    set_master(t, nodes, several_hosts, coordinator, place, note, cap);
    return rank_table_compute(t, e);
}

void rdzv_round_peers(struct rdzv_peers *p, struct rdzv_node *const *nodes, int n,
                      const struct rdzv_place *place)
{
    bool several_hosts = false;
    for (int i = 0; i < n; i++)
        several_hosts |= !nodes[i]->peer.same_host;
    const char *coordinator = coordinator_addr(nodes, n, several_hosts, place);
    rdzv_peers_fini(p);
    p->e = xcalloc((size_t)n, sizeof(*p->e));
    p->n = n;
    for (int i = 0; i < n; i++) {
        struct rdzv_peer_entry *e = &p->e[i];
        e->id = nodes[i]->hello.id;
        text_set(e->addr, sizeof(e->addr), "%s", node_addr(nodes[i], several_hosts, coordinator));
        e->port = nodes[i]->peer.own ? (uint16_t)place->port : nodes[i]->hello.peer_port;
        e->host = nodes[i]->peer.own;
    }
}
