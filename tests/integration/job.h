/* job.h: what the tests of whole jobs share. */
#ifndef TESTS_INTEGRATION_JOB_H
#define TESTS_INTEGRATION_JOB_H

#include "tests/lib/test.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/cluster.h"

static inline void expect_text(const char *where, const char *text)
{
    ck_assert_msg(strstr(where, text), "not there: \"%s\"\nin: %s", text, where);
}

static inline void expect_no_text(const char *where, const char *text)
{
    ck_assert_msg(!strstr(where, text), "should not be there: \"%s\"\nin: %s", text, where);
}

/* The same whatever line breaks and margins a report has put between the words. */
static inline void expect_words(const char *where, const char *text)
{
    char *flat = test_keep(xstrdup(where)), *to = flat;
    for (const char *s = where; *s; s++) {
        bool blank = *s == ' ' || *s == '\n';
        if (!blank || to == flat || to[-1] != ' ')
            *to++ = blank ? ' ' : *s;
    }
    *to = '\0';
    ck_assert_msg(strstr(flat, text), "not there: \"%s\"\nin: %s", text, where);
}

static inline void expect_status(struct proc *p, int status, double seconds)
{
    int got = proc_wait(p, seconds);
    ck_assert_msg(got == status, "exit %d, not %d\n--- stdout\n%s\n--- stderr\n%s", got, status,
                  p->out, p->err);
}

/* How often `text` stands in `where`. */
static inline int times(const char *where, const char *text)
{
    int n = 0;
    for (const char *at = where; (at = strstr(at, text)); at++)
        n++;
    return n;
}

static inline char *text_of_file(const char *path)
{
    return test_keep(read_file(path));
}

/* The agent of a launcher: its guardian's only child. */
static inline pid_t agent_of(const struct proc *p)
{
    return (pid_t)atoi(text_of_file(test_text("/proc/%d/task/%d/children", p->pid, p->pid)));
}

struct signalled {
    struct proc *p;
    int signo;
};

static inline bool ended_by_signals(void *arg)
{
    struct signalled *s = arg;
    if (proc_poll(s->p))
        return true;
    proc_kill(s->p, s->signo);
    return false;
}

/* Signals it until it ends: what comes soon after the first signal counts as that one. */
static inline void signal_until_end(struct proc *p, int signo, double seconds)
{
    struct signalled s = {p, signo};
    wait_until(ended_by_signals, &s, seconds, "a further signal ends it");
}

static inline json_t *json_of_file(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    ck_assert_msg(j, "%s: %s", path, e.text);
    return j;
}

static inline const char *json_word(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    ck_assert_msg(s, "no text %s", key);
    return s;
}

static inline long json_number(const json_t *j, const char *key)
{
    json_t *n = json_object_get(j, key);
    ck_assert_msg(json_is_integer(n), "no number %s", key);
    return (long)json_integer_value(n);
}

#endif
