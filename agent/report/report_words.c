#include "agent/report/report_words.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "agent/base/text.h"
#include "agent/base/signals.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

void words_add(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t n = (size_t)vsnprintf(NULL, 0, fmt, ap);
    xbuf_reserve(b, n + 1);
    vsnprintf((char *)b->data + b->len, n + 1, fmt, again);
    b->len += n;
    va_end(again);
    va_end(ap);
}

void words_escaped(struct buf *b, const char *text)
{
    size_t len = strlen(text), cap = 4 * len + 8;
    xbuf_reserve(b, cap);
    b->len += log_escape((char *)b->data + b->len, cap, text, len, 0);
}

/* -------------------------------------------------------------------------------------- signals */

/* "SIGSEGV (segmentation fault)" */
static void words_signal(struct buf *b, int signo)
{
    char name[24];
    const char *meaning = signal_meaning(signo);
    words_add(b, meaning ? "%s (%s)" : "%s", signal_name(signo, name), meaning);
}

/* Whether another process usually sends this signal. */
static bool comes_from_outside(int signo)
{
    return signo == SIGKILL || signo == SIGTERM || signo == SIGINT || signo == SIGHUP ||
           signo == SIGQUIT;
}

/* -------------------------------------------------------------------------------------- numbers */

void words_duration(struct buf *b, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e12)) /* NaN, or an unknown clock */
        words_add(b, "an unknown time");
    else if (seconds < 99.95)
        words_add(b, "%.1f s", seconds);
    else if (seconds < 3600)
        words_add(b, "%d min %d s", (int)seconds / 60, (int)seconds % 60);
    else if (seconds < 48 * 3600)
        words_add(b, "%d h %d min", (int)seconds / 3600, (int)seconds / 60 % 60);
    else
        words_add(b, "%lld d %lld h", (long long)seconds / 86400, (long long)seconds / 3600 % 24);
}

void words_ranges(struct buf *b, const int *v, size_t n)
{
    for (size_t i = 0, last; i < n; i = last + 1) {
        for (last = i; last + 1 < n && v[last + 1] == v[last] + 1;)
            last++;
        words_add(b, i ? ", %d" : "%d", v[i]);
        if (last > i)
            words_add(b, last == i + 1 ? ", %d" : "-%d", v[last]);
    }
}

/* ---------------------------------------------------------------------------------- one failure */

void words_outcome(struct buf *b, const struct failure *f)
{
    switch (f->kind) {
    case FAILURE_EXIT:
        if (f->says_how)
            words_escaped(b, f->message);
        else
            words_add(b, "exited with code %d", f->exit_code);
        if (failure_is_early_exit(f))
            words_add(b, " while other workers needed it");
        break;
    case FAILURE_EXEC:
        words_add(b, "could not be started (exit code %d)", f->exit_code);
        break;
    case FAILURE_NODE:
        words_add(b, "was lost");
        break;
    case FAILURE_SIGNAL:
        words_add(b, "was killed by ");
        words_signal(b, f->signal);
        words_add(b, f->core_dumped ? ", core dumped" : "");
        break;
    case FAILURE_STOPPED:
    default:
        words_add(b, "was stopped by dlaunch");
        break;
    }
}

void words_outcome_short(struct buf *b, const struct failure *f)
{
    char name[24];
    switch (f->kind) {
    case FAILURE_EXIT:
        if (f->says_how)
            words_escaped(b, f->message);
        else
            words_add(b, "exit code %d", f->exit_code);
        if (failure_is_early_exit(f))
            words_add(b, ", before the others");
        if (f->mismatch && *f->operation) {
            words_add(b, ", in ");
            words_escaped(b, f->operation);
        }
        break;
    case FAILURE_EXEC:
        words_add(b, "could not be started (exit code %d)", f->exit_code);
        break;
    case FAILURE_NODE:
        words_add(b, "lost");
        break;
    case FAILURE_SIGNAL:
        words_add(b, "%s%s%s", signal_name(f->signal, name), f->core_dumped ? ", core dumped" : "",
                  f->oom ? ", out of memory" : "");
        break;
    case FAILURE_STOPPED:
    default:
        words_add(b, "stopped");
        break;
    }
    if (f->caused_by >= 0)
        words_add(b, ", after rank %d died", f->caused_by);
}

void words_cause(struct buf *b, const struct failure *f)
{
    if (f->gpu)
        words_add(b, "its GPU failed, or a link of it");
    else if (f->kind == FAILURE_SIGNAL && f->oom)
        words_add(b, "out of memory: the kernel killed the worker (cgroup oom_kill)");
    else if (f->kind == FAILURE_SIGNAL && (f->signal == SIGUSR1 || f->signal == SIGUSR2))
        words_add(
            b, "another process sent the signal, to the worker or to dlaunch, which forwards it");
    else if (f->kind == FAILURE_SIGNAL && comes_from_outside(f->signal))
        words_add(b, "killed by another process, not by dlaunch");
    else if (failure_is_early_exit(f))
        words_add(b, "the worker ended as if it had finished, and others failed for want of it");
    else if (f->mismatch)
        words_add(b, "the ranks called different operations");
    else if (f->kind == FAILURE_EXEC && *f->message)
        words_escaped(b, f->message);
    else if (f->kind == FAILURE_NODE && *f->message)
        words_escaped(b, f->message);
    else if (f->kind == FAILURE_NODE)
        words_add(b, "its launcher (pid %d) died or stopped answering", f->pid);
    if (f->caused_by >= 0)
        words_add(b, "%sfollowed the loss of rank %d", b->len ? "; " : "", f->caused_by);
}

