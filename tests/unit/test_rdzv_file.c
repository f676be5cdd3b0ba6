/* The rendezvous by a file. */
#include "tests/lib/rdzv_nodes.h"

#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "rendezvous/discovery/rdzv_probe.h"
#include "rendezvous/rules/rdzv_msg.h"

/* ----------------------------------------------------------------------------------------- file */

static void file_config(int i, const char *path, int min, int max)
{
    config_of(i, RDZV_FILE, 0, min, max)->endpoint_path = path;
    nodes[i].config.endpoint_host = NULL;
}

START_TEST(file_nodes_meet)
{
    const char *path = tmppath("rdzv");
    for (int i = 0; i < 3; i++) {
        file_config(i, path, 3, 3);
        nodes[i].config.run_id = "a job with blanks and 100%";
        open_node(i);
    }
    wait_runs(0, 2, 1);
    char *text = read_file(path);
    HAS(text, "dlaunch-rendezvous 1 a%20job%20with%20blanks%20and%20100%25 ");
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    free(text);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].prepares, 1);
        rdzv_done(nodes[i].r);
    }
    wait_finished(0, 2);
    for (int i = 0; i < 3; i++) {
        rdzv_close(nodes[i].r, on_closed, &nodes[i]);
        nodes[i].r = NULL;
    }
    for (int i = 0; i < 3; i++)
        loop_run_until(&loop, &nodes[i].closed, 10, "close");
    ck_assert_int_lt(access(path, F_OK), 0); /* nothing is left */
    char *others = xasprintf("ls -A %s | wc -l | grep -qx 0", tmpdir());
    ck_assert_int_eq(system(others), 0);
    free(others);
}
END_TEST

/* The file holds as many addresses as fit; the configured one comes first, and once. */
START_TEST(file_of_a_host_with_many_addresses)
{
    const char *path = tmppath("rdzv");
    if (!enter_network_of(20)) {
        test_skip("no network namespace to be had");
        return;
    }
    for (int i = 0; i < 2; i++) {
        file_config(i, path, 2, 2);
        nodes[i].config.local_addr = "10.0.0.3";
        open_node(i);
    }
    wait_runs(0, 1, 1);
    char *text = read_file(path), *list = strstr(text, " 10.0.0.3,");
    ck_assert_msg(list, "%s", text);
    ck_assert_ptr_null(strstr(list + 2, "10.0.0.3,"));
    int others = 0;
    for (char *p = list + 2; (p = strstr(p, "10.0.0.")); p++)
        others++;
    ck_assert_msg(others >= 14, "%s", text);
    free(text);
}
END_TEST

static bool somebody_listens(void *arg)
{
    struct rdzv_identity id;
    struct netaddr a;
    netaddr_parse_ip(&a, "127.0.0.1", *(int *)arg);
    return rdzv_probe(&a, 1000, NULL, &id) == 0;
}

START_TEST(file_that_was_left_behind_is_taken_over)
{
    const char *path = tmppath("rdzv");
    file_config(0, path, 1, 2);
    file_config(1, path, 1, 2);
    for (int i = 0; i < 2; i++)
        nodes[i].config.last_call_timeout = 0.1;
    pid_t pid = fork_node(0);
    expect_child('r');
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    open_node(1);
    wait_runs(1, 1, 1);
    HAS(logs, "was left behind by host node0, pid ");
    /* Also when it says that it was on another machine, and nobody answers there. */
    rdzv_close(nodes[1].r, on_closed, &nodes[1]);
    loop_run_until(&loop, &nodes[1].closed, 10, "close");
    char line[256];
    snprintf(line, sizeof(line),
             "dlaunch-rendezvous 1 job 0123456789abcdef %d 127.0.0.1 far 77 elsewhere:net:[1]\n",
             unused_port());
    write_file(path, line);
    file_config(2, path, 1, 1);
    nodes[1].r = NULL;
    open_node(2);
    wait_runs(2, 2, 1);
    HAS(logs, "was left behind by host far, pid 77");
}
END_TEST

