/* hostile: strangers at the port of a running job.
 *
 *     hostile BUILD [CONNECTIONS] [A_SECOND]
 *
 * Two launchers under a job token, a worker each, which compute for 2 ms, add up 64 KiB over both
 * nodes and count a step in the workers' store; rank 0 notes how long each step took. Then come,
 * from eight addresses, connections of eleven kinds: that go at once, say nothing, speak something
 * else, announce gigabytes, hold another token, play back a launcher's handshake, break off in the
 * middle of one, and those of another user (as root). The same connections go to a listener that
 * only hangs up, so that what they cost the machine can be told from what they do to the job.
 *
 * It fails when the job does, when anything joins, when the coordinator says more than one line for
 * an address in 30 s, when its memory or its descriptors have grown, or when one of the connections
 * is told anything but where it goes wrong. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/store/store_client.h"

#define SECRET       "the job's own token, of some length"
#define OTHER_SECRET "the token of another job, as long"
#define SOURCES      8   /* 127.0.0.11 and on */
#define HELD         200 /* connections open at a time */
#define QUIET_S      3
#define GROWTH_KIB   4096
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static char g_dir[] = "/tmp/dlaunch-hostile.XXXXXX";
static struct netaddr g_to; /* where the strangers go */
static struct tls_key g_key, g_other_key;
static struct buf g_recorded;
static int g_bad;

#define FAIL(...) (g_bad++, printf("FAILED: " __VA_ARGS__), putchar('\n'))

static void nap_until(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* Kept to the end, where a leak checker sees it. */
static char *text(const char *fmt, ...)
{
    static char **kept;
    static size_t n;
    va_list ap;
    kept = xrealloc(kept, (n + 1) * sizeof(*kept));
    va_start(ap, fmt);
    if (vasprintf(&kept[n], fmt, ap) < 0)
        abort();
    va_end(ap);
    return kept[n++];
}

static char *in_dir(const char *name)
{
    return text("%s/%s", g_dir, name);
}

/* ---------------------------------------------------------------------------------- the workers */

struct step {
    uint64_t start_ns, took_ns;
};

/* Runs until the file `end` exists, which rank 0 polls for and reports to the other rank. */
static int work(const char *steps_file, const char *end_file)
{
    static float x[16384];
    dlcoll_comm *c = NULL;
    struct store_client *store = NULL;
    struct err e = ERR_INIT;
    int64_t over = 0, ignored;
    const char *rank = getenv("RANK");
    FILE *f = rank && *rank == '0' ? fopen(steps_file, "w") : NULL;
    int rc = dlcoll_init(&c, NULL);
    if (rc == 0 &&
        store_client_new(&store, getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), 10000, &e) < 0)
        rc = -1;
    while (rc == 0 && !over) {
        struct step s = {.start_ns = mono_ns()};
        while (mono_ns() < s.start_ns + 2000000)
            ;
        rc = dlcoll_all_reduce(x, x, 16384, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL);
        if (rc == 0 && store_client_add(store, "steps", 1, &ignored, &e) < 0)
            rc = -2;
        s.took_ns = mono_ns() - s.start_ns;
        if (f)
            fwrite(&s, sizeof(s), 1, f);
        over = f && access(end_file, F_OK) == 0;
        if (rc == 0)
            rc = dlcoll_all_reduce(&over, &over, 1, DLCOLL_I64, DLCOLL_SUM, c, NULL, NULL);
    }
    if (rc == 0)
        dlcoll_finalize(c);
    else
        fprintf(stderr, "worker: %d %s\n", rc, e.msg);
    dlcoll_destroy(c);
    store_client_free(store);
    return rc == 0 && (!f || fclose(f) == 0) ? 0 : 1;
}

/* -------------------------------------------------------------------------------- the strangers */

