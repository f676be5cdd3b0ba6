/* dlaunch-inspect: looks at processes from outside, and may hang on one that hangs and crash on
 * memory that changes under it: neither hurts the launcher, which starts this program for one
 * question and kills it at its deadline (agent/stacks/sampler.h). lines.h says what is asked and
 * answered; a person may type it, too. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/inspect/kernel_side.h"
#include "agent/inspect/lines.h"
#include "agent/inspect/native.h"
#include "agent/inspect/nccl_ras.h"
#include "agent/inspect/py_spy.h"
#include "agent/inspect/python.h"
#include "agent/inspect/remote.h"
#include "agent/inspect/torch_recorder.h"
#include "core/fd.h"
#include "core/mem.h"

/* The workers and the facts that the question asks for. */
struct question {
    struct inspect_worker *workers;
    size_t n;
};

static void write_out(struct buf *b)
{
    if (b->oom || fd_write_all(STDOUT_FILENO, b->data, b->len) < 0)
        _exit(1);
    buf_fini(b);
}

static void put(const struct sample *s)
{
    struct buf b = BUF_INIT;
    inspect_put_sample(&b, s);
    write_out(&b);
}

static bool has_python(const struct sample *s)
{
    for (int i = 0; i < s->nthreads; i++) {
        if (s->threads[i].python)
            return true;
    }
    return false;
}

/* A call that goes on after a stop has the name of the C library's function for it. */
static void name_restarted(struct sample_thread *t)
{
    const char *frame = t->nframes ? t->frames[t->nframes - 1] : "";
    if (strcmp(t->call, KERNEL_SIDE_RESTARTED) != 0 || !sample_is_libc(frame))
        return;
    frame += strspn(frame, "_");
    snprintf(t->call, sizeof(t->call), "%.*s", (int)strcspn(frame, " "), frame);
}

/* In a Python program the native threads are the libraries' own: their names and what they wait in
 * are shown, because naming the functions of such libraries takes seconds. */
static void finish(struct sample *s)
{
    if (!has_python(s))
        native_read(s);
    for (int i = 0; i < s->nthreads; i++)
        name_restarted(&s->threads[i]);
    put(s);
}

/* Adds what NCCL and PyTorch report about a worker's operations. NCCL's service is asked once for
 * all workers. */
static void ask_libraries(struct sample *s)
{
    static struct nccl_ras ras;
    static bool asked;
    if (!nccl_ras_concerns(s->pid))
        return;
    char *environment = remote_environ(s->pid);
    if (!asked)
        nccl_ras_ask(&ras, remote_env(environment, "NCCL_RAS_ADDR"));
    asked = true;
    const struct sample_op *op = nccl_ras_of(&ras, s->pid);
    if (op)
        s->op = *op;
    else
        torch_recorder_look(environment, s);
    free(environment);
}

static void take(struct sample *s, bool recorded, struct py_spy *spy)
{
    struct python py;
    if (!kernel_side_read(s)) {
        snprintf(s->note, sizeof(s->note), "the process has ended");
        put(s);
        return;
    }
    if (!recorded)
        ask_libraries(s);
    python_find(s->pid, &py);
    bool read = python_read(&py, s) > 0;
    if (py.kind == PYTHON_OLD || (py.kind == PYTHON_FIXED && !read)) {
        if (py_spy_start(spy, s->pid))
            return; /* the others go on meanwhile */
        if (py_spy_named())
            snprintf(s->note, sizeof(s->note), "%.200s cannot be executed", py_spy_named());
        else
            snprintf(s->note, sizeof(s->note),
                     "Python %d.%d: for its frames install py-spy (pip install py-spy), or set "
                     "PYSPY_BIN",
                     py.major, py.minor);
    } else if (py.kind == PYTHON_OTHER) {
        snprintf(s->note, sizeof(s->note), "the frames of this Python cannot be read");
    } else if (py.kind == PYTHON_READABLE && !read) {
        snprintf(s->note, sizeof(s->note), "its Python frames cannot be read at this moment");
    }
    finish(s);
}

static void take_all(const struct question *q)
{
    struct sample *s = xcalloc(q->n, sizeof(*s));
    struct py_spy *spy = xcalloc(q->n, sizeof(*spy));
    for (size_t i = 0; i < q->n; i++) {
        s[i] = (struct sample){.rank = q->workers[i].rank, .pid = q->workers[i].pid, .node = -1};
        take(&s[i], q->workers[i].recorded, &spy[i]);
    }
    for (size_t i = 0; i < q->n; i++) {
        if (!spy[i].pid)
            continue;
        if (!py_spy_finish(&spy[i], &s[i]))
            snprintf(s[i].note, sizeof(s[i].note), "py-spy failed: %.150s dump --pid %d says why",
                     py_spy_named() ? py_spy_named() : "py-spy", s[i].pid);
        finish(&s[i]);
    }
    for (size_t i = 0; i < q->n; i++)
        sample_fini(&s[i]);
    free(s);
    free(spy);
}

/* A line of standard input without its newline. False: the input is at its end. */
static bool next_line(char line[INSPECT_LINE_MAX])
{
    if (!fgets(line, INSPECT_LINE_MAX, stdin))
        return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}

/* 0, or -1 after a line about the fault. */
static int read_question(struct question *q)
{
    char line[INSPECT_LINE_MAX];
    struct err e = ERR_INIT;
    struct inspect_worker w;
    if (!next_line(line) || inspect_check_version(line, &e) < 0) {
        fprintf(stderr, INSPECT_NAME ": %s\n", e.code ? e.msg : "nothing is asked");
        return -1;
    }
    while (next_line(line)) {
        if (!inspect_get_worker(line, &w)) {
            fprintf(stderr, INSPECT_NAME ": \"%.60s\": \"look RANK PID 0\" would be right\n", line);
            return -1;
        }
        q->workers = xrealloc(q->workers, (q->n + 1) * sizeof(w));
        q->workers[q->n++] = w;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct question q = {0};
    struct buf b = BUF_INIT;
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf(INSPECT_NAME " %s\n", DLAUNCH_VERSION);
        return fflush(stdout) != 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: " INSPECT_NAME " [--version]: part of dlaunch, asked by lines on "
                        "standard input\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);    /* of a pipe that a worker closes */
    unsetenv("DEBUGINFOD_URLS"); /* libdw would ask the network for debug information */
    inspect_put_version(&b);
    write_out(&b);
    if (read_question(&q) < 0)
        return 2;
    take_all(&q);
    free(q.workers);
    return 0;
}
