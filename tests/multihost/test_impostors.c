/* Networks that lie about the end of a launcher: an address that another host takes over, forged
 * resets, a firewall that rejects. Workers of two rounds are never alive at the same time, by the
 * time stamps that they write themselves (tests/fake/stamps.c). */
#include "tests/multihost/hosts.h"

#include <dirent.h>
#include <fcntl.h>

#include "core/fd.h"
#include "tests/fake/stamps.h"

#define STRANGER   HOSTS /* a host without dlaunch */
#define STAMPS_MAX 64

static void setup(void)
{
    netns_setup(HOSTS + 1, -1);
    ck_assert_int_eq(mkdir(tmppath("stamps"), 0700), 0);
}

static int read_stamps(struct stamp *stamps)
{
    int n = 0;
    DIR *d = opendir(tmppath("stamps"));
    for (struct dirent *e; (e = readdir(d)) && n < STAMPS_MAX;) {
        size_t len;
        if (e->d_name[0] == '.')
            continue;
        _cleanup_fd_ int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
        len = fd < 0 ? 0 : (size_t)read(fd, &stamps[n], sizeof(stamps[n]));
        n += len == sizeof(stamps[n]) && stamps[n].start_ns != 0;
    }
    closedir(d);
    return n;
}

static bool same_round(const struct stamp *a, const struct stamp *b)
{
    return a->restart_count == b->restart_count && a->world_size == b->world_size &&
           a->master_port == b->master_port;
}

/* Returns how many rounds there were, by the workers of rank 0. */
static int check_rounds(void)
{
    struct stamp stamps[STAMPS_MAX];
    int n = read_stamps(stamps), rounds = 0;
    for (int i = 0; i < n; i++) {
        const struct stamp *a = &stamps[i];
        rounds += a->rank == 0;
        for (int k = 0; k < i; k++) {
            const struct stamp *b = &stamps[k];
            bool together = a->start_ns <= b->last_ns && b->start_ns <= a->last_ns;
            ck_assert_msg(!together || (same_round(a, b) && a->rank != b->rank),
                          "rank %d of %d on %.16s and rank %d of %d on %.16s were alive together",
                          a->rank, a->world_size, a->host, b->rank, b->world_size, b->host);
        }
    }
    return rounds;
}

/* ---------------------------------------------------------------------------------- the network */

static const char *mac_of(int host)
{
    struct proc p;
    netns_start(&p, host, ARGV("sh", "-c", "ip -o link show eth0 | sed 's/.*ether //;s/ .*//'"),
                NULL);
    ck_assert_int_eq(proc_wait(&p, 10), 0);
    p.out[strcspn(p.out, "\n")] = '\0';
    const char *mac = test_keep(xstrdup(p.out));
    proc_fini(&p);
    return mac;
}

/* The stranger answers at the address of the host, for all other hosts. */
static void take_address(int victim)
{
    const char *mac = mac_of(STRANGER);
    ck_assert_int_eq(netns_sh(STRANGER, "ip addr add %s/24 dev eth0", netns_addr(victim)), 0);
    for (int i = 0; i < HOSTS; i++)
        if (i != victim)
            ck_assert_int_eq(netns_sh(i, "ip neigh replace %s lladdr %s dev eth0 nud permanent",
                                      netns_addr(victim), mac),
                             0);
}

static void give_address_back(int victim)
{
    ck_assert_int_eq(netns_sh(STRANGER, "ip addr del %s/24 dev eth0", netns_addr(victim)), 0);
    for (int i = 0; i < HOSTS; i++)
        if (i != victim)
            ck_assert_int_eq(netns_sh(i, "ip neigh del %s dev eth0", netns_addr(victim)), 0);
}

static void reject(int host, const char *rule)
{
    ck_assert_int_eq(
        netns_sh(host,
                 "nft 'table inet faults { chain in { type filter hook input "
                 "priority 0; iif eth0 meta l4proto tcp %s reject with tcp reset; }; }'",
                 rule),
        0);
}

static void reject_all(int host)
{
    reject(host, "");
}

static void forge_resets(int host)
{
    reject(host, "numgen inc mod 10 < 1");
}

static void accept_all(int host)
{
    ck_assert_int_eq(netns_sh(host, "nft delete table inet faults"), 0);
}

