/* What NCCL's RAS service (tests/fake/nccl_ras.c) and PyTorch's flight recorder say of the ranks of
 * whole jobs: dlaunchctl stacks shows it, and it decides who is named, where all stacks are alike.
 * The workers stand for PyTorch: they have loaded a library of NCCL's name and sleep as if they
 * waited for their devices. */
#include "tests/integration/job.h"

#include "tests/fake/nccl_ras.h"

enum { RANKS = 3, LATE = 1 };

static char *env[6];
static int g_port; /* of the service */

/* Prints its process id, then a line for each step; rank 1 begins the last operation not. The
 * thread is that of PyTorch, which looks into its pipe now and then. */
static const char script[] =
    "import mmap, os, pickle, sys, threading, time\n"
    "rank = os.environ['RANK']\n"
    "library = open(sys.argv[1] + '/libnccl.so.2', 'rb')\n"
    "mapping = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)\n"
    "def entry(number, state):\n"
    "    return {'record_id': number, 'pg_id': 0, 'process_group': ('0', 'default_pg'),\n"
    "            'collective_seq_id': number, 'p2p_seq_id': 0, 'op_id': number,\n"
    "            'profiling_name': 'nccl:all_reduce', 'time_created_ns': time.time_ns(),\n"
    "            'state': state, 'is_p2p': False, 'frames': []}\n"
    "entries = [entry(4, 'completed')] + ([] if rank == '1' else [entry(5, 'started')])\n"
    "def dump():\n"
    "    pipe = os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE'] + rank + '.pipe'\n"
    "    os.mkfifo(pipe)\n"
    "    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)\n"
    "    while True:\n"
    "        if os.read(fd, 128):\n"
    "            with open(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + rank, 'wb') as f:\n"
    "                pickle.dump({'version': '2.10', 'entries': entries}, f, 2)\n"
    "        time.sleep(0.05)\n"
    "if 'TORCH_NCCL_DEBUG_INFO_PIPE_FILE' in os.environ:\n"
    "    threading.Thread(target=dump, daemon=True).start()\n"
    "with open(sys.argv[1] + '/pid' + rank, 'w') as f:\n"
    "    f.write(str(os.getpid()))\n"
    "for step in range(40):\n"
    "    print('step', flush=True)\n"
    "    time.sleep(0.03)\n"
    "with open(sys.argv[1] + '/up', 'a') as f:\n"
    "    f.write('up\\n')\n"
    "def synchronize():\n"
    "    time.sleep(1000)\n"
    "synchronize()\n";

static void setup(void)
{
    memset(env, 0, sizeof(env));
    env[0] = test_text("XDG_RUNTIME_DIR=%s", tmpdir());
    write_file(tmppath("libnccl.so.2"), "NCCL");
    write_file(tmppath("t.py"), script);
}

static void use_service(void)
{
    g_port = free_port();
    env[1] = test_text("NCCL_RAS_ADDR=127.0.0.1:%d", g_port);
}

static void use_recorder(void)
{
    env[1] = "NCCL_RAS_ADDR=127.0.0.1:1"; /* nobody listens */
    env[2] = test_text("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=%s", tmppath("pipe_"));
    env[3] = test_text("TORCH_FR_DUMP_TEMP_FILE=%s", tmppath("dump_"));
}

/* The service of a job in which rank 1 has launched one operation less. */
static void serve(struct fake_ras *f)
{
    char *ranks = "";
    for (int i = 0; i < RANKS; i++) {
        int pid = atoi(text_of_file(tmppath(test_text("pid%d", i))));
        ranks = test_text("%s%s%s", ranks, i ? ", " : "",
                          fake_ras_rank(i, "127.0.0.1", pid, 0, i == LATE ? 4 : 5));
    }
    fake_ras_start(f, FAKE_RAS_GOOD, g_port, fake_ras_job(fake_ras_communicator("0xabc", ranks)));
}

static void start(struct proc *p, const char *options)
{
    dlaunch_start(p, env, "--nproc_per_node %d --fold off %s --no_python python3 %%T/t.py %%T",
                  RANKS, options);
    wait_lines(tmppath("up"), RANKS, 60);
}

static void end(struct proc *p)
{
    signal_until_end(p, SIGKILL, 60);
    proc_fini(p);
}

static json_t *stacks_of(const struct proc *p)
{
    struct proc ctl;
    proc_start(
        &ctl,
        ARGV(build_path("dlaunchctl"), "-p", test_text("%d", (int)p->pid), "stacks", "-o", "json"),
        env, 0);
    expect_status(&ctl, 0, 30);
    json_t *j = json_loads(ctl.out, 0, NULL);
    proc_fini(&ctl);
    return j;
}

struct look {
    const struct proc *p;
    json_t *stacks;
};

static const json_t *operation(const json_t *stacks, int rank)
{
    return json_object_get(json_array_get(json_object_get(stacks, "ranks"), (size_t)rank),
                           "operation");
}

/* A dump that is asked for helps those who look later. */
static bool all_are_known(void *arg)
{
    struct look *l = arg;
    bool known = true;
    json_decref(l->stacks);
    l->stacks = stacks_of(l->p);
    for (int i = 0; i < RANKS; i++)
        known &= operation(l->stacks, i) != NULL;
    return known;
}

static void expect_operations(const struct proc *p, const char *text)
{
    struct look l = {.p = p};
    wait_until(all_are_known, &l, 30, "the operations of all ranks");
    for (int i = 0; i < RANKS; i++) {
        const json_t *o = operation(l.stacks, i);
        ck_assert_str_eq(json_word(o, "text"), text);
        ck_assert_int_eq(json_is_true(json_object_get(o, "open")), i != LATE);
        ck_assert_int_eq(json_number(o, "seq"), i == LATE ? 4 : 5);
    }
    json_decref(l.stacks);
}

START_TEST(stacks_have_what_nccl_says)
{
    struct proc p;
    struct fake_ras f;
    use_service();
    start(&p, "");
    json_t *before = stacks_of(&p); /* nobody listens yet */
    ck_assert_ptr_null(operation(before, 0));
    json_decref(before);
    serve(&f);
    expect_operations(&p, "all_reduce in communicator 0xabc");
    fake_ras_end(&f);
    end(&p);
}
END_TEST

START_TEST(stacks_have_what_pytorch_says)
{
    struct proc p;
    use_recorder();
    start(&p, "");
    expect_operations(&p, "all_reduce in group 0");
    end(&p);
}
END_TEST

static void expect_named(struct proc *p, const char *waits)
{
    proc_expect_err(p, "the job hangs: rank 1 on ", 60);
    proc_expect_err(p, waits, 5);
}

START_TEST(nccl_decides_who_is_named)
{
    struct proc p;
    struct fake_ras f;
    use_service();
    start(&p, "--hang_after 0.5");
    serve(&f);
    expect_named(&p, "; ranks 0, 2 wait in all_reduce in communicator 0xabc #5");
    fake_ras_end(&f);
    end(&p);
}
END_TEST

START_TEST(pytorch_decides_who_is_named)
{
    struct proc p;
    use_recorder();
    start(&p, "--hang_after 0.5");
    expect_named(&p, "; ranks 0, 2 wait in all_reduce in group 0 #5");
    end(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hang_sources");
    TCase *t = test_case(s, "hang_sources", 240);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, stacks_have_what_nccl_says);
    tcase_add_test(t, stacks_have_what_pytorch_says);
    tcase_add_test(t, nccl_decides_who_is_named);
    tcase_add_test(t, pytorch_decides_who_is_named);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
