#include "agent/output/stdio_logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/text.h"
#include "core/fd.h"

int logfile_open(struct logfile *f, const char *path, struct err *e)
{
    struct stat st;
    *f = (struct logfile){.fd = -1};
    /* O_NONBLOCK: a FIFO of that name must not block; O_APPEND: another process may truncate the
     * file. */
    _cleanup_fd_ int fd = open(
        path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "open %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, -EINVAL, "open %s: not a regular file", path);
    if (st.st_size && ftruncate(fd, 0) < 0)
        return err_sys(e, errno, "truncate %s", path);
    f->fd = take_fd(&fd);
    return 0;
}

/* Returns how much was written; f->error says why it was less. */
static size_t write_what_fits(struct logfile *f, const char *p, size_t len)
{
    size_t done = 0;
    f->error = 0;
    while (done < len) {
        ssize_t n = write(f->fd, p + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            f->error = n < 0 ? errno : EIO;
            break;
        }
        done += (size_t)n;
    }
    if (done)
        f->mid_line = p[done - 1] != '\n';
    return done;
}

static bool write_gap_line(struct logfile *f)
{
    char size[TEXT_BYTES_MAX], why[ERR_TEXT_MAX], line[256];
    int error = f->error;
    int n =
        snprintf(line, sizeof(line), "%sdlaunch: %s of output missing here: %s\n",
                 f->mid_line ? "\n" : "", text_bytes(size, f->missing), err_text(f->error, why));
    if (write_what_fits(f, line, (size_t)n) < (size_t)n) {
        f->error = f->error ? f->error : error;
        return false;
    }
    f->missing = 0;
    return true;
}

bool logfile_write(struct logfile *f, const void *data, size_t len, uint64_t now_ns)
{
    bool was_well = f->error == 0;
    if (!was_well && (now_ns < f->retry_ns || !write_gap_line(f))) {
        f->missing += len;
        if (now_ns >= f->retry_ns)
            f->retry_ns = now_ns + STDIO_RETRY_S * UINT64_C(1000000000);
        return true;
    }
    size_t done = write_what_fits(f, data, len);
    if (done == len)
        return true;
    f->missing += len - done;
    f->retry_ns = now_ns + STDIO_RETRY_S * UINT64_C(1000000000);
    return !was_well;
}

uint64_t logfile_close(struct logfile *f)
{
    if (f->fd >= 0 && f->missing)
        write_gap_line(f);
    close_fd(&f->fd);
    return f->missing;
}
