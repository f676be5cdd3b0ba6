/* When a silence is suspicious, and who is to blame: without a process, on a virtual clock. */
#include "tests/lib/store.h"
#include "tests/lib/test.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/stacks/hang_watch.h"
#include "agent/stacks/sockets.h"
#include "agent/stacks/verdict.h"
#include "core/clock.h"

#define MS     1000000ull
#define SECOND 1000000000ull

/* ------------------------------------------------------------------------------------- limits */

struct life {
    struct hang_rank r;
    struct hang_signs s;
    uint64_t now, after;
    int alarms;
};

/* Looks every 25 ms until the next operation; counts a silence that reaches the limit. */
static void operation_after(struct life *l, uint64_t ns, uint64_t kind)
{
    bool alarmed = false;
    for (uint64_t end = l->now + ns; l->now < end; l->now += 25 * MS) {
        hang_rank_look(&l->r, &l->s, l->now);
        alarmed |= hang_rank_silence(&l->r, l->now) >= hang_rank_limit(&l->r, l->after);
    }
    l->alarms += alarmed;
    l->s.ops++;
    l->s.kind = kind;
    hang_rank_look(&l->r, &l->s, l->now);
}

/* A day of training: a first step of five minutes with output meanwhile, steps of 300 ms, an
 * operation of another kind in front of a checkpoint of 20 s. Only the first checkpoint is longer
 * than what was ever seen; what the worker does then clears it (hang_verdict()). */
START_TEST(a_day_without_alarms)
{
    struct life l = {.now = SECOND, .after = SECOND / 2};
    hang_rank_look(&l.r, &l.s, l.now);
    for (int i = 0; i < 10; i++) {
        operation_after(&l, 30 * SECOND, 1);
        l.s.output++;
    }
    ck_assert_int_eq(l.alarms, 0);
    for (int step = 0; l.now < 86400 * SECOND; step++) {
        operation_after(&l, 300 * MS, 2);
        if (step % 1000 == 999) {
            operation_after(&l, 10 * MS, 3);
            operation_after(&l, 20 * SECOND, 2);
        }
    }
    ck_assert_int_le(l.alarms, 1);
}
END_TEST

START_TEST(the_limit_follows_the_gaps)
{
    struct life l = {.now = SECOND, .after = SECOND / 2};
    hang_rank_look(&l.r, &l.s, l.now);
    ck_assert_uint_ge(hang_rank_limit(&l.r, l.after), 60 * SECOND); /* the first step */
    for (int i = 0; i < 50; i++)
        operation_after(&l, 50 * MS, 2);
    ck_assert_uint_eq(hang_rank_limit(&l.r, l.after), SECOND / 2);
    for (int i = 0; i < 200; i++)
        operation_after(&l, 300 * MS, 2);
    ck_assert_uint_eq((hang_rank_limit(&l.r, l.after) + MS / 2) / MS, 900);
    for (int i = 0; i < 400; i++) /* a job that has become faster */
        operation_after(&l, 50 * MS, 2);
    ck_assert_uint_eq(hang_rank_limit(&l.r, l.after), SECOND / 2);
    hang_rank_look(&l.r, &l.s, l.now + 5 * SECOND);
    ck_assert_uint_eq(hang_rank_silence(&l.r, l.now + 5 * SECOND), 5 * SECOND);
    l.s.output++;
    hang_rank_look(&l.r, &l.s, l.now + 6 * SECOND);
    ck_assert_uint_eq(hang_rank_silence(&l.r, l.now + 6 * SECOND), 0);
}
END_TEST

/* Ranks start at different times, so that the first operations take seconds. */
START_TEST(a_slow_start_is_forgotten)
{
    struct life l = {.now = SECOND, .after = SECOND / 2};
    hang_rank_look(&l.r, &l.s, l.now);
    for (int i = 0; i < 2 * HANG_EARLY + 1; i++) {
        operation_after(&l, i < 2 ? 5 * SECOND : 300 * MS, 2);
        operation_after(&l, i < 2 ? 3 * SECOND : MS, 3);
        if (i >= 4 && i < 2 * HANG_EARLY - 1)
            ck_assert_uint_ge(hang_rank_limit(&l.r, l.after), 5 * SECOND);
    }
    ck_assert_uint_eq(hang_rank_limit(&l.r, l.after), 900 * MS);
    operation_after(&l, 300 * MS, 2);
    ck_assert_uint_eq(hang_rank_limit(&l.r, l.after), l.after);
}
END_TEST

