/* Samples, their messages and the tree of many ranks. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "agent/stacks/gather.h"
#include "agent/stacks/stack_tree.h"
#include "core/clock.h"

static struct sample *add(struct samples *all, int rank, char state, const char *call, int n,
                          const char *const frames[])
{
    struct sample *s = samples_add(all);
    s->rank = rank;
    s->node = rank / 2;
    s->pid = 100 + rank;
    struct sample_thread *t = sample_add_thread(s, s->pid);
    t->state = state;
    snprintf(t->call, sizeof(t->call), "%s", call);
    for (int i = 0; i < n; i++)
        sample_add_frame(t, frames[i]);
    return s;
}

#define ADD(all, rank, state, call, ...)                                                       \
    add(all, rank, state, call, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), \
        (const char *[]){__VA_ARGS__})

static struct samples job_of_four(void)
{
    struct samples all = {0};
    ADD(&all, 3, 'S', "futex", "main (a.c:1)", "step (a.c:2)", "wait (b.c:3)");
    ADD(&all, 0, 'S', "futex", "main (a.c:1)", "step (a.c:2)", "wait (b.c:3)");
    ADD(&all, 2, 'R', "", "main (a.c:1)", "load (a.c:9)");
    ADD(&all, 1, 'S', "futex", "main (a.c:1)", "step (a.c:2)", "wait (b.c:3)");
    samples_sort(&all);
    return all;
}

START_TEST(ranks_share_frames)
{
    struct samples all = job_of_four();
    struct stack_tree t = {0};
    stack_tree_add(&t, &all);
    char *text = stack_tree_text(&t, &all);
    ck_assert_str_eq(text, "0-3      main (a.c:1)\n"
                           "  0-1,3    step (a.c:2)\n"
                           "           wait (b.c:3)\n"
                           "           [sleeps in futex]\n"
                           "  2        load (a.c:9)\n"
                           "           [runs]\n");
    free(text);
    stack_tree_fini(&t);
    samples_fini(&all);
}
END_TEST

START_TEST(other_threads_and_notes)
{
    struct samples all = {0};
    struct stack_tree t = {0};
    for (int rank = 4; rank < 6; rank++) {
        struct sample *s = ADD(&all, rank, 'D', "read of /data", "main (a.c:1)");
        struct sample_thread *more = sample_add_thread(s, 999);
        snprintf(more->name, sizeof(more->name), "loader");
        snprintf(s->threads[0].wchan, sizeof(s->threads[0].wchan), "nfs_wait");
        more->state = 'S';
        snprintf(s->note, sizeof(s->note), "no stack of thread 999");
    }
    all.s[1].stopped_us = 40;
    stack_tree_add(&t, &all);
    char *text = stack_tree_text(&t, &all);
    ck_assert_str_eq(
        text, "4-5      main (a.c:1)\n"
              "         [hangs in the kernel (state D) in read of /data, nfs_wait]\n"
              "4-5      thread loader\n"
              "         [sleeps]\n"
              "ranks 4-5: no stack of thread 999\n"
              "(threads that run were stopped for their registers, each for 40 us at most)\n");
    free(text);
    stack_tree_fini(&t);
    samples_fini(&all);
}
END_TEST

START_TEST(messages_are_exact_and_checked)
{
    struct samples all = job_of_four(), back = {0};
    struct buf b = BUF_INIT, again = BUF_INIT;
    all.s[1].op = (struct sample_op){
        .number = 5, .group = 7, .seq = 4, .age_ms = 3, .open = true, .text = "barrier"};
    all.s[1].cpu_ms = 77;
    samples_encode(&b, &all);
    struct rd r = rd_init(b.data, b.len);
    ck_assert(samples_decode(&r, &back) && rd_done(&r));
    samples_encode(&again, &back);
    ck_assert_uint_eq(b.len, again.len);
    ck_assert_mem_eq(b.data, again.data, b.len);
    for (size_t len = 0; len < b.len; len++) {
        struct samples part = {0};
        r = rd_init(b.data, len);
        ck_assert(!samples_decode(&r, &part));
        samples_fini(&part);
    }
    buf_fini(&b);
    buf_fini(&again);
    samples_fini(&all);
    samples_fini(&back);
}
END_TEST

/* The answer of a node whose workers are in DEPTH frames, but for rank 4711. */
static void add_answer(struct buf *answers, int node, int nproc, int depth)
{
    struct samples own = {0};
    struct buf b = BUF_INIT;
    for (int i = 0; i < nproc; i++) {
        struct sample *s = samples_add(&own);
        s->rank = node * nproc + i;
        s->node = node;
        struct sample_thread *thread = sample_add_thread(s, 1);
        thread->state = 'S';
        for (int k = 0; k < depth; k++) {
            char text[64];
            snprintf(text, sizeof(text), "function_%d (file.py:%d)", k,
                     s->rank == 4711 && k > 20 ? k : 100 + k);
            sample_add_frame(thread, text);
        }
    }
    buf_u32(&b, 1);
    samples_encode(&b, &own);
    buf_u32(answers, (uint32_t)b.len);
    buf_put(answers, b.data, b.len);
    buf_fini(&b);
    samples_fini(&own);
}

