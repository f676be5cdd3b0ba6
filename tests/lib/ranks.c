#include "tests/lib/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "tests/lib/test.h"

void ranks_complain(int line, const char *fact, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    dprintf(STDERR_FILENO, "line %d, RANK %s: %s: %s\n", line, getenv("LOCAL_RANK"), fact, text);
    _exit(1);
}

const char *why(const dlcoll_comm *comm)
{
    static dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(comm, &e);
    return e.text;
}

static int listen_anywhere(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
    ck_assert_int_eq(listen(fd, 64), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

#define HEAP_BYTES ((uint64_t)1 << 30)

static int node_base(const struct ranks *j, int node)
{
    return j->n * node / j->nnodes;
}

/* The segment of one node, as an agent lays it out. */
static void make_segment(struct ranks *j, int node)
{
    uint64_t off_nodes = (sizeof(struct segment_header) + 127) / 128 * 128;
    uint64_t off_ports = off_nodes + sizeof(struct segment_node) * (size_t)j->nnodes;
    uint64_t off_local = (off_ports + 2 * (size_t)j->n + 127) / 128 * 128;
    int base = node_base(j, node), nlocal = node_base(j, node + 1) - base;
    uint64_t heap =
        (off_local + sizeof(struct segment_local) * (size_t)nlocal + 4095) / 4096 * 4096;
    uint64_t total = heap + HEAP_BYTES;
    int fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)total), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    uint8_t *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(p, MAP_FAILED);
    struct segment_header *h = (struct segment_header *)p;
    *h = (struct segment_header){.magic = SEGMENT_MAGIC,
                                 .version = SEGMENT_VERSION,
                                 .total_bytes = total,
                                 .epoch = 0x1234567890abcdefu,
                                 .counter = 3,
                                 .nnodes = j->nnodes,
                                 .world_size = j->n,
                                 .group_rank = node,
                                 .nlocal = nlocal,
                                 .base_rank = base,
                                 .usable_cpus = 2,
                                 .off_nodes = off_nodes,
                                 .off_ports = off_ports,
                                 .off_local = off_local,
                                 .off_heap = heap,
                                 .heap_bytes = HEAP_BYTES};
    struct segment_node *nodes = (struct segment_node *)(p + off_nodes);
    for (int i = 0; i < j->nnodes; i++) {
        snprintf(nodes[i].host, sizeof(nodes[i].host), "node-%c", 'a' + i);
        snprintf(nodes[i].addr, sizeof(nodes[i].addr), "127.0.0.1");
        nodes[i].base_rank = node_base(j, i);
        nodes[i].nproc = node_base(j, i + 1) - node_base(j, i);
    }
    for (int i = 0; i < j->n; i++)
        ((uint16_t *)(p + off_ports))[i] = j->port[i];
    j->segment_fd[node] = fd;
    j->segment[node] = h;
}

struct segment_local *ranks_line(const struct ranks *j, int rank)
{
    for (int node = 0;; node++) {
        if (rank < node_base(j, node + 1)) {
            struct segment_header *h = j->segment[node];
            return (struct segment_local *)((uint8_t *)h + h->off_local) + rank - h->base_rank;
        }
    }
}

void set_env_int(const char *name, int v)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", v);
    setenv(name, text, 1);
}