/* One long step among short ones: longer than what is usual, but not than it. */
START_TEST(one_long_gap)
{
    struct life l = {.now = SECOND, .after = SECOND / 2};
    hang_rank_look(&l.r, &l.s, l.now);
    for (int i = 0; i < 50; i++)
        operation_after(&l, 200 * MS, 2);
    operation_after(&l, 450 * MS, 2);
    operation_after(&l, 200 * MS, 2);
    uint64_t limit = hang_rank_limit(&l.r, l.after);
    ck_assert_uint_gt(limit, 850 * MS);
    ck_assert_uint_lt(limit, 900 * MS);
    for (int i = 0; i < 100; i++)
        operation_after(&l, 200 * MS, 2);
    ck_assert_uint_lt(hang_rank_limit(&l.r, l.after), 610 * MS);
}
END_TEST

/* Many operations of one kind in each step: the gap in front of a step is what matters. */
START_TEST(bursts)
{
    struct life l = {.now = SECOND, .after = SECOND / 2};
    hang_rank_look(&l.r, &l.s, l.now);
    for (int step = 0; step < 20; step++) {
        operation_after(&l, 400 * MS, 2);
        for (int i = 0; i < 50; i++)
            operation_after(&l, MS, 2);
        if (step)
            ck_assert_uint_gt(hang_rank_limit(&l.r, l.after), 700 * MS);
    }
}
END_TEST

/* Kinds do not disturb each other, and more of them than are kept make the oldest one new. */
START_TEST(many_kinds)
{
    struct life l = {.now = SECOND, .after = SECOND / 2};
    hang_rank_look(&l.r, &l.s, l.now);
    for (int i = 0; i < 20 * HANG_KINDS; i++)
        operation_after(&l, i % 4 ? MS : 400 * MS, 32 * (uint64_t)(i % 4));
    ck_assert_uint_eq(l.r.last.kind, 96);
    ck_assert_uint_eq(hang_rank_limit(&l.r, l.after), 1200 * MS);
    operation_after(&l, 400 * MS, 0);
    ck_assert_uint_eq(hang_rank_limit(&l.r, l.after), l.after);
    for (int i = 0; i < 2 * HANG_KINDS; i++)
        operation_after(&l, 2 * MS, 1000 + (uint64_t)i);
    operation_after(&l, 2 * MS, 96); /* its 400 ms are forgotten */
    ck_assert_uint_eq(hang_rank_limit(&l.r, l.after), l.after);
}
END_TEST

/* What a program does that starts is of another kind than steps with data. */
START_TEST(data_begin_to_flow)
{
    struct hang_rank r = {0};
    struct hang_signs s = {0};
    uint64_t now = SECOND;
    for (int i = 0; i < 20; i++, now += 2 * SECOND) { /* it prints while it waits for others */
        s.output++;
        hang_rank_look(&r, &s, now);
    }
    for (int i = 0; i < 2 * HANG_EARLY + 2; i++, now += 100 * MS) {
        s.traffic += 10;
        hang_rank_look(&r, &s, now);
    }
    ck_assert_uint_eq(hang_rank_limit(&r, SECOND / 2), SECOND / 2);
    struct hang_rank slow = {0}; /* one that connects for 3 s first */
    for (int i = 0; i < 50; i++) {
        now += i == 1 ? 3 * SECOND : 100 * MS;
        s.traffic += 10;
        hang_rank_look(&slow, &s, now);
        if (i > 8 && i < 38)
            ck_assert_uint_eq(hang_rank_limit(&slow, SECOND / 2), 9 * SECOND);
    }
    ck_assert_uint_eq(hang_rank_limit(&slow, SECOND / 2), SECOND / 2);
    s.output++;
    hang_rank_look(&r, &s, now);
    ck_assert_uint_ge(hang_rank_limit(&r, SECOND / 2), 4 * SECOND);
}
END_TEST

/* A worker without recorded operations lives while it computes; a little CPU time is no work. */
START_TEST(cpu_time_is_life)
{
    struct hang_rank r = {0};
    struct hang_signs s = {0};
    uint64_t now = SECOND;
    for (int i = 0; i < 100; i++, now += 100 * MS) {
        s.cpu_ms += 80;
        hang_rank_look(&r, &s, now);
    }
    ck_assert_uint_le(hang_rank_silence(&r, now), 100 * MS);
    for (int i = 0; i < 100; i++, now += 100 * MS) {
        s.cpu_ms += i % 10 == 0 ? 10 : 0;
        hang_rank_look(&r, &s, now);
    }
    ck_assert_uint_ge(hang_rank_silence(&r, now), 9 * SECOND);
}
END_TEST

