#include "agent/report/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/report/event_json.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/named_file.h"

#define LAST_LINES_MS 1000
#define KEEP_BYTES    (16u << 20) /* for a reader that takes nothing */

struct event_file {
    const char *path;
    int fd; /* -1: it was given up */
    uint64_t at;
    struct buf rest; /* written later */
};

int event_file_open(struct event_file **out, const char *path, struct err *e)
{
    int fd = named_file_open(path, O_WRONLY | O_CREAT | O_APPEND, 0666, e);
    if (fd < 0)
        return fd;
    fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK);
    *out = xcalloc(1, sizeof(**out));
    **out = (struct event_file){.path = path, .fd = fd};
    return 0;
}

static void event_file_give_up(struct event_file *f, const char *why)
{
    log_warn("--events: %s: %s; no further events are written", f->path, why);
    close_fd(&f->fd);
    buf_fini(&f->rest);
}

static void flush(struct event_file *f)
{
    while (f->rest.len) {
        ssize_t n = write(f->fd, f->rest.data, f->rest.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN && f->rest.len <= KEEP_BYTES)
            return;
        if (n < 0) {
            event_file_give_up(f, strerror(errno));
            return;
        }
        buf_consume(&f->rest, (size_t)n);
    }
}

bool event_file_is_behind(const struct event_file *f, const struct event_list *l)
{
    return f && f->fd >= 0 && f->at < l->first + l->n;
}

size_t event_file_write(struct event_file *f, const struct event_list *l, size_t most)
{
    const struct event *e;
    size_t n = 0;
    if (!f || f->fd < 0)
        return 0;
    while (n < most && (e = event_list_next(l, &f->at))) {
        n++;
        char *line = event_json(e);
        if (line)
            buf_put(&f->rest, line, strlen(line));
        free(line);
    }
    flush(f);
    return n;
}

void event_file_close(struct event_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0 && f->rest.len)
        fd_write_patiently(f->fd, (char *)f->rest.data, f->rest.len, LAST_LINES_MS, NULL);
    close_fd(&f->fd);
    buf_fini(&f->rest);
    free(f);
}