static int call_from(int source)
{
    struct netaddr from;
    char ip[32];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 2};
    snprintf(ip, sizeof(ip), "127.0.0.%d", 11 + source);
    netaddr_parse_ip(&from, ip, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (bind(fd, &from.sa, from.len) < 0 || connect(fd, &g_to.sa, g_to.len) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void say(int fd, const void *p, size_t n)
{
    if (send(fd, p, n, MSG_NOSIGNAL) < 0)
        return; /* hung up on already */
}

/* A handshake under `key`, then the question who is there. True: it was answered. *sent, unless
 * NULL, gets all that was said. */
static bool probe_under(int fd, const struct tls_key *key, struct buf *sent)
{
    struct tls *t;
    struct buf wire = BUF_INIT, plain = BUF_INIT, question = BUF_INIT;
    uint8_t in[4096];
    bool asked = false, answered = false;
    if (tls_new(&t, TLS_CLIENT, key, &wire, NULL) < 0)
        return false;
    for (;;) {
        if (tls_established(t) && !asked) {
            rdzv_put_preamble(&question);
            rdzv_put_probe(&question);
            asked = tls_encrypt(t, question.data, question.len, &wire, NULL) == 0;
        }
        say(fd, wire.data, wire.len);
        if (sent)
            buf_put(sent, wire.data, wire.len);
        wire.len = 0;
        ssize_t n = recv(fd, in, sizeof(in), 0);
        if (n <= 0 || tls_feed(t, in, (size_t)n, &plain, &wire, NULL) < 0)
            break;
        if (plain.len > RDZV_PREAMBLE_LEN) {
            answered = true;
            break;
        }
    }
    tls_free(t);
    buf_fini(&wire);
    buf_fini(&plain);
    buf_fini(&question);
    return answered;
}

/* Opens a connection of the k-th kind. Returns -1 when it has ended, or its descriptor, which stays
 * open for a while. */
static int be_hostile(int k)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                      ssh[] = "SSH-2.0-OpenSSH_9.2\r\n";
    static const uint8_t nccl[] = {0xab, 0x1a, 0xb8, 0x0b, 0, 0, 0, 0, 64, 0, 0, 0};
    /* the store's hello, and a value of 2^63 bytes, or of 4 GiB */
    static const uint8_t giant[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13,  1, 2, 3, 4, 1, 1, 0, 0,
                                    0, 0,    0,    0,    0,    'k', 0, 0, 0, 0, 0, 0, 0, 128};
    static const uint8_t frame[] = {'D', 'L', 'R', '1', 1, 0, 0, 0, 255, 255, 255, 255, 4};
    uint8_t noise[256];
    int kind = k % 11, fd = call_from(k / 11 % SOURCES);
    if (fd < 0)
        return -1;
    switch (kind) {
    case 0: /* goes at once */
        break;
    case 1: /* says nothing */
        return fd;
    case 2:
        for (size_t i = 0; i < sizeof(noise); i++)
            noise[i] = (uint8_t)rand();
        say(fd, noise, sizeof(noise));
        return fd;
    case 3:
        say(fd, http, strlen(http));
        return fd;
    case 4:
        say(fd, ssh, strlen(ssh));
        return fd;
    case 5:
        say(fd, nccl, sizeof(nccl));
        return fd;
    case 6:
        say(fd, giant, sizeof(giant));
        return fd;
    case 7: /* in the clear, and 4 GiB */
        say(fd, frame, sizeof(frame));
        return fd;
    case 8: /* slowly: the first half of a handshake */
        say(fd, g_recorded.data, 20);
        return fd;
    case 9:
        if (probe_under(fd, &g_other_key, NULL))
            FAIL("one with another token was answered");
        break;
    case 10: /* played back */
        say(fd, g_recorded.data, g_recorded.len);
        return fd;
    }
    close(fd);
    return -1;
}

static void attack(int n, int per_second)
{
    int held[HELD], at = 0;
    uint64_t start = mono_ns();
    for (int i = 0; i < HELD; i++)
        held[i] = -1;
    for (int k = 0; k < n; k++) {
        close_fd(&held[at]);
        held[at] = be_hostile(k);
        at = (at + 1) % HELD;
        nap_until(start + (uint64_t)k * 1000000000u / (uint64_t)per_second);
    }
    for (int i = 0; i < HELD; i++)
        close_fd(&held[i]);
}

/* Connects as another user: neither launcher nor store may serve these connections. */
static void attack_as_nobody(int n)
{
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4};
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int served = 0;
        char answer[4];
        if (setgid(65534) < 0 || setuid(65534) < 0)
            _exit(99);
        for (int k = 0; k < n; k++) {
            int fd = call_from(k % SOURCES);
            say(fd, hello, sizeof(hello));
            served += recv(fd, answer, sizeof(answer), 0) > 0;
            close(fd);
        }
        _exit(served ? 1 : 0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status != 0)
        FAIL("another user was served by the workers' store (status %d)", status);
}

/* --------------------------------------------------------------------------------- the watching */