/* ---------------------------------------------------------------------------------------- hints */

static void hint_shm(struct buf *b, bool own_node)
{
    struct statvfs v;
    char size[TEXT_BYTES_MAX], left[TEXT_BYTES_MAX];
    words_add(b, "SIGBUS often means that /dev/shm was full");
    if (own_node && statvfs("/dev/shm", &v) == 0)
        words_add(b, ": on this node it has %s, of which %s are free now",
                  text_bytes(size, (uint64_t)v.f_blocks * v.f_frsize),
                  text_bytes(left, (uint64_t)v.f_bavail * v.f_frsize));
    words_add(b, " (containers: --shm-size)");
}

static void hint_core(struct buf *b, const struct failure *f, bool own_node)
{
    char pattern[256];
    if (own_node &&
        fd_read_file(AT_FDCWD, "/proc/sys/kernel/core_pattern", pattern, sizeof(pattern)) > 0 &&
        strstr(pattern, "systemd-coredump"))
        words_add(b, "coredumpctl gdb %d opens the core dump", f->pid);
}

/* The kernel sends SIGXCPU at the soft limit of CPU time and SIGKILL at the hard one; `ulimit -t`
 * sets both. The workers have the limits of this process. Returns whether a limit explains the
 * signal. */
static bool hint_limit(struct buf *b, int signo, bool own_node)
{
    struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
    bool size = signo == SIGXFSZ;
    if ((!size && signo != SIGXCPU && signo != SIGKILL) || !own_node)
        return false;
    getrlimit(size ? RLIMIT_FSIZE : RLIMIT_CPU, &r);
    rlim_t limit = signo == SIGKILL ? r.rlim_max : r.rlim_cur;
    if (limit == RLIM_INFINITY)
        return false;
    words_add(b, "possible cause: the limit of %s (ulimit -%s) is %llu %s on this node",
              size ? "the size of a file" : "CPU time of a process", size ? "f" : "t",
              (unsigned long long)limit, size ? "bytes" : "s");
    return true;
}

/* Hints for error messages of programs. */
static const struct {
    const char *said, *hint;
} sayings[] = {
    {"CUDA out of memory", "the GPU's memory was full; nvidia-smi shows which processes use it"},
    {"ddress already in use",
     "the program tried to use a port that another process has (ss -ltnp shows which one); a "
     "program can use MASTER_PORT only with --master_store none"},
    {"unrecognized arguments: --local-rank",
     "the script accepts only --local_rank; it should read LOCAL_RANK from the environment"},
    {"unrecognized arguments: --local_rank",
     "the script accepts only --local-rank; it should read LOCAL_RANK from the environment"},
    {"No module named ",
     "scripts are run by the python3 in PATH; set PYTHON_EXEC to use another interpreter"},
    {"error while loading shared libraries",
     "ldd shows which library is missing; LD_LIBRARY_PATH adds folders to search"},
};

void words_hint(struct buf *b, const struct failure *f, bool own_node)
{
    char name[24];
    if (f->gpu) {
        words_add(b, "nvidia-smi -q and dcgmi diag -r 1 on that node show the state of its GPUs; a "
                     "restart leaves the node out if there are enough others (--spares, --nnodes)");
        return;
    }
    if (f->kind == FAILURE_SIGNAL) {
        if (f->oom)
            words_add(b,
                      "run fewer or smaller workers on that node, or give the cgroup more memory");
        else if (hint_limit(b, f->signal, own_node))
            return;
        else if (f->signal == SIGXCPU)
            words_add(b, "a limit of CPU time (ulimit -t, or one of a scheduler) was reached");
        else if (f->signal == SIGXFSZ)
            words_add(b, "a limit of the size of a file (ulimit -f) was reached");
        else if (f->signal == SIGKILL)
            words_add(b, "possible causes: a scheduler's limit, an operator, or the kernel's OOM "
                         "killer outside of dlaunch's cgroup (dmesg shows that)");
        else if (f->signal == SIGBUS)
            hint_shm(b, own_node);
        else if (f->core_dumped)
            hint_core(b, f, own_node);
        return;
    }
    if (f->kind != FAILURE_EXIT)
        return;
    for (size_t i = 0; i < ARRAY_LEN(sayings); i++) {
        if (strstr(f->stderr_tail, sayings[i].said) || strstr(f->message, sayings[i].said)) {
            words_add(b, "%s", sayings[i].hint);
            return;
        }
    }
    if (f->exit_code == 127)
        words_add(b, "a shell exits with 127 when it does not find a command");
    else if (f->exit_code == 126)
        words_add(b, "a shell exits with 126 when it may not execute a command");
    else if (f->exit_code > 128 && f->exit_code <= 128 + SIGRTMAX)
        words_add(b, "a shell exits with %d when %s kills its command", f->exit_code,
                  signal_name(f->exit_code - 128, name));
}
