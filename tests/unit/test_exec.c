/* Why a program cannot be executed, in words: each case as a file, run through a real execve, and
 * checked beforehand. */
#include "tests/lib/test.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/exec_why.h"
#include "agent/process/spawn.h"
#include "core/fd.h"
#include "core/mem.h"

extern char **environ;

static struct err g_err;

/* Runs it for real. Returns the exit code, with g_err when the failure was ours. */
static int run(const char *path, char *const *argv, char *const *envp)
{
    struct spawner *s;
    struct err e = ERR_INIT;
    struct spawn_request req = {
        .path = path, .argv = argv, .envp = envp, .stdio = {0, 1, 2}, .cgroup_fd = -1};
    pid_t pid;
    int pidfd, status, code = -1;
    g_err = (struct err)ERR_INIT;
    ck_assert_int_eq(spawner_new(&s, &e), 0);
    ck_assert_msg(spawn(s, &req, &pid, &pidfd, &e) == 0, "%s", e.msg);
    close_fd(&pidfd);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    if (spawn_failure(s, pid, &code, &g_err))
        ck_assert_int_eq(code, WEXITSTATUS(status));
    spawner_free(s);
    return WEXITSTATUS(status);
}

static int run_plain(const char *path)
{
    return run(path, (char *[]){(char *)path, NULL}, environ);
}

/* execve() fails so, and exec_check() knows it before. */
static void expect(const char *path, int code, const char *text)
{
    struct err e = ERR_INIT;
    int check_code = -1;
    ck_assert_int_eq(run_plain(path), code);
    ck_assert_str_eq(g_err.msg, text);
    ck_assert_int_lt(exec_check(path, &check_code, &e), 0);
    ck_assert_int_eq(check_code, code);
    ck_assert_str_eq(e.msg, text);
}

/* The same of a program that the host may have a handler for: known before only where those can be
 * seen. Otherwise execve() decides. */
static void expect_foreign(const char *path, int code, const char *text)
{
    struct err e = ERR_INIT;
    int check_code;
    if (access("/proc/sys/fs/binfmt_misc/status", F_OK) == 0) {
        expect(path, code, text);
        return;
    }
    ck_assert_int_eq(run_plain(path), code);
    ck_assert_str_eq(g_err.msg, text);
    ck_assert_msg(exec_check(path, &check_code, &e) == 0, "%s", e.msg);
}

/* A file with these bytes, executable. */
static const char *program(const char *name, const void *bytes, size_t len)
{
    const char *path = tmppath(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fd_write_all(fd, bytes, len), 0);
    close(fd);
    ck_assert_int_eq(chmod(path, 0755), 0);
    return path;
}

static const char *script(const char *name, const char *text)
{
    return program(name, text, strlen(text));
}

/* /bin/true, to be spoilt. */
static size_t read_true(char **out)
{
    struct stat st;
    int fd = open("/bin/true", O_RDONLY | O_CLOEXEC);
    ck_assert(fd >= 0 && fstat(fd, &st) == 0);
    *out = xmalloc((size_t)st.st_size);
    ck_assert_int_eq(read(fd, *out, (size_t)st.st_size), st.st_size);
    close(fd);
    return (size_t)st.st_size;
}

START_TEST(programs_that_start)
{
    struct err e = ERR_INIT;
    int code;
    const char *paths[] = {"/bin/true", script("ok", "#!/bin/sh\nexit 0\n"),
                           script("ok2", "#! /usr/bin/env -S sh -e\nexit 0\n")};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        ck_assert_msg(exec_check(paths[i], &code, &e) == 0, "%s", e.msg);
        ck_assert_int_eq(run_plain(paths[i]), 0);
    }
}
END_TEST

START_TEST(not_found)
{
    expect("/no/such/train", 127, "exec /no/such/train: No such file or directory");
    const char *link = tmppath("link");
    ck_assert_int_eq(symlink("/no/such/target", link), 0);
    expect(
        link, 127,
        test_text("exec %s: No such file or directory (it is a symbolic link to /no/such/target)",
                  link));
    const char *below = test_text("%s/train", script("file", "#!/bin/sh\n"));
    expect(below, 127, test_text("exec %s: Not a directory", below));
    const char *loop = tmppath("loop");
    ck_assert_int_eq(symlink(loop, loop), 0);
    expect(loop, 126, test_text("exec %s: Too many levels of symbolic links", loop));
    char longest[400];
    memset(longest, 'a', sizeof(longest));
    memcpy(longest, "/tmp/", 5);
    longest[sizeof(longest) - 1] = '\0';
    ck_assert_int_eq(run_plain(longest), 126);
    ck_assert_msg(strstr(g_err.msg, ": File name too long"), "%s", g_err.msg);
}
END_TEST

