/* How long one coordinator takes to bring n nodes together: from the first connect() until the last
 * node has its rank, the rank table and the word to run; then what a question of dlaunchctl top
 * costs it. More than TREE_WIDTH nodes form the tree of launchers. The coordinator and the node of
 * rank 1, which has children, are real ones, in processes of their own. The other nodes are sockets
 * in this one, which speak the real messages over TCP on loopback with the coordinator, and as far
 * as they are its children, with node 1. What they would say to each other is not sent: a node has
 * the table as soon as its parent has it, and a child of the coordinator answers for all below it.
 * Each has 8 workers with a data port and an address of its own, so that the table is as big as in
 * life. A run that does not get there within its time says how far it came, and counts as missed.
 *
 *     bench_rdzv [--tls] [repeats] [nodes...] */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/report/top_asks.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/tls.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/rules/rdzv_msg.h"

#define NPROC       8
#define REPEATS     5
#define SECONDS_MAX 2.0
#define GROWN_MAX   1.2 /* n log n, and what caches and chance add */
#define TOPS        50  /* questions */
#define SCREEN      50  /* rows of a terminal */
#define TOP_MAX     1.0 /* % of a core at 1,024 nodes, with a question in a second */
#define REAL        2   /* the first nodes */
/* Connections that the coordinator has not answered yet, those that are made again included. It
 * listens with a backlog of 4,096, which net.core.somaxconn may lower. Where a connection finds no
 * room, the kernel of its host asks again after 1, 2, 4, ... seconds, and the bench would measure
 * that. */
#define AT_ONCE     256
#define OTHER_FDS   256
#define PER_ADDRESS 20000 /* connections from one address of this host */

static struct auth auth = {.open = true};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* ---------------------------------------------------------------------------- the real nodes */

static struct rdzv *own;
static struct top_asks *tops;
static int group_rank_of_own, nnodes_of_own;
static uv_pipe_t orders; /* the coordinator's */
static int reply_fd;
static char path[64]; /* of the backend's file */

/* The rows of a node whose workers are in their operations. */
static void add_rows(struct top_rows *t, int node)
{
    struct top_node *n = top_rows_add_node(t);
    n->node = node;
    n->nworkers = n->nrunning = NPROC;
    n->cpu_s = 1000.5 * NPROC;
    n->elapsed_s = 1001;
    n->memory = UINT64_C(4) << 30;
    snprintf(n->host, sizeof(n->host), "gpu-node-%04d.cluster.example.org", node);
    snprintf(n->state, sizeof(n->state), "RUNNING");
    for (int i = 0; i < NPROC; i++) {
        struct top_rank *k = top_rows_add_rank(t);
        *k = (struct top_rank){.rank = node * NPROC + i,
                               .node = node,
                               .local_rank = i,
                               .pid = 10000 + node * NPROC + i,
                               .state = "running",
                               .elapsed_s = 1001,
                               .cpu_s = 1000.5,
                               .output_age_s = i,
                               .memory = UINT64_C(512) << 20,
                               .has_op = true,
                               .op_open = true,
                               .op_number = 1000000 + (uint64_t)(node % 7),
                               .op_age_s = 1.5,
                               .op_name = "all_reduce of 1048576 f32 (sum)"};
    }
    t->nrunning += NPROC;
}

static void own_rows(void *arg, struct top_rows *rows)
{
    (void)arg;
    add_rows(rows, group_rank_of_own);
}

static bool top_request(void *arg, const struct rdzv_request *r)
{
    (void)arg;
    return rdzv_request(own, r);
}

static void top_answer(void *arg, const struct rdzv_answer *a)
{
    (void)arg;
    rdzv_answer(own, a);
}

static void on_request(void *arg, const struct rdzv_request *r)
{
    (void)arg;
    if (r->kind == REQUEST_TOP)
        top_on_request(tops, r);
}

static void on_answer(void *arg, const struct rdzv_answer *a)
{
    (void)arg;
    top_on_answer(tops, a);
}

