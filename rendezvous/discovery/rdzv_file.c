/* The file backend: the coordinator's address is published in a file on a file system that all
 * nodes see (notice_board.h). Whoever holds an open file description lock on the file hosts the
 * coordinator, and holds the lock for the coordinator's life:
 *
 *   not there, or empty      lock it, listen, publish, host
 *   locked by another        join at the addresses in it
 *   free with a line in it   its coordinator is dead: take over. But locks of some file systems do
 *                            not reach other hosts; so, unless it was on this machine, its address
 *                            is asked first, and when a coordinator of this job answers it is
 *                            joined
 *   something else in it     not ours: left alone, an error
 *   another user's file, link or FIFO in a shared folder: refused (core/named_file.h)
 *
 * A new line comes by rename(2) of a file that is locked already, so that there is no moment at
 * which the file has half a line or no lock. The end removes it. */
#include "rendezvous/discovery/rdzv_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/named_file.h"
#include "rendezvous/discovery/notice_board.h"
#include "rendezvous/discovery/rdzv_probe.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/text.h"

#define PROBE_MS       500 /* limit of a probe, per address */
#define PROBE_TOTAL_NS 2000000000u
#define LOOKS          8 /* attempts if the file is replaced while it is opened */

/* ----------------------------------------------------------------------------------------- lock */

static int lock_file(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int rc;
    do
        rc = fcntl(fd, F_OFD_SETLK, &l);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : 0;
}