static const struct {
    const char *name;
    void (*begin)(int host), (*end)(int host);
} lies[] = {
    {"address taken over", take_address, give_address_back},
    {"firewall that rejects", reject_all, accept_all},
    {"forged resets", forge_resets, accept_all},
};

/* ---------------------------------------------------------------------------------------- tests */

struct elapsed {
    uint64_t until_ns;
};

/* Returns at the deadline; until then checks the stamps all the time. */
static bool rounds_were_apart(void *arg)
{
    check_rounds();
    return mono_ns() >= ((struct elapsed *)arg)->until_ns;
}

static void check_rounds_for(double seconds)
{
    struct elapsed e = {mono_ns() + (uint64_t)(seconds * 1e9)};
    wait_until(rounds_were_apart, &e, seconds + 10, "the time is over");
}

/* The network of a host lies for 3 s: the host of the coordinator, or another one. Afterwards the
 * job goes on, with one round at a time, and ends as it should. */
START_TEST(rounds_do_not_overlap)
{
    int lie = _i / 2, victim = _i % 2;
    struct hosts h = {0};
    const char *preload = test_text("LD_PRELOAD=%s", build_path("tests/fake/stamps.so"));
    setenv("STAMPS", tmppath("stamps"), 1);
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i,
               "--elastic --nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint 10.77.0.1:29500 "
               "--max_restarts 5 %s env %s %%W append %%T/up wait %%T/go",
               ELASTIC, preload);
    wait_lines(tmppath("up"), HOSTS, 20);
    lies[lie].begin(victim);
    check_rounds_for(3);
    lies[lie].end(victim);
    check_rounds_for(DEAD_S);
    write_file(tmppath("go"), "");
    int right = 0;
    for (int i = 0; i < HOSTS; i++)
        right += proc_wait(&h.node[i], 40) == 0;
    ck_assert_msg(right >= 2, "%s, host%d: %d launchers ended with 0\n%s\n%s\n%s", lies[lie].name,
                  victim, right, h.node[0].err, h.node[1].err, h.node[2].err);
    ck_assert_int_ge(check_rounds(), 1);
    hosts_fini(&h);
}
END_TEST

/* ------------------------------------------------------------------- a launcher that waits ends */

static void say_nothing(int host)
{
    (void)host;
}

/* The host does not answer: neither to connections nor as a name server. */
static void unplug(int host)
{
    netns_cut(host);
}

static const struct {
    const char *name, *where;
    void (*begin)(int host);
} waits[] = {
    {"a silent listener, in the TLS handshake", "10.77.0.1", say_nothing},
    {"connecting", "10.77.0.1", unplug},
    {"resolving a name", "nowhere.example", unplug},
};

/* Host 0 is where the coordinator should be, and the name server. */
START_TEST(a_waiting_launcher_can_be_stopped)
{
    int wait = _i / 2, signo = _i % 2 ? SIGINT : SIGTERM;
    struct hosts h = {0};
    ck_assert_int_eq(netns_sh(1, "mount -t tmpfs resolv /mnt && "
                                 "echo 'nameserver 10.77.0.1' >/mnt/resolv && "
                                 "mount --bind /mnt/resolv /etc/resolv.conf"),
                     0);
    netns_start(&h.node[0], 0,
                ARGV("python3", "-c",
                     "import socket, time; s = socket.create_server(('', 29500)); "
                     "print('listening', flush=True); time.sleep(600)"),
                NULL);
    proc_expect_out(&h.node[0], "listening", 10);
    waits[wait].begin(0);
    launch(&h, 1, "--nnodes 2 --node_rank 1 --master_addr %s --master_port 29500 %%W append %%T/up",
           waits[wait].where);
    proc_expect_err(&h.node[1], test_text("waiting for the coordinator at %s", waits[wait].where),
                    10);
    proc_kill(&h.node[1], signo);
    int status = proc_wait(&h.node[1], 3);
    ck_assert_msg(status == 128 + signo, "%s: %d\n%s", waits[wait].name, status, h.node[1].err);
    netns_heal(0);
    hosts_fini(&h);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("impostors");
    if (!netns_available())
        return s;
    TCase *tc = test_case(s, "rounds", 120);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, rounds_do_not_overlap, 0, 2 * ARRAY_LEN(lies));
    tc = test_case(s, "stopping", 60);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, a_waiting_launcher_can_be_stopped, 0, 2 * ARRAY_LEN(waits));
    return s;
}

TEST_MAIN(suite)