static bool on_merge(void *arg, const struct rdzv_answers *answers, struct buf *out)
{
    (void)arg;
    return top_merge(answers, out);
}

/* Makes what the control socket sends. */
static void on_top(void *arg, const struct top_rows *rows, bool complete)
{
    json_t *j = json_object();
    (void)arg;
    top_rows_json(rows, j);
    free(json_dumps(j, JSON_COMPACT));
    json_decref(j);
    if (write(reply_fd, complete ? "c" : "i", 1) != 1)
        _exit(1);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    static char bytes[1];
    (void)h, (void)suggested;
    *buf = uv_buf_init(bytes, 1);
}

static void on_order(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    (void)s;
    if (n > 0)
        top_ask(tops, nnodes_of_own, buf->base[0] == 's' ? SCREEN : 0, on_top, NULL);
}

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    (void)arg, (void)gen, (void)group_rank, (void)nnodes;
    uint16_t ports[NPROC] = {1, 2, 3, 4, 5, 6, 7, 8};
    rdzv_prepared(own, ports, NPROC);
}

static void on_run(void *arg, const struct rank_table *table, int group_rank)
{
    (void)arg;
    group_rank_of_own = group_rank;
    nnodes_of_own = table->nnodes;
}

static void on_respawn(void *arg, int local_rank, int restart_count)
{
    (void)arg, (void)local_rank, (void)restart_count;
}

static void on_stop(void *arg, const struct rdzv_stop *why)
{
    (void)arg, (void)why;
    rdzv_stopped(own, NULL, 0);
}

static void on_finish(void *arg, const struct rdzv_result *result)
{
    (void)arg, (void)result;
    _exit(0);
}

/* The node of this rank, 0 or 1. Writes the port of the endpoint, if it is the coordinator, to
 * ready_fd, or a "-"; then takes orders there. */
static void be_real(int n, int rank, int fd)
{
    uv_loop_t loop;
    struct uvx_scope scope;
    struct rdzv_config c;
    struct rdzv_info info;
    struct err e = ERR_INIT;
    const struct top_callbacks top = {
        .own = own_rows, .request = top_request, .answer = top_answer};
    const struct rdzv_callbacks callbacks = {.on_prepare = on_prepare,
                                             .on_run = on_run,
                                             .on_respawn = on_respawn,
                                             .on_stop = on_stop,
                                             .on_request = on_request,
                                             .on_answer = on_answer,
                                             .merge = on_merge,
                                             .on_finish = on_finish};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    log_init(LOG_LEVEL_ERROR, NULL);
    rdzv_config_defaults(&c);
    c.backend = RDZV_FILE; /* the one that may listen on a free port for several nodes */
    c.endpoint_path = path;
    c.run_id = "bench";
    c.min_nodes = c.max_nodes = n;
    c.nproc = NPROC;
    c.host = rank ? "node1" : "node0";
    c.node_rank = rank;
    c.keep_alive_interval = 3600; /* the others send no heartbeats */
    c.auth = &auth;
    uv_loop_init(&loop);
    uvx_scope_init(&scope, &loop);
    tops = top_asks_new(&loop, &scope, &top);
    if (rdzv_open(&own, &loop, &c, &callbacks, &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        _exit(1);
    }
    do {
        uv_run(&loop, UV_RUN_ONCE);
        rdzv_get_info(own, &info);
    } while (strcmp(info.phase, "joining") == 0);
    const char *port = rank ? "-" : strrchr(info.endpoint, ':') + 1;
    if (write(fd, port, strlen(port)) < 0)
        _exit(1);
    reply_fd = fd;
    uv_pipe_init(&loop, &orders, 0);
    uv_pipe_open(&orders, dup(fd));
    uv_read_start((uv_stream_t *)&orders, on_alloc, on_order);
    uv_run(&loop, UV_RUN_DEFAULT);
    _exit(0);
}

static pid_t start_real(int n, int rank, int *fd, char text[16])
{
    int fds[2];
    memset(text, 0, 16);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        die("socketpair");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0)
        be_real(n, rank, fds[0]);
    close(fds[0]);
    if (read(fds[1], text, 15) <= 0)
        die("a real node does not start");
    *fd = fds[1];
    return pid;
}

