#include "tests/multihost/hosts.h"

void launch(struct hosts *h, int host, const char *line, ...)
{
    char *text;
    va_list ap;
    va_start(ap, line);
    ck_assert_int_ge(vasprintf(&text, line, ap), 0);
    va_end(ap);
    netns_start(&h->node[host], host, dlaunch_argv("", test_keep(text)), NULL);
}

void launch_all(struct hosts *h, const char *line, ...)
{
    char *text;
    va_list ap;
    va_start(ap, line);
    ck_assert_int_ge(vasprintf(&text, line, ap), 0);
    va_end(ap);
    test_keep(text);
    memset(h, 0, sizeof(*h));
    for (int i = 0; i < HOSTS; i++)
        launch(h, i, "--nnodes 3 --node_rank %d %s", i, text);
}

void expect_exit(struct hosts *h, int host, int status, double seconds)
{
    struct proc *p = &h->node[host];
    int got = proc_wait(p, seconds);
    ck_assert_msg(got == status, "host%d: exit %d, not %d\n--- stdout\n%s\n--- stderr\n%s", host,
                  got, status, p->out, p->err);
}

void expect_all(struct hosts *h, int status, double seconds)
{
    for (int i = 0; i < HOSTS; i++)
        expect_exit(h, i, status, seconds);
}

void expect_said(const struct proc *p, const char *text)
{
    ck_assert_msg(strstr(p->err, text), "%s did not say \"%s\":\n%s", p->name, text, p->err);
}

void expect_printed(const struct proc *p, const char *text)
{
    ck_assert_msg(strstr(p->out, text), "%s did not print \"%s\":\n%s\n--- stderr\n%s", p->name,
                  text, p->out, p->err);
}

void hosts_fini(struct hosts *h)
{
    for (int i = 0; i < HOSTS; i++) {
        if (h->node[i].pid)
            proc_fini(&h->node[i]);
        ck_assert_msg(netns_count_processes(i) == 0, "%d processes are left on host%d",
                      netns_count_processes(i), i);
    }
}