/* The lock of the file is free, but the coordinator that is named in it, on another machine with
 * these addresses, answers. */
static void join_by_a_file_of(const char *addrs)
{
    const char *path = tmppath("rdzv");
    int port = unused_port();
    config_of(1, RDZV_FILE, port, 2, 2)->endpoint_path = tmppath("theirs");
    nodes[1].config.endpoint_host = NULL;
    pid_t pid = fork_node(1);
    wait_until(somebody_listens, &port, 10, "the other one listens");
    char line[256];
    snprintf(line, sizeof(line),
             "dlaunch-rendezvous 1 job 0123456789abcdef %d %s far 77 elsewhere:net:[1]\n", port,
             addrs);
    write_file(path, line);
    file_config(0, path, 2, 2);
    open_node(0);
    wait_runs(0, 0, 1);
    expect_child('r');
    struct rdzv_info info;
    rdzv_get_info(nodes[0].r, &info);
    ck_assert(!info.coordinator);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

START_TEST(file_whose_locks_do_not_reach_here)
{
    join_by_a_file_of("127.0.0.1");
}
END_TEST

/* One address has a scope that does not exist on this host; the other one is reachable. */
START_TEST(file_with_an_address_of_another_hosts_interface)
{
    join_by_a_file_of("fe80::1%25nosuch0,127.0.0.1");
}
END_TEST

START_TEST(file_of_another_job)
{
    const char *path = tmppath("rdzv");
    file_config(0, path, 2, 2);
    file_config(1, path, 2, 2);
    file_config(2, path, 2, 2);
    nodes[2].config.run_id = "other";
    open_node(0);
    open_node(1);
    wait_runs(0, 1, 1);
    open_node(2);
    wait_finished(2, 2);
    ck_assert_int_eq(nodes[2].result.exit_code, 2);
    HAS(nodes[2].result.text, "belongs to job 'job'");
}
END_TEST

START_TEST(a_foreign_file_is_left_alone)
{
    static const char *const contents[] = {"my notes\n",
                                           "dlaunch-rendezvous 1 job",
                                           "dlaunch-rendezvous 2 job 0 1 127.0.0.1 h 1 m\n",
                                           "dlaunch-rendezvous 1 job 0 1 nonsense h 1 m\n",
                                           "dlaunch-rendezvous 1 job 0 99999 127.0.0.1 h 1 m\n",
                                           "dlaunch-rendezvous 1 j%zz 0 1 127.0.0.1 h 1 m\n"};
    for (size_t i = 0; i < ARRAY_LEN(contents); i++) {
        char name[16];
        snprintf(name, sizeof(name), "f%zu", i);
        const char *path = tmppath(name);
        write_file(path, contents[i]);
        file_config((int)i, path, 1, 1);
        open_node((int)i);
        wait_finished((int)i, (int)i);
        HAS(nodes[i].result.text, "not a rendezvous file");
        char *text = read_file(path);
        ck_assert_str_eq(text, contents[i]);
        free(text);
    }
    file_config(20, tmpdir(), 1, 1);
    open_node(20);
    wait_finished(20, 20);
    HAS(nodes[20].result.text, "cannot open");
    file_config(21, tmppath("no/such/dir"), 1, 1);
    open_node(21);
    wait_finished(21, 21);
    HAS(nodes[21].result.text, "No such file or directory");
}
END_TEST

#define STRANGER 12345

/* A folder like /tmp, and what another user puts there under `name`. */
static const char *plant(int kind, const char *name)
{
    const char *shared = tmppath("shared"), *path = test_text("%s/%s", shared, name);
    const char *victim = tmppath("victim");
    ck_assert_int_eq(chmod(tmpdir(), 0755), 0);
    ck_assert_int_eq(mkdir(shared, 0777), 0);
    ck_assert_int_eq(chmod(shared, 01777), 0);
    write_file(victim, "");
    if (kind == 0) {
        ck_assert_int_eq(symlink(victim, path), 0);
    } else if (kind == 1) {
        ck_assert_int_eq(mkfifo(path, 0666), 0);
    } else if (kind == 2) {
        write_file(path, "dlaunch-rendezvous 1 job 0 9 127.0.0.1 far 77 elsewhere:net:[1]\n");
    } else {
        ck_assert_int_eq(mkdir(path, 0777), 0);
        ck_assert_int_eq(chown(path, STRANGER, STRANGER), 0);
        ck_assert_int_eq(symlink(victim, test_text("%s/rdzv", path)), 0);
        path = test_text("%s/rdzv", path);
    }
    ck_assert_int_eq(lchown(path, STRANGER, STRANGER), 0);
    return path;
}

START_TEST(a_file_that_another_user_planted_is_refused)
{
    if (geteuid() != 0) {
        test_skip("a file of another user takes root");
        return;
    }
    const char *path = plant(_i, "rdzv");
    file_config(0, path, 1, 1);
    open_node(0);
    wait_finished(0, 0);
    HAS(nodes[0].result.text, path);
    HAS(nodes[0].result.text, "of another user (uid 12345)");
    ck_assert_int_eq(nodes[0].prepares, 0);
}
END_TEST

/* A file server that maps root to another user ("root squash") shows root's own files as files of
 * that user. The file system's user of this thread, and of the threads that it starts, has the same
 * effect. */
START_TEST(files_on_a_server_that_maps_root)
{
    if (geteuid() != 0) {
        test_skip("a file of another user takes root");
        return;
    }
    const char *shared = tmppath("shared");
    ck_assert_int_eq(chmod(tmpdir(), 0755), 0);
    ck_assert_int_eq(mkdir(shared, 0777), 0);
    ck_assert_int_eq(chmod(shared, 01777), 0);
    setfsuid(65534);
    const char *path = test_text("%s/%s", shared, _i ? "folder/rdzv" : "rdzv");
    if (_i)
        ck_assert_int_eq(mkdir(test_text("%s/folder", shared), 0755), 0);
    for (int i = 0; i < 2; i++) {
        file_config(i, path, 2, 2);
        open_node(i);
    }
    wait_runs(0, 1, 1);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_uid, 65534);
    setfsuid(0);
}
END_TEST