START_TEST(not_permitted)
{
    const char *plain = tmppath("plain");
    write_file(plain, "#!/bin/sh\n");
    expect(plain, 126,
           test_text("exec %s: Permission denied (it is not executable; try: chmod +x %s)", plain,
                     plain));
    expect(tmpdir(), 126, test_text("exec %s: Permission denied (it is a directory)", tmpdir()));
    const char *fifo = tmppath("fifo");
    ck_assert_int_eq(mkfifo(fifo, 0755), 0);
    expect(fifo, 126, test_text("exec %s: Permission denied (it is not a regular file)", fifo));
}
END_TEST

START_TEST(scripts)
{
    const char *s = script("a", "#!/no/such/interp\n");
    expect(s, 127,
           test_text("exec %s: interpreter '/no/such/interp' in its first line not found", s));
    s = script("b", "#!/bin/sh\r\nexit 0\r\n");
    expect(s, 127,
           test_text("exec %s: its first line ends in a carriage return (DOS line ends), so that "
                     "interpreter '/bin/sh' is not found",
                     s));
    s = script("c", "#!   \nexit 0\n");
    expect(s, 126,
           test_text("exec %s: Exec format error (its first line names no interpreter)", s));
    s = script("d", "#!/etc/passwd\n");
    expect(
        s, 126,
        test_text("exec %s: interpreter '/etc/passwd' in its first line: Permission denied (it is "
                  "not executable; try: chmod +x /etc/passwd)",
                  s));
    s = script("e", "echo no first line\n");
    expect(s, 126,
           test_text("exec %s: Exec format error (it is a text without a '#!' line that names its "
                     "interpreter)",
                     s));
    s = script("f", "");
    expect(s, 126, test_text("exec %s: Exec format error (it is empty)", s));
    s = program("g", "\0\1\2\3", 4);
    expect_foreign(
        s, 126, test_text("exec %s: Exec format error (it is no program that this host knows)", s));
    char line[600];
    memset(line, 'x', sizeof(line));
    memcpy(line, "#!/", 3);
    line[sizeof(line) - 1] = '\0';
    s = script("h", line);
    expect(s, 126,
           test_text("exec %s: Exec format error (the interpreter's name in its first line is too "
                     "long)",
                     s));
    s = script("i", test_text("#!%s\n", tmppath("i"))); /* itself */
    ck_assert_int_eq(run_plain(s), 126);
    ck_assert_int_eq(g_err.code, -ELOOP);
}
END_TEST

START_TEST(elf_files)
{
    char *elf;
    size_t len = read_true(&elf);
    struct utsname host;
    uname(&host);
    Elf64_Ehdr *h = (Elf64_Ehdr *)elf, saved = *h;

    h->e_machine = EM_S390;
    const char *s = program("foreign", elf, len);
    expect_foreign(
        s, 126,
        test_text("exec %s: Exec format error (file is s390x, this host is %s)", s, host.machine));
    h->e_machine = 0x7777;
    s = program("unknown", elf, len);
    expect_foreign(
        s, 126,
        test_text("exec %s: Exec format error (file is for machine number 30583, this host is %s)",
                  s, host.machine));
    *h = saved;
    h->e_type = ET_REL;
    s = program("object", elf, len);
    expect(s, 126,
           test_text("exec %s: Exec format error (it is an ELF object file, not a program)", s));
    *h = saved;
    s = program("cut", elf, 70);
    expect(s, 126,
           test_text("exec %s: Exec format error (it is a damaged or truncated ELF file)", s));
    s = program("cut2", elf, 20);
    expect(s, 126,
           test_text("exec %s: Exec format error (it is a damaged or truncated ELF file)", s));
    h->e_phentsize = 1;
    s = program("bad", elf, len);
    expect(s, 126, test_text("exec %s: Exec format error (it is a damaged ELF file)", s));
    *h = saved;
    char *loader = memmem(elf, len, "/lib64/ld-", 10);
    if (loader) {
        memcpy(loader, "/nolib/", 7);
        s = program("loader", elf, len);
        expect(s, 127,
               test_text("exec %s: its loader %s is not installed on this host", s, loader));
        s = script("via", test_text("#!%s\n", s));
        ck_assert_int_eq(run_plain(s), 127);
        ck_assert_msg(strstr(g_err.msg, "is not installed on this host"), "%s", g_err.msg);
    } else {
        test_skip("/bin/true has no loader under /lib64");
    }
    free(elf);
}
END_TEST