static double ms_since(uint64_t from)
{
    return (double)(mono_ns() - from) / 1e6;
}

/* As many launchers as a large job has: inner nodes of the tree merge the answers of 32, and what
 * they send becomes one tree at the node that asks. */
START_TEST(a_large_job)
{
    enum { NODES = 1024, WIDTH = 32, PROC = 8, DEPTH = 30 };
    struct samples all = {0};
    struct stack_tree t = {0};
    double inner = 0;
    size_t before = 0, after = 0;
    uint64_t from = mono_ns(), root = 0;
    for (int node = 0; node < NODES; node += WIDTH) {
        struct buf items = BUF_INIT, merged = BUF_INIT;
        for (int i = 0; i < WIDTH; i++)
            add_answer(&items, node + i, PROC, DEPTH);
        const struct rdzv_answers answers = {
            .kind = REQUEST_STACKS, .n = WIDTH, .items = rd_init(items.data, items.len)};
        uint64_t at = mono_ns();
        ck_assert(gather_merge(&answers, &merged));
        inner = ms_since(at) > inner ? ms_since(at) : inner;
        before += items.len;
        after += merged.len;
        at = mono_ns();
        struct rd r = rd_init(merged.data, merged.len);
        ck_assert_uint_eq(rd_u32(&r), WIDTH);
        ck_assert(samples_decode(&r, &all) && rd_done(&r));
        root += mono_ns() - at;
        buf_fini(&items);
        buf_fini(&merged);
    }
    uint64_t at = mono_ns();
    samples_sort(&all);
    stack_tree_add(&t, &all);
    char *text = stack_tree_text(&t, &all);
    root += mono_ns() - at;
    printf(
        "%d ranks of %d nodes: merged within %.1f ms at an inner node, %.0f at the root; %zu KiB "
        "come there in place of %zu; all nodes together %.0f ms\n",
        NODES * PROC, NODES, inner, (double)root / 1e6, after >> 10, before >> 10, ms_since(from));
    ck_assert_uint_lt(after, before);
    ck_assert_ptr_nonnull(strstr(text, "0-8191   function_0 (file.py:100)\n"));
    ck_assert_ptr_nonnull(strstr(text, "  0-4710,4712-8191  function_21 (file.py:121)\n"));
    ck_assert_ptr_nonnull(strstr(text, "  4711     function_21 (file.py:21)\n"));
    free(text);
    stack_tree_fini(&t);
    samples_fini(&all);
}
END_TEST

/* So many workers, with as many threads and frames as a sample can have. */
static void add_deep(struct samples *all, int workers)
{
    char text[SAMPLE_TEXT_MAX];
    for (int rank = 0; rank < workers; rank++) {
        struct sample *s = samples_add(all);
        s->rank = rank;
        for (int i = 0; i < SAMPLE_THREADS_MAX; i++) {
            struct sample_thread *t = sample_add_thread(s, i);
            memset(text, 'f', sizeof(text));
            text[sizeof(text) - 1] = '\0';
            for (int k = 0; k < SAMPLE_FRAMES_MAX; k++)
                sample_add_frame(t, text);
        }
    }
}

