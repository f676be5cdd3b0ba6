/* The workers' cgroup: whose it is, and what is left of one. That the guardian removes a dead
 * agent's is test_guardian.c's. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/cgroup.h"

/* When guardian and agent are killed at once, the next agent removes their cgroup. */
START_TEST(a_cgroup_that_was_left_is_removed_by_the_next)
{
    struct cgroup *dead =
        mmap(NULL, sizeof(*dead), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct cgroup mine, next;
    ck_assert(dead != MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) {
        cgroup_open(dead);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    if (!dead->path[0]) {
        test_skip("no cgroup can be made here");
        return;
    }
    cgroup_open(&mine); /* another test's may have been before */
    ck_assert_int_eq(access(dead->path, F_OK), -1);
    pid = fork();
    if (pid == 0) {
        cgroup_open(&next);
        _exit(next.fd < 0 || access(mine.path, F_OK) < 0); /* not that of one who lives */
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    cgroup_close(&mine);
    cgroup_open(&mine); /* removes the child's */
    cgroup_close(&mine);
}
END_TEST

START_TEST(a_half_written_cgroup_path_is_not_believed)
{
    char own[256], path[300];
    if (!cgroup_own(NULL, own, sizeof(own), NULL)) {
        test_skip("no cgroup v2 here");
        return;
    }
    snprintf(path, sizeof(path), "%s/dlaunch.%d", own, 1234567);
    if (mkdir(path, 0755) < 0) {
        test_skip("no cgroup can be made here");
        return;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* or another test removes it */
    ck_assert(fd >= 0 && flock(fd, LOCK_SH) == 0);
    cgroup_kill_at(own, 1234567);
    cgroup_remove(path, 12345678);
    cgroup_remove(path, 234567);
    ck_assert_int_eq(access(path, F_OK), 0);
    cgroup_remove(path, 1234567);
    ck_assert_int_eq(access(path, F_OK), -1);
    close(fd);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    cgroup_remove("/sys/fs", 1234567); /* where it must have been */
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cgroup");
    TCase *tc = test_case(s, "cgroup", 20);
    tcase_add_test(tc, a_cgroup_that_was_left_is_removed_by_the_next);
    tcase_add_test(tc, a_half_written_cgroup_path_is_not_believed);
    return s;
}

TEST_MAIN(suite)