/* Bytes through its sockets are life; an acknowledgement that comes later is none. A gap is as long
 * as it was, whenever somebody looked. */
START_TEST(bytes_are_life)
{
    struct hang_rank r = {0};
    struct hang_signs s = {0};
    uint64_t now = SECOND, sent = 0;
    for (int i = 0; i < 20; i++) { /* every 300 ms, seen up to 25 ms later */
        sent = SECOND + (uint64_t)i * 300 * MS;
        for (s.traffic += 1000; now < sent + 300 * MS; now += 25 * MS) {
            s.at_ns = sent;
            if (now >= sent)
                hang_rank_look(&r, &s, now);
        }
    }
    ck_assert_uint_eq(hang_rank_limit(&r, SECOND / 2), 900 * MS);
    s.traffic += 1000;
    hang_rank_look(&r, &s, now);
    ck_assert_uint_eq(hang_rank_silence(&r, now), now - sent);
    ck_assert_uint_eq(hang_rank_limit(&r, SECOND / 2), 900 * MS);
}
END_TEST

/* What the kernel counts of a connection of this process's own. */
START_TEST(bytes_are_counted)
{
    struct sockets *s = sockets_new(1);
    int port, listener = listen_anywhere(&port), client = raw_connect(port);
    int server = accept(listener, NULL, NULL);
    char byte = 1;
    uint64_t now = mono_ns();
    if (sockets_traffic(s, 0, getpid(), 0, now).at_ns == 0 && access("/proc/net/tcp", R_OK) < 0) {
        test_skip("this kernel does not count");
        return;
    }
    struct sockets_traffic before = sockets_traffic(s, 0, getpid(), 0, now);
    ck_assert_int_eq(write(client, &byte, 1), 1);
    ck_assert_int_eq(read(server, &byte, 1), 1);
    struct sockets_traffic after;
    for (int i = 0; i < 1000; i++) { /* acknowledged by and by */
        now += SOCKETS_MS * MS;
        after = sockets_traffic(s, 0, getpid(), 0, now);
        if (after.bytes > before.bytes + 1)
            break;
        sched_yield();
    }
    ck_assert_uint_eq(after.bytes, before.bytes + 2); /* at either end */
    ck_assert_uint_eq(after.sent, before.sent + 1);
    ck_assert(after.sent_ns > 0 && after.sent_ns <= after.at_ns);
    struct sockets_traffic none = sockets_traffic(s, 0, getpid(), port, now + 2 * SECOND);
    ck_assert_uint_eq(none.bytes, 0); /* the store's */
    close(client);
    close(server);
    close(listener);
    sockets_free(s);
}
END_TEST

/* A worker that connects and writes as it is told. */
struct talker {
    int pid, orders;
};

static void talk(int orders, int port)
{
    int sockets[8], n = 0;
    char order;
    static const char bytes[1000];
    while (read(orders, &order, 1) == 1) {
        if (order == 'e')
            _exit(0);
        if (order == 'c')
            sockets[n++] = raw_connect(port);
        else if (write(sockets[n - 1], bytes, sizeof(bytes)) != sizeof(bytes))
            _exit(1);
    }
    _exit(0);
}

static struct talker talker_start(int port)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    struct talker t = {fork(), fds[1]};
    if (t.pid == 0) {
        close(fds[1]);
        talk(fds[0], port);
    }
    close(fds[0]);
    return t;
}

/* Returns this process's end of its new connection. */
static int talker_connect(struct talker *t, int listener)
{
    ck_assert_int_eq(write(t->orders, "c", 1), 1);
    return accept(listener, NULL, NULL);
}

static void talker_end(struct talker *t)
{
    ck_assert_int_eq(write(t->orders, "e", 1), 1);
    close(t->orders);
    ck_assert_int_eq(waitpid(t->pid, NULL, 0), t->pid);
}

enum { TALKERS = 3 };

static void look_at_all(struct sockets *s, const struct talker *t, uint64_t *now,
                        uint64_t bytes[TALKERS])
{
    *now += SOCKETS_MS * MS;
    for (int i = 0; i < TALKERS; i++)
        bytes[i] = sockets_traffic(s, i, t[i].pid, 0, *now).bytes;
}

