/* What NCCL's RAS service and PyTorch's flight recorder say of operations: tests/unit/data has a
 * dump of PyTorch 2.15's, and Python's own pickle writes others. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/inspect/nccl_ras.h"
#include "agent/inspect/pickle.h"
#include "agent/inspect/torch_recorder.h"
#include "agent/stacks/verdict.h"
#include "core/clock.h"
#include "core/mem.h"
#include "tests/fake/nccl_ras.h"

/* --------------------------------------------------------------------------------------- pickle */

static char *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s", path);
    char *p = xcalloc(1, 1 << 20);
    *len = fread(p, 1, 1 << 20, f);
    fclose(f);
    return test_keep(p);
}

/* What the Python expression gives, pickled. False: there is no Python. */
static bool pickled(const char *expression, int protocol, char **data, size_t *len)
{
    char *script = test_text("import pickle,sys\nsys.stdout.buffer.write(pickle.dumps(%s, %d))",
                             expression, protocol);
    write_file(tmppath("script.py"), script);
    if (system(test_text("python3 %s >%s", tmppath("script.py"), tmppath("data"))) != 0)
        return false;
    *data = slurp(tmppath("data"), len);
    return true;
}

START_TEST(plain_data)
{
    char *data, text[64];
    size_t len;
    for (int protocol = 2; protocol <= 5; protocol++) {
        if (!pickled("{'a': [1, 300, 70000, -5, 2**40, -2**40], 'b': (True, False, None), 'c': 2.5,"
                     " 'd': 'x' * 300, 'e': {}, 'f': [[], ()], 'g': list(range(2500))}",
                     protocol, &data, &len)) {
            test_skip("python3 is not installed");
            return;
        }
        struct pickle *p = pickle_read(data, len);
        ck_assert_ptr_nonnull(p);
        const struct pickle_value *root = pickle_root(p), *a = pickle_get(root, "a");
        static const int64_t numbers[] = {1, 300, 70000, -5, 1ll << 40, -(1ll << 40)};
        ck_assert_uint_eq(a->n, ARRAY_LEN(numbers));
        const struct pickle_item *item = a->first;
        for (size_t i = 0; i < ARRAY_LEN(numbers); i++, item = item->next)
            ck_assert_int_eq(item->value->number, numbers[i]);
        const struct pickle_item *b = pickle_get(root, "b")->first;
        ck_assert_int_eq(pickle_number(b->value, 7), 1);
        ck_assert_int_eq(pickle_number(b->next->value, 7), 0);
        ck_assert_int_eq(pickle_number(b->next->next->value, 7), 7);
        ck_assert(pickle_get(root, "c")->real == 2.5);
        pickle_text(pickle_get(root, "d"), text, sizeof(text));
        ck_assert_uint_eq(strspn(text, "x"), sizeof(text) - 1);
        ck_assert_uint_eq(pickle_get(root, "g")->n, 2500);
        ck_assert_ptr_null(pickle_get(root, "h"));
        pickle_free(p);
    }
}
END_TEST

/* What would call something, or holds something else; and a list that holds itself is no trouble.
 */
START_TEST(what_is_refused)
{
    static const char *const refused[] = {"print", "{1, 2}", "b'x'", "complex(1, 2)", "range"};
    char *data;
    size_t len;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (!pickled(refused[i], 2, &data, &len)) {
            test_skip("python3 is not installed");
            return;
        }
        ck_assert_msg(pickle_read(data, len) == NULL, "%s", refused[i]);
    }
    static const char call[] = "\x80\x02"
                               "cposix\nsystem\nX\x04\0\0\0true\x85R.";
    ck_assert_ptr_null(pickle_read(call, sizeof(call) - 1));
    static const char itself[] = "\x80\x02]q\0h\0a.";
    struct pickle *p = pickle_read(itself, sizeof(itself) - 1);
    ck_assert_ptr_nonnull(p);
    pickle_free(p);
    static const char *const broken[] = {"",
                                         ".",
                                         "\x80\x01N.",
                                         "\x80\x02(.",
                                         "\x80\x02h\x05.",
                                         "\x80\x02Na.",
                                         "\x80\x02NNs.",
                                         "\x80\x02t.",
                                         "\x80\x02R."};
    for (size_t i = 0; i < ARRAY_LEN(broken); i++)
        ck_assert_ptr_null(pickle_read(broken[i], strlen(broken[i])));
    static const char marks[] = "\x80\x02(((((((((((((((((((((((((((((((((((((((((";
    ck_assert_ptr_null(pickle_read(marks, sizeof(marks) - 1));
}
END_TEST

