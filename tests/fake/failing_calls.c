/* failing_calls.so, for LD_PRELOAD: calls of dlaunch that fail, come short, are interrupted, or
 * tell another time. Guardian and agent count together, in a file that the test maps as well; the
 * workers, whose program has another name, are let alone.
 *
 *   FAIL_COUNTERS=FILE   where to count: an array of 32-bit numbers, by kind (failing_calls.h)
 *   FAIL_CALL=KIND:N     the N-th call of that kind fails
 *   FAIL_SHORT=N         every read and write of a socket or file moves N bytes at the most, every
 *                        tenth is interrupted
 *   FAIL_CLOCK=SECONDS   the wall clock is so much ahead, and behind, in turns
 *   FAIL_NAMES=FILE      looking up a name takes a minute; FILE has which
 *   FAIL_SILENT=FILE     the server of FILE, and of all that is below it, does not answer: to open
 *                        it, to look at it, to read or write it takes a minute
 *   FAIL_SILENT_WHEN=NAME  from when on: once there is a file of that name
 *   FAIL_SILENT_SAYS=NAME  a file that is made when the first such call begins
 *   FAIL_END=FILE        a launcher's guardian that ends closes its descriptors, makes FILE, and
 *                        takes a minute longer */
#undef _FORTIFY_SOURCE /* would turn read() into something else here */
#include "tests/fake/failing_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)

static _Atomic uint32_t *g_count; /* NULL: nothing is done */
static int g_kind = -1;
static uint32_t g_at;
static size_t g_short;
static long g_clock;
static const char *g_names, *g_silent, *g_silent_when, *g_silent_says;
static atomic_uint g_turn;

static const char *const kind_names[] = {FAILING_CALLS(FAILING_NAME)};

__attribute__((constructor)) static void begin(void)
{
    const char *file = getenv("FAIL_COUNTERS"), *call = getenv("FAIL_CALL"), *colon;
    const char *piece = getenv("FAIL_SHORT"), *clock = getenv("FAIL_CLOCK");
    if (strcmp(program_invocation_short_name, "dlaunch") != 0)
        return;
    g_names = getenv("FAIL_NAMES");
    g_silent = getenv("FAIL_SILENT");
    g_silent_when = getenv("FAIL_SILENT_WHEN");
    g_silent_says = getenv("FAIL_SILENT_SAYS");
    g_clock = clock ? atol(clock) : 0;
    g_short = piece ? (size_t)atol(piece) : 0;
    if (call && (colon = strchr(call, ':'))) {
        for (int i = 0; i < FAILING_KINDS; i++) {
            if (strlen(kind_names[i]) == (size_t)(colon - call) &&
                strncmp(kind_names[i], call, (size_t)(colon - call)) == 0)
                g_kind = i;
        }
        g_at = (uint32_t)atol(colon + 1);
    }
    int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(NULL, FAILING_KINDS * sizeof(*g_count), PROT_READ | PROT_WRITE,
                            MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (p != MAP_FAILED)
        g_count = p;
}

/* Counts one; true: it is the one. */
static bool fails(int kind)
{
    return g_count && atomic_fetch_add(&g_count[kind], 1) + 1 == g_at && kind == g_kind;
}

/* The errno of a failed read or write: pipes only have interruptions; eventfds and similar
 * descriptors, which never block here, do not fail (0). */
static int number_for(int fd, int number)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return 0;
    return S_ISSOCK(st.st_mode) || S_ISREG(st.st_mode) ? number : S_ISFIFO(st.st_mode) ? EINTR : 0;
}

/* With FAIL_SHORT: how many bytes may be moved; 0: interrupted. Pipes, eventfds and their like move
 * what is small as a whole. */
static size_t piece_of(int fd, size_t n)
{
    struct stat st;
    if (!g_short || n == 0 || fstat(fd, &st) < 0 || !(S_ISSOCK(st.st_mode) || S_ISREG(st.st_mode)))
        return n;
    if (atomic_fetch_add(&g_turn, 1) % 10 == 9)
        return 0;
    return n < g_short ? n : g_short;
}

#define NEXT(name)                 \
    static __typeof__(name) *next; \
    if (!next)                     \
    next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* number: 0, this one cannot fail */
