/* The conversation with dlaunch-inspect, and a launcher whose dlaunch-inspect is missing, dies,
 * hangs or talks garbage: each worker gets its sample, or one line that says why there is none. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/inspect/lines.h"
#include "agent/stacks/sampler.h"
#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/loop.h"

/* ------------------------------------------------------------------------------- the conversation
 */

static bool wants(void *arg, int rank, int pid)
{
    (void)arg;
    return rank < 8 && pid == 100 + rank;
}

/* Reads the text in pieces of so many bytes. */
static int read_in(const char *text, size_t len, size_t piece, struct samples *all, struct err *e)
{
    struct inspect_reader r = INSPECT_READER(all, wants, NULL);
    int rc = 0;
    for (size_t at = 0; at < len && rc == 0; at += piece)
        rc = inspect_read(&r, text + at, at + piece < len ? piece : len - at, e);
    inspect_reader_fini(&r);
    return rc;
}

static struct sample full_sample(void)
{
    struct sample s = {.rank = 3, .node = -1, .pid = 103, .cpu_ms = 77, .io_bytes = UINT64_MAX};
    s.stopped_us = 40;
    s.more_threads = 2;
    s.op = (struct sample_op){
        .number = 5, .group = UINT64_MAX, .seq = 4, .age_ms = 3, .open = true, .reported = true};
    snprintf(s.op.text, sizeof(s.op.text), "all_reduce of 3 f32 (sum)");
    snprintf(s.program, sizeof(s.program), "a b");
    memset(s.note, '\\', sizeof(s.note) - 1); /* the longest line that there is */
    struct sample_thread *t = sample_add_thread(&s, 103);
    snprintf(t->name, sizeof(t->name), "main");
    t->state = 'S';
    snprintf(t->call, sizeof(t->call), "read of /a\nframe of /b\\n");
    snprintf(t->wchan, sizeof(t->wchan), "pipe_read");
    sample_add_frame(t, "main (a.c:1)");
    sample_add_frame(t, "operator<< \xff\x1b[2J");
    t = sample_add_thread(&s, 104);
    t->python = true;
    return s;
}

START_TEST(lines_are_exact)
{
    struct sample s = full_sample();
    struct err e = ERR_INIT;
    struct buf b = BUF_INIT, again = BUF_INIT;
    inspect_put_version(&b);
    inspect_put_sample(&b, &s);
    for (size_t piece = 1; piece < 2000; piece = 3 * piece) {
        struct samples all = {0};
        ck_assert_msg(read_in((char *)b.data, b.len, piece, &all, &e) == 0, "%s", e.msg);
        ck_assert_uint_eq(all.n, 1);
        again.len = 0;
        inspect_put_version(&again);
        inspect_put_sample(&again, &all.s[0]);
        ck_assert_uint_eq(again.len, b.len);
        ck_assert_mem_eq(again.data, b.data, b.len);
        samples_fini(&all);
    }
    for (size_t len = 0; len < b.len; len++) { /* what is not complete is dropped */
        struct samples all = {0};
        ck_assert_int_eq(read_in((char *)b.data, len, 64, &all, &e), 0);
        ck_assert_uint_eq(all.n, 0);
        samples_fini(&all);
    }
    buf_fini(&b);
    buf_fini(&again);
    sample_fini(&s);
}
END_TEST

#define HELLO  INSPECT_NAME " 1\n"
#define SAMPLE HELLO "sample 3 103\n"

static const struct {
    const char *text, *why; /* NULL: it is read */
} answers[] = {
    {SAMPLE "done\n", NULL},
    {HELLO, NULL},
    {"\n", "\"\" is not the first line"},
    {"dlaunch-inspect\n", "is not the first line"},
    {"dlaunch-inspect 2\n", "dlaunch-inspect of another build: protocol 2, not 1"},
    {"ld.so: libfoo.so: not found\n", "\"ld.so: libfoo.so: not found\" is not the first line"},
    {HELLO "done\n", "\"done\" is no answer"},
    {HELLO "sample 3\n", "no answer"},
    {HELLO "sample 3 104\n", "\"sample 3 104\" is no answer"},
    {HELLO "sample -3 103\n", "no answer"},
    {HELLO "sample 3 99999999999\n", "no answer"},
    {SAMPLE "sample 3 103\n", "no answer"},
    {SAMPLE "frame main\n", "no answer"},
    {SAMPLE "numbers 1 2 3\n", "no answer"},
    {SAMPLE "numbers 1 18446744073709551616 3 4\n", "no answer"},
    {SAMPLE "op 1 2 3 4 2 0 barrier\n", "no answer"},
    {SAMPLE "thread 1 SS 0 main\n", "no answer"},
    {SAMPLE "thread 1 S 0 a name that is far too long\n", "no answer"},
    {SAMPLE "note a \\ backslash\n", "no answer"},
    {SAMPLE "done 3\n", "no answer"},
};

