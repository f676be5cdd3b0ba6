#include "tests/lib/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "tests/lib/test.h"

extern char **environ;

static void set_env(char *const env[])
{
    for (; env && *env; env++) {
        char *copy = xstrdup(*env), *eq = strchr(copy, '=');
        if (eq) {
            *eq = '\0';
            setenv(copy, eq + 1, 1);
        } else {
            unsetenv(copy);
        }
        free(copy);
    }
}

void proc_start(struct proc *p, char *const argv[], char *const env[], unsigned flags)
{
    int out[2], err[2], in[2] = {-1, -1};
    memset(p, 0, sizeof(*p));
    const char *base = strrchr(argv[0], '/');
    snprintf(p->name, sizeof(p->name), "%s", base ? base + 1 : argv[0]);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(err, O_CLOEXEC), 0);
    if (flags & PROC_STDIN)
        ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    fflush(stdout);
    p->pid = fork();
    ck_assert_int_ge(p->pid, 0);
    if (p->pid == 0) {
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDONLY);
        dup2(flags & PROC_STDIN ? in[0] : null, 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        set_env(env);
        execvp(argv[0], argv);
        fprintf(stderr, "exec %s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    close_fd(&in[0]);
    p->out_fd = out[0];
    p->err_fd = err[0];
    p->in_fd = in[1];
    fd_set_nonblock(p->out_fd, true);
    fd_set_nonblock(p->err_fd, true);
    p->out = xstrdup("");
    p->err = xstrdup("");
}

static void drain(int *fd, char **text, size_t *len)
{
    char chunk[65536];
    while (*fd >= 0) {
        ssize_t n = read(*fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return; /* nothing now */
        if (n == 0) {
            close_fd(fd);
            return;
        }
        *text = xrealloc(*text, *len + (size_t)n + 1);
        memcpy(*text + *len, chunk, (size_t)n);
        *len += (size_t)n;
        (*text)[*len] = '\0';
    }
}

bool proc_poll(struct proc *p)
{
    if (!p->exited && waitpid(p->pid, &p->status, WNOHANG) == p->pid)
        p->exited = true;
    drain(&p->out_fd, &p->out, &p->out_len);
    drain(&p->err_fd, &p->err, &p->err_len);
    return p->exited && p->out_fd < 0 && p->err_fd < 0;
}

static void nap(struct proc *p)
{
    struct pollfd fds[2] = {{p->out_fd, POLLIN, 0}, {p->err_fd, POLLIN, 0}};
    poll(fds, 2, 2);
}

/* The end of a stream, as much as fits in a message of Check. */
static const char *end_of(const char *text)
{
    enum { SHOWN = 3000 };
    size_t len = strlen(text);
    return len > SHOWN ? text + len - SHOWN : text;
}

static void expect(struct proc *p, char **stream, const char *which, const char *text,
                   double seconds)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(seconds) * 1e9);
    for (;;) {
        bool over = proc_poll(p);
        if (strstr(*stream, text))
            return;
        if (over || mono_ns() > end) {
            char *msg = xasprintf("%s: \"%s\" not on %s %s\n--- stdout\n%s\n--- stderr\n%s",
                                  p->name, text, which, over ? "when it ended" : "in time",
                                  end_of(p->out), end_of(p->err));
            if (!over)
                proc_kill(p, SIGKILL);
            ck_abort_msg("%s", msg);
        }
        nap(p);
    }
}

void proc_expect_out(struct proc *p, const char *text, double seconds)
{
    expect(p, &p->out, "stdout", text, seconds);
}

void proc_expect_err(struct proc *p, const char *text, double seconds)
{
    expect(p, &p->err, "stderr", text, seconds);
}

int proc_wait(struct proc *p, double seconds)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(seconds) * 1e9);
    while (!proc_poll(p)) {
        if (mono_ns() > end) {
            proc_kill(p, SIGKILL);
            ck_abort_msg("%s (pid %d) %s after %.1f s\n--- stdout\n%s\n--- stderr\n%s", p->name,
                         p->pid,
                         p->exited ? "has exited but its output is held open" : "has not ended",
                         test_seconds(seconds), end_of(p->out), end_of(p->err));
        }
        nap(p);
    }
    return WIFSIGNALED(p->status) ? 128 + WTERMSIG(p->status) : WEXITSTATUS(p->status);
}

void proc_kill(struct proc *p, int signo)
{
    if (!p->exited)
        kill(p->pid, signo);
}

void proc_fini(struct proc *p)
{
    if (!p->exited) {
        kill(-p->pid, SIGKILL);
        waitpid(p->pid, &p->status, 0);
        p->exited = true;
    }
    close_fd(&p->out_fd);
    close_fd(&p->err_fd);
    close_fd(&p->in_fd);
    free(p->out);
    free(p->err);
    p->out = p->err = NULL;
}

int proc_run(struct proc *p, char *const argv[], char *const env[], double seconds)
{
    proc_start(p, argv, env, 0);
    return proc_wait(p, seconds);
}

static bool is_zombie(const char *pid)
{
    char path[64], stat[512];
    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    if (fd_read_file(AT_FDCWD, path, stat, sizeof(stat)) < 0)
        return true;
    char *paren = strrchr(stat, ')');
    return paren && paren[2] == 'Z';
}

int count_processes_with_env(const char *name_value)
{
    static char env[1 << 20];
    size_t want = strlen(name_value) + 1;
    int n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *de; (de = readdir(d));) {
        char path[64];
        if (de->d_name[0] < '0' || de->d_name[0] > '9')
            continue;
        snprintf(path, sizeof(path), "/proc/%.20s/environ", de->d_name);
        ssize_t len = fd_read_file(AT_FDCWD, path, env, sizeof(env));
        if (len <= 0 || is_zombie(de->d_name))
            continue;
        for (char *s = env; s < env + len; s += strlen(s) + 1) {
            if (strncmp(s, name_value, want) == 0) {
                n++;
                break;
            }
        }
    }
    closedir(d);
    return n;
}
