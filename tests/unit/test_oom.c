/* Whether the kernel killed for memory, in a cgroup with a limit; and our own cgroup's place. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "agent/process/oom.h"
#include "core/fd.h"

#define MIB ((size_t)1 << 20)

static int put(const char *dir, const char *file, const char *text)
{
    char path[700];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -1 : fd_write_all(fd, text, strlen(text));
}

/* The signal that ended a process which touches so many bytes. */
static int touch_memory(size_t bytes)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; p != MAP_FAILED && i < bytes; i += 4096)
            p[i] = 1;
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

enum { FINE, CANNOT_ENTER, NO_COUNTER, TOO_EARLY, NOT_KILLED, NOT_SEEN, SEEN_TWICE, FALSE_ALARM };

static int in_small_cgroup(const char *dir)
{
    struct oom_watch w;
    int status;
    if (put(dir, "cgroup.procs", "0") < 0)
        return CANNOT_ENTER;
    oom_open(&w, NULL);
    if (w.fd < 0)
        return NO_COUNTER;
    if (oom_happened(&w) || touch_memory(1 * MIB) != 0 || oom_happened(&w))
        return TOO_EARLY;
    if (touch_memory(200 * MIB) != SIGKILL)
        return NOT_KILLED;
    if (!oom_happened(&w))
        return NOT_SEEN;
    if (oom_happened(&w))
        return SEEN_TWICE;
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGKILL);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    if (oom_happened(&w))
        return FALSE_ALARM;
    oom_close(&w);
    return FINE;
}

START_TEST(out_of_memory)
{
    char own[512], dir[600];
    if (!cgroup_own("memory", own, sizeof(own), NULL)) {
        test_skip("no cgroup v1 hierarchy of memory");
        return;
    }
    snprintf(dir, sizeof(dir), "%s/dlaunch-test.%d", own, (int)getpid());
    if (mkdir(dir, 0755) < 0) {
        test_skip("cannot make %s", dir);
        return;
    }
    if (put(dir, "memory.limit_in_bytes", "64M") < 0) {
        rmdir(dir);
        test_skip("cannot limit %s", dir);
        return;
    }
    put(dir, "memory.memsw.limit_in_bytes", "64M"); /* where there is swap */
    pid_t pid = fork();
    if (pid == 0)
        _exit(in_small_cgroup(dir));
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    rmdir(dir);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), FINE);
}
END_TEST

START_TEST(some_counter_is_found_here)
{
    struct oom_watch w;
    oom_open(&w, NULL);
    ck_assert_int_ge(w.fd, 0); /* the host's at least */
    ck_assert(!oom_happened(&w));
    oom_close(&w);
    ck_assert_int_eq(w.fd, -1);
    ck_assert(!oom_happened(&w));
    oom_close(&w);
}
END_TEST

START_TEST(our_own_cgroup_has_us_in_it)
{
    char dir[512], path[600], want[24];
    size_t mount_len = 0;
    const char *controller = _i == 0 ? NULL : _i == 1 ? "memory" : "pids";
    if (!cgroup_own(controller, dir, sizeof(dir), &mount_len)) {
        test_skip("no cgroup hierarchy of %s", controller ? controller : "v2");
        return;
    }
    ck_assert_uint_le(mount_len, strlen(dir));
    snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    char *procs = read_file(path);
    snprintf(want, sizeof(want), "\n%d\n", (int)getpid());
    ck_assert_msg(strstr(procs, want), "not in %s", dir);
    free(procs);
    ck_assert(!cgroup_own("no-such-controller", dir, sizeof(dir), NULL));
    ck_assert(!cgroup_own(controller, dir, 3, NULL));
}
END_TEST

START_TEST(a_cgroup_for_the_workers)
{
    struct cgroup cg;
    cgroup_open(&cg);
    if (cg.fd < 0) {
        test_skip("no cgroup can be made here");
        ck_assert_str_eq(cg.path, "");
        return;
    }
    char path[256];
    strcpy(path, cg.path);
    struct cgroup second;
    cgroup_open(&second); /* there is one already */
    ck_assert_int_eq(second.fd, -1);
    cgroup_close(&second);
    ck_assert_int_eq(access(path, F_OK), 0);

    pid_t pid = fork();
    if (pid == 0) {
        if (put(path, "cgroup.procs", "0") < 0)
            _exit(1);
        for (;;)
            pause();
    }
    char procs[300];
    snprintf(procs, sizeof(procs), "%s/cgroup.procs", path);
    for (bool in = false; !in;) {
        char *text = read_file(procs);
        in = *text != '\0';
        free(text);
    }
    cgroup_close(&cg); /* not empty: killed first */
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_str_eq(cg.path, "");
    cgroup_close(&cg);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("oom");
    TCase *tc = test_case(s, "oom", 60);
    tcase_add_test(tc, out_of_memory);
    tcase_add_test(tc, some_counter_is_found_here);
    tc = test_case(s, "cgroup", 60);
    tcase_add_loop_test(tc, our_own_cgroup_has_us_in_it, 0, 3);
    tcase_add_test(tc, a_cgroup_for_the_workers);
    return s;
}
TEST_MAIN(suite)