/* Whether the path still leads to the file that the descriptor has open. */
static bool same_file(const char *path, int fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static void give_up_lock(struct rdzv_discovery *f)
{
    close_fd(&f->lock_fd);
    f->locked = false;
}

/* ----------------------------------------------------------------------------------------- look */

static int trouble(struct rdzv_discovery *f, int error, const char *what)
{
    text_set(f->why, sizeof(f->why), "%s %s: %s", what, f->path, strerror(error));
    return f->status = -error;
}

static int not_ours(struct rdzv_discovery *f, const char *what)
{
    text_set(f->why, sizeof(f->why), "--rdzv_endpoint: %s is %s", f->path, what);
    return f->status = -EINVAL;
}

/* Returns the descriptor of the file, locked or not (f->locked); -1: f->status has the reason, or
 * the caller tries again. */
static int open_file(struct rdzv_discovery *f)
{
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW;
    struct err e = ERR_INIT;
    struct stat st;
    uid_t own;
    _cleanup_fd_ int fd = named_file_open(f->path, flags, 0600, &e);
    if (fd == -EPERM && named_file_owner(f->path, &own) == 0 && own != geteuid())
        fd = named_file_open_as(f->path, flags, 0600, own, &e);
    if (fd == -EPERM) {
        text_set(f->why, sizeof(f->why), "--rdzv_endpoint: %s", e.msg);
        return f->status = -EPERM, -1;
    }
    if (fd < 0 || fstat(fd, &st) < 0)
        return trouble(f, fd < 0 ? -fd : errno, "cannot open"), -1;
    if (!S_ISREG(st.st_mode))
        return not_ours(f, "not a regular file"), -1;
    int rc = lock_file(fd);
    f->locked = rc == 0;
    if (rc < 0 && rc != -EAGAIN && rc != -EACCES)
        return trouble(f, -rc, "cannot lock"), -1;
    if (f->locked && !same_file(f->path, fd)) { /* the file was replaced or removed meanwhile */
        f->locked = false;
        return -1;
    }
    return take_fd(&fd);
}

static ssize_t file_read_line(int fd, char *out)
{
    ssize_t n = pread(fd, out, NOTICE_BOARD_MAX - 1, 0);
    out[n > 0 ? n : 0] = '\0';
    return n;
}

static int other_job(struct rdzv_discovery *f, const char *run_id, const char *host, int pid)
{
    text_set(f->why, sizeof(f->why), "%s belongs to job '%s' (host %s, pid %d), not to '%s'",
             f->path, run_id, host, pid, f->run_id);
    return f->status = -EBUSY;
}

/* The lock is free and there is a line: checks whether the coordinator that it names answers
 * nevertheless. */
static bool still_answers(struct rdzv_discovery *f, const struct notice_board *b)
{
    char machine[NOTICE_BOARD_MACHINE];
    uint64_t until = mono_ns() + PROBE_TOTAL_NS;
    notice_board_machine(machine);
    if (strcmp(machine, b->machine) ==
        0) /* locks of this host are reliable: a free one has no holder */
        return false;
    for (int i = 0; i < b->naddrs && mono_ns() < until; i++) {
        struct rdzv_identity id;
        if (rdzv_probe(&b->addrs[i], PROBE_MS, f->auth, &id) < 0 || id.finished ||
            strcmp(id.run_id, b->run_id) != 0) /* the port now belongs to another job */
            continue;
        if (strcmp(id.run_id, f->run_id) != 0)
            other_job(f, id.run_id, id.host, id.pid);
        return true;
    }
    return false;
}

/* Reads the file. Keeps the lock if this node is to host. */
static void look_at(struct rdzv_discovery *f, int fd)
{
    char line[NOTICE_BOARD_MAX];
    struct notice_board b;
    ssize_t n = file_read_line(fd, line);
    if (n < 0) {
        trouble(f, errno, "cannot read");
    } else if (n > 0 && !notice_board_parse(line, &b)) {
        not_ours(f, "not a rendezvous file: something else is in it");
    } else if (!f->locked && n == 0) {
        text_set(f->why, sizeof(f->why), "somebody is about to write to %s", f->path);
        f->status = -EAGAIN;
    } else if (!f->locked && strcmp(b.run_id, f->run_id) != 0) {
        other_job(f, b.run_id, b.host, b.pid);
    } else if (!f->locked) {
        notice_board_join(f, &b);
    } else if (n > 0 && still_answers(f, &b)) {
        notice_board_join(f, &b);
    } else if (f->is_host == 0) {
        text_set(f->why, sizeof(f->why), "no coordinator has written to %s", f->path);
        f->status = -EAGAIN;
    } else {
        if (n > 0)
            text_set(f->note, sizeof(f->note), "%s was left behind by host %s, pid %d: taking over",
                     f->path, b.host, b.pid);
        f->lock_fd = fd;
        return;
    }
    f->locked = false;
    close(fd);
}

static void file_look(struct rdzv_discovery *f)
{
    f->naddrs = 0;
    if (rdzv_discovery_resolve_local(f) < 0)
        return;
    if (f->lock_fd >= 0 && same_file(f->path, f->lock_fd)) /* this node still holds the lock */
        return;
    give_up_lock(f);
    for (int i = 0; i < LOOKS; i++) {
        int fd = open_file(f);
        if (fd >= 0)
            look_at(f, fd);
        if (fd >= 0 || f->status < 0)
            return;
    }
    text_set(f->why, sizeof(f->why), "%s is replaced again and again", f->path);
    f->status = -EAGAIN;
}

static enum rdzv_role file_decide(struct rdzv_discovery *f, struct err *e)
{
    if (f->status == -EAGAIN || f->status == -EADDRNOTAVAIL || f->status == -ESTALE ||
        f->status == -EIO)
        return RDZV_ROLE_RETRY;
    if (f->status < 0) {
        err_set(e, f->status, "%s", f->why);
        return RDZV_ROLE_FAIL;
    }
    if (!f->locked)
        return RDZV_ROLE_JOIN;
    return rdzv_discovery_host(f, f->port);
}

/* ---------------------------------------------------------------------------- publish, withdraw */

static int write_new(struct rdzv_discovery *f, const char *temp, const char *line)
{
    _cleanup_fd_ int fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return trouble(f, errno, "cannot write beside");
    int rc = lock_file(fd);
    if (rc == 0)
        rc = fd_write_all(fd, line, strlen(line));
    if (rc == 0 && (fsync(fd) < 0 || rename(temp, f->path) < 0))
        rc = -errno;
    if (rc < 0) {
        unlink(temp);
        return trouble(f, -rc, "cannot write");
    }
    close_fd(&f->lock_fd);
    f->lock_fd = take_fd(&fd);
    f->published = true;
    return 0;
}

static void file_publish(struct rdzv_discovery *f)
{
    char line[NOTICE_BOARD_MAX];
    f->status = 0;
    notice_board_format(f, line, sizeof(line));
    char *temp = xasprintf("%s.%016llx", f->path, (unsigned long long)f->nonce);
    write_new(f, temp, line);
    free(temp);
}

static void file_withdraw(struct rdzv_discovery *f)
{
    struct stat st;
    if (f->lock_fd >= 0 && same_file(f->path, f->lock_fd) &&
        (f->published || (fstat(f->lock_fd, &st) == 0 && st.st_size == 0)))
        unlink(f->path);
    f->published = false;
    give_up_lock(f);
}

static int file_check(const struct rdzv_config *c, struct err *e)
{
    if (!c->endpoint_path || !c->endpoint_path[0])
        return err_set(e, -EINVAL, "the file rendezvous needs a path (--rdzv_endpoint PATH)");
    return 0;
}

static bool file_quick(const struct rdzv_discovery *f)
{
    (void)f;
    return false;
}

const struct rdzv_backend_ops rdzv_file_ops = {.name = "file",
                                               .check = file_check,
                                               .quick = file_quick,
                                               .look = file_look,
                                               .decide = file_decide,
                                               .publish = file_publish,
                                               .withdraw = file_withdraw};