/* -------------------------------------------------------------------------------------- recorder
 */

#define ENTRY(id, state)                                                                \
    "{'record_id': " id ", 'pg_id': 0, 'process_group': ('0', 'default_pg'), "          \
    "'collective_seq_id': " id ", 'p2p_seq_id': 0, 'op_id': " id ", 'profiling_name': " \
    "'nccl:all_reduce', 'time_created_ns': 1000000000, 'input_sizes': [[1024]], "       \
    "'input_dtypes': ['Float'], 'output_sizes': [[1024]], 'output_dtypes': ['Float'], " \
    "'state': '" state "', 'timeout_ms': 600000, 'is_p2p': False, 'retired': False, "   \
    "'frames': [{'name': 'step', 'filename': 't.py', 'line': 9}]}"
#define DUMP(entries) "{'version': '2.10', 'pg_config': {}, 'entries': [" entries "]}"

static bool parsed(const char *expression, struct sample_op *op)
{
    char *data;
    size_t len;
    return pickled(expression, 2, &data, &len) && torch_recorder_parse(data, len, 3000000000u, op);
}

START_TEST(the_operation_of_a_dump)
{
    struct sample_op op;
    if (!parsed(DUMP(ENTRY("4", "completed") ", " ENTRY("5", "completed")), &op)) {
        test_skip("python3 is not installed");
        return;
    }
    ck_assert(op.number == 6 && op.seq == 5 && !op.open && op.reported && op.age_ms == 2000);
    ck_assert_str_eq(op.text, "all_reduce in group 0");
    /* The operations behind number 5 are enqueued only. */
    ck_assert(parsed(
        DUMP(ENTRY("4", "completed") ", " ENTRY("5", "started") ", " ENTRY("6", "scheduled")),
        &op));
    ck_assert(op.number == 6 && op.seq == 5 && op.open);
    ck_assert(!parsed(DUMP(""), &op));
    ck_assert(!parsed("{'entries': {'a': 1}}", &op));
    ck_assert(!parsed("[1]", &op));
}
END_TEST

/* The dump of a program with gloo that has done five all-reduces and a barrier. */
START_TEST(a_dump_of_pytorch)
{
    size_t len;
    struct sample_op op;
    char *dump = slurp("tests/unit/data/torch-2.15-recorder", &len);
    ck_assert(torch_recorder_parse(dump, len, 0, &op));
    ck_assert(op.number > 0 && op.reported);
    ck_assert(op.number == 6 && op.seq == 6 && !op.open);
    ck_assert_str_eq(op.text, "barrier in group 0");
    for (size_t n = 0; n < len; n++)
        ck_assert_ptr_null(pickle_read(dump, n));
}
END_TEST

/* A byte into the pipe asks for a dump; one that is fresh is read. */
START_TEST(a_dump_is_asked_for)
{
    struct sample s = {.rank = 3};
    char byte = 0, *data;
    size_t len;
    char *environment = test_text("A=b%cTORCH_NCCL_DEBUG_INFO_PIPE_FILE=%s%c"
                                  "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=%s%c%c",
                                  0, tmppath("p_"), 0, tmppath("d_"), 0, 0);
    torch_recorder_look(environment, &s); /* no pipe yet */
    ck_assert_int_eq(mkfifo(tmppath("p_3.pipe"), 0600), 0);
    int pipe = open(tmppath("p_3.pipe"), O_RDONLY | O_NONBLOCK);
    torch_recorder_look(environment, &s);
    ck_assert_int_eq(read(pipe, &byte, 1), 1);
    ck_assert_uint_eq(s.op.number, 0);
    if (!pickled(DUMP(ENTRY("7", "started")), 2, &data, &len)) {
        test_skip("python3 is not installed");
        return;
    }
    ck_assert_int_eq(rename(tmppath("data"), tmppath("d_3")), 0);
    torch_recorder_look(environment, &s);
    ck_assert(s.op.number == 8 && s.op.open);
    ck_assert_int_ne(read(pipe, &byte, 1), 1);
    struct timespec old[2] = {{1, 0}, {1, 0}};
    ck_assert_int_eq(utimensat(AT_FDCWD, tmppath("d_3"), old, 0), 0);
    s.op = (struct sample_op){0};
    torch_recorder_look(environment, &s);
    ck_assert_uint_eq(s.op.number, 0);
    ck_assert_int_eq(read(pipe, &byte, 1), 1);
    close(pipe);
}
END_TEST