/* One of them sends 1000 bytes: its count rises by that much, and no other one does. */
static void expect_bytes_of(struct sockets *s, struct talker *t, int who, int far, uint64_t *now)
{
    uint64_t before[TALKERS], bytes[TALKERS];
    char got[1000];
    look_at_all(s, t, now, before);
    ck_assert_int_eq(write(t[who].orders, "w", 1), 1);
    ck_assert_int_eq(recv(far, got, sizeof(got), MSG_WAITALL), sizeof(got));
    for (int i = 0; i < 1000; i++) { /* acknowledged by and by */
        look_at_all(s, t, now, bytes);
        if (bytes[who] >= before[who] + sizeof(got))
            break;
        sched_yield();
    }
    for (int i = 0; i < TALKERS; i++)
        ck_assert_uint_eq(bytes[i] - before[i], i == who ? sizeof(got) : 0);
}

/* Bytes count for their worker; a new connection counts when the descriptors are listed anew, and
 * another process in a worker's place at once. */
START_TEST(bytes_of_several_workers)
{
    struct sockets *s = sockets_new(TALKERS);
    struct talker t[TALKERS];
    int port, listener = listen_anywhere(&port), far[TALKERS];
    uint64_t now = mono_ns(), bytes[TALKERS];
    for (int i = 0; i < TALKERS; i++)
        t[i] = talker_start(port); /* none has this process's ends of the connections */
    struct talker spare = talker_start(port);
    for (int i = 0; i < TALKERS; i++)
        far[i] = talker_connect(&t[i], listener);
    if (access("/proc/net/tcp", R_OK) < 0) {
        test_skip("this kernel does not count");
        return;
    }
    look_at_all(s, t, &now, bytes);
    for (int i = 0; i < 2 * TALKERS; i++)
        expect_bytes_of(s, t, i % TALKERS, far[i % TALKERS], &now);
    int second = talker_connect(&t[1], listener);
    now += 2 * SECOND;
    look_at_all(s, t, &now, bytes);
    ck_assert_uint_eq(bytes[1], 2000 + 2); /* each connection began with one that counts */
    expect_bytes_of(s, t, 1, second, &now);
    talker_end(&t[2]);
    close(far[2]);
    t[2] = spare;
    far[2] = talker_connect(&t[2], listener);
    look_at_all(s, t, &now, bytes); /* finds out that it is another one */
    look_at_all(s, t, &now, bytes);
    ck_assert_uint_eq(bytes[2], 1);
    ck_assert_uint_eq(bytes[0], 2000 + 1);
    expect_bytes_of(s, t, 2, far[2], &now);
    for (int i = 0; i < TALKERS; i++) {
        talker_end(&t[i]);
        close(far[i]);
    }
    close(second);
    close(listener);
    sockets_free(s);
}
END_TEST

/* -------------------------------------------------------------------------------------- verdict */

static struct samples job(int n, const char *op)
{
    struct samples all = {0};
    for (int i = 0; i < n; i++) {
        struct sample *s = samples_add(&all);
        s->rank = i;
        s->pid = 100 + i;
        s->node = 0;
        snprintf(s->host, sizeof(s->host), "n0");
        s->op = (struct sample_op){.number = 10, .seq = 5, .open = op != NULL};
        snprintf(s->op.text, sizeof(s->op.text), "%s", op ? op : "");
        struct sample_thread *t = sample_add_thread(s, s->pid);
        t->state = 'S';
        snprintf(t->call, sizeof(t->call), "poll");
        sample_add_frame(t, "main (t.c:1)");
        sample_add_frame(t, op ? "dlcoll_barrier (ops.c:2)" : "load (t.c:9)");
    }
    return all;
}

/* Rank 2 is somewhere else, as the text of a test says. */
static void outside(struct samples *all, char state, const char *frame, int number)
{
    struct sample *s = &all->s[2];
    s->op.open = false;
    s->op.number = (uint64_t)number;
    s->threads[0].state = state;
    sample_drop_frames(&s->threads[0]);
    sample_add_frame(&s->threads[0], "main (t.c:1)");
    sample_add_frame(&s->threads[0], frame);
}

static struct verdict verdict_of(struct samples *a, struct samples *b)
{
    struct verdict v;
    hang_verdict(a, b, &v);
    samples_fini(a);
    samples_fini(b);
    return v;
}

