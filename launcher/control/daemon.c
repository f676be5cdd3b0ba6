#include "launcher/control/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/named_file.h"
#include "core/parse.h"

/* ------------------------------------------------------------------------------------ detaching */

static volatile sig_atomic_t background_pid;

/* Ctrl-C while the command still waits. */
static void pass_signal_on(int signo)
{
    (void)signo;
    kill(background_pid, SIGTERM);
}

/* Shows what comes, up to the NUL that means ready. Returns whether it came. */
static bool wait_ready(int fd)
{
    char chunk[4096];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        char *nul = memchr(chunk, '\0', (size_t)n);
        fd_write_all(STDERR_FILENO, chunk, nul ? (size_t)(nul - chunk) : (size_t)n);
        if (nul)
            return true;
    }
}

static int wait_for_background(pid_t pid, int fd)
{
    struct sigaction act = {.sa_handler = pass_signal_on}; /* without SA_RESTART */
    int status = 0;
    background_pid = pid;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    if (wait_ready(fd))
        return 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int daemon_detach(struct daemon *d, int *exit_status, struct err *e)
{
    int ready[2];
    *d = (struct daemon)DAEMON_INIT;
    /* A socket, for MSG_NOSIGNAL: the guardian keeps its end when nobody reads any more. */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ready) < 0)
        return err_sys(e, errno, "--daemon: socketpair");
    pid_t pid = fork();
    if (pid < 0) {
        int errnum = errno;
        close(ready[0]);
        close(ready[1]);
        return err_sys(e, errnum, "--daemon: fork");
    }
    if (pid > 0) {
        close(ready[1]);
        *exit_status = wait_for_background(pid, ready[0]);
        close(ready[0]);
        return 1;
    }
    close(ready[0]);
    setsid();
    d->ready = ready[1];
    _cleanup_fd_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        return err_sys(e, errno, "--daemon: /dev/null");
    return 0;
}

void daemon_say(void *arg, const char *line, size_t len)
{
    const struct daemon *d = arg;
    if (d->ready >= 0)
        send(d->ready, line, len, MSG_NOSIGNAL);
    if (d->ready < 0 || d->logged)
        fd_write_all(STDERR_FILENO, line, len);
}

void daemon_ready(struct daemon *d)
{
    if (d->ready >= 0)
        send(d->ready, "", 1, MSG_NOSIGNAL);
    close_fd(&d->ready);
}

int daemon_log_to(struct daemon *d, const char *path, struct err *e)
{
    _cleanup_fd_ int fd = named_file_open(path, O_WRONLY | O_CREAT | O_APPEND, 0644, e);
    if (fd < 0)
        return fd;
    /* Does not keep a pipe or a socket open: its reader, such as sshd, may wait until no process
     * has it open. */
    struct stat st;
    if (d->ready < 0 && fstat(STDERR_FILENO, &st) == 0 &&
        (S_ISCHR(st.st_mode) || S_ISREG(st.st_mode)))
        d->terminal = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        return err_sys(e, errno, "%.300s", path);
    d->logged = true;
    return 0;
}

void daemon_warn(const struct daemon *d, const char *syslog, const char *text)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char line[2048], shown[sizeof(line) - 64];
    size_t n = log_escape(shown, sizeof(shown), text, strlen(text), 0);
    if (!d->logged || log_get_level() < LOG_LEVEL_WARN)
        return;
    if (d->terminal >= 0) {
        n = (size_t)snprintf(line, sizeof(line), "dlaunch: %s\n", shown);
        fd_write_timed(d->terminal, line, n, 100, NULL);
        return;
    }
    n = (size_t)snprintf(line, sizeof(line), "<%d>dlaunch[%d]: %s", LOG_USER | LOG_WARNING,
                         (int)getpid(), shown);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", syslog);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        sendto(fd, line, n, MSG_NOSIGNAL, (struct sockaddr *)&a, sizeof(a));
}

/* ------------------------------------------------------------------------------------- pid file */

/* Whether the open file is the one that the path leads to: the last holder may just have removed
 * it. */
static bool is_current(int fd, const char *path)
{
    struct stat open_one, named;
    return fstat(fd, &open_one) == 0 && stat(path, &named) == 0 &&
           open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

/* The pid that is all that is written in the file, or 0. */
static long read_pid(int fd)
{
    char text[32];
    long pid;
    ssize_t n = pread(fd, text, sizeof(text), 0);
    if (n <= 0 || n == sizeof(text) || memchr(text, '\0', (size_t)n))
        return 0;
    text[n] = '\0';
    return parse_int(text, 1, INT_MAX, &pid, NULL) == 0 ? pid : 0;
}

int pid_file_open(struct pid_file *p, const char *path, struct err *e)
{
    struct stat st;
    p->fd = -1;
    if (snprintf(p->path, sizeof(p->path), "%s", path) >= (int)sizeof(p->path))
        return err_sys(e, ENAMETOOLONG, "%.60s...", path);
    for (;;) {
        _cleanup_fd_ int fd = named_file_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644, e);
        if (fd < 0)
            return fd;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
            return err_set(e, -EINVAL, "%.300s: not a regular file", path);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            if (errno != EWOULDBLOCK)
                return err_sys(e, errno, "%.300s: lock", path);
            char holder[32] = "another process"; /* which has not written its pid yet */
            long pid = read_pid(fd);
            if (pid)
                snprintf(holder, sizeof(holder), "process %ld", pid);
            return err_set(e, -EBUSY, "%.300s is locked by %s, so that job is still running", path,
                           holder);
        }
        if (!is_current(fd, path))
            continue;
        long left = read_pid(fd);
        if (st.st_size > 0 && left == 0)
            return err_set(e, -EINVAL,
                           "%.300s: it exists and is not a pid file, so it was not overwritten",
                           path);
        if (left)
            log_notice("replacing the stale pid file %.300s of process %ld", path, left);
        p->fd = take_fd(&fd);
        return 0;
    }
}

int pid_file_write(struct pid_file *p, struct err *e)
{
    char text[32];
    if (p->fd < 0)
        return 0;
    int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(p->fd, 0) < 0 || pwrite(p->fd, text, (size_t)n, 0) != n)
        return err_sys(e, errno, "%.300s", p->path);
    return 0;
}

void pid_file_close(struct pid_file *p)
{
    if (p->fd >= 0 && is_current(p->fd, p->path))
        unlink(p->path);
    close_fd(&p->fd);
}

/* -------------------------------------------------------------------------------------- systemd */

void notify_open(struct notify *n)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;
    n->fd = -1;
    if (len < 2 || len >= sizeof(a.sun_path) || (*path != '/' && *path != '@'))
        return;
    memcpy(a.sun_path, path, len);
    if (*path == '@') /* in the abstract namespace */
        a.sun_path[0] = '\0';
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, size) == 0)
        n->fd = take_fd(&fd);
    unsetenv("NOTIFY_SOCKET");
}

void notify_send(const struct notify *n, const char *state)
{
    if (n->fd >= 0)
        send(n->fd, state, strlen(state), MSG_NOSIGNAL);
}

void notify_close(struct notify *n)
{
    close_fd(&n->fd);
}