#define FAIL(kind, number, value)               \
    do {                                        \
        int failing = number;                   \
        if (failing && fails(FAILING_##kind)) { \
            errno = failing;                    \
            return value;                       \
        }                                       \
    } while (0);

/* A call that is passed on as it is, unless it fails. */
#define CALL(type, name, kind, number, value, params, args) \
    type name params                                        \
    {                                                       \
        NEXT(name);                                         \
        FAIL(kind, number, value)                           \
        return next args;                                   \
    }

/* dlsym() may allocate: what the C library exports under another name needs none. */
extern void *__libc_malloc(size_t n), *__libc_calloc(size_t n, size_t size),
    *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    FAIL(malloc, ENOMEM, NULL)
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    FAIL(malloc, ENOMEM, NULL)
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    FAIL(malloc, ENOMEM, NULL)
    return __libc_realloc(p, n);
}

CALL(pid_t, fork, fork, EAGAIN, -1, (void), ())
CALL(int, pipe2, pipe, EMFILE, -1, (int fds[2], int flags), (fds, flags))
CALL(int, pipe, pipe, EMFILE, -1, (int fds[2]), (fds))
CALL(int, socket, socket, EMFILE, -1, (int a, int b, int c), (a, b, c))
CALL(int, socketpair, socket, EMFILE, -1, (int a, int b, int c, int fds[2]), (a, b, c, fds))
CALL(int, bind, bind, EADDRNOTAVAIL, -1, (int fd, const struct sockaddr *a, socklen_t n),
     (fd, a, n))
CALL(int, listen, listen, EADDRINUSE, -1, (int fd, int n), (fd, n))
CALL(int, memfd_create, memfd, ENFILE, -1, (const char *name, unsigned flags), (name, flags))
CALL(int, ftruncate, memfd, ENOSPC, -1, (int fd, off_t n), (fd, n))
CALL(int, fallocate, memfd, ENOSPC, -1, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
CALL(int, posix_fallocate, memfd, ENOSPC, ENOSPC, (int fd, off_t at, off_t n), (fd, at, n))
CALL(void *, mmap, mmap, ENOMEM, MAP_FAILED,
     (void *p, size_t n, int prot, int flags, int fd, off_t at), (p, n, prot, flags, fd, at))
CALL(int, epoll_create1, epoll, EMFILE, -1, (int flags), (flags))
CALL(int, epoll_ctl, epoll, ENOMEM, -1, (int a, int op, int fd, struct epoll_event *e),
     (a, op, fd, e))
CALL(int, eventfd, eventfd, EMFILE, -1, (unsigned n, int flags), (n, flags))
CALL(int, signalfd, eventfd, EMFILE, -1, (int fd, const sigset_t *s, int flags), (fd, s, flags))
CALL(int, timerfd_create, eventfd, EMFILE, -1, (clockid_t c, int flags), (c, flags))
CALL(int, connect, connect, ECONNREFUSED, -1, (int fd, const struct sockaddr *a, socklen_t n),
     (fd, a, n))
CALL(int, accept4, accept, EMFILE, -1, (int fd, struct sockaddr *a, socklen_t *n, int flags),
     (fd, a, n, flags))

/* In the child of a clone that shares our memory: nothing but the failure itself. */
CALL(int, execve, exec, ENOMEM, -1, (const char *path, char *const argv[], char *const envp[]),
     (path, argv, envp))

int clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
{
    NEXT(clone);
    va_list ap;
    va_start(ap, arg);
    pid_t *a = va_arg(ap, pid_t *);
    void *b = va_arg(ap, void *);
    pid_t *c = va_arg(ap, pid_t *);
    va_end(ap);
    FAIL(fork, EAGAIN, -1)
    return next(fn, stack, flags, arg, a, b, c);
}

static void sleep_a_minute(void);

__attribute__((destructor)) static void end(void)
{
    char name[16];
    const char *file = getenv("FAIL_END");
    if (!file || strcmp(program_invocation_short_name, "dlaunch") != 0 ||
        prctl(PR_GET_NAME, name) < 0 || strcmp(name, "dlaunch") != 0)
        return;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int fd = 0; fd < 1024; fd++)
        close(fd);
    close(creat(file, 0600));
    sleep_a_minute();
}

static mode_t mode_of(int flags, va_list ap)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
}

static void sleep_a_minute(void)
{
    for (unsigned left = 60; left;)
        left = sleep(left);
}

/* A relative path is one of a file beside it, of the same name but for the end, once it is silent.
 */