static void expect_dump_in(const char *folder, const char *environment)
{
    struct sample s = {.rank = 3};
    char *dump = test_text("%s/torch/comm_lib_trace_rank_3", tmppath(folder));
    ck_assert_int_eq(system(test_text("mkdir -p %s/torch", tmppath(folder))), 0);
    torch_recorder_look(environment, &s);
    ck_assert_uint_eq(s.op.number, 0);
    ck_assert_int_eq(system(test_text("cat tests/unit/data/torch-2.15-recorder >%s", dump)), 0);
    torch_recorder_look(environment, &s);
    ck_assert_uint_eq(s.op.number, 6);
    ck_assert_int_eq(unlink(dump), 0);
}

/* Where PyTorch writes it if nothing else is set. */
START_TEST(a_dump_in_the_cache)
{
    struct sample s = {.rank = 3};
    char byte, *home = test_text("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=%s%cHOME=%s%c%c", tmppath("p_"),
                                 0, tmpdir(), 0, 0);
    char *both = test_text("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=%s%cHOME=%s%cXDG_CACHE_HOME=%s%c%c",
                           tmppath("p_"), 0, tmpdir(), 0, tmppath("xdg"), 0, 0);
    expect_dump_in(".cache", home);
    expect_dump_in(".cache", both); /* a version that does not know of XDG */
    expect_dump_in("xdg", both);
    ck_assert_int_eq(mkfifo(tmppath("p_3.pipe"), 0600), 0);
    int pipe = open(tmppath("p_3.pipe"), O_RDONLY | O_NONBLOCK);
    torch_recorder_look(both, &s);
    ck_assert_int_eq(read(pipe, &byte, 1), 1);
    close(pipe);
}
END_TEST

/* ------------------------------------------------------------------------------------------ RAS */

/* Rank 1 has launched one operation less; rank 2 is on another host. */
static char *one_is_late(void)
{
    return fake_ras_job(fake_ras_communicator(
        "0xabc", test_text("%s, %s, %s", fake_ras_rank(0, "127.0.0.1", 100, 2, 7),
                           fake_ras_rank(1, "127.0.0.1", 101, 2, 6),
                           fake_ras_rank(2, "198.51.100.7", 100, 2, 7))));
}

START_TEST(who_has_launched_less)
{
    struct nccl_ras r;
    char *json = one_is_late();
    ck_assert(nccl_ras_parse(&r, json, strlen(json)));
    ck_assert_uint_eq(r.n, 2);
    const struct sample_op *first = nccl_ras_of(&r, 100), *late = nccl_ras_of(&r, 101);
    ck_assert(first && first->open && first->number == 9 && first->group == 0xabc);
    ck_assert_str_eq(first->text, "all_reduce in communicator 0xabc");
    ck_assert(late && !late->open && late->number == 8);
    ck_assert_ptr_null(nccl_ras_of(&r, 102));
    nccl_ras_fini(&r);
    json = fake_ras_job(
        fake_ras_communicator("0xabc", test_text("%s, %s", fake_ras_rank(0, "127.0.0.1", 100, 2, 7),
                                                 fake_ras_rank(1, "127.0.0.1", 101, 2, 7))));
    ck_assert(nccl_ras_parse(&r, json, strlen(json)));
    ck_assert_uint_eq(r.n, 0); /* nobody is late */
    /* Rank 0 waits in one, and is late in another because of that. */
    json = fake_ras_job(test_text(
        "%s, %s",
        fake_ras_communicator("0x1", test_text("%s, %s", fake_ras_rank(0, "127.0.0.1", 100, 0, 4),
                                               fake_ras_rank(1, "127.0.0.1", 101, 0, 5))),
        fake_ras_communicator("0x2", test_text("%s, %s", fake_ras_rank(0, "127.0.0.1", 100, 9, 0),
                                               fake_ras_rank(1, "127.0.0.1", 102, 8, 0)))));
    ck_assert(nccl_ras_parse(&r, json, strlen(json)));
    ck_assert(nccl_ras_of(&r, 100)->open && nccl_ras_of(&r, 100)->group == 2);
    ck_assert_str_eq(nccl_ras_of(&r, 100)->text, "broadcast in communicator 0x2");
    ck_assert(nccl_ras_of(&r, 101)->open);
    ck_assert(!nccl_ras_of(&r, 102)->open);
    nccl_ras_fini(&r);
    static const char *const odd[] = {"{", "{\"communicators\": 1}",
                                      "{\"communicators\": [1, {\"ranks\": [2, 3]}]}"};
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        ck_assert(nccl_ras_parse(&r, odd[i], strlen(odd[i])) == (i == 2));
        ck_assert_uint_eq(r.n, 0);
    }
}
END_TEST

