#include "tests/lib/rdzv_nodes.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#ifdef __SANITIZE_THREAD__
/* The children of fork_node() start threads, beside copies of locks that are not held. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif

merge_fn *nodes_merge;
uv_loop_t loop;
struct node nodes[NODES_MAX];
char logs[1 << 16];

static void keep_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    size_t n = strlen(logs);
    if (n + len < sizeof(logs)) {
        memcpy(logs + n, line, len);
        logs[n + len] = '\0';
    }
}

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    struct node *n = arg;
    uint16_t ports[NPROC_MAX] = {0};
    n->prepares++;
    n->gen = gen;
    n->group_rank = group_rank;
    n->nnodes = nnodes;
    for (int i = 0; i < n->config.nproc; i++)
        ports[i] = (uint16_t)(1000 * (group_rank + 1) + i);
    rdzv_prepared(n->r, ports, n->config.nproc);
}

static void on_run(void *arg, const struct rank_table *t, int group_rank)
{
    struct node *n = arg;
    ck_assert_int_eq(group_rank, n->group_rank);
    ck_assert(generation_equal(t->gen, n->gen));
    n->runs++;
    n->run_at = mono_ns();
    n->nnodes = t->nnodes;
    n->world_size = t->world_size;
    n->base_rank = t->nodes[group_rank].base_rank;
    n->restart_count = t->restart_count;
    n->agent_store = t->agent_store;
    n->master_port = t->master_port;
    n->port0 = t->nodes[group_rank].ports[0];
    strcpy(n->master_addr, t->master_addr);
    strcpy(n->addr, t->nodes[group_rank].addr);
    for (int i = 0; i < t->nnodes && i < 8; i++)
        strcpy(n->addrs[i], t->nodes[i].addr);
}

static void on_respawn(void *arg, int local_rank, int restart_count)
{
    struct node *n = arg;
    (void)local_rank;
    n->respawns++;
    n->restart_count = restart_count;
}

static void on_stop(void *arg, const struct rdzv_stop *why)
{
    struct node *n = arg;
    n->stops++;
    n->stop_at = mono_ns();
    n->why = *why;
    if (!n->slow_stop)
        rdzv_stopped(n->r, NULL, 0);
}

static void on_finish(void *arg, const struct rdzv_result *result)
{
    struct node *n = arg;
    n->finished = true;
    n->result = *result;
    if (result->n)
        n->first = result->failures[0];
}

static void on_gathered(void *arg, struct rd values, int nnodes)
{
    struct node *n = arg;
    char one[64];
    n->gathered[0] = '\0';
    for (int i = 0; i < nnodes; i++) {
        rd_str(&values, one, sizeof(one));
        strcat(strcat(n->gathered, one), ",");
    }
    ck_assert(rd_done(&values));
    n->gathers++;
}

static void on_request(void *arg, const struct rdzv_request *request)
{
    struct node *n = arg;
    uint32_t own = 1u << (n - nodes);
    const struct rdzv_answer answer = request_answer(request, &own, sizeof(own));
    n->requests++;
    if (request->kind == REQUEST_TOP && !n->mute)
        rdzv_answer(n->r, &answer);
}

static void on_answer(void *arg, const struct rdzv_answer *answer)
{
    struct node *n = arg;
    uint32_t value;
    ck_assert_uint_eq(answer->len, sizeof(value));
    memcpy(&value, answer->data, sizeof(value));
    n->answered += value;
    n->answers++;
}

void on_closed(void *arg)
{
    struct node *n = arg;
    n->closed = true;
}

static struct rdzv_callbacks callbacks_of(struct node *n)
{
    return (struct rdzv_callbacks){.arg = n,
                                   .on_prepare = on_prepare,
                                   .on_run = on_run,
                                   .on_respawn = on_respawn,
                                   .on_stop = on_stop,
                                   .on_gathered = on_gathered,
                                   .on_request = on_request,
                                   .on_answer = on_answer,
                                   .merge = nodes_merge,
                                   .on_finish = on_finish};
}

int unused_port(void)
{
    struct endpoint_bind b = {0};
    struct netaddr a = {.len = sizeof(a.ss)};
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    _cleanup_fd_ int fd = endpoint_listen(&b, NULL);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(getsockname(fd, &a.sa, &a.len), 0);
    return netaddr_port(&a);
}

struct rdzv_config *config_of(int i, enum rdzv_backend backend, int port, int min, int max)
{
    struct rdzv_config *c = &nodes[i].config;
    rdzv_config_defaults(c);
    c->backend = backend;
    c->endpoint_host = "127.0.0.1";
    c->endpoint_port = port;
    c->run_id = "job";
    c->min_nodes = min;
    c->max_nodes = max;
    c->nproc = 2;
    snprintf(nodes[i].name, sizeof(nodes[i].name), "node%d", i);
    c->host = nodes[i].name;
    c->join_timeout = 20;
    c->close_timeout = 10;
    return c;
}

int try_open(int i, struct err *e)
{
    struct rdzv_callbacks cb = callbacks_of(&nodes[i]);
    return rdzv_open(&nodes[i].r, &loop, &nodes[i].config, &cb, e);
}

void open_node(int i)
{
    struct err e = ERR_INIT;
    ck_assert_msg(try_open(i, &e) == 0, "node %d: %s", i, e.msg);
}

void setup(void)
{
    signal(SIGPIPE, SIG_IGN); /* as the launcher has it */
    loop_setup(&loop);
    log_set_writer(keep_log, NULL);
    log_init(LOG_LEVEL_VERBOSE, NULL);
}