/* With nothing registered, and where it cannot be seen what is. */
START_TEST(handlers_seen_and_unseen)
{
    static const char binfmt[] = "/proc/sys/fs/binfmt_misc";
    const char *alien = program("alien", "\0\1\2\3", 4), *text = script("text", "exit 0\n");
    struct err e = ERR_INIT;
    int code;
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", binfmt, "tmpfs", 0, NULL) < 0) {
        test_skip("needs root and a mount namespace");
        return;
    }
    ck_assert_msg(exec_check(alien, &code, &e) == 0, "%s", e.msg);
    ck_assert_int_lt(exec_check(text, &code, &e), 0);
    write_file(test_text("%s/status", binfmt), "enabled");
    ck_assert_int_lt(exec_check(alien, &code, &e), 0);
    write_file(test_text("%s/qemu-s390x", binfmt), "enabled");
    ck_assert_int_eq(exec_check(alien, &code, &e), 0);
    ck_assert_int_eq(exec_check(text, &code, &e), 0);
    umount(binfmt);
}
END_TEST

START_TEST(busy)
{
    char *elf;
    size_t len = read_true(&elf);
    const char *path = program("busy", elf, len);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(run_plain(path), 126);
    ck_assert_str_eq(g_err.msg,
                     test_text("exec %s: Text file busy (someone has it open for writing)", path));
    close(fd);
    ck_assert_int_eq(run_plain(path), 0);
    free(elf);
}
END_TEST

START_TEST(noexec_mount)
{
    const char *dir = tmppath("mnt"), *path = test_text("%s/train", dir);
    mkdir(dir, 0755);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", dir, "tmpfs", MS_NOEXEC, NULL) < 0) {
        test_skip("needs root: a file system mounted noexec");
        return;
    }
    write_file(path, "#!/bin/sh\n");
    chmod(path, 0755);
    expect(
        path, 126,
        test_text("exec %s: Permission denied (the file system %s is mounted noexec)", path, dir));
    umount(dir);
}
END_TEST