static const struct {
    enum fake_ras_kind kind;
    size_t known;
} services[] = {{FAKE_RAS_GOOD, 2}, {FAKE_RAS_OLD, 0}, {FAKE_RAS_SILENT, 0}, {FAKE_RAS_OTHER, 0}};

START_TEST(the_service_is_asked)
{
    struct fake_ras f;
    struct nccl_ras r;
    fake_ras_start(&f, services[_i].kind, 0, one_is_late());
    for (int i = 0; i < 2; i++) {
        uint64_t begun = mono_ns();
        nccl_ras_ask(&r, test_text("%s:%d", i ? "localhost" : "127.0.0.1", f.port));
        ck_assert_uint_eq(r.n, services[_i].known);
        ck_assert_uint_lt(mono_ns() - begun, (uint64_t)test_seconds(5) * 1000000000u);
        nccl_ras_fini(&r);
    }
    fake_ras_end(&f);
    nccl_ras_ask(&r, test_text("127.0.0.1:%d", f.port)); /* nobody listens */
    ck_assert_uint_eq(r.n, 0);
    nccl_ras_ask(&r, "no.such.host:1");
    ck_assert_uint_eq(r.n, 0);
}
END_TEST

/* -------------------------------------------------------------------------------------- verdict */

static struct samples reported(bool known)
{
    struct samples all = {0};
    for (int i = 0; i < 4; i++) {
        struct sample *s = samples_add(&all);
        s->rank = i;
        s->pid = 100 + i;
        s->node = 0;
        snprintf(s->host, sizeof(s->host), "n0");
        struct sample_thread *t = sample_add_thread(s, s->pid);
        t->state = 'S';
        sample_add_frame(t, "synchronize (streams.py:9)");
        if (!known)
            continue;
        s->op = (struct sample_op){.number = i == 2 ? 8 : 9,
                                   .seq = i == 2 ? 8 : 9,
                                   .group = 1,
                                   .open = i != 2,
                                   .reported = true};
        snprintf(s->op.text, sizeof(s->op.text), "all_reduce in group 0");
    }
    return all;
}

/* The stacks of ranks that wait for their devices are alike. What is reported names the late one,
 * also if there was no report for the first sample. */
START_TEST(reports_decide)
{
    for (int first = 0; first < 2; first++) {
        struct samples a = reported(first), b = reported(true);
        struct verdict v;
        hang_verdict(&a, &b, &v);
        ck_assert_int_eq(v.state, HANG_HUNG);
        ck_assert(v.n == 1 && v.ranks[0] == 2);
        ck_assert_ptr_nonnull(strstr(v.text, "ranks 0, 1, 3 wait in all_reduce in group 0 #9"));
        samples_fini(&a);
        samples_fini(&b);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hang_sources");
    TCase *t = test_case(s, "hang_sources", 60);
    tcase_add_test(t, plain_data);
    tcase_add_test(t, what_is_refused);
    tcase_add_test(t, the_operation_of_a_dump);
    tcase_add_test(t, a_dump_of_pytorch);
    tcase_add_test(t, a_dump_is_asked_for);
    tcase_add_test(t, a_dump_in_the_cache);
    tcase_add_test(t, who_has_launched_less);
    tcase_add_loop_test(t, the_service_is_asked, 0, (int)ARRAY_LEN(services));
    tcase_add_test(t, reports_decide);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
