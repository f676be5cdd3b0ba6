#include "launcher/hosts/forward.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/exec_why.h"
#include "agent/process/spawn.h"
#include "core/fd.h"
#include "core/mem.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/piped.h"

#define FAILED 255 /* the exit status of an ssh that could not do its work */

/* A file that goes to a host. */
struct copy {
    const uint8_t *data; /* mapped; NULL: nothing is to be copied */
    size_t size, sent;
};

struct forward {
    uint32_t host;       /* as the head counts */
    pid_t pid;           /* of the host's ssh */
    int in, out, err;    /* -1: closed */
    bool closing;        /* the ssh's input ends after `to` */
    struct copy dlaunch; /* with dlaunch-inspect */
    struct copy program;
    struct buf to; /* written after the copies */
};

static void end_copy(struct copy *c)
{
    if (c->data)
        munmap((void *)c->data, c->size);
    *c = (struct copy){0};
}

static int begin_copy(struct copy *c, const char *path, struct err *e)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "%s", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "%s", path);
    *c = (struct copy){p, (size_t)st.st_size, 0};
    return 0;
}

static void close_input(struct forward *f)
{
    close_fd(&f->in);
    f->to.len = 0;
    end_copy(&f->dlaunch);
    end_copy(&f->program);
}

static void forward_fini(struct forward *f)
{
    close_input(f);
    close_fd(&f->out);
    close_fd(&f->err);
    buf_fini(&f->to);
}

