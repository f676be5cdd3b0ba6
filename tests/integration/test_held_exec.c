/* A file server that does not answer: execve() of a worker never returns. The kernel asks this
 * process about each such call of dlaunch and its workers, and gets no answer for one path. */
#include "tests/integration/job.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct held {
    pid_t pid;
    int listener; /* where the kernel asks */
    const char *path;
    atomic_int held; /* calls that are not answered */
    pthread_t thread;
};

static int install_filter(long call)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {ARRAY_LEN(f), f};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                        &program);
}

static bool is_held(const struct held *h, const struct seccomp_notif *n)
{
    char path[256] = "";
    int mem = open(test_text("/proc/%d/mem", n->pid), O_RDONLY | O_CLOEXEC);
    bool read = mem >= 0 && pread(mem, path, sizeof(path) - 1, (off_t)n->data.args[0]) > 0;
    close(mem);
    return read && strcmp(path, h->path) == 0;
}

static void *answer(void *arg)
{
    struct held *h = arg;
    struct pollfd f = {.fd = h->listener, .events = POLLIN};
    while (poll(&f, 1, -1) > 0 && !(f.revents & POLLHUP)) {
        struct seccomp_notif n = {0};
        if (ioctl(h->listener, SECCOMP_IOCTL_NOTIF_RECV, &n) < 0)
            continue; /* it was interrupted */
        struct seccomp_notif_resp r = {.id = n.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        if (is_held(h, &n))
            atomic_fetch_add(&h->held, 1);
        else
            ioctl(h->listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
    }
    return NULL;
}

/* dlaunch, in which this system call with `path` does not return. */
static void start_held(struct held *h, long call, const char *path, const char *line)
{
    int ready[2], number = -1;
    char **argv = dlaunch_argv("", line);
    *h = (struct held){.path = path};
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    h->pid = fork();
    ck_assert_int_ge(h->pid, 0);
    if (h->pid == 0) {
        int err = open(tmppath("err"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(err, 2);
        int listener = install_filter(call);
        if (write(ready[1], &listener, sizeof(listener)) == sizeof(listener))
            execv(argv[0], argv);
        _exit(127);
    }
    ck_assert_int_eq(read(ready[0], &number, sizeof(number)), (int)sizeof(number));
    if (number >= 0) { /* the child's exec may wait for its answer, so it is there */
        int pidfd = (int)syscall(SYS_pidfd_open, h->pid, 0);
        h->listener = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
        close(pidfd);
    }
    close(ready[0]);
    close(ready[1]);
    if (number < 0 || h->listener < 0) {
        kill(h->pid, SIGKILL);
        waitpid(h->pid, NULL, 0);
        h->pid = 0;
        test_skip("the kernel does not hand system calls over (seccomp)");
        return;
    }
    ck_assert_int_eq(pthread_create(&h->thread, NULL, answer, h), 0);
}

static bool both_are_held(void *arg)
{
    return atomic_load(&((struct held *)arg)->held) >= 2;
}

static int g_status;

static bool has_ended(void *arg)
{
    return waitpid(((struct held *)arg)->pid, &g_status, WNOHANG) > 0;
}

static void expect_end(struct held *h, int status, double seconds)
{
    wait_until(has_ended, h, seconds, "the end of dlaunch");
    ck_assert_int_eq(WEXITSTATUS(g_status), status);
    ck_assert_int_eq(pthread_join(h->thread, NULL), 0); /* no process of the job is left */
    close(h->listener);
}

static void start_case(struct held *h, const char *options)
{
    write_file(tmppath("program"), "#!/bin/sh\n");
    ck_assert_int_eq(chmod(tmppath("program"), 0755), 0);
    start_held(h, SYS_execve, tmppath("program"),
               test_text("--nproc_per_node 2 %s --no_python %%T/program", options));
    if (h->pid)
        wait_until(both_are_held, h, 20, "both workers are held");
}

START_TEST(a_stop_signal_and_its_grace)
{
    struct held h;
    start_case(&h, "--shutdown_timeout 0.5");
    if (!h.pid)
        return;
    kill(h.pid, SIGTERM);
    expect_end(&h, 128 + SIGTERM, 5);
}
END_TEST

START_TEST(a_second_stop_signal)
{
    struct held h;
    start_case(&h, "--shutdown_timeout 600");
    if (!h.pid)
        return;
    kill(h.pid, SIGTERM);
    test_elapse(0.6); /* else it is the same request */
    kill(h.pid, SIGTERM);
    expect_end(&h, 128 + SIGTERM, 5);
}
END_TEST

START_TEST(a_timeout)
{
    struct held h;
    start_case(&h, "--shutdown_timeout 0.5 --timeout 2");
    if (h.pid)
        expect_end(&h, 124, 20);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("held_exec");
    TCase *tc = test_case(s, "held exec", 60);
    tcase_add_test(tc, a_stop_signal_and_its_grace);
    tcase_add_test(tc, a_second_stop_signal);
    tcase_add_test(tc, a_timeout);
    return s;
}

TEST_MAIN(suite)