/* A message that has a stack once, and many threads in it, does not become gigabytes. */
START_TEST(threads_without_room_are_counted)
{
    enum { TIMES = 75 };
    struct samples one = {0}, all = {0};
    struct buf b = BUF_INIT;
    size_t bytes = 0, threads = 0;
    add_deep(&one, 1);
    samples_encode(&b, &one);
    ck_assert_uint_lt(b.len, 100000);
    for (int i = 0; i < TIMES; i++) {
        struct rd r = rd_init(b.data, b.len);
        ck_assert(samples_decode(&r, &all) && rd_done(&r));
    }
    for (size_t i = 0; i < all.n; i++) {
        ck_assert_int_eq(all.s[i].nthreads + all.s[i].more_threads, SAMPLE_THREADS_MAX);
        threads += (size_t)all.s[i].nthreads;
        for (int k = 0; k < all.s[i].nthreads; k++)
            bytes += (size_t)all.s[i].threads[k].nframes * SAMPLE_TEXT_MAX;
    }
    ck_assert_uint_gt(threads, 0);
    ck_assert_uint_le(bytes, SAMPLES_BYTES_MAX + SAMPLE_FRAMES_MAX * SAMPLE_TEXT_MAX);
    ck_assert_str_eq(all.s[0].note, "");
    ck_assert_ptr_nonnull(strstr(all.s[TIMES - 1].note, "threads are left out"));
    buf_fini(&b);
    samples_fini(&one);
    samples_fini(&all);
}
END_TEST

/* What a node has to say is too long for an answer: it says less. */
START_TEST(a_long_answer_is_cut)
{
    enum { MOST = 20000 };
    struct samples all = {0}, back = {0};
    struct buf b = BUF_INIT;
    buf_u32(&b, 1);
    add_deep(&all, 2);
    for (int i = 0; i < 2; i++) /* all are in the same stack but for one frame */
        for (int k = 0; k < SAMPLE_THREADS_MAX; k++)
            snprintf(all.s[i].threads[k].frames[0], SAMPLE_TEXT_MAX, "%d %d", i, k);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < SAMPLE_THREADS_MAX; k++) {
            struct sample_thread *t = &all.s[i].threads[k];
            while (t->nframes > 4)
                free(t->frames[--t->nframes]);
        }
    samples_encode_within(&b, &all, MOST);
    ck_assert_uint_le(b.len, MOST);
    struct rd r = rd_init(b.data, b.len);
    ck_assert_uint_eq(rd_u32(&r), 1);
    ck_assert(samples_decode(&r, &back) && rd_done(&r));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_gt(back.s[i].nthreads, 0);
        ck_assert_int_eq(back.s[i].nthreads + back.s[i].more_threads, SAMPLE_THREADS_MAX);
        ck_assert_ptr_nonnull(strstr(back.s[i].note, "threads are left out"));
    }
    buf_fini(&b);
    samples_fini(&all);
    samples_fini(&back);
}
END_TEST

/* The numbers of the nodes that are here stay as they are. */
START_TEST(who_is_here)
{
    struct buf items = BUF_INIT, merged = BUF_INIT;
    for (uint32_t node = 3; node < 6; node++) {
        buf_u32(&items, 4);
        buf_u32(&items, node);
    }
    const struct rdzv_answers answers = {
        .kind = REQUEST_PRESENCE, .n = 3, .items = rd_init(items.data, items.len)};
    ck_assert(gather_merge(&answers, &merged));
    struct rd r = rd_init(merged.data, merged.len);
    for (uint32_t node = 3; node < 6; node++)
        ck_assert_uint_eq(rd_u32(&r), node);
    ck_assert(rd_done(&r));
    buf_fini(&items);
    buf_fini(&merged);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stacks");
    TCase *t = test_case(s, "stacks", 60);
    tcase_add_test(t, ranks_share_frames);
    tcase_add_test(t, other_threads_and_notes);
    tcase_add_test(t, messages_are_exact_and_checked);
    tcase_add_test(t, a_large_job);
    tcase_add_test(t, threads_without_room_are_counted);
    tcase_add_test(t, a_long_answer_is_cut);
    tcase_add_test(t, who_is_here);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