/* ---------------------------------------------------------------------------------------- nodes */

struct node {
    int fd, index;
    bool connected, prepared, has_table, ranked;
    struct node *parent, *children, *sibling; /* in this process */
    bool placed, top;                         /* the coordinator has said where; it is its parent */
    struct node *of;                          /* a connection of that node to node 1; else NULL */
    struct buf rows;                          /* the answer of all below it */
    int rank;
    struct buf in, out;
    struct tls *tls;
    struct buf wire; /* with tls: what out becomes */
    size_t skip;     /* bytes of a table that nobody looks into */
    uint64_t clock;
};

static struct node *nodes;
static struct netaddr endpoint;
static int epoll_fd, ranked, nlinks;
static int *calls;                          /* nodes that are to connect, a ring */
static int ncalls, next_call, calling;      /* calling: have connected and have no answer yet */
static int again;                           /* connections that were made once more */
static int incomplete;                      /* answers to top */
static struct node links[TREE_WIDTH];       /* to node 1 */
static uint64_t messages, bytes, below_one; /* that the coordinator receives and sends; node 1 with
                                               its children */
static size_t table_bytes;

static uint64_t *counter_of(const struct node *n)
{
    return n->of ? &below_one : &messages;
}

static void say(struct node *n, struct buf *frame)
{
    ++*counter_of(n);
    buf_put(&n->out, frame->data, frame->len);
    buf_fini(frame);
}

static void watch(struct node *n, uint32_t events, int op)
{
    struct epoll_event e = {.events = events, .data.ptr = n};
    if (epoll_ctl(epoll_fd, op, n->fd, &e) < 0)
        die("epoll_ctl");
}