static struct forward *forward_of(struct forwards *fs, uint32_t host)
{
    for (size_t i = 0; i < fs->n; i++) {
        if (fs->list[i].host == host)
            return &fs->list[i];
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------- to a host
 */

/* Copies go in front: a host that waits for it has been sent nothing else. */
static void write_host(struct forward *f)
{
    while (f->in >= 0 && (f->dlaunch.data || f->program.data || f->to.len)) {
        struct copy *c = f->dlaunch.data ? &f->dlaunch : f->program.data ? &f->program : NULL;
        ssize_t n = c ? write(f->in, c->data + c->sent, c->size - c->sent)
                      : write(f->in, f->to.data, f->to.len);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            close_input(f); /* the end of the ssh, which comes next, says why */
        if (n < 0)
            return;
        if (!c)
            buf_consume(&f->to, (size_t)n);
        else if ((c->sent += (size_t)n) == c->size)
            end_copy(c);
    }
    if (f->closing)
        close_input(f);
}

/* The reason for an end that follows. */
static void put_said(struct buf *out, uint32_t host, const struct err *e)
{
    frame_forward_put(out, FRAME_FORWARDED, host, FORWARD_ERR, e->msg, strlen(e->msg));
}

static void send_program(struct forward *f, const char *path, struct buf *out)
{
    struct err e = ERR_INIT;
    struct buf header = BUF_INIT;
    if (f->in < 0 || f->program.data || f->to.len)
        return;
    int rc = path ? begin_copy(&f->program, path, &e) : err_set(&e, -ENOENT, "no program is here");
    if (rc == 0) {
        frame_begin(&header, FRAME_PROGRAM, f->program.size);
        if (write(f->in, header.data, header.len) != (ssize_t)header.len) /* of an empty pipe */
            rc = err_set(&e, -EIO, "cannot write the program");
        buf_fini(&header);
    }
    if (rc == 0) {
        write_host(f);
        return;
    }
    put_said(out, f->host, &e);
    close_input(f);
}

/* -------------------------------------------------------------------------------------- the start
 */

static int run_ssh(struct forwards *fs, struct forward *f, char **argv, struct err *e)
{
    struct piped child;
    char *path = exec_find(argv[0], e);
    int rc = path ? 0 : e->code;
    if (rc == 0 && !fs->spawner)
        rc = spawner_new(&fs->spawner, e);
    if (rc == 0)
        rc = piped_start(fs->spawner, path, argv, false, &child, e);
    free(path);
    if (rc < 0)
        return rc;
    f->pid = child.pid;
    f->in = child.in;
    f->out = child.out;
    f->err = child.err;
    return 0;
}

static void put_ended(struct buf *out, uint32_t host, int status)
{
    uint8_t le[4] = {(uint8_t)status, (uint8_t)(status >> 8), (uint8_t)(status >> 16),
                     (uint8_t)(status >> 24)};
    frame_forward_put(out, FRAME_FORWARDED, host, FORWARD_ENDED, le, sizeof(le));
}

static int start_host(struct forwards *fs, const struct frame_forward *w, struct buf *out)
{
    struct forward f = {.host = w->host, .pid = -1, .in = -1, .out = -1, .err = -1};
    struct forward_start start;
    struct err e = ERR_INIT;
    if (forward_of(fs, w->host) || forward_start_get(w, &start) < 0)
        return -EPROTO;
    struct copies copies = {0};
    int rc = start.copied ? copies_map(&copies, fs->inspect, &e) : 0;
    f.dlaunch = (struct copy){copies.p, copies.n, 0};
    if (rc == 0)
        rc = run_ssh(fs, &f, start.argv, &e);
    forward_start_fini(&start);
    if (rc < 0) { /* reported as an ssh reports that it failed */
        put_said(out, f.host, &e);
        put_ended(out, f.host, FAILED << 8);
        forward_fini(&f);
        return 0;
    }
    fs->list = xrealloc(fs->list, (fs->n + 1) * sizeof(*fs->list));
    fs->list[fs->n++] = f;
    return 0;
}

int forwards_take(struct forwards *fs, const struct frame *frame, const char *program,
                  struct buf *out)
{
    struct frame_forward w;
    if (frame_forward_get(frame, &w) < 0)
        return -EPROTO;
    if (w.what == FORWARD_START)
        return start_host(fs, &w, out);
    struct forward *f = forward_of(fs, w.host);
    if (!f)
        return 0; /* the report of the end is on the way to the head */
    switch (w.what) {
    case FORWARD_BYTES:
        if (f->in >= 0) {
            xbuf_reserve(&f->to, w.len);
            buf_put(&f->to, w.p, w.len);
            write_host(f);
        }
        return 0;
    case FORWARD_PROGRAM:
        send_program(f, program, out);
        return 0;
    case FORWARD_CLOSE:
        f->closing = true;
        write_host(f);
        return 0;
    case FORWARD_KILL:
        kill(f->pid, SIGKILL);
        return 0;
    default:
        return -EPROTO;
    }
}

/* ------------------------------------------------------------------------------------ from a host
 */

/* Reads once. False: there was nothing. */
static bool read_host(struct forward *f, int *fd, enum forward_what what, struct buf *out)
{
    uint8_t data[FORWARD_MAX];
    ssize_t n = *fd >= 0 ? read(*fd, data, sizeof(data)) : 0;
    if (n > 0)
        frame_forward_put(out, FRAME_FORWARDED, f->host, what, data, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        close_fd(fd);
    return n > 0;
}

size_t forwards_polled(const struct forwards *fs)
{
    return 3 * fs->n;
}

void forwards_poll(const struct forwards *fs, struct pollfd *fds, bool full)
{
    for (size_t i = 0; i < fs->n; i++, fds += 3) {
        const struct forward *f = &fs->list[i];
        bool to_write = f->dlaunch.data || f->program.data || f->to.len;
        fds[0] = (struct pollfd){to_write ? f->in : -1, POLLOUT, 0};
        fds[1] = (struct pollfd){full ? -1 : f->out, POLLIN, 0};
        fds[2] = (struct pollfd){full ? -1 : f->err, POLLIN, 0};
    }
}

void forwards_go_on(struct forwards *fs, const struct pollfd *fds, struct buf *out)
{
    for (size_t i = 0; i < fs->n; i++, fds += 3) {
        struct forward *f = &fs->list[i];
        if (fds[0].revents)
            write_host(f);
        if (fds[1].revents)
            read_host(f, &f->out, FORWARD_OUT, out);
        if (fds[2].revents)
            read_host(f, &f->err, FORWARD_ERR, out);
    }
}

/* Everything written before the end is in the pipes. Nothing else is waited for, as ssh may
 * leave a process behind that holds them. */
void forwards_reap(struct forwards *fs, struct buf *out)
{
    size_t kept = 0;
    for (size_t i = 0; i < fs->n; i++) {
        struct forward *f = &fs->list[i];
        int status;
        if (waitpid(f->pid, &status, WNOHANG) <= 0) {
            fs->list[kept++] = *f;
            continue;
        }
        while (read_host(f, &f->out, FORWARD_OUT, out) || read_host(f, &f->err, FORWARD_ERR, out))
            ;
        put_ended(out, f->host, status);
        forward_fini(f);
    }
    fs->n = kept;
}

/* ------------------------------------------------------------------------------------------- ends
 */

void forwards_hang_up(struct forwards *fs)
{
    for (size_t i = 0; i < fs->n; i++)
        close_input(&fs->list[i]);
}

void forwards_fini(struct forwards *fs)
{
    for (size_t i = 0; i < fs->n; i++)
        forward_fini(&fs->list[i]);
    free(fs->list);
    spawner_free(fs->spawner);
    *fs = (struct forwards){0};
}