static pid_t child_of(pid_t pid)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
    fd_read_file(AT_FDCWD, path, text, sizeof(text));
    return atoi(text);
}

static long rss_kib(pid_t pid)
{
    char path[64], text[4096] = "";
    long kib = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    fd_read_file(AT_FDCWD, path, text, sizeof(text));
    const char *at = strstr(text, "VmRSS:");
    if (at)
        sscanf(at, "VmRSS: %ld", &kib);
    return kib;
}

static int descriptors(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    size_t n;
    double mean, median, p99;
};

/* Summarizes the steps that began between from_ns and to_ns. */
static struct summary steps_between(const char *file, uint64_t from_ns, uint64_t to_ns)
{
    struct summary out = {0};
    struct step s;
    double *ms = xcalloc(1 << 20, sizeof(*ms)), sum = 0;
    FILE *f = fopen(file, "r");
    while (f && fread(&s, sizeof(s), 1, f) == 1 && out.n < 1 << 20) {
        if (s.start_ns >= from_ns && s.start_ns < to_ns)
            sum += ms[out.n++] = (double)s.took_ns / 1e6;
    }
    if (f)
        fclose(f);
    if (out.n) {
        qsort(ms, out.n, sizeof(*ms), by_size);
        out.mean = sum / (double)out.n;
        out.median = ms[out.n / 2];
        out.p99 = ms[out.n * 99 / 100];
    }
    free(ms);
    return out;
}

static void print_steps(const char *when, const struct summary *s)
{
    printf("  %-44s %6zu steps, ms: median %6.3f  mean %6.3f  p99 %6.3f\n", when, s->n, s->median,
           s->mean, s->p99);
}

/* Returns the largest number of a launcher's log lines about refused peers of one source. The
 * store's lines, one for each reason whatever the source, are counted apart. */
static int most_lines_of_a_source(const char *path)
{
    char line[4096], ip[32];
    int most = 0;
    for (int i = 0; i < SOURCES; i++) {
        int n = 0;
        FILE *f = fopen(path, "r");
        snprintf(ip, sizeof(ip), "127.0.0.%d", 11 + i);
        while (f && fgets(line, sizeof(line), f))
            n += strstr(line, ip) != NULL && !strstr(line, "the workers' store hung up on");
        if (f)
            fclose(f);
        most = n > most ? n : most;
    }
    return most;
}

/* -------------------------------------------------------------------------------------- the run */

static int free_port(void)
{
    struct netaddr a = {.len = sizeof(a.ss)};
    netaddr_parse_ip(&a, "127.0.0.1", 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, &a.sa, a.len) < 0 || getsockname(fd, &a.sa, &a.len) < 0)
        exit(2);
    close(fd);
    return netaddr_port(&a);
}