START_TEST(who_is_missing)
{
    struct samples a = job(4, "barrier"), b = job(4, "barrier");
    outside(&a, 'S', "load (t.c:9)", 10);
    outside(&b, 'S', "load (t.c:9)", 10);
    struct verdict v = verdict_of(&a, &b);
    ck_assert_int_eq(v.state, HANG_HUNG);
    ck_assert_int_eq(v.n, 1);
    ck_assert_int_eq(v.ranks[0], 2);
    ck_assert_str_eq(v.text,
                     "rank 2 on n0 (pid 102) sleeps in poll, at load (t.c:9); ranks 0, 1, 3 "
                     "wait in barrier #5, at main (t.c:1)");
}
END_TEST

START_TEST(a_rank_that_moves_is_suspect_only)
{
    struct samples a = job(4, "barrier"), b = job(4, "barrier");
    outside(&a, 'R', "compile (t.c:9)", 10);
    outside(&b, 'R', "link (t.c:12)", 10);
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_SUSPECT);
    a = job(4, "barrier");
    b = job(4, "barrier");
    outside(&a, 'S', "save (t.c:9)", 10);
    outside(&b, 'S', "save (t.c:9)", 10);
    b.s[2].io_bytes = 4096; /* it writes a checkpoint */
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_SUSPECT);
    a = job(4, "barrier");
    b = job(4, "barrier");
    outside(&a, 'R', "spin (t.c:9)", 10);
    outside(&b, 'R', "spin (t.c:10)", 10); /* an endless loop */
    b.s[2].active = true;
    b.s[2].cpu_ms = 90;
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_HUNG);
    a = job(4, "barrier");
    b = job(4, "barrier");
    outside(&a, 'R', "step (t.c:9)", 10);
    outside(&b, 'R', "step (t.c:9)", 10); /* it could go on, but gets no CPU */
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_SUSPECT);
    for (int active = 0; active < 2; active++) { /* its steps are longer than those of others */
        a = job(4, "barrier");
        b = job(4, "barrier");
        outside(&a, 'S', "load (t.c:9)", 10);
        outside(&b, 'S', "load (t.c:9)", 10);
        b.s[2].active = active;
        ck_assert_int_eq(verdict_of(&a, &b).state, active ? HANG_SUSPECT : HANG_HUNG);
    }
}
END_TEST

START_TEST(a_job_that_goes_on_or_idles)
{
    struct samples a = job(4, "barrier"), b = job(4, "barrier");
    for (int i = 0; i < 4; i++)
        b.s[i].op.number++;
    ck_assert_int_ne(verdict_of(&a, &b).state, HANG_HUNG);
    a = job(4, NULL);
    b = job(4, NULL);
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_NONE); /* nobody waits */
    a = job(4, "barrier");
    b = job(4, "barrier");
    b.s[1].cpu_ms = 90; /* all are in one operation, which moves much data */
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_SUSPECT);
}
END_TEST

START_TEST(stopped_silent_and_odd_ranks)
{
    struct samples a = job(4, "barrier"), b = job(4, "barrier");
    a.s[3].threads[0].state = b.s[3].threads[0].state = 'T'; /* inside of the operation */
    struct verdict v = verdict_of(&a, &b);
    ck_assert_int_eq(v.state, HANG_HUNG);
    ck_assert(v.n == 1 && v.ranks[0] == 3);
    a = job(4, "barrier");
    b = job(4, "barrier");
    a.s[1].silent = b.s[1].silent = true;
    v = verdict_of(&a, &b);
    ck_assert(v.state == HANG_HUNG && v.n == 1 && v.ranks[0] == 1 && v.silent);
    ck_assert_ptr_nonnull(strstr(v.text, "its node does not answer"));
    a = job(4, "barrier");
    b = job(4, "barrier");
    b.s[1].silent = true; /* its node has answered before */
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_SUSPECT);
    a = job(4, "barrier");
    b = job(4, "barrier");
    snprintf(a.s[0].op.text, sizeof(a.s[0].op.text), "recv");
    snprintf(b.s[0].op.text, sizeof(b.s[0].op.text), "recv");
    v = verdict_of(&a, &b);
    ck_assert(v.state == HANG_HUNG && v.n == 1 && v.ranks[0] == 0);
    ck_assert_ptr_nonnull(strstr(v.text, "waits in recv #5 instead"));
    a = job(4, "barrier");
    b = job(4, "barrier");
    v = verdict_of(&a, &b);
    ck_assert(v.state == HANG_HUNG && v.n == 0);
    ck_assert_str_eq(v.text, "ranks 0-3 wait in barrier #5, at main (t.c:1)");
}
END_TEST

