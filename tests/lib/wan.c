#include "tests/lib/wan.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/lib/netns.h"
#include "tests/lib/test.h"

enum { MTU = 1400, UNDER_WAY = 8192 };

struct wan_count {
    _Atomic int up; /* hosts whose interface is there */
    _Atomic long carried, lost;
};

struct packet {
    uint64_t due_ns;
    int to;
    uint16_t len;
    uint8_t data[MTU];
};

/* Packets in order of arrival, which is the order in which they are due. */
struct road {
    struct packet packets[UNDER_WAY];
    size_t first, n;
};

bool wan_available(void)
{
    if (access("/dev/net/tun", R_OK | W_OK) == 0)
        return true;
    test_skip("there is no /dev/net/tun");
    return false;
}

/* ---------------------------------------------------------------------------------- the process */

static void must(bool ok, const char *what)
{
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

/* wan0 in the host's network namespace. */
static int open_tunnel(int host)
{
    char path[64], command[160];
    snprintf(path, sizeof(path), "/proc/%d/ns/net", netns_holder(host));
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    must(ns >= 0 && setns(ns, CLONE_NEWNET) == 0, path);
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    struct ifreq ifr = {.ifr_name = "wan0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    must(fd >= 0 && ioctl(fd, TUNSETIFF, &ifr) == 0, "a tunnel");
    snprintf(command, sizeof(command),
             "ip addr add 10.79.0.%d/24 dev wan0 && ip link set wan0 mtu %d txqueuelen 10000 up",
             host + 1, MTU);
    must(system(command) == 0, command);
    return fd;
}

/* Reads the packets that a host has sent into the delay line. */
static void take(struct road *road, int fd, int n, const struct wan_rules *rules,
                 struct wan_count *count)
{
    while (road->n < UNDER_WAY) {
        struct packet *p = &road->packets[(road->first + road->n) % UNDER_WAY];
        ssize_t len = read(fd, p->data, sizeof(p->data));
        if (len <= 0)
            return;
        /* IPv4; its destination's last byte says which host. */
        if (len < 20 || p->data[0] >> 4 != 4 || p->data[19] < 1 || p->data[19] > n)
            continue;
        if (drand48() < rules->loss) {
            atomic_fetch_add(&count->lost, 1);
            continue;
        }
        p->due_ns = mono_ns() + (uint64_t)(rules->delay_ms * 1e6);
        p->to = p->data[19] - 1;
        p->len = (uint16_t)len;
        road->n++;
    }
}

/* Delivers what is due; returns how long the next one has, in ms; -1: there is none. */
static int deliver(struct road *road, const int *fds, struct wan_count *count)
{
    for (; road->n; road->n--) {
        struct packet *p = &road->packets[road->first];
        uint64_t now = mono_ns();
        if (p->due_ns > now)
            return (int)((p->due_ns - now) / 1000000 + 1);
        if (write(fds[p->to], p->data, p->len) == p->len)
            atomic_fetch_add(&count->carried, 1);
        road->first = (road->first + 1) % UNDER_WAY;
    }
    return -1;
}

__attribute__((noreturn)) static void carry(int n, const struct wan_rules *rules,
                                            struct wan_count *count)
{
    static struct road road;
    int fds[NETNS_MAX];
    struct pollfd wants[NETNS_MAX];
    srand48(rules->seed);
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < n; i++) {
        fds[i] = open_tunnel(i);
        atomic_fetch_add(&count->up, 1);
    }
    must(home >= 0 && setns(home, CLONE_NEWNET) == 0, "back home");
    for (;;) {
        int ms = deliver(&road, fds, count);
        for (int i = 0; i < n; i++)
            wants[i] = (struct pollfd){fds[i], road.n < UNDER_WAY ? POLLIN : 0, 0};
        poll(wants, (nfds_t)n, ms);
        for (int i = 0; i < n; i++)
            take(&road, fds[i], n, rules, count);
    }
}

/* -------------------------------------------------------------------------------- start and end */

struct wan_up {
    const struct wan_count *count;
    int want;
};

static bool is_up(void *arg)
{
    const struct wan_up *up = arg;
    return atomic_load(&up->count->up) == up->want;
}

void wan_start(struct wan *w, int n, const struct wan_rules *rules)
{
    w->count =
        mmap(NULL, sizeof(*w->count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(w->count, MAP_FAILED);
    pid_t parent = getpid();
    w->pid = fork();
    ck_assert_int_ge(w->pid, 0);
    if (w->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            carry(n, rules, w->count);
        _exit(1);
    }
    struct wan_up up = {w->count, n};
    wait_until(is_up, &up, 20, "the interfaces wan0 are there");
}

long wan_stop(struct wan *w, long *lost)
{
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    long carried = atomic_load(&w->count->carried);
    *lost = atomic_load(&w->count->lost);
    munmap(w->count, sizeof(*w->count));
    return carried;
}