static pid_t launch(const char *build, const char *self, int node, int port)
{
    pid_t pid = fork();
    if (pid == 0) {
        char *err = text("%s/err%d", g_dir, node);
        int fd = open(err, O_WRONLY | O_CREAT | O_APPEND, 0644);
        dup2(fd, STDERR_FILENO);
        setenv("DLAUNCH_TOKEN", SECRET, 1);
        execl(text("%s/dlaunch", build), "dlaunch", "--nnodes", "2", "--node_rank",
              text("%d", node), "--master_port", text("%d", port), self, "work", in_dir("steps"),
              in_dir("end"), (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* A listener that hangs up on everybody. */
static pid_t hang_up_on_all(int *port)
{
    struct netaddr a = {.len = sizeof(a.ss)};
    netaddr_parse_ip(&a, "127.0.0.1", 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, &a.sa, sizeof(a.in)) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, &a.sa, &a.len) < 0)
        exit(2);
    *port = netaddr_port(&a);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            close(accept(fd, NULL, NULL));
    }
    close(fd);
    return pid;
}

static uint64_t quiet(void)
{
    uint64_t start = mono_ns();
    nap_until(start + QUIET_S * 1000000000ull);
    return start;
}

static bool is_running(void)
{
    struct stat st;
    char *path = in_dir("steps");
    for (int i = 0; i < 2000; i++) {
        if (stat(path, &st) == 0 && st.st_size > 0)
            return true;
        nap_until(mono_ns() + 10000000);
    }
    return false;
}

static void derive_keys(void)
{
    struct auth g = {.secret_len = strlen(SECRET)}, other = {.secret_len = strlen(OTHER_SECRET)};
    memcpy(g.secret, SECRET, g.secret_len);
    memcpy(other.secret, OTHER_SECRET, other.secret_len);
    if (auth_ready(&g, NULL) < 0 || auth_ready(&other, NULL) < 0)
        exit(2);
    g_key = g.key;
    g_other_key = other.key;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "work") == 0)
        return work(argv[2], argv[3]);
    if (argc < 2)
        return 2;
    int n = argc > 2 ? atoi(argv[2]) : 10000, per_second = argc > 3 ? atoi(argv[3]) : 1000;
    int port = free_port(), other_port, status;
    char self[4096];
    if (!mkdtemp(g_dir) || !realpath("/proc/self/exe", self))
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    derive_keys();
    pid_t nodes[2], discard = hang_up_on_all(&other_port);
    for (int i = 0; i < 2; i++)
        nodes[i] = launch(argv[1], self, i, port);
    if (!is_running()) {
        FAIL("the job does not run");
    } else {
        netaddr_parse_ip(&g_to, "127.0.0.1", port);
        int fd = call_from(0);
        if (!probe_under(fd, &g_key, &g_recorded))
            FAIL("one with the token is not answered");
        close(fd);
        attack(HELD * 2, per_second); /* warm */
        pid_t agent = child_of(nodes[0]);
        uint64_t quiet_ns = quiet();
        long kib = rss_kib(agent);
        int fds = descriptors(agent);
        uint64_t discard_ns = mono_ns();
        netaddr_parse_ip(&g_to, "127.0.0.1", other_port);
        attack(n, per_second);
        uint64_t attack_ns = mono_ns();
        netaddr_parse_ip(&g_to, "127.0.0.1", port);
        attack(n, per_second);
        uint64_t after_ns = mono_ns();
        if (geteuid() == 0)
            attack_as_nobody(n / 20);
        else
            printf("SKIPPED: becoming another user takes root\n");
        nap_until(mono_ns() + 6000000000u); /* those that say nothing are given 5 s */
        long more_kib = rss_kib(agent) - kib;
        int more_fds = descriptors(agent) - fds;
        uint64_t end_ns = quiet();
        nap_until(mono_ns() + 1000000);
        fclose(fopen(in_dir("end"), "w"));
        for (int i = 0; i < 2; i++) {
            waitpid(nodes[i], &status, 0);
            nodes[i] = 0;
            if (status != 0)
                FAIL("node %d ended with status %d", i, status);
        }
        char *steps = in_dir("steps");
        struct summary before = steps_between(steps, quiet_ns, discard_ns),
                       machine = steps_between(steps, discard_ns, attack_ns),
                       under = steps_between(steps, attack_ns, after_ns),
                       after = steps_between(steps, end_ns, UINT64_MAX);
        printf("%d hostile connections, %.0f a second:\n", n,
               n / ((double)(after_ns - attack_ns) / 1e9));
        print_steps("before", &before);
        print_steps("while they go to a listener that hangs up", &machine);
        print_steps("while they go to the job", &under);
        print_steps("after", &after);
        double seconds = (double)(end_ns - quiet_ns) / 1e9 + 10;
        int most = most_lines_of_a_source(in_dir("err0")), may = 1 + (int)(seconds / 30);
        printf("  coordinator: %+ld KiB, %+d descriptors; at most %d line%s for an address in %.0f "
               "s\n",
               more_kib, more_fds, most, most == 1 ? "" : "s", seconds);
        printf("  a step under attack is %.2f times as long as with the listener (median), %.2f "
               "times as before\n",
               under.median / machine.median, under.median / before.median);
        if (more_kib > GROWTH_KIB && !SANITIZED) /* which keeps what was freed for a while */
            FAIL("the coordinator has grown by %ld KiB", more_kib);
        if (more_fds > 0)
            FAIL("%d descriptors are left", more_fds);
        if (most > may || most == 0)
            FAIL("%d lines for one address in %.0f s", most, seconds);
        if (under.n == 0 || after.n == 0)
            FAIL("the job stood still");
    }
    kill(discard, SIGKILL);
    for (int i = 0; i < 2; i++) {
        if (nodes[i] > 0)
            kill(nodes[i], SIGTERM);
    }
    if (g_bad && system(text("tail -n 20 %s/err*", g_dir)) != 0)
        putchar('\n');
    if (system(text("rm -r %s", g_dir)) != 0)
        return 2;
    return g_bad ? 1 : 0;
}