START_TEST(closed_directory)
{
    if (geteuid() != 0) {
        test_skip("needs root: a directory of someone else");
        return;
    }
    const char *dir = tmppath("closed"), *path = test_text("%s/train", dir);
    chmod(tmpdir(), 0755);
    mkdir(dir, 0700);
    write_file(path, "#!/bin/sh\n");
    pid_t pid = fork();
    if (pid == 0) {
        if (setgroups(0, NULL) < 0 || setresgid(65534, 65534, 65534) < 0 ||
            setresuid(65534, 65534, 65534) < 0)
            _exit(1);
        int ok =
            run_plain(path) == 126 &&
            strcmp(g_err.msg,
                   test_text("exec %s: Permission denied (the directory %s may not be searched)",
                             path, dir)) == 0;
        _exit(ok ? 0 : 2);
    }
    int status;
    waitpid(pid, &status, 0);
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

static char *of_size(const char *name, size_t len)
{
    char *s = (char *)test_text("%*s", (int)len, "");
    memset(s, 'v', len);
    memcpy(s, name, strlen(name));
    return s;
}

START_TEST(too_big)
{
    char *args[] = {"/bin/true", of_size("", 140000), NULL};
    ck_assert_int_eq(run("/bin/true", args, environ), 126);
    ck_assert_str_eq(g_err.msg, "exec /bin/true: Argument list too long (argument 1 has 136 KiB, "
                                "it may have at most 127 KiB)");
    char *plain[] = {"/bin/true", NULL};
    char *one[] = {"A=b", of_size("SECRET=", 200000), NULL};
    ck_assert_int_eq(run("/bin/true", plain, one), 126);
    ck_assert_str_eq(g_err.msg,
                     "exec /bin/true: Argument list too long (the variable SECRET has 195 KiB, "
                     "it may have at most 127 KiB)");
    char *many[101];
    for (int i = 0; i < 100; i++)
        many[i] = of_size(test_text("V%d=", i), i == 7 ? 130000 : 70000 + (size_t)i);
    many[100] = NULL;
    ck_assert_int_eq(run("/bin/true", plain, many), 126);
    ck_assert_msg(strstr(g_err.msg, "Argument list too long (arguments 18 bytes, environment "
                                    "6900 KiB, together at most "),
                  "%s", g_err.msg);
    ck_assert_msg(strstr(g_err.msg, "; largest: V7 126 KiB, V99 68 KiB, V98 68 KiB, V97 68 KiB, "
                                    "V96 68 KiB)"),
                  "%s", g_err.msg);
    ck_assert_msg(!strstr(g_err.msg, "vvvv"), "values may be secrets");
}
END_TEST

START_TEST(search_in_path)
{
    struct err e = ERR_INIT;
    const char *first = tmppath("first"), *second = tmppath("second");
    mkdir(first, 0755);
    mkdir(second, 0755);
    script("second/tool", "#!/bin/sh\n");
    script("second/plain", "#!/bin/sh\n");
    chmod(tmppath("second/plain"), 0644);
    mkdir(tmppath("first/tool"), 0755); /* a directory of that name does not count */
    ck_assert_int_eq(chdir(second), 0);
    setenv("PATH", test_text("/no/such:%s:%s", first, second), 1);

    char *found = exec_find("tool", &e);
    ck_assert_str_eq(found, test_text("%s/tool", second));
    free(found);
    ck_assert_ptr_null(exec_find("plain", &e));
    ck_assert_int_eq(e.code, -EACCES);
    ck_assert_str_eq(e.msg, test_text("exec plain: %s/plain may not be executed", second));
    ck_assert_ptr_null(exec_find("none", &e));
    ck_assert_int_eq(e.code, -ENOENT);
    ck_assert_str_eq(e.msg, "exec none: not found in PATH");
    ck_assert_ptr_null(exec_find("", &e));
    ck_assert_int_eq(e.code, -ENOENT);
    found = exec_find("./whatever", &e);
    ck_assert_str_eq(found, "./whatever");
    free(found);

    setenv("PATH", first, 1);
    ck_assert_ptr_null(exec_find("tool", &e)); /* the directory is none */
    ck_assert_str_eq(e.msg, "exec tool: not found in PATH (it is in this directory: ./tool)");
    ck_assert_ptr_null(exec_find(".", &e));
    ck_assert_str_eq(e.msg, "exec .: not found in PATH");
    setenv("PATH", test_text("%s:", first), 1); /* an empty entry is this directory */
    found = exec_find("tool", &e);
    ck_assert_str_eq(found, "./tool");
    free(found);
    unsetenv("PATH");
    found = exec_find("sh", &e);
    ck_assert_str_eq(found, "/bin/sh");
    free(found);
}
END_TEST

/* Like seccomp profiles of containers that do not list a system call: the call fails with EPERM. */
static void refuse(unsigned number)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = ARRAY_LEN(program), .filter = program};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

START_TEST(calls_that_a_container_refuses)
{
    struct err e = ERR_INIT;
    int code;
    script("plain", "#!/bin/sh\n");
    chmod(tmppath("plain"), 0644);
    refuse(SYS_faccessat2);
    refuse(SYS_clone3);
    ck_assert_msg(exec_check("/bin/true", &code, &e) == 0, "%s", e.msg);
    char *found = exec_find("sh", &e);
    ck_assert_msg(found, "%s", e.msg);
    free(found);
    ck_assert_int_eq(run_plain("/bin/true"), 0);
    ck_assert_int_lt(exec_check(tmppath("plain"), &code, &e), 0);
    ck_assert_int_eq(code, 126);
    ck_assert_ptr_nonnull(strstr(e.msg, "it is not executable"));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("exec");
    TCase *tc = test_case(s, "exec", 60);
    tcase_add_test(tc, programs_that_start);
    tcase_add_test(tc, not_found);
    tcase_add_test(tc, not_permitted);
    tcase_add_test(tc, scripts);
    tcase_add_test(tc, elf_files);
    tcase_add_test(tc, handlers_seen_and_unseen);
    tcase_add_test(tc, busy);
    tcase_add_test(tc, noexec_mount);
    tcase_add_test(tc, closed_directory);
    tcase_add_test(tc, too_big);
    tcase_add_test(tc, search_in_path);
    tcase_add_test(tc, calls_that_a_container_refuses);
    return s;
}
TEST_MAIN(suite)
