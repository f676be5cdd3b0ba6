/* Workers' output when the launcher's console is a terminal: it cannot move the cursor or reprogram
 * the terminal. */
#include "tests/lib/pump.h"

#include <stdlib.h>

#include "core/escape.h"

struct terminal {
    struct fixture f;
    int slave;
};

static void setup_terminal(struct terminal *t)
{
    int master;
    setup(&t->f);
    make_terminal(&master, &t->slave);
    close_fd(&t->f.out_r);
    t->f.out_r = master;
    fd_set_nonblock(master, true);
    open_pump(&t->f, t->slave, t->slave);
}

static void teardown_terminal(struct terminal *t)
{
    close_alone(&t->f, 1); /* not all has to be read */
    read_consoles(&t->f);
    close(t->slave);
    teardown(&t->f);
}

static void expect_shown(struct terminal *t, const char *want)
{
    UNTIL(&t->f, t->f.out.len >= strlen(want), "not all is shown");
    ck_assert_str_eq(text(&t->f.out), want);
}

#define COLOUR "\x1b[1;38:5:208m"

static const struct {
    const char *what, *printed, *shown;
} lines[] = {
    {"text", "plain \xc3\xa9 \xe6\xad\xa5 \xf0\x9f\x98\x80\n", NULL},
    {"colours", COLOUR "red\x1b[0m and \x1b[mplain\n", NULL},
    {"tabs and progress bars", "\t10%\r\t20%\r\n", NULL},
    {"cursor", "\x1b[2A\x1b[10;10Hx\n", "\\x1b[2A\\x1b[10;10Hx\n"},
    {"erase", "\x1b[2J\x1b[K\n", "\\x1b[2J\\x1b[K\n"},
    {"title", "\x1b]0;mine\a\n", "\\x1b]0;mine\\x07\n"},
    {"clipboard", "\x1b]52;c;cm0gLXJm\x1b\\\n", "\\x1b]52;c;cm0gLXJm\\x1b\\\n"},
    {"hyperlink", "\x1b]8;;http://x\x1b\\y\x1b]8;;\x1b\\\n",
     "\\x1b]8;;http://x\\x1b\\y\\x1b]8;;\\x1b\\\n"},
    {"device control", "\x1bP$q\"p\x1b\\\n", "\\x1bP$q\"p\\x1b\\\n"},
    {"reset, single escapes",
     "\x1b"
     "c\x1b"
     "7\x1b(0\x1b\n",
     "\\x1b"
     "c\\x1b"
     "7\\x1b(0\\x1b\n"},
    {"C1",
     "\xc2\x9b"
     "2J\x9b"
     "2J\n",
     "\\xc2\\x9b2J\\x9b2J\n"},
    {"C0", "a\bb\vc\fd\ae\x0e\x7f\n", "a\\x08b\\x0bc\\x0cd\\x07e\\x0e\\x7f\n"},
    {"keyboard modes look like colours", "\x1b[>4;2m\x1b[?4m\n", "\\x1b[>4;2m\\x1b[?4m\n"},
    {"a control in a colour", "\x1b[3\a1m\x1b[3\n1m\n", "\\x1b[3\\x071m\\x1b[3\n1m\n"},
    {"a colour in a sequence", "\x1b]0;\x1b[31mx\x1b[m\n", "\\x1b]0;\x1b[31mx\x1b[m\n"},
    {"broken UTF-8", "\xc3\n\xe6\xad\n\xf5\x80\xed\xa0\x80\n",
     "\\xc3\n\\xe6\\xad\n\\xf5\\x80\\xed\\xa0\\x80\n"},
};

/* Wherever it is cut. */
START_TEST(what_moves_a_terminal_is_shown)
{
    const char *in = lines[_i].printed, *out = lines[_i].shown ? lines[_i].shown : in;
    for (size_t cut = 1; cut <= strlen(in); cut++) {
        struct terminal t;
        setup_terminal(&t);
        struct ends a = open_worker(&t.f, 0, shown(NULL), shown(NULL));
        ck_assert_int_eq(fd_write_all(a.out, in, cut), 0);
        ck_assert_int_eq(fd_write_all(a.out, in + cut, strlen(in + cut)), 0);
        expect_shown(&t, out);
        end_worker(&t.f, 0, &a);
        UNTIL(&t.f, t.f.ndrained == 1, "not drained");
        teardown_terminal(&t);
    }
}
END_TEST