START_TEST(what_is_no_answer)
{
    struct samples all = {0};
    struct err e = ERR_INIT;
    int rc = read_in(answers[_i].text, strlen(answers[_i].text), 7, &all, &e);
    ck_assert_int_eq(rc < 0, answers[_i].why != NULL);
    if (answers[_i].why)
        ck_assert_msg(strstr(e.msg, answers[_i].why) != NULL, "%s", e.msg);
    samples_fini(&all);
}
END_TEST

/* Whatever comes, it takes no more memory than a sample may have. */
START_TEST(answers_are_bounded)
{
    static const char *const lines[] = {"thread 7 S 0 x\n", "frame f\n"};
    static const int most[] = {SAMPLE_THREADS_MAX, SAMPLE_FRAMES_MAX};
    struct err e = ERR_INIT;
    for (int i = 0; i < 2; i++) {
        struct samples all = {0};
        struct inspect_reader r = INSPECT_READER(&all, wants, NULL);
        const char *begin = i ? SAMPLE "thread 7 S 0 x\n" : SAMPLE;
        ck_assert_int_eq(inspect_read(&r, begin, strlen(begin), &e), 0);
        int n = 0;
        while (inspect_read(&r, lines[i], strlen(lines[i]), &e) == 0)
            n++;
        ck_assert_int_eq(n, most[i]);
        inspect_reader_fini(&r);
        samples_fini(&all);
    }
    struct samples all = {0};
    struct inspect_reader r = INSPECT_READER(&all, wants, NULL);
    int n = 0;
    while (inspect_read(&r, "x", 1, &e) == 0)
        n++;
    ck_assert_int_eq(n, INSPECT_LINE_MAX - 1);
    ck_assert_int_lt(inspect_read(&r, "\0\n", 2, &e), 0);
}
END_TEST

