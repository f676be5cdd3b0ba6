#include "launcher/hosts/head_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/named_file.h"

#define READER_MS 1000 /* for the reader of a FIFO */

int head_files_events(struct options *o, struct err *e)
{
    if (!opt_given(o, OPT_events))
        return -1;
    int fd = named_file_open(opt_text(o, OPT_events), O_WRONLY | O_CREAT | O_APPEND, 0666, e);
    if (fd < 0)
        err_wrap(e, "%s", opt_where(o, OPT_events));
    return fd < 0 ? -1 : fd;
}

void head_files_add(const struct options *o, int *events, const void *text, size_t n)
{
    int rc = *events >= 0 ? fd_write_timed(*events, text, n, READER_MS, NULL) : 0;
    if (rc == 0)
        return;
    log_warn("--events: %s: %s; no further events are written", opt_text(o, OPT_events),
             strerror(-rc));
    close_fd(events);
}

void head_files_report(const struct options *o, const char *json, size_t n)
{
    struct err e = ERR_INIT;
    const char *path = opt_text(o, OPT_report);
    _cleanup_fd_ int fd = named_file_open(path, O_WRONLY | O_CREAT, 0666, &e);
    if (fd < 0) {
        log_error("--report: %s", e.msg);
        return;
    }
    int rc = ftruncate(fd, 0) < 0 && errno != EINVAL ? -errno : 0;
    if (rc == 0)
        rc = fd_write_timed(fd, json, n, READER_MS, NULL);
    if (rc < 0)
        log_error("--report: %s: %s", path, strerror(-rc));
}
