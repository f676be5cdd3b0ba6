#include "core/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/clock.h"

void close_fd(int *fd)
{
    if (*fd < 0)
        return;
    int saved = errno;
    close(*fd);
    errno = saved;
    *fd = -1;
}

int fd_set_cloexec(int fd, bool on)
{
    return fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0) < 0 ? -errno : 0;
}

int fd_set_nonblock(int fd, bool on)
{
    int fl = fcntl(fd, F_GETFL);
    if (fl < 0)
        return -errno;
    int want = on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK;
    return want != fl && fcntl(fd, F_SETFL, want) < 0 ? -errno : 0;
}

int fd_write_all(int fd, const void *p, size_t n)
{
    const char *c = p;
    while (n) {
        ssize_t w = write(fd, c, n);
        if (w < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        c += w;
        n -= (size_t)w;
    }
    return 0;
}

void fd_open_std(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR); /* for whoever is started, too */
    while (fd >= 0 && fd <= STDERR_FILENO);
    close_fd(&fd);
}

int fd_above_std(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close_fd(&fd);
    return above;
}

int fd_write_timed(int fd, const void *p, size_t n, int ms, const atomic_bool *give_up)
{
    const char *c = p;
    uint64_t limit = (uint64_t)ms * 1000000, end = mono_ns() + limit;
    while (n) {
        struct pollfd f = {fd, POLLOUT, 0};
        uint64_t now = mono_ns(), left = now < end ? end - now : 0;
        int ready = poll(&f, 1, (int)((left + 999999) / 1000000));
        if (ready == 0 && (!give_up || atomic_load(give_up)))
            return -ETIMEDOUT;
        if (ready == 0)
            end = mono_ns() + limit;
        if (ready <= 0)
            continue;
        ssize_t w = write(fd, c, n < PIPE_BUF ? n : PIPE_BUF); /* as much as does not block now */
        if (w < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        if (w > 0) {
            c += w;
            n -= (size_t)w;
            end = mono_ns() + limit;
        }
    }
    return 0;
}

ssize_t fd_read_file(int dirfd, const char *path, char *out, size_t cap)
{
    _cleanup_fd_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t len = 0;
    while (len < cap) {
        ssize_t n = read(fd, out + len, cap - len);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (n == 0)
            break;
        len += (size_t)n;
    }
    if (len == cap)
        return -EFBIG;
    out[len] = '\0';
    return (ssize_t)len;
}

int fd_columns(int fd)
{
    struct winsize w = {0};
    if (!isatty(fd))
        return 0;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
}