/* A character that comes in two parts, with time between them in which the first is shown. */
START_TEST(a_sequence_waits_for_its_rest)
{
    struct terminal t;
    setup_terminal(&t);
    struct ends a = open_worker(&t.f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&t.f, 1, shown("[b]:"), shown(NULL));
    say(a.out, "name\x1b[3");
    expect_shown(&t, "[a]:name");
    say(b.out, "mine\n");
    expect_shown(&t, "[a]:name\n[b]:mine\n");
    say(a.out, "1m? \xe6\xad");
    expect_shown(&t, "[a]:name\n[b]:mine\n[a]:\x1b[31m? ");
    say(a.out, "\xa5\x1b[m\n");
    expect_shown(&t, "[a]:name\n[b]:mine\n[a]:\x1b[31m? \xe6\xad\xa5\x1b[m\n");
    say(a.out, "half\x1b[");
    end_worker(&t.f, 0, &a);
    expect_shown(&t, "[a]:name\n[b]:mine\n[a]:\x1b[31m? \xe6\xad\xa5\x1b[m\n[a]:half\\x1b[");
    end_worker(&t.f, 1, &b);
    teardown_terminal(&t);
}
END_TEST

/* A line so long that it goes on in pieces, with something at every place where it may be cut. */
START_TEST(long_lines_are_cut_between_characters)
{
    enum { UNITS = 30000 };
    static const char unit[] = "\x1b[31m\xe6\xad\xa5\x1b[m\x1b[2J",
                      seen[] = "\x1b[31m\xe6\xad\xa5\x1b[m\\x1b[2J";
    struct terminal t;
    struct buf in = BUF_INIT, want = BUF_INIT;
    setup_terminal(&t);
    for (int i = 0; i < UNITS; i++) {
        buf_put(&in, unit, sizeof(unit) - 1);
        buf_put(&want, seen, sizeof(seen) - 1);
    }
    buf_put(&in, "\n", 2);
    buf_put(&want, "\n", 2);
    struct ends a = open_worker(&t.f, 0, shown(NULL), shown(NULL));
    unsigned seed = 5;
    for (size_t at = 0; at < in.len - 1;) {
        size_t n = 1 + (size_t)rand_r(&seed) % 9000;
        n = n < in.len - 1 - at ? n : in.len - 1 - at;
        ck_assert_int_eq(fd_write_all(a.out, in.data + at, n), 0);
        at += n;
        read_consoles(&t.f);
    }
    end_worker(&t.f, 0, &a);
    UNTIL(&t.f, t.f.out.len >= want.len - 1, "not all of it came");
    ck_assert_uint_eq(t.f.out.len, want.len - 1);
    ck_assert_mem_eq(t.f.out.data, want.data, want.len - 1);
    buf_fini(&in);
    buf_fini(&want);
    teardown_terminal(&t);
}
END_TEST

/* Colours do not leak to another worker's lines or to the output after the job. */
START_TEST(a_colour_ends_with_its_worker)
{
    struct terminal t;
    setup_terminal(&t);
    struct ends a = open_worker(&t.f, 0, shown("[a]:"), shown(NULL));
    struct ends b = open_worker(&t.f, 1, shown("[b]:"), shown(NULL));
    say(a.out, "\x1b[31mred\n");
    expect_shown(&t, "[a]:\x1b[31mred\n");
    say(b.out, "plain\n");
    expect_shown(&t, "[a]:\x1b[31mred\n\x1b[m[b]:plain\n");
    say(b.out, "\x1b[1mbold?");
    expect_shown(&t, "[a]:\x1b[31mred\n\x1b[m[b]:plain\n[b]:\x1b[1mbold?");
    stdio_write_line(t.f.pump, "dlaunch: one\n", 13);
    expect_shown(&t, "[a]:\x1b[31mred\n\x1b[m[b]:plain\n[b]:\x1b[1mbold?\x1b[m\ndlaunch: one\n");
    say(a.out, "\x1b[32mgreen\x1b[0m\n\x1b[7m");
    end_worker(&t.f, 0, &a);
    end_worker(&t.f, 1, &b);
    UNTIL(&t.f, t.f.ndrained == 2, "not drained");
    close_alone(&t.f, -1);
    read_consoles(&t.f);
    ck_assert_str_eq(text(&t.f.out),
                     "[a]:\x1b[31mred\n\x1b[m[b]:plain\n[b]:\x1b[1mbold?\x1b[m\ndlaunch: one\n"
                     "[a]:\x1b[32mgreen\x1b[0m\n[a]:\x1b[7m\x1b[m");
    close(t.slave);
    teardown(&t.f);
}
END_TEST