void teardown(void)
{
    for (int i = 0; i < NODES_MAX; i++) {
        if (nodes[i].r)
            rdzv_close(nodes[i].r, on_closed, &nodes[i]);
    }
    for (int i = 0; i < NODES_MAX; i++) {
        if (nodes[i].r)
            loop_run_until(&loop, &nodes[i].closed, 20, "close");
    }
    while (uv_loop_alive(&loop)) /* a name that is still being looked up on the pool */
        uv_run(&loop, UV_RUN_ONCE);
    loop_teardown(&loop);
}

/* -------------------------------------------------------------------------------------- waiting */

static bool fact; /* set by on_check() when wanted() holds */
static bool (*wanted)(void);
static int first_node, last_node, wanted_count;

static void on_check(uv_check_t *check)
{
    (void)check;
    fact = wanted();
}

static void run_until(bool (*what)(void), const char *text)
{
    uv_check_t check;
    uv_check_init(&loop, &check);
    uv_check_start(&check, on_check);
    wanted = what;
    fact = what();
    loop_run_until(&loop, &fact, 20, text);
    uv_close((uv_handle_t *)&check, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
}

static bool all_runs(void)
{
    for (int i = first_node; i <= last_node; i++) {
        if (nodes[i].runs < wanted_count)
            return false;
    }
    return true;
}

static bool all_stops(void)
{
    for (int i = first_node; i <= last_node; i++) {
        if (nodes[i].stops < wanted_count)
            return false;
    }
    return true;
}

static bool all_finished(void)
{
    for (int i = first_node; i <= last_node; i++) {
        if (!nodes[i].finished)
            return false;
    }
    return true;
}

void wait_runs(int first, int last, int count)
{
    first_node = first;
    last_node = last;
    wanted_count = count;
    run_until(all_runs, "run");
}

void wait_stops(int first, int last, int count)
{
    first_node = first;
    last_node = last;
    wanted_count = count;
    run_until(all_stops, "stop");
}

static bool all_requests(void)
{
    for (int i = first_node; i <= last_node; i++) {
        if (nodes[i].requests < wanted_count)
            return false;
    }
    return true;
}

void wait_requests(int first, int last, int count)
{
    first_node = first;
    last_node = last;
    wanted_count = count;
    run_until(all_requests, "request");
}

void wait_finished(int first, int last)
{
    first_node = first;
    last_node = last;
    run_until(all_finished, "finish");
}

static bool logged(const char *part)
{
    return strstr(logs, part);
}

static const char *awaited;

static bool awaited_logged(void)
{
    return logged(awaited);
}

void wait_logged(const char *part)
{
    awaited = part;
    run_until(awaited_logged, part);
}

void worker_fails(int i, int code)
{
    struct failure f;
    failure_init(&f);
    f.kind = FAILURE_EXIT;
    f.local_rank = 1;
    f.exit_code = code;
    f.seen_ns = mono_ns();
    rdzv_failed(nodes[i].r, &f);
}

static int child_pipe[2]; /* from the child of fork_node() */

static void tell_parent(char c)
{
    if (write(child_pipe[1], &c, 1) != 1)
        _exit(99);
}

static void child_run(void *arg, const struct rank_table *t, int group_rank)
{
    on_run(arg, t, group_rank);
    tell_parent('r');
}

static void child_stop(void *arg, const struct rdzv_stop *why)
{
    on_stop(arg, why);
    tell_parent('s');
}

pid_t fork_node(int i)
{
    ck_assert_int_eq(pipe(child_pipe), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0) {
        close_fd(&child_pipe[1]);
        return pid;
    }
    uv_loop_t own;
    struct err e = ERR_INIT;
    struct node *n = &nodes[i];
    struct rdzv_callbacks cb = callbacks_of(n);
    cb.on_run = child_run;
    cb.on_stop = child_stop;
    log_set_writer(NULL, NULL);
    log_init(LOG_LEVEL_ERROR, NULL);
    uv_loop_init(&own);
    if (rdzv_open(&n->r, &own, &n->config, &cb, &e) < 0)
        _exit(98);
    while (!n->finished)
        uv_run(&own, UV_RUN_ONCE);
    _exit(n->result.exit_code);
}

void expect_child(char c)
{
    char got = 0;
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    fd_set_nonblock(child_pipe[0], true);
    while (read(child_pipe[0], &got, 1) != 1) {
        ck_assert_msg(mono_ns() < end, "the child does not say '%c'", c);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_msg(got == c, "the child says '%c' instead of '%c'", got, c);
}

int call(int port)
{
    struct netaddr a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    netaddr_parse_ip(&a, "127.0.0.1", port);
    ck_assert_int_eq(connect(fd, &a.sa, a.len), 0);
    return fd;
}

size_t hear(int fd, void *out, size_t cap, size_t enough)
{
    size_t n = 0;
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(10) * 1e9);
    fd_set_nonblock(fd, true);
    while (n < enough) {
        ssize_t got = recv(fd, (char *)out + n, cap - n, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            break;
        n += got > 0 ? (size_t)got : 0;
        ck_assert_msg(mono_ns() < end, "nothing comes, and it is not closed");
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    return n;
}

TCase *net_case(Suite *s, const char *name, double timeout)
{
    TCase *tc = test_case(s, name, timeout);
    tcase_add_checked_fixture(tc, setup, teardown);
    return tc;
}

bool enter_network_of(int n)
{
    if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return false;
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok = ioctl(fd, SIOCSIFFLAGS, &up) == 0;
    for (int i = 1; i <= n && ok; i++) {
        struct ifreq alias = {0};
        struct netaddr a;
        char ip[24];
        snprintf(alias.ifr_name, sizeof(alias.ifr_name), "lo:%d", i);
        snprintf(ip, sizeof(ip), "10.0.0.%d", i);
        netaddr_parse_ip(&a, ip, 0);
        alias.ifr_addr = a.sa;
        ok = ioctl(fd, SIOCSIFADDR, &alias) == 0;
    }
    close(fd);
    return ok;
}