/* All have entered, and one that could go on gets no CPU. */
START_TEST(a_rank_without_a_cpu)
{
    struct samples a = job(4, "barrier"), b = job(4, "barrier");
    b.s[1].threads[0].state = 'R';
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_SUSPECT);
    for (int state = 0; state < 2; state++) { /* it, and rank 3 behind it, are an operation late */
        a = job(4, "barrier");
        b = job(4, "barrier");
        for (int rank = 1; rank < 4; rank += 2) {
            a.s[rank].op.number = b.s[rank].op.number = 9;
            a.s[rank].op.seq = b.s[rank].op.seq = 4;
        }
        a.s[0].op.seq = b.s[0].op.seq = a.s[2].op.seq = b.s[2].op.seq = 5;
        b.s[1].threads[0].state = state ? 'R' : 'S';
        struct verdict v = verdict_of(&a, &b);
        ck_assert_int_eq(v.state, state ? HANG_SUSPECT : HANG_HUNG);
    }
}
END_TEST

/* Samples of a library whose operations are not recorded: the place of a call tells them apart. */
static struct samples unrecorded(int n, const char *odd)
{
    struct samples all = job(n, NULL);
    for (int i = 0; i < n; i++) {
        struct sample *s = &all.s[i];
        s->op.number = 0;
        sample_drop_frames(&s->threads[0]);
        sample_add_frame(&s->threads[0], i == 2 ? odd : "step (t.py:5)");
        sample_add_frame(&s->threads[0], "_exception_logger.<locals>.wrapper (c10d_logger.py:83)");
        sample_add_frame(&s->threads[0], "all_reduce (distributed_c10d.py:9)");
    }
    return all;
}

START_TEST(operations_that_are_not_recorded)
{
    struct samples a = unrecorded(4, "save (t.py:9)"), b = unrecorded(4, "save (t.py:9)");
    struct verdict v = verdict_of(&a, &b);
    ck_assert(v.state == HANG_HUNG && v.n == 1 && v.ranks[0] == 2);
    ck_assert_ptr_nonnull(strstr(v.text, "at save (t.py:9); ranks 0, 1, 3 wait in all_reduce"));
    a = unrecorded(2, "");
    b = unrecorded(2, "");
    sample_drop_frames(&b.s[1].threads[0]); /* one each: nobody is the odd one out */
    sample_add_frame(&b.s[1].threads[0], "save (t.py:9)");
    sample_add_frame(&b.s[1].threads[0], "all_reduce (distributed_c10d.py:9)");
    v = verdict_of(&a, &b);
    ck_assert(v.state == HANG_HUNG && v.n == 0);
    a = unrecorded(4, "save (t.py:9)");
    b = unrecorded(4, "save (t.py:9)");
    sample_drop_frames(&b.s[2].threads[0]);
    sample_drop_frames(&a.s[2].threads[0]);
    sample_add_frame(&a.s[2].threads[0], "evaluate (t.py:9)");
    sample_add_frame(&b.s[2].threads[0], "evaluate (t.py:9)");
    for (int i = 0; i < 4; i++)
        b.s[i].active = i != 2; /* they have just come, the other one computes */
    ck_assert_int_ne(verdict_of(&a, &b).state, HANG_HUNG);
    a = unrecorded(4, "step (t.py:5)");
    b = unrecorded(4, "step (t.py:5)");
    b.s[1].io_bytes = 4096; /* the operation goes on */
    ck_assert_int_eq(verdict_of(&a, &b).state, HANG_SUSPECT);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hangs");
    TCase *t = test_case(s, "hangs", 60);
    tcase_add_test(t, a_day_without_alarms);
    tcase_add_test(t, the_limit_follows_the_gaps);
    tcase_add_test(t, a_slow_start_is_forgotten);
    tcase_add_test(t, one_long_gap);
    tcase_add_test(t, bursts);
    tcase_add_test(t, many_kinds);
    tcase_add_test(t, data_begin_to_flow);
    tcase_add_test(t, cpu_time_is_life);
    tcase_add_test(t, bytes_are_life);
    tcase_add_test(t, bytes_are_counted);
    tcase_add_test(t, bytes_of_several_workers);
    tcase_add_test(t, who_is_missing);
    tcase_add_test(t, a_rank_that_moves_is_suspect_only);
    tcase_add_test(t, a_job_that_goes_on_or_idles);
    tcase_add_test(t, stopped_silent_and_odd_ranks);
    tcase_add_test(t, a_rank_without_a_cpu);
    tcase_add_test(t, operations_that_are_not_recorded);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