static void flush(struct node *n)
{
    struct buf *out = n->tls ? &n->wire : &n->out;
    if (n->tls && tls_established(n->tls) && n->out.len) {
        if (tls_encrypt(n->tls, n->out.data, n->out.len, &n->wire, NULL) < 0)
            die("tls_encrypt");
        n->out.len = 0;
    }
    while (out->len) {
        ssize_t w = send(n->fd, out->data, out->len, MSG_NOSIGNAL);
        if (w < 0)
            break;
        bytes += n->of ? 0 : (uint64_t)w;
        buf_consume(out, (size_t)w);
    }
    watch(n, out->len ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

static void say_hello(struct node *n, int of)
{
    if (!auth.open && tls_new(&n->tls, TLS_CLIENT, &auth.key, &n->wire, NULL) < 0)
        die("tls_new");
    struct rdzv_hello h = {.backend = RDZV_FILE,
                           .min_nodes = of,
                           .max_nodes = of,
                           .agent_store = true,
                           .run_id = "bench",
                           .version = DLAUNCH_VERSION,
                           .role = "default",
                           .pid = 1000 + n->index,
                           .node_rank = n->index % 2 ? n->index : -1, /* half ask for a rank */
                           .prev_rank = -1,
                           .peer_port = 1, /* so that it may be a parent; nobody calls it */
                           .nproc = NPROC};
    struct rdzv_status st = {.phase = MEMBER_IDLE, .send_ns = ++n->clock};
    memcpy(h.id.b, &n->index, sizeof(n->index));
    snprintf(h.host, sizeof(h.host), "gpu-node-%04d.cluster.example.org", n->index);
    snprintf(h.local_addr, sizeof(h.local_addr), "10.1.%d.%d", n->index / 256, n->index % 256);
    rdzv_put_preamble(&n->out);
    rdzv_put_hello(&n->out, &h);
    rdzv_put_status(&n->out, &st);
    messages += 2;
    flush(n);
}

static void rank_if_complete(struct node *n)
{
    if (!n->ranked && n->has_table && n->rank >= 0) {
        n->ranked = true;
        ranked++;
    }
}

/* The node has the table, and so have those below it. */
static void pass_table(struct node *n)
{
    n->has_table = true;
    rank_if_complete(n);
    for (struct node *c = n->children; c; c = c->sibling)
        pass_table(c);
}

static void connect_to_one(struct node *n, const struct rdzv_branch *m)
{
    struct netaddr a;
    struct node *l = &links[nlinks++];
    if (nlinks > TREE_WIDTH || !netaddr_parse_ip(&a, m->addr, m->port))
        die("wrong parent");
    *l = (struct node){.of = n, .index = n->index};
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || (connect(l->fd, &a.sa, a.len) < 0 && errno != EINPROGRESS))
        die("connect");
    struct rdzv_child child = {.parent = m->parent, .gen = m->gen, .run_id = "bench"};
    struct buf b = BUF_INIT;
    if (!auth.open && tls_new(&l->tls, TLS_CLIENT, &auth.key, &l->wire, NULL) < 0)
        die("tls_new");
    l->clock = 1;
    rdzv_put_preamble(&l->out);
    rdzv_put_child(&b, &child);
    watch(l, EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
    say(l, &b);
}

static void on_branch(struct node *n, struct rd *body)
{
    struct rdzv_branch m;
    struct node_id id = {{0}};
    int parent;
    if (!rdzv_get_branch(body, &m))
        die("malformed branch");
    n->placed = true;
    n->top = m.port == 0;
    if (n->top)
        return;
    memcpy(&parent, m.parent.b, sizeof(parent));
    memcpy(id.b, &parent, sizeof(parent));
    if (!node_id_equal(&id, &m.parent)) { /* not one of these: node 1 */
        connect_to_one(n, &m);
        return;
    }
    n->parent = &nodes[parent - REAL];
    n->sibling = n->parent->children;
    n->parent->children = n;
    if (n->parent->has_table)
        pass_table(n);
}

static void add_subtree(struct top_rows *t, const struct node *n)
{
    add_rows(t, n->rank);
    for (const struct node *c = n->children; c; c = c->sibling)
        add_subtree(t, c);
}

/* Answers for the nodes below it. The first answer is kept, for all but its number. */
static void on_told(struct node *n, struct rd *body)
{
    struct generation gen;
    struct rdzv_request r;
    uint32_t number;
    struct buf b = BUF_INIT, item = BUF_INIT;
    if (!rdzv_get_told(body, &gen, &number, &r))
        die("malformed request");
    if (r.kind != REQUEST_TOP)
        return;
    bool screen = r.top.most > 0;
    struct top_rows t = {0};
    if (!screen || !n->rows.len) {
        n->rows.len = 0;
        add_subtree(&t, n->of ? n->of : n);
        top_rows_cut(&t, r.top.most);
        top_answer_encode(&n->rows, r.top.most, &t);
        top_rows_fini(&t);
    }
    buf_u32(&item, (uint32_t)n->rows.len);
    buf_put(&item, n->rows.data, n->rows.len);
    rdzv_put_answers(&b, &r.from, r.kind, r.id, 1, &item);
    buf_fini(&item);
    if (!screen)
        n->rows.len = 0;
    say(n, &b);
    flush(n);
}

static void on_view(struct node *n, struct rd *body)
{
    struct rdzv_view v;
    uint8_t ports[2 * NPROC];
    if (!rdzv_get_view(body, &v))
        die("malformed view");
    if (v.phase == RDZV_PREPARE && !n->prepared) {
        for (int i = 0; i < 2 * NPROC; i++)
            ports[i] = (uint8_t)rand();
        struct rdzv_status st = {.phase = MEMBER_PREPARED,
                                 .gen = v.gen,
                                 .send_ns = ++n->clock,
                                 .nports = NPROC,
                                 .ports = ports};
        n->prepared = true;
        rdzv_put_status(&n->out, &st);
        messages++;
        flush(n);
    } else if (v.phase == RDZV_RUN && v.group_rank >= 0) {
        n->rank = v.group_rank;
        rank_if_complete(n);
    }
    rdzv_view_fini(&v);
}

/* One node in 64 keeps its table and checks it: in practice each node has a host of its own to do
 * so. */
static void on_table(struct node *n, struct rd *body, int of)
{
    struct rank_table t;
    table_bytes = (size_t)(body->end - body->p);
    pass_table(n->of ? n->of : n);
    if (n->index % 64)
        return;
    if (rank_table_decode(body, &t, NULL) < 0 || t.nnodes != of || t.world_size != NPROC * of)
        die("wrong table");
    rank_table_fini(&t);
}

static int connect_node(int i)
{
    const int on = 1;
    struct netaddr from;
    char ip[24];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    snprintf(ip, sizeof(ip), "127.0.0.%d", 1 + i / PER_ADDRESS);
    netaddr_parse_ip(&from, ip, 0);
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (i >= PER_ADDRESS && bind(fd, &from.sa, from.len) < 0)
        die("bind");
    if (connect(fd, &endpoint.sa, endpoint.len) < 0 && errno != EINPROGRESS)
        die("connect");
    return fd;
}

static void call_later(const struct node *n, int nnodes)
{
    calls[(next_call + ncalls++) % nnodes] = n->index - REAL;
}

/* Makes as many connections as may be under way. */
static void make_calls(int nnodes)
{
    for (; ncalls > 0 && calling < AT_ONCE; ncalls--, calling++) {
        struct node *n = &nodes[calls[next_call]];
        next_call = (next_call + 1) % nnodes;
        n->fd = connect_node(n->index - REAL);
        watch(n, EPOLLOUT, EPOLL_CTL_ADD);
    }
}

/* The coordinator has closed the connection. A launcher whose HELLO was too late calls again. */
static void call_again(struct node *n, int nnodes)
{
    if (n->of || n->prepared)
        die("the coordinator hung up");
    close(n->fd);
    n->in.len = n->out.len = n->wire.len = 0;
    tls_free(n->tls);
    n->tls = NULL;
    n->clock = 0;
    calling -= !n->connected;
    n->connected = false;
    again++;
    call_later(n, nnodes);
}

static void on_readable(struct node *n, int of)
{
    static uint8_t raw[1 << 18];
    static struct buf plain;
    const uint8_t *chunk = raw;
    ssize_t got = recv(n->fd, raw, sizeof(raw), 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        call_again(n, of - REAL);
        return;
    }
    if (n->tls) {
        bool before = tls_established(n->tls);
        plain.len = 0;
        if (tls_feed(n->tls, raw, (size_t)got, &plain, &n->wire, NULL) < 0)
            die("tls_feed");
        if (!before && tls_established(n->tls))
            flush(n);
        chunk = plain.data;
        got = (ssize_t)plain.len;
    }
    size_t skipped = n->skip < (size_t)got ? n->skip : (size_t)got;
    n->skip -= skipped;
    bytes += n->of ? 0 : (uint64_t)got;
    if (skipped && !n->skip) {
        ++*counter_of(n);
        pass_table(n->of ? n->of : n);
    }
    buf_put(&n->in, chunk + skipped, (size_t)got - skipped);
    size_t at = n->connected ? 0 : RDZV_PREAMBLE_LEN;
    if (n->in.len < at)
        return;
    calling -= !n->connected && !n->of;
    n->connected = true;
    while (n->in.len - at >= RDZV_FRAME_HEADER) {
        struct rd r = rd_init(n->in.data + at, n->in.len - at);
        uint32_t len = rd_u32(&r);
        uint8_t type = rd_u8(&r);
        size_t have = n->in.len - at - 4;
        if (have < len) {
            if (type == RDZV_MSG_TABLE && n->index % 64) {
                table_bytes = len - 1;
                n->skip = len - have;
                at = n->in.len;
            }
            break;
        }
        struct rd body = rd_init(r.p, len - 1);
        at += 4 + len;
        ++*counter_of(n);
        if (type == RDZV_MSG_VIEW)
            on_view(n, &body);
        else if (type == RDZV_MSG_BRANCH)
            on_branch(n, &body);
        else if (type == RDZV_MSG_TOLD)
            on_told(n, &body);
        else if (type == RDZV_MSG_TABLE)
            on_table(n, &body, of);
        else if (type == RDZV_MSG_REFUSE)
            die("refused");
    }
    buf_consume(&n->in, at);
}

/* The CPU time of a process, in ms. */
static double cpu_ms(pid_t pid)
{
    clockid_t clock;
    struct timespec t = {0};
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
        die("the CPU time of a real node");
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

struct cost {
    int nodes;
    double seconds, cpu_ms;     /* of the coordinator */
    double node_cpu_ms;         /* of node 1 */
    double messages, megabytes; /* to and from the coordinator */
    double below_one;           /* messages between node 1 and its children */
    double top_cpu_ms, top_ms;  /* of one question of a screen */
    double node_top_cpu_ms;
    double full_cpu_ms, full_ms; /* of one of -o json */
    int incomplete; /* questions of a screen that not all nodes have answered in time */
};

/* Lets the nodes do what they have to for a while. False: the reply came on that descriptor. */
static bool step(int of, int reply, uint64_t end_ns)
{
    struct epoll_event ev[256];
    uint64_t now = mono_ns();
    int got =
        now >= end_ns ? 0 : epoll_wait(epoll_fd, ev, 256, (int)((end_ns - now) / 1000000) + 1);
    for (int i = 0; i < got; i++) {
        struct node *node = ev[i].data.ptr;
        char byte;
        if (!node && read(reply, &byte, 1) != 1)
            die("the coordinator has gone");
        if (!node) {
            incomplete += byte != 'c';
            return false;
        }
        if (ev[i].events & EPOLLIN)
            on_readable(node, of);
        else if (node->clock == 0)
            say_hello(node, of);
        else
            flush(node);
    }
    return true;
}

static void ask_top(int of, const pid_t pids[REAL], int fd, struct cost *c)
{
    struct epoll_event e = {.events = EPOLLIN};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
        die("epoll_ctl");
    incomplete = 0;
    for (int full = 0; full < 2; full++) {
        int times = full ? 5 : TOPS + 1;
        double cpu = 0, node_cpu = 0;
        uint64_t start = 0;
        for (int i = 0; i < times; i++) {
            if (i == 1) { /* the first question is the nodes' first, too */
                cpu = cpu_ms(pids[0]);
                node_cpu = cpu_ms(pids[1]);
                start = mono_ns();
            }
            uint64_t end = mono_ns() + UINT64_C(20000000000);
            if (write(fd, full ? "f" : "s", 1) != 1)
                die("write");
            while (step(of, fd, end)) {
                if (mono_ns() >= end)
                    die("top does not answer");
            }
        }
        double n = times - 1, wall = (double)(mono_ns() - start) / 1e6 / n;
        cpu = (cpu_ms(pids[0]) - cpu) / n;
        if (full) {
            c->full_cpu_ms = cpu;
            c->full_ms = wall;
        } else {
            c->incomplete = incomplete;
            c->top_cpu_ms = cpu;
            c->top_ms = wall;
            c->node_top_cpu_ms = (cpu_ms(pids[1]) - node_cpu) / n;
        }
    }
}

static void free_node(struct node *n)
{
    if (n->fd >= 0)
        close(n->fd);
    buf_fini(&n->in);
    buf_fini(&n->out);
    buf_fini(&n->wire);
    buf_fini(&n->rows);
    tls_free(n->tls);
}

/* How far the nodes came. */
static void print_state(int n, double seconds)
{
    int connected = 0, prepared = 0, placed = 0, table = 0, run = 0;
    for (int i = 0; i < n; i++) {
        connected += nodes[i].connected;
        prepared += nodes[i].prepared;
        placed += nodes[i].placed;
        table += nodes[i].has_table;
        run += nodes[i].rank >= 0;
    }
    printf(
        "after %.0f s, of %d simulated nodes: %d connected, %d prepared, %d in the tree, %d have "
        "the table, %d may run\n",
        seconds, n, connected, prepared, placed, table, run);
}

/* False: it did not get there. */
static bool run(int of, struct cost *c)
{
    char text[16];
    int fds[REAL], n = of - REAL;
    pid_t pids[REAL];
    double limit = 60 + of / 40.0;
    *c = (struct cost){.nodes = of};
    snprintf(path, sizeof(path), "/tmp/bench-rdzv.%d", (int)getpid());
    pids[0] = start_real(of, 0, &fds[0], text);
    netaddr_parse_ip(&endpoint, "127.0.0.1", atoi(text));
    pids[1] = start_real(of, 1, &fds[1], text);
    unlink(path);
    nodes = xcalloc((size_t)n, sizeof(*nodes));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    calls = xcalloc((size_t)n, sizeof(*calls));
    ranked = nlinks = again = ncalls = next_call = calling = 0;
    messages = bytes = below_one = 0;
    uint64_t start = mono_ns(), end = start + (uint64_t)(limit * 1e9);
    for (int i = 0; i < n; i++) {
        nodes[i].index = i + REAL;
        nodes[i].rank = nodes[i].fd = -1;
        call_later(&nodes[i], n);
    }
    while (ranked < n && mono_ns() < end) {
        make_calls(n);
        step(of, -1, end);
    }
    bool there = ranked == n;
    c->seconds = (double)(mono_ns() - start) / 1e9;
    c->cpu_ms = cpu_ms(pids[0]);
    c->node_cpu_ms = cpu_ms(pids[1]);
    c->messages = (double)messages;
    c->megabytes = (double)bytes / 1e6;
    c->below_one = (double)below_one;
    if (there)
        ask_top(of, pids, fds[0], c);
    else
        print_state(n, c->seconds);
    if (again)
        printf("%d nodes called more than once\n", again);
    for (int i = 0; i < REAL; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        close(fds[i]);
    }
    for (int i = 0; i < n; i++)
        free_node(&nodes[i]);
    for (int i = 0; i < nlinks; i++)
        free_node(&links[i]);
    close(epoll_fd);
    free(nodes);
    free(calls);
    return there;
}

/* Descriptors for n nodes. False: there are not so many. */
static bool allow(int n)
{
    rlim_t want = (rlim_t)n + OTHER_FDS;
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_cur >= want)
        return true;
    l.rlim_cur = want;
    l.rlim_max = l.rlim_max < want ? want : l.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &l) == 0;
}

static int compare(const void *a, const void *b)
{
    const struct cost *x = a, *y = b;
    return (x->cpu_ms > y->cpu_ms) - (x->cpu_ms < y->cpu_ms);
}

static double per_n_log_n(double value, int n)
{
    return value / (n * log2(n));
}

static const char *met(bool good)
{
    return good ? "met" : "missed";
}

/* The coordinator's CPU time is the cost: the wall clock is also that of the nodes, which are all
 * in one process here. */
static bool print_bars(const struct cost *costs, int n)
{
    const struct cost *first = NULL, *last = NULL, *top = NULL;
    for (int i = 0; i < n; i++) {
        first = costs[i].nodes == 256 ? &costs[i] : first;
        last = costs[i].nodes == 4096 ? &costs[i] : last;
        top = costs[i].nodes == 1024 ? &costs[i] : top;
    }
    bool good = true;
    if (top) {
        double percent = top->top_cpu_ms / 10;
        printf("\nbar: top at 1 Hz of 1024 nodes: %.2f %% of a core at the coordinator, less than "
               "%g %% (%s)\n",
               percent, TOP_MAX, met(percent < TOP_MAX));
        good &= percent < TOP_MAX;
    }
    if (first && last) {
        double grown = per_n_log_n(last->cpu_ms, 4096) / per_n_log_n(first->cpu_ms, 256);
        bool fast = last->seconds < SECONDS_MAX, flat = grown <= GROWN_MAX;
        printf("bar: 4096 nodes joined and ranked: %.2f s, less than %g s (%s)\n", last->seconds,
               SECONDS_MAX, met(fast));
        printf("bar: the coordinator's cost from 256 to 4096 nodes: %.2f times n log n, at most %g "
               "(%s)\n",
               grown, GROWN_MAX, met(flat));
        good &= fast && flat;
    }
    return good;
}

int main(int argc, char **argv)
{
    static const int sizes[] = {256, 1024, 4096, 16384, 65536};
    struct cost costs[16];
    bool good = true;
    setvbuf(stdout, NULL, _IOLBF, 0); /* nothing of it is in the real nodes, too */
    if (argc > 1 && strcmp(argv[1], "--tls") == 0) {
        struct err e = ERR_INIT;
        auth = (struct auth){.everywhere = true, .secret_len = AUTH_SECRET_MIN};
        if (auth_ready(&auth, &e) < 0) {
            fprintf(stderr, "%s\n", e.msg);
            return 1;
        }
        argc--, argv++;
        printf("Under TLS:\n");
    }
    int repeats = argc > 1 ? atoi(argv[1]) : REPEATS;
    int count = argc > 2 ? argc - 2 : (int)ARRAY_LEN(sizes), ncosts = 0;
    count = count > 16 ? 16 : count;
    if (repeats < 1)
        repeats = 1;
    struct cost *runs = xcalloc((size_t)repeats, sizeof(*runs));
    printf("Medians. Root: the coordinator; node: one with children. Top: a question for a screen, "
           "and with -o json.\n\n");
    printf(
        "| nodes | table KiB |  ms | root CPU ms | us per n log2 n | root messages a node | root "
        "MB | node CPU ms | node messages below | top ms | root CPU ms | node CPU ms | json ms | "
        "root CPU ms |\n");
    printf("|------:|----:|----:|----:|----:|----:|----:|----:|----:|----:|----:|----:|----:|----:|"
           "\n");
    for (int i = 0; i < count; i++) {
        int n = argc > 2 ? atoi(argv[i + 2]) : sizes[i], times = n > 4096 ? 1 : repeats, got = 0;
        if (n <= TREE_WIDTH + REAL) {
            fprintf(stderr, "bench_rdzv: %s nodes: at least %d form a tree\n", argv[i + 2],
                    TREE_WIDTH + REAL + 1);
            return 2;
        }
        if (!allow(n)) {
            struct rlimit l;
            getrlimit(RLIMIT_NOFILE, &l);
            printf("SKIPPED: %d nodes: the coordinator needs %d descriptors, and the hard limit is "
                   "%llu (ulimit -Hn), which only CAP_SYS_RESOURCE may raise\n",
                   n, n + OTHER_FDS, (unsigned long long)l.rlim_max);
            continue;
        }
        for (int k = 0; k < times; k++) {
            bool there = run(n, &runs[got]);
            if (there && runs[got].incomplete)
                printf("%d of %d questions of top were not answered by all nodes in time\n",
                       runs[got].incomplete, TOPS + 1);
            good &= there && !runs[got].incomplete;
            got += there;
        }
        if (!got)
            continue;
        qsort(runs, (size_t)got, sizeof(*runs), compare);
        const struct cost *c = &runs[got / 2];
        printf(
            "| %5d | %.0f | %.0f | %.1f | %.2f | %.1f | %.1f | %.1f | %.0f | %.1f | %.2f | %.2f | "
            "%.1f | %.1f |\n",
            n, (double)table_bytes / 1024, c->seconds * 1e3, c->cpu_ms,
            c->cpu_ms * 1e3 / (n * log2(n)), c->messages / n, c->megabytes, c->node_cpu_ms,
            c->below_one, c->top_ms, c->top_cpu_ms, c->node_top_cpu_ms, c->full_ms, c->full_cpu_ms);
        costs[ncosts++] = *c;
    }
    free(runs);
    good &= print_bars(costs, ncosts);
    return good ? 0 : 1;
}
