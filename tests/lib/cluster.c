#include "tests/lib/cluster.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/netaddr.h"
#include "tests/lib/start.h"
#include "tests/lib/test.h"

#define MAX_ARGS 256

/* Below what the kernel gives to those who ask for any port and to connections going out: nobody
 * gets it in between by chance. */
#define PORT_MIN 15000
#define PORT_MAX 32000

int free_port(void)
{
    for (;;) {
        struct netaddr a;
        uint16_t any;
        ck_assert_int_eq(getrandom(&any, sizeof(any), 0), sizeof(any));
        int port = PORT_MIN + any % (PORT_MAX - PORT_MIN);
        netaddr_parse_ip(&a, "0.0.0.0", port);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int rc = bind(fd, &a.sa, a.len);
        close(fd);
        if (rc == 0)
            return port;
    }
}

/* %W and %T filled in; malloc'ed. */
static char *fill_in(const char *word)
{
    struct {
        const char *name, *value;
    } names[] = {{"%W", build_path("tests/worker")}, {"%T", tmpdir()}};
    char *text = xstrdup(word);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (char *at; (at = strstr(text, names[i].name));) {
            *at = '\0';
            char *longer = xasprintf("%s%s%s", text, names[i].value, at + 2);
            free(text);
            text = longer;
        }
    }
    return text;
}

/* Splits at blanks; quotes of either kind keep blanks. Appends to argv. */
static int split(const char *line, char *argv[], int argc)
{
    char word[8192];
    size_t n = 0;
    char quote = 0;
    bool in_word = false;
    for (const char *s = line;; s++) {
        if (!quote && (*s == ' ' || *s == '\n' || *s == '\0')) {
            if (in_word) {
                word[n] = '\0';
                argv[argc++] = test_keep(fill_in(word));
                ck_assert_int_lt(argc, MAX_ARGS);
            }
            n = 0;
            in_word = false;
            if (!*s)
                break;
        } else if (!quote && (*s == '"' || *s == '\'')) {
            quote = *s;
            in_word = true;
        } else if (quote && *s == quote) {
            quote = 0;
        } else {
            ck_assert_msg(*s, "unclosed quote in: %s", line);
            in_word = true;
            word[n++] = *s;
            ck_assert_uint_lt(n, sizeof(word));
        }
    }
    argv[argc] = NULL;
    return argc;
}

static char *format(const char *fmt, va_list ap)
{
    char *line;
    ck_assert_int_ge(vasprintf(&line, fmt, ap), 0);
    return test_keep(line);
}

char **dlaunch_argv(const char *options, const char *line)
{
    char **argv = (char **)(void *)test_keep(xcalloc(MAX_ARGS + 1, sizeof(*argv)));
    argv[0] = build_path("dlaunch");
    int argc = split(options, argv, 1);
    split(line, argv, argc);
    return argv;
}

static void start(struct proc *p, char *const env[], const char *options, const char *line)
{
    proc_start(p, dlaunch_argv(options, line), env, 0);
}

void dlaunch_start(struct proc *p, char *const env[], const char *line, ...)
{
    va_list ap;
    va_start(ap, line);
    char *text = format(line, ap);
    va_end(ap);
    start(p, env, start_options(text, env), text);
}

void dlaunch_start_into(struct proc *p, int fd, const char *line)
{
    char **argv = (char **)(void *)test_keep(xcalloc(MAX_ARGS + 5, sizeof(*argv)));
    char **all = dlaunch_argv("", line);
    argv[0] = argv[3] = "sh";
    argv[1] = "-c";
    argv[2] = test_text("exec \"$@\" >&%d %d>&-", fd, fd);
    memcpy(argv + 4, all, (MAX_ARGS + 1) * sizeof(*argv));
    ck_assert_int_eq(fcntl(fd, F_SETFD, 0), 0);
    proc_start(p, argv, NULL, 0);
    ck_assert_int_eq(fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
}

int dlaunch_run(struct proc *p, double seconds, const char *line, ...)
{
    va_list ap;
    va_start(ap, line);
    char *text = format(line, ap);
    va_end(ap);
    start(p, NULL, start_options(text, NULL), text);
    return proc_wait(p, seconds);
}

static void start_node(struct cluster *c, int i, const char *line)
{
    char options[128];
    snprintf(options, sizeof(options), "--nnodes %d --node_rank %d --master_port %d", c->n, i,
             c->port);
    start(&c->node[i], NULL, options, line);
}

void cluster_start(struct cluster *c, int n, const char *line, ...)
{
    va_list ap;
    va_start(ap, line);
    char *text = format(line, ap);
    va_end(ap);
    memset(c, 0, sizeof(*c));
    c->n = n;
    c->port = free_port();
    for (int i = 0; i < n; i++)
        start_node(c, i, text);
}

void cluster_start_node(struct cluster *c, int i, const char *line, ...)
{
    va_list ap;
    va_start(ap, line);
    char *text = format(line, ap);
    va_end(ap);
    start_node(c, i, text);
}

void cluster_wait(struct cluster *c, int status, double seconds)
{
    for (int i = 0; i < c->n; i++) {
        int got = proc_wait(&c->node[i], seconds);
        ck_assert_msg(got == status, "node %d: exit %d, not %d\n--- stdout\n%s\n--- stderr\n%s", i,
                      got, status, c->node[i].out, c->node[i].err);
    }
}

void cluster_fini(struct cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        if (c->node[i].pid)
            proc_fini(&c->node[i]);
    }
}

int count_lines(const char *path)
{
    if (access(path, F_OK) != 0)
        return 0;
    char *text = read_file(path);
    int n = 0;
    for (char *s = text; (s = strchr(s, '\n')); s++)
        n++;
    free(text);
    return n;
}

struct line_goal {
    const char *path;
    int n;
};

static bool has_lines(void *arg)
{
    struct line_goal *g = arg;
    return count_lines(g->path) >= g->n;
}

void wait_lines(const char *path, int n, double seconds)
{
    char what[128];
    struct line_goal g = {path, n};
    snprintf(what, sizeof(what), "%d lines in %.80s", n, path);
    wait_until(has_lines, &g, seconds, what);
}