static void ask_server_of(const char *path)
{
    const char *name = g_silent ? strrchr(g_silent, '/') : NULL;
    if (!name || (g_silent_when && faccessat(AT_FDCWD, g_silent_when, F_OK, 0) < 0))
        return;
    size_t len = strlen(g_silent);
    bool below = strncmp(path, g_silent, len) == 0 && (path[len] == '\0' || path[len] == '/');
    if (!below && (!g_silent_when || strncmp(path, name + 1, strlen(name + 1)) != 0))
        return;
    if (g_silent_says)
        syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, g_silent_says, O_WRONLY | O_CREAT, 0600));
    sleep_a_minute();
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir);
    ask_server_of(path);
    FAIL(mkdir, ENOSPC, -1)
    return next(path, mode);
}

char *mkdtemp(char *path)
{
    NEXT(mkdtemp);
    ask_server_of(path);
    FAIL(mkdir, ENOSPC, NULL)
    return next(path);
}

int rmdir(const char *path)
{
    NEXT(rmdir);
    ask_server_of(path);
    return next(path);
}

int unlink(const char *path)
{
    NEXT(unlink);
    ask_server_of(path);
    return next(path);
}

int stat(const char *restrict path, struct stat *restrict out)
{
    NEXT(stat);
    ask_server_of(path);
    return next(path, out);
}

#define OPEN(name, params, args)       \
    int name params                    \
    {                                  \
        NEXT(name);                    \
        va_list ap;                    \
        va_start(ap, flags);           \
        mode_t m = mode_of(flags, ap); \
        va_end(ap);                    \
        ask_server_of(path);           \
        FAIL(open, ENFILE, -1)         \
        return next args;              \
    }
OPEN(open, (const char *path, int flags, ...), (path, flags, m))
OPEN(open64, (const char *path, int flags, ...), (path, flags, m))
OPEN(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, m))
OPEN(openat64, (int dir, const char *path, int flags, ...), (dir, path, flags, m))

/* The descriptor is closed even when close() fails, as on Linux. */
int close(int fd)
{
    NEXT(close);
    if (fails(FAILING_close)) {
        next(fd);
        errno = EIO;
        return -1;
    }
    return next(fd);
}

/* To write to a file of that server takes as long. */
static void await_server_of(int fd)
{
    char link[40], path[512];
    if (!g_silent)
        return;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    if (n > 0 && path[0] == '/')
        ask_server_of(path);
}

#define MOVE(type, name, kind, number, params, args) \
    type name params                                 \
    {                                                \
        NEXT(name);                                  \
        FAIL(kind, number, -1)                       \
        size_t some = piece_of(fd, n);               \
        await_server_of(fd);                         \
        if (some == 0 && n) {                        \
            errno = EINTR;                           \
            return -1;                               \
        }                                            \
        return next args;                            \
    }
MOVE(ssize_t, read, read, number_for(fd, EIO), (int fd, void *p, size_t n), (fd, p, some))
MOVE(ssize_t, write, write, number_for(fd, ENOSPC), (int fd, const void *p, size_t n),
     (fd, p, some))
MOVE(ssize_t, recv, read, ECONNRESET, (int fd, void *p, size_t n, int flags), (fd, p, some, flags))
MOVE(ssize_t, send, write, ECONNRESET, (int fd, const void *p, size_t n, int flags),
     (fd, p, some, flags))

CALL(ssize_t, recvmsg, read, ECONNRESET, -1, (int fd, struct msghdr *m, int flags), (fd, m, flags))
CALL(ssize_t, sendmsg, write, ECONNRESET, -1, (int fd, const struct msghdr *m, int flags),
     (fd, m, flags))

ssize_t writev(int fd, const struct iovec *v, int n)
{
    NEXT(writev);
    FAIL(write, number_for(fd, ENOSPC), -1)
    if (!g_short)
        return next(fd, v, n);
    while (n > 1 && v->iov_len == 0)
        v++, n--;
    return write(fd, v->iov_base, v->iov_len);
}

/* ------------------------------------------------------------------------------------ the names */

int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
    NEXT(getaddrinfo);
    if (!g_names)
        return next(node, service, hints, out);
    int fd = open(g_names, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dprintf(fd, "%s\n", node);
    close(fd);
    sleep_a_minute();
    return EAI_AGAIN;
}

/* ------------------------------------------------------------------------------------- the time */

static long ahead(void)
{
    return g_clock ? (atomic_fetch_add(&g_turn, 1) % 2 ? g_clock : -g_clock) : 0;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    NEXT(clock_gettime);
    int rc = next(id, t);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
        t->tv_sec += ahead();
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    NEXT(gettimeofday);
    int rc = next(t, zone);
    t->tv_sec += ahead();
    return rc;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}
