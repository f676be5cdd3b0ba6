#include "tests/lib/pump.h"

#include <pthread.h>
#include <termios.h>

static void on_drained(void *arg, int local_rank)
{
    struct fixture *f = arg;
    ck_assert(!f->drained[local_rank]);
    f->drained[local_rank] = true;
    f->ndrained++;
}

void open_pump(struct fixture *f, int console_out, int console_err)
{
    struct err e = ERR_INIT;
    struct stdio_pump_opts opts = {.console_out = console_out,
                                   .console_err = console_err,
                                   .nworkers = f->nworkers,
                                   .fold = f->fold,
                                   .dup_stdout = f->dup_stdout,
                                   .job = f->job,
                                   .nranks = NPROC_MAX,
                                   .on_output = f->on_output,
                                   .on_room = f->on_room,
                                   .on_drained = on_drained,
                                   .arg = f};
    ck_assert_msg(stdio_pump_open(&f->pump, &f->loop, &opts, &e) == 0, "%s", e.msg);
}

static void make_pipe(int *r, int *w)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    *r = ends[0];
    *w = ends[1];
    fd_set_nonblock(*r, true);
}

void setup(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    loop_setup(&f->loop);
    make_pipe(&f->out_r, &f->out_w);
    make_pipe(&f->err_r, &f->err_w);
}

void setup_open(struct fixture *f)
{
    setup(f);
    open_pump(f, f->out_w, f->err_w);
}

static void drain(int fd, struct buf *b)
{
    for (ssize_t n = 1; fd >= 0 && n > 0;) {
        ck_assert(buf_reserve(b, 65537));
        n = read(fd, b->data + b->len, 65536);
        b->len += n > 0 ? (size_t)n : 0;
        b->data[b->len] = '\0';
    }
}

void read_consoles(struct fixture *f)
{
    drain(f->out_r, &f->out);
    drain(f->err_r, &f->err);
}

const char *text(const struct buf *b)
{
    return b->data ? (const char *)b->data : "";
}

static void on_pump_closed(void *arg, bool all)
{
    struct fixture *f = arg;
    f->closed = true;
    f->all = all;
}

void begin_close(struct fixture *f, double unread_s)
{
    struct stdio_pump_end end = {.unread_s = unread_s, .on_closed = on_pump_closed, .arg = f};
    f->closed = false;
    stdio_pump_close(f->pump, &end);
}

bool close_alone(struct fixture *f, double unread_s)
{
    begin_close(f, unread_s);
    loop_run_until(&f->loop, &f->closed, 20, "the pump is closed");
    return f->all;
}

static void *read_on(void *arg)
{
    struct fixture *f = arg;
    struct pollfd fds[2] = {{f->out_r, POLLIN, 0}, {f->err_r, POLLIN, 0}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        poll(fds, 2, -1);
        read_consoles(f);
        for (int i = 0; i < 2; i++) {
            if ((fds[i].revents & POLLHUP) && !(fds[i].revents & POLLIN))
                fds[i].fd = -1;
        }
    }
    return NULL;
}

void close_pump(struct fixture *f)
{
    pthread_t reader;
    ck_assert_int_eq(pthread_create(&reader, NULL, read_on, f), 0);
    close_alone(f, -1);
    close_fd(&f->out_w);
    close_fd(&f->err_w);
    pthread_join(reader, NULL);
}

void teardown(struct fixture *f)
{
    close_fd(&f->out_w);
    close_fd(&f->err_w);
    close_fd(&f->out_r);
    close_fd(&f->err_r);
    buf_fini(&f->out);
    buf_fini(&f->err);
    loop_teardown(&f->loop);
}

struct stdio_route shown(const char *prefix)
{
    return (struct stdio_route){.console = true, .prefix = prefix};
}

struct ends open_worker(struct fixture *f, int rank, struct stdio_route out, struct stdio_route err)
{
    struct err e = ERR_INIT;
    struct ends w;
    ck_assert_msg(stdio_worker_open(f->pump, rank, &out, &err, &w.out, &w.err, &e) == 0, "%s",
                  e.msg);
    return w;
}

void say(int fd, const char *s)
{
    ck_assert_int_eq(fd_write_all(fd, s, strlen(s)), 0);
}

void end_worker(struct fixture *f, int rank, struct ends *w)
{
    close_fd(&w->out);
    close_fd(&w->err);
    stdio_worker_exited(f->pump, rank);
}

void make_terminal(int *master, int *slave)
{
    struct termios raw;
    *master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(*master, 0);
    grantpt(*master);
    unlockpt(*master);
    *slave = open(ptsname(*master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(*slave, 0);
    tcgetattr(*slave, &raw);
    cfmakeraw(&raw);
    tcsetattr(*slave, TCSANOW, &raw);
}

void setup_tty(struct fixture *f)
{
    setup(f);
    close_fd(&f->out_r);
    close_fd(&f->out_w);
    make_terminal(&f->out_r, &f->out_w);
    fd_set_nonblock(f->out_r, true);
}

void setup_stopped_terminal(struct fixture *f)
{
    setup_tty(f);
    open_pump(f, f->out_w, f->err_w);
}

void write_numbered(int fd, unsigned lines)
{
    static char line[128];
    for (unsigned i = 0; i < lines; i++) {
        int n = snprintf(line, sizeof(line), "%07u ", i);
        memset(line + n, 'x', 91);
        line[99] = '\n';
        ck_assert_int_eq(fd_write_all(fd, line, 100), 0);
    }
}

char *size_text(char *p, double *bytes)
{
    static const char *const units[] = {" bytes", " KiB", " MiB"};
    char *end;
    *bytes = strtod(p, &end);
    for (size_t i = 0; i < 3; i++, *bytes *= 1024) {
        if (strncmp(end, units[i], strlen(units[i])) == 0)
            return end + strlen(units[i]);
    }
    ck_abort_msg("no size: %.60s", p);
}