void ranks_init(struct ranks *j, int n, int nnodes)
{
    memset(j, 0, sizeof(*j));
    j->n = n;
    j->nnodes = nnodes;
    j->shared =
        mmap(NULL, sizeof(*j->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < n; i++)
        j->listener[i] = nnodes ? listen_anywhere(&j->port[i]) : -1;
    for (int i = 0; i < nnodes; i++)
        make_segment(j, i);
}

/* Sets the environment that the launcher would give this worker. */
void ranks_become(struct ranks *j, int rank)
{
    int node = 0;
    while (rank >= node_base(j, node + 1))
        node++;
    set_env_int("LOCAL_RANK", rank - node_base(j, node));
    set_env_int("RANK", rank);
    set_env_int("WORLD_SIZE", j->n);
    set_env_int(SEGMENT_ENV_FD, j->segment_fd[node]);
    set_env_int(SEGMENT_ENV_LISTEN, j->listener[rank]);
    fd_set_cloexec(j->segment_fd[node], false);
    fd_set_cloexec(j->listener[rank], false);
    for (int i = 0; i < j->n; i++) {
        if (i != rank)
            close(j->listener[i]);
    }
}

void ranks_start(struct ranks *j, rank_fn *fn)
{
    for (int r = 0; r < j->n; r++) {
        j->pid[r] = fork();
        ck_assert_int_ge(j->pid[r], 0);
        if (j->pid[r] == 0) {
            if (j->nnodes)
                ranks_become(j, r);
            else
                set_env_int("RANK", r), set_env_int("WORLD_SIZE", j->n), unsetenv("LOCAL_RANK");
            fn(j, r);
            _exit(0);
        }
    }
    for (int r = 0; r < j->n; r++)
        close_fd(&j->listener[r]);
}

static bool all_ended(void *arg)
{
    struct ranks *j = arg;
    int left = 0;
    for (int r = 0; r < j->n; r++) {
        if (!j->ended[r] && waitpid(j->pid[r], &j->status[r], WNOHANG) == j->pid[r])
            j->ended[r] = true;
        left += !j->ended[r];
    }
    return left == 0;
}

/* Waits for all ranks; those in `but` (a bit each) may have ended in any way. */
void ranks_wait(struct ranks *j, double seconds, unsigned but)
{
    wait_until(all_ended, j, seconds, "all ranks have ended");
    for (int r = 0; r < j->n; r++) {
        if (!(but & (1u << r)))
            ck_assert_msg(WIFEXITED(j->status[r]) && WEXITSTATUS(j->status[r]) == 0,
                          "rank %d ended with wait status %#x", r, (unsigned)j->status[r]);
    }
}

void ranks_fini(struct ranks *j)
{
    for (int i = 0; i < j->nnodes; i++) {
        munmap(j->segment[i], j->segment[i]->total_bytes);
        close(j->segment_fd[i]);
    }
    munmap(j->shared, sizeof(*j->shared));
}

static int first_failed(const struct ranks *j)
{
    int r = 0;
    while (r < j->n && !(j->ended[r] && j->status[r]))
        r++;
    return r < j->n ? r : -1;
}

static bool ended_or_failed(void *arg)
{
    return all_ended(arg) || first_failed(arg) >= 0;
}

void ranks_run_for(int n, int nnodes, rank_fn *fn, double seconds)
{
    struct ranks j;
    ranks_init(&j, n, nnodes);
    ranks_start(&j, fn);
    wait_until(ended_or_failed, &j, seconds, "all ranks have ended");
    int failed = first_failed(&j);
    for (int r = 0; r < n && failed >= 0; r++) { /* nobody tells the others that it has gone */
        if (!j.ended[r])
            kill(j.pid[r], SIGKILL);
    }
    ck_assert_msg(failed < 0, "rank %d ended with wait status %#x", failed,
                  (unsigned)j.status[failed < 0 ? 0 : failed]);
    ranks_fini(&j);
}

void ranks_run(int n, int nnodes, rank_fn *fn)
{
    ranks_run_for(n, nnodes, fn, 30);
}

/* The agent has seen a worker die. */
void ranks_play_agent(struct ranks *j, int rank)
{
    for (int i = 0; i < j->nnodes; i++) {
        struct segment_abort *a = &j->segment[i]->abort;
        a->rank = rank;
        a->pid = j->pid[rank];
        a->signal = WIFSIGNALED(j->status[rank]) ? WTERMSIG(j->status[rank]) : 0;
        a->exit_code = WIFEXITED(j->status[rank]) ? WEXITSTATUS(j->status[rank]) : 0;
        snprintf(a->host, sizeof(a->host), "node-%c", 'a' + i);
        atomic_store_explicit(&a->word, 1, memory_order_release);
        syscall(SYS_futex, &a->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

void ranks_tell_exit(struct ranks *j, int rank)
{
    atomic_store(&ranks_line(j, rank)->exited, 1);
}

void ranks_reap(struct ranks *j, int rank)
{
    ck_assert_int_eq(waitpid(j->pid[rank], &j->status[rank], 0), j->pid[rank]);
    j->ended[rank] = true;
}

bool ranks_are_ready(void *arg)
{
    struct ranks *j = arg;
    return atomic_load(&j->shared->ready) >= j->n;
}

void ranks_say_ready(struct ranks *j)
{
    atomic_fetch_add(&j->shared->ready, 1);
}

void ranks_await_go(struct ranks *j)
{
    while (!atomic_load(&j->shared->go))
        test_poll_pause();
}

/* Waits in a rank until all ranks have said so. */
void ranks_await_ready(struct ranks *j)
{
    while (!ranks_are_ready(j))
        test_poll_pause();
}

dlcoll_comm *comm_start(void)
{
    dlcoll_comm *comm = NULL;
    int r = dlcoll_init(&comm, NULL);
    EXPECT(r == 0 && comm, "%d %s", r, why(NULL));
    return comm;
}

void comm_end(dlcoll_comm *comm)
{
    EXPECT(dlcoll_finalize(comm) == 0, "%s", why(comm));
    dlcoll_destroy(comm);
}

void ranks_keep_result(struct ranks *j, int rank, const dlcoll_comm *comm, int code)
{
    j->shared->rank[rank].code = code;
    j->shared->rank[rank].error = (dlcoll_error)DLCOLL_ERROR_INIT;
    dlcoll_last_error(comm, &j->shared->rank[rank].error);
    atomic_store(&j->shared->rank[rank].returned_ns, mono_ns());
}

/* A port that stays ours while nobody listens on it. */
int reserve_port(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

void expect_init(int code, const char *text)
{
    dlcoll_comm *c = (dlcoll_comm *)1;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    ck_assert_int_eq(dlcoll_init(&c, NULL), code);
    ck_assert_ptr_null(c);
    dlcoll_last_error(NULL, &e);
    ck_assert_int_eq(e.code, code);
    ck_assert_msg(strstr(e.text, text), "'%s' is not in '%s'", text, e.text);
}
