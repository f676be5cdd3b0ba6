#include "tests/integration/job.h"

void expect_text(const char *where, const char *text)
{
    ck_assert_msg(strstr(where, text), "not there: \"%s\"\nin: %s", text, where);
}

void expect_no_text(const char *where, const char *text)
{
    ck_assert_msg(!strstr(where, text), "should not be there: \"%s\"\nin: %s", text, where);
}

void expect_words(const char *where, const char *text)
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

void expect_status(struct proc *p, int status, double seconds)
{
    int got = proc_wait(p, seconds);
    ck_assert_msg(got == status, "exit %d, not %d\n--- stdout\n%s\n--- stderr\n%s", got, status,
                  p->out, p->err);
}

int count_text(const char *where, const char *text)
{
    const char *end = where + strlen(where);
    size_t len = strlen(text);
    int n = 0;
    for (const char *p = where; (p = memmem(p, (size_t)(end - p), text, len)); p++)
        n++;
    return n;
}

char *text_of_file(const char *path)
{
    return test_keep(read_file(path));
}

pid_t agent_of(const struct proc *p)
{
    return (pid_t)atoi(text_of_file(test_text("/proc/%d/task/%d/children", p->pid, p->pid)));
}

struct signalled {
    struct proc *p;
    int signo;
};

static bool ended_by_signals(void *arg)
{
    struct signalled *s = arg;
    if (proc_poll(s->p))
        return true;
    proc_kill(s->p, s->signo);
    return false;
}

void signal_until_end(struct proc *p, int signo, double seconds)
{
    struct signalled s = {p, signo};
    wait_until(ended_by_signals, &s, seconds, "a further signal ends it");
}

json_t *json_of_file(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    ck_assert_msg(j, "%s: %s", path, e.text);
    return j;
}

const char *json_word(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    ck_assert_msg(s, "no text %s", key);
    return s;
}

long json_number(const json_t *j, const char *key)
{
    json_t *n = json_object_get(j, key);
    ck_assert_msg(json_is_integer(n), "no number %s", key);
    return (long)json_integer_value(n);
}