START_TEST(file_on_a_full_disk)
{
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 10;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    file_config(0, tmppath("rdzv"), 1, 1);
    open_node(0);
    wait_finished(0, 0);
    setrlimit(RLIMIT_FSIZE, &old);
    HAS(nodes[0].result.text, "cannot write");
    rdzv_close(nodes[0].r, on_closed, &nodes[0]);
    nodes[0].r = NULL;
    loop_run_until(&loop, &nodes[0].closed, 10, "close");
    char *left = xasprintf("ls -A %s | wc -l | grep -qx 0", tmpdir());
    ck_assert_int_eq(system(left), 0);
    free(left);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_file");
    TCase *tc = net_case(s, "file", 30);
    tcase_add_test(tc, file_nodes_meet);
    tcase_add_test(tc, file_of_a_host_with_many_addresses);
    tcase_add_test(tc, file_with_an_address_of_another_hosts_interface);
    tcase_add_test(tc, file_that_was_left_behind_is_taken_over);
    tcase_add_test(tc, file_whose_locks_do_not_reach_here);
    tcase_add_test(tc, file_of_another_job);
    tcase_add_test(tc, a_foreign_file_is_left_alone);
    tcase_add_loop_test(tc, a_file_that_another_user_planted_is_refused, 0, 4);
    tcase_add_loop_test(tc, files_on_a_server_that_maps_root, 0, 2);
    tcase_add_test(tc, file_on_a_full_disk);
    return s;
}

TEST_MAIN(suite)
