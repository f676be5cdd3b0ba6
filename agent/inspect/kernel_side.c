#include "agent/inspect/kernel_side.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

/* System calls in which programs wait. fd: the argument that is a descriptor, -1: none. */
static const struct {
    int nr;
    const char *name;
    int fd;
} calls[] = {
    {SYS_read, "read", 0},
    {SYS_write, "write", 0},
    {SYS_readv, "readv", 0},
    {SYS_writev, "writev", 0},
    {SYS_pread64, "pread", 0},
    {SYS_pwrite64, "pwrite", 0},
    {SYS_ppoll, "ppoll", -1},
    {SYS_pselect6, "pselect", -1},
    {SYS_epoll_pwait, "epoll_pwait", -1},
    {SYS_futex, "futex", -1},
    {SYS_nanosleep, "nanosleep", -1},
    {SYS_clock_nanosleep, "clock_nanosleep", -1},
    {SYS_restart_syscall, KERNEL_SIDE_RESTARTED, -1},
    {SYS_recvfrom, "recv", 0},
    {SYS_recvmsg, "recvmsg", 0},
    {SYS_sendto, "send", 0},
    {SYS_sendmsg, "sendmsg", 0},
    {SYS_accept, "accept", 0},
    {SYS_accept4, "accept", 0},
    {SYS_connect, "connect", 0},
    {SYS_flock, "flock", 0},
    {SYS_fcntl, "fcntl", 0},
    {SYS_ioctl, "ioctl", 0},
    {SYS_fsync, "fsync", 0},
    {SYS_fdatasync, "fdatasync", 0},
    {SYS_fallocate, "fallocate", 0},
    {SYS_openat, "openat", -1},
    {SYS_wait4, "wait4", -1},
    {SYS_waitid, "waitid", -1},
    {SYS_rt_sigtimedwait, "sigwait", -1},
    {SYS_rt_sigsuspend, "sigsuspend", -1},
    {SYS_semtimedop, "semop", -1},
    {SYS_msgrcv, "msgrcv", -1},
    {SYS_io_getevents, "io_getevents", -1},
    {SYS_sched_yield, "sched_yield", -1},
    {SYS_tgkill, "tgkill", -1},
#ifdef SYS_futex_waitv
    {SYS_futex_waitv, "futex", -1},
#endif
#ifdef SYS_poll
    {SYS_poll, "poll", -1},
#endif
#ifdef SYS_select
    {SYS_select, "select", -1},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait", -1},
#endif
#ifdef SYS_vfork
    {SYS_vfork, "vfork", -1},
#endif
#ifdef SYS_pause
    {SYS_pause, "pause", -1},
#endif
};

/* "a pipe", "a socket", "/data/lock": the same on every rank that waits in the same. */
static void describe_fd(int pid, int fd, char *out, size_t cap)
{
    char path[64], link[200];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    ssize_t n = readlink(path, link, sizeof(link) - 1);
    link[n > 0 ? n : 0] = '\0';
    if (n <= 0)
        snprintf(out, cap, "descriptor %d", fd);
    else if (strncmp(link, "pipe:", 5) == 0)
        snprintf(out, cap, "a pipe");
    else if (strncmp(link, "socket:", 7) == 0)
        snprintf(out, cap, "a socket");
    else
        snprintf(out, cap, "%s", link);
}

static void read_call(int pid, struct sample_thread *t)
{
    char path[64], text[256], what[224];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", pid, t->tid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
        return;
    long nr;
    unsigned long long arg;
    if (sscanf(text, "%ld %llx", &nr, &arg) != 2 || nr < 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        if (calls[i].nr != nr)
            continue;
        if (calls[i].fd < 0) {
            snprintf(t->call, sizeof(t->call), "%s", calls[i].name);
        } else {
            describe_fd(pid, (int)arg, what, sizeof(what));
            snprintf(t->call, sizeof(t->call), "%s of %s", calls[i].name, what);
        }
        return;
    }
    snprintf(t->call, sizeof(t->call), "system call %ld", nr);
}

static void read_task(int pid, struct sample_thread *t)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, t->tid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
        return;
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close[1] != ' ')
        return;
    *close = '\0';
    snprintf(t->name, sizeof(t->name), "%s", open + 1);
    t->state = close[2];
    if (t->state == 'R')
        return;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/wchan", pid, t->tid);
    if (fd_read_file(AT_FDCWD, path, t->wchan, sizeof(t->wchan)) < 0 || strcmp(t->wchan, "0") == 0)
        t->wchan[0] = '\0';
    read_call(pid, t);
}

enum kernel_side_place kernel_side_place(int pid, char *call)
{
    static const char *const of_sockets[] = {"recv", "send", "accept", "connect"};
    struct sample_thread t = {.tid = pid};
    read_task(pid, &t);
    snprintf(call, SAMPLE_TEXT_MAX, "%s", t.call);
    if (t.state == 'R')
        return KERNEL_SIDE_CPU;
    if (t.state != 'S' && t.state != 'D')
        return KERNEL_SIDE_UNKNOWN;
    size_t len = strlen(t.call);
    if (len > 9 && strcmp(t.call + len - 9, " a socket") == 0)
        return KERNEL_SIDE_NETWORK;
    for (size_t i = 0; i < ARRAY_LEN(of_sockets); i++) {
        if (strncmp(t.call, of_sockets[i], strlen(of_sockets[i])) == 0)
            return KERNEL_SIDE_NETWORK;
    }
    return KERNEL_SIDE_DATA;
}

uint64_t kernel_side_cpu_ms(int pid)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void read_numbers(struct sample *s)
{
    char path[64], text[512];
    unsigned long long in, out;
    s->cpu_ms = kernel_side_cpu_ms(s->pid);
    snprintf(path, sizeof(path), "/proc/%d/io", s->pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) > 0 &&
        sscanf(text, "rchar: %llu wchar: %llu", &in, &out) == 2)
        s->io_bytes = in + out;
}

bool kernel_side_read(struct sample *s)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task", s->pid);
    DIR *d = opendir(path);
    if (!d)
        return false;
    read_task(s->pid, sample_add_thread(s, s->pid));
    for (struct dirent *e; (e = readdir(d));) {
        int tid = atoi(e->d_name);
        if (tid <= 0 || tid == s->pid)
            continue;
        if (s->nthreads == SAMPLE_THREADS_MAX)
            s->more_threads++;
        else
            read_task(s->pid, sample_add_thread(s, tid));
    }
    closedir(d);
    read_numbers(s);
    snprintf(s->program, sizeof(s->program), "%s", s->threads[0].name);
    return s->threads[0].state && s->threads[0].state != 'Z';
}