START_TEST(questions)
{
    struct inspect_worker w = {.rank = 7, .pid = 4711, .recorded = true}, back;
    struct buf b = BUF_INIT;
    inspect_put_worker(&b, &w);
    b.data[b.len - 1] = '\0';
    ck_assert(inspect_get_worker((char *)b.data, &back));
    ck_assert(back.rank == 7 && back.pid == 4711 && back.recorded);
    buf_fini(&b);
    static const char *const wrong[] = {"", "look", "look 1 2", "look 1 2 3", "look 1 2 0 0", "x"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        ck_assert_msg(!inspect_get_worker(wrong[i], &back), "%s", wrong[i]);
}
END_TEST

/* ---------------------------------------------------------------------------- the launcher's side
 */

static struct {
    uv_loop_t loop;
    struct spawner *spawner;
    struct sampler *sampler;
    int done, closed;
    size_t n;
    char note[2][SAMPLE_TEXT_MAX], frame[2][SAMPLE_TEXT_MAX];
} t;

static const struct inspect_worker pair[] = {{.rank = 3, .pid = 103}, {.rank = 4, .pid = 104}};

static void setup(void)
{
    struct err e = ERR_INIT;
    loop_setup(&t.loop);
    ck_assert_int_eq(spawner_new(&t.spawner, &e), 0);
}

static void on_closed(void *arg)
{
    (void)arg;
    t.closed++;
}

static void teardown(void)
{
    sampler_close(t.sampler, on_closed, NULL);
    loop_turns(&t.loop, 10);
    ck_assert_int_eq(t.closed, 1);
    loop_teardown(&t.loop);
    spawner_free(t.spawner);
}

static void on_done(void *arg, const struct samples *all)
{
    (void)arg;
    t.done++;
    t.n = all->n;
    for (size_t i = 0; i < all->n && i < 2; i++) {
        const struct sample *s = &all->s[i];
        ck_assert_int_eq(s->rank, pair[i].rank);
        snprintf(t.note[i], sizeof(t.note[i]), "%s", s->note);
        snprintf(t.frame[i], sizeof(t.frame[i]), "%s",
                 s->nthreads && s->threads[0].nframes ? s->threads[0].frames[0] : "");
    }
}

/* Asks the program about two workers; returns after its answer. */
static void ask(const char *program)
{
    uint64_t from = mono_ns();
    if (!t.sampler)
        t.sampler = sampler_new(&t.loop, t.spawner, program);
    int before = t.done;
    sampler_take(t.sampler, pair, 2, on_done, NULL);
    ck_assert_int_eq(t.done, before); /* never from inside the call */
    while (t.done == before)
        uv_run(&t.loop, UV_RUN_ONCE);
    ck_assert_uint_eq(t.n, 2);
    ck_assert_uint_lt((mono_ns() - from) / 1000000, 20000);
    ck_assert_int_eq(sampler_pid(t.sampler), 0);
}

/* A program that is this script; it has read the question when its lines run. */
static char *script(const char *lines)
{
    char *path = tmppath("inspect");
    FILE *f = fopen(path, "w");
    fprintf(f, "#!/bin/sh\ncat > '%s'\n%s\n", tmppath("question"), lines);
    fclose(f);
    chmod(path, 0700);
    return path;
}

static const struct {
    const char *lines;
    const char *first, *second; /* notes; NULL: there is a frame */
} programs[] = {
    {"echo dlaunch-inspect 1; for i in 4 3; do echo sample $i 10$i; echo thread 1 S 0 x; "
     "echo frame main; echo done; done",
     NULL, NULL},
    {"echo dlaunch-inspect 1; echo sample 3 103; echo thread 1 S 0 x; echo frame main; echo done; "
     "kill -9 $$",
     NULL, "no stack: dlaunch-inspect has crashed"},
    {"kill -SEGV $$", "no stack: dlaunch-inspect has crashed",
     "no stack: dlaunch-inspect has crashed"},
    {"echo dlaunch-inspect 1; echo sample 3 103; echo thread 1 S 0 x; echo frame main; echo done; "
     "exec sleep 1000",
     NULL, "no stack: dlaunch-inspect was not done in time"},
    {"exec sleep 1000", "no stack: dlaunch-inspect was not done in time",
     "no stack: dlaunch-inspect was not done in time"},
    {"exec cat /dev/zero", "no stack: dlaunch-inspect wrote a line of more than 1024 bytes",
     "no stack: dlaunch-inspect wrote a line of more than 1024 bytes"},
    {"echo dlaunch-inspect 1; echo sample 3 103; echo thread 1 S 0 x; echo frame main; echo done; "
     "exec yes garbage",
     NULL, "no stack: \"garbage\" is no answer of dlaunch-inspect"},
    {"echo dlaunch-inspect 7; exec sleep 1000",
     "no stack: dlaunch-inspect of another build: protocol 7, not 1",
     "no stack: dlaunch-inspect of another build: protocol 7, not 1"},
};

static void expect_worker(int i, const char *note)
{
    ck_assert_str_eq(t.note[i], note ? note : "");
    ck_assert_str_eq(t.frame[i], note ? "" : "main");
}

/* Twice, because the launcher must be whole after each. */
START_TEST(whatever_it_does)
{
    char *path = script(programs[_i].lines);
    for (int k = 0; k < 2; k++) {
        ask(path);
        expect_worker(0, programs[_i].first);
        expect_worker(1, programs[_i].second);
    }
    char *question = test_keep(read_file(tmppath("question")));
    ck_assert_str_eq(question, "dlaunch-inspect 1\nlook 3 103 0\nlook 4 104 0\n");
}
END_TEST

START_TEST(it_cannot_be_executed)
{
    char *path = tmppath("inspect");
    fclose(fopen(path, "w"));
    ask(path);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strncmp(t.note[i], "no stack: exec ", 15) == 0, "%s", t.note[i]);
}
END_TEST

/* No program belongs to a test. */
START_TEST(it_is_missing)
{
    for (int k = 0; k < 2; k++) {
        ask(NULL);
        for (int i = 0; i < 2; i++)
            ck_assert_msg(strncmp(t.note[i],
                                  "no stack: dlaunch-inspect is missing: it belongs to dlaunch, "
                                  "into /",
                                  67) == 0,
                          "%s", t.note[i]);
    }
}
END_TEST

/* Closed while it hangs: it is killed, and nobody is called. */
START_TEST(closed_while_it_hangs)
{
    t.sampler = sampler_new(&t.loop, t.spawner, script("exec sleep 1000"));
    sampler_take(t.sampler, pair, 2, on_done, NULL);
    uv_run(&t.loop, UV_RUN_NOWAIT);
    ck_assert_int_ne(sampler_pid(t.sampler), 0);
}
END_TEST

static void teardown_of_closed(void)
{
    teardown();
    ck_assert_int_eq(t.done, 0);
}

static Suite *suite(void)
{
    Suite *s = suite_create("inspect");
    TCase *tc = test_case(s, "lines", 60);
    tcase_add_test(tc, lines_are_exact);
    tcase_add_loop_test(tc, what_is_no_answer, 0, ARRAY_LEN(answers));
    tcase_add_test(tc, answers_are_bounded);
    tcase_add_test(tc, questions);
    tc = test_case(s, "program", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, whatever_it_does, 0, ARRAY_LEN(programs));
    tcase_add_test(tc, it_cannot_be_executed);
    tcase_add_test(tc, it_is_missing);
    tc = test_case(s, "closed", 60);
    tcase_add_checked_fixture(tc, setup, teardown_of_closed);
    tcase_add_test(tc, closed_while_it_hangs);
    return s;
}

TEST_MAIN(suite)
