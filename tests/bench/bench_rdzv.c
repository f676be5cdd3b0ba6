/* How long one coordinator takes to bring n nodes together: from the first connect() until the last
 * node has its rank, the rank table and the word to run. The coordinator is the real one, in a
 * process of its own; the nodes are sockets in this one, which speak the real messages over TCP on
 * loopback. Each has 8 workers with a data port and an address of its own, so that the table, which
 * every node receives, is as big as in life.
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
#include <unistd.h>

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

static struct auth auth = {.open = true};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* ---------------------------------------------------------------------------------- coordinator */

static struct rdzv *own;

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    (void)arg, (void)gen, (void)group_rank, (void)nnodes;
    uint16_t ports[NPROC] = {1, 2, 3, 4, 5, 6, 7, 8};
    rdzv_prepared(own, ports, NPROC);
}

static void on_run(void *arg, const struct rank_table *table, int group_rank)
{
    (void)arg, (void)table, (void)group_rank;
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

static void coordinate(int n, int ready_fd)
{
    uv_loop_t loop;
    struct rdzv_config c;
    struct rdzv_info info;
    struct err e = ERR_INIT;
    const struct rdzv_callbacks callbacks = {.on_prepare = on_prepare,
                                             .on_run = on_run,
                                             .on_respawn = on_respawn,
                                             .on_stop = on_stop,
                                             .on_finish = on_finish};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    log_init(LOG_LEVEL_ERROR, NULL);
    rdzv_config_defaults(&c);
    c.backend = RDZV_FILE; /* the one that may listen on a free port for several nodes */
    char path[64];
    snprintf(path, sizeof(path), "/tmp/bench-rdzv.%d", (int)getpid());
    c.endpoint_path = path;
    c.run_id = "bench";
    c.min_nodes = c.max_nodes = n;
    c.nproc = NPROC;
    c.host = "node0";
    c.node_rank = 0;
    c.auth = &auth;
    uv_loop_init(&loop);
    if (rdzv_open(&own, &loop, &c, &callbacks, &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        _exit(1);
    }
    do {
        uv_run(&loop, UV_RUN_ONCE);
        rdzv_get_info(own, &info);
    } while (strcmp(info.phase, "joining") == 0);
    unlink(path);
    const char *port = strrchr(info.endpoint, ':') + 1;
    if (write(ready_fd, port, strlen(port)) < 0)
        _exit(1);
    close(ready_fd);
    uv_run(&loop, UV_RUN_DEFAULT);
    _exit(0);
}

static pid_t start_coordinator(int n, int *port)
{
    int fds[2];
    char text[16] = "";
    if (pipe(fds) < 0)
        die("pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        close(fds[0]);
        coordinate(n, fds[1]);
    }
    close(fds[1]);
    if (read(fds[0], text, sizeof(text) - 1) <= 0)
        die("the coordinator does not start");
    close(fds[0]);
    *port = atoi(text);
    return pid;
}

/* ---------------------------------------------------------------------------------------- nodes */

struct node {
    int fd, index;
    bool connected, prepared, has_table, ranked;
    struct buf in, out;
    struct tls *tls;
    struct buf wire; /* with tls: what out becomes */
    size_t skip;     /* bytes of a table that nobody looks into */
    uint64_t clock;
};

static int epoll_fd, ranked;
static size_t table_bytes;

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
        if (tls_seal(n->tls, n->out.data, n->out.len, &n->wire, NULL) < 0)
            die("tls_seal");
        n->out.len = 0;
    }
    while (out->len) {
        ssize_t w = send(n->fd, out->data, out->len, MSG_NOSIGNAL);
        if (w < 0)
            break;
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
                           .nproc = NPROC};
    struct rdzv_status st = {.phase = MEMBER_IDLE, .send_ns = ++n->clock};
    memcpy(h.id.b, &n->index, sizeof(n->index));
    snprintf(h.host, sizeof(h.host), "gpu-node-%04d.cluster.example.org", n->index);
    snprintf(h.local_addr, sizeof(h.local_addr), "10.1.%d.%d", n->index / 256, n->index % 256);
    rdzv_put_preamble(&n->out);
    rdzv_put_hello(&n->out, &h);
    rdzv_put_status(&n->out, &st);
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
        flush(n);
    } else if (v.phase == RDZV_RUN && n->has_table && !n->ranked && v.group_rank >= 0) {
        n->ranked = true;
        ranked++;
    }
    rdzv_view_fini(&v);
}

/* One node in 64 keeps its table and checks it: in practice each node has a host of its own to do
 * so. */
static void on_table(struct node *n, struct rd *body, int of)
{
    struct rank_table t;
    table_bytes = (size_t)(body->end - body->p);
    n->has_table = true;
    if (n->index % 64)
        return;
    if (rank_table_decode(body, &t, NULL) < 0 || t.nnodes != of || t.world_size != NPROC * of)
        die("wrong table");
    rank_table_fini(&t);
}