/* Files get what was written. */
START_TEST(files_stay_exact)
{
    struct terminal t;
    setup_terminal(&t);
    struct stdio_route out = shown("[a]:");
    out.file = tmppath("log");
    struct ends a = open_worker(&t.f, 0, out, shown(NULL));
    say(a.out, "\x1b[2J\xff\n");
    expect_shown(&t, "[a]:\\x1b[2J\\xff\n");
    end_worker(&t.f, 0, &a);
    UNTIL(&t.f, t.f.ndrained == 1, "not drained");
    ck_assert_str_eq(test_keep(read_file(out.file)), "\x1b[2J\xff\n");
    teardown_terminal(&t);
}
END_TEST

/* A terminal that shows nothing for so long that the middle of a line is lost, a colour's sequence
 * with it: what is said about the gap begins with a clean slate. */
START_TEST(a_gap_ends_what_it_cut)
{
    enum { COPIES = 2000000 };
    struct terminal t;
    setup_terminal(&t);
    struct ends a = open_worker(&t.f, 0, shown(NULL), shown(NULL));
    static char chunk[60000];
    for (size_t i = 0; i < sizeof(chunk); i += 6)
        memcpy(chunk + i, "\x1b[31mx", 6);
    for (size_t n = 0; n < 6 * (size_t)COPIES; n += sizeof(chunk))
        ck_assert_int_eq(fd_write_all(a.out, chunk, sizeof(chunk)), 0);
    say(a.out, "\n");
    end_worker(&t.f, 0, &a);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (t.f.ndrained == 0) {
        ck_assert_msg(mono_ns() < end, "not drained while the terminal is stuck");
        uv_run(&t.f.loop, UV_RUN_NOWAIT);
    }
    UNTIL(&t.f,
          t.f.out.len && t.f.out.data[t.f.out.len - 1] == '\n' &&
              strstr(text(&t.f.out), "dropped here"),
          "not all of it came");
    char *said = strstr(text(&t.f.out), "dlaunch: ");
    ck_assert(said && said - text(&t.f.out) > 4);
    ck_assert_msg(memcmp(said - 4, "\x1b[m\n", 4) == 0, "%.10s", said - 4);
    teardown_terminal(&t);
}
END_TEST

/* The worker has ended within a line, which would have been shown soon. */
START_TEST(who_waits_for_the_reader_sleeps)
{
    struct terminal t;
    struct timespec before, after;
    setup_terminal(&t);
    struct ends a = open_worker(&t.f, 0, shown(NULL), shown(NULL));
    static char much[200000];
    memset(much, 'x', sizeof(much));
    much[sizeof(much) - 2] = '\n';
    ck_assert_int_eq(fd_write_all(a.out, much, sizeof(much)), 0);
    end_worker(&t.f, 0, &a);
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    while (t.f.ndrained == 0) {
        ck_assert_msg(mono_ns() < end, "not drained while the terminal is stuck");
        uv_run(&t.f.loop, UV_RUN_NOWAIT);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    ck_assert(!close_alone(&t.f, 1));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used =
        (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    ck_assert_msg(used < 0.3, "%.3f s of CPU in 1 s", used);
    close(t.slave);
    teardown(&t.f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stdio_terminal");
    TCase *tc = test_case(s, "terminal", 60);
    tcase_add_loop_test(tc, what_moves_a_terminal_is_shown, 0,
                        (int)(sizeof(lines) / sizeof(*lines)));
    tcase_add_test(tc, a_sequence_waits_for_its_rest);
    tcase_add_test(tc, long_lines_are_cut_between_characters);
    tcase_add_test(tc, a_colour_ends_with_its_worker);
    tcase_add_test(tc, files_stay_exact);
    tcase_add_test(tc, a_gap_ends_what_it_cut);
    tcase_add_test(tc, who_waits_for_the_reader_sleeps);
    return s;
}

TEST_MAIN(suite)