static void on_readable(struct node *n, int of)
{
    static uint8_t raw[1 << 18];
    static struct buf plain;
    const uint8_t *chunk = raw;
    ssize_t got = recv(n->fd, raw, sizeof(raw), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN))
        die("the coordinator hung up");
    if (got < 0)
        return;
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
    if (skipped && !n->skip)
        n->has_table = true;
    buf_put(&n->in, chunk + skipped, (size_t)got - skipped);
    size_t at = n->connected ? 0 : RDZV_PREAMBLE_LEN;
    if (n->in.len < at)
        return;
    n->connected = true;
    while (n->in.len - at >= RDZV_FRAME_HEADER) {
        struct rd r = rd_init(n->in.data + at, n->in.len - at);
        uint32_t len = rd_u32(&r);
        uint8_t type = rd_u8(&r);
        size_t have = n->in.len - at - 4;
        if (have < len) {
            if (type == RDZV_MSG_TABLE && n->index % 64) {
                n->skip = len - have;
                at = n->in.len;
            }
            break;
        }
        struct rd body = rd_init(r.p, len - 1);
        at += 4 + len;
        if (type == RDZV_MSG_VIEW)
            on_view(n, &body);
        else if (type == RDZV_MSG_TABLE)
            on_table(n, &body, of);
        else if (type == RDZV_MSG_REFUSE)
            die("refused");
    }
    buf_consume(&n->in, at);
}

static double cpu_ms(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) * 1e3 +
           (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) / 1e3;
}

/* Wall time in seconds; *cpu: what the coordinator's process used, in ms. */
static double run(int of, double *cpu)
{
    int port, n = of - 1; /* the coordinator's own is the first */
    pid_t pid = start_coordinator(of, &port);
    struct node *nodes = xcalloc((size_t)n, sizeof(*nodes));
    struct netaddr a;
    netaddr_parse_ip(&a, "127.0.0.1", port);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    ranked = 0;
    uint64_t start = mono_ns();
    for (int i = 0; i < n; i++) {
        nodes[i].index = i + 1;
        nodes[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (nodes[i].fd < 0)
            die("socket");
        if (connect(nodes[i].fd, &a.sa, a.len) < 0 && errno != EINPROGRESS)
            die("connect");
        watch(&nodes[i], EPOLLOUT, EPOLL_CTL_ADD);
    }
    while (ranked < n) {
        struct epoll_event ev[256];
        int got = epoll_wait(epoll_fd, ev, 256, 30000);
        if (got <= 0)
            die("nothing happens");
        for (int i = 0; i < got; i++) {
            struct node *node = ev[i].data.ptr;
            if (ev[i].events & EPOLLIN)
                on_readable(node, of);
            else if (node->clock == 0)
                say_hello(node, of);
            else
                flush(node);
        }
    }
    double seconds = (double)(mono_ns() - start) / 1e9;
    kill(pid, SIGKILL);
    struct rusage usage;
    wait4(pid, NULL, 0, &usage);
    *cpu = cpu_ms(&usage);
    for (int i = 0; i < n; i++) {
        close(nodes[i].fd);
        buf_fini(&nodes[i].in);
        buf_fini(&nodes[i].out);
        buf_fini(&nodes[i].wire);
        tls_free(nodes[i].tls);
    }
    close(epoll_fd);
    free(nodes);
    return seconds;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct cost {
    int nodes;
    double seconds, cpu_ms;
};

static double per_n_log_n(double value, int n)
{
    return value / (n * log2(n));
}

/* The coordinator's CPU time is the cost: the wall clock is also that of the nodes, which are all
 * in one process here. */
static int print_bars(const struct cost *first, const struct cost *last)
{
    double grown =
        per_n_log_n(last->cpu_ms, last->nodes) / per_n_log_n(first->cpu_ms, first->nodes);
    bool fast = last->seconds < SECONDS_MAX, flat = grown <= GROWN_MAX;
    printf("\nbar: %d nodes joined and ranked: %.2f s, less than %g s (%s)\n", last->nodes,
           last->seconds, SECONDS_MAX, fast ? "met" : "missed");
    printf("bar: the coordinator's cost from %d to %d nodes: %.2f times n log n, at most %g (%s)\n",
           first->nodes, last->nodes, grown, GROWN_MAX, flat ? "met" : "missed");
    return fast && flat ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct cost first = {0}, last = {0};
    static const int sizes[] = {256, 512, 1024, 2048, 4096};
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
    int count = argc > 2 ? argc - 2 : (int)ARRAY_LEN(sizes);
    if (repeats < 1)
        repeats = 1;
    double *times = xcalloc((size_t)repeats, sizeof(*times));
    double *cpu = xcalloc((size_t)repeats, sizeof(*cpu));
    printf("| nodes | table KiB | median ms | best ms | coordinator's CPU ms |"
           " us per n log2 n | CPU us per n log2 n |\n");
    printf("|------:|----------:|----------:|--------:|---------------------:|"
           "----------------:|--------------------:|\n");
    for (int i = 0; i < count; i++) {
        int n = argc > 2 ? atoi(argv[i + 2]) : sizes[i];
        for (int k = 0; k < repeats; k++)
            times[k] = run(n, &cpu[k]);
        qsort(times, (size_t)repeats, sizeof(*times), compare);
        qsort(cpu, (size_t)repeats, sizeof(*cpu), compare);
        double median = times[repeats / 2], median_cpu = cpu[repeats / 2];
        printf("| %5d | %9.1f | %9.1f | %7.1f | %20.1f | %15.2f | %19.2f |\n", n,
               (double)table_bytes / 1024, median * 1e3, times[0] * 1e3, median_cpu,
               median * 1e6 / (n * log2(n)), median_cpu * 1e3 / (n * log2(n)));
        fflush(stdout);
        last = (struct cost){n, median, median_cpu};
        if (i == 0)
            first = last;
    }
    free(times);
    free(cpu);
    return argc > 2 ? 0 : print_bars(&first, &last);
}
