#include "agent/stacks/helper.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent/stacks/kernel_side.h"
#include "agent/stacks/native.h"
#include "agent/stacks/nccl_ras.h"
#include "agent/stacks/py_spy.h"
#include "agent/stacks/python.h"
#include "agent/stacks/remote.h"
#include "agent/stacks/torch_recorder.h"
#include "core/fd.h"
#include "core/mem.h"

static void put(const struct sample *s)
{
    const struct samples one = {(struct sample *)s, 1};
    struct buf b = BUF_INIT;
    buf_u32(&b, 0);
    samples_encode(&b, &one);
    buf_set_u32(&b, 0, (uint32_t)b.len - 4);
    if (b.oom || fd_write_all(STDOUT_FILENO, b.data, b.len) < 0)
        _exit(1);
    buf_fini(&b);
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

/* What NCCL and PyTorch say of its operations. The service is asked once for all workers. */
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
    bool old = py.kind == PYTHON_OLD || (py.kind == PYTHON_FIXED && !read);
    if (old && py_spy_path()) {
        if (py_spy_start(spy, py_spy_path(), s->pid))
            return; /* the others go on meanwhile */
        snprintf(s->note, sizeof(s->note), "%.200s cannot be executed", py_spy_path());
    } else if (old) {
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

int helper_main(int argc, char **argv)
{
    size_t n = argc > 1 ? (size_t)argc - 1 : 0;
    struct sample *s = xcalloc(n, sizeof(*s));
    struct py_spy *spy = xcalloc(n, sizeof(*spy));
    prctl(PR_SET_NAME, HELPER_NAME);
    signal(SIGPIPE, SIG_IGN);    /* of a pipe that a worker closes */
    unsetenv("DEBUGINFOD_URLS"); /* libdw would ask the network for debug information */
    for (size_t i = 0; i < n; i++) {
        int recorded;
        if (sscanf(argv[i + 1], "%d:%d:%d", &s[i].rank, &s[i].pid, &recorded) != 3)
            return 2;
        s[i].node = -1;
        take(&s[i], recorded, &spy[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (!spy[i].pid)
            continue;
        if (!py_spy_finish(&spy[i], &s[i]))
            snprintf(s[i].note, sizeof(s[i].note), "py-spy failed: %.150s dump --pid %d says why",
                     py_spy_path(), s[i].pid);
        finish(&s[i]);
    }
    for (size_t i = 0; i < n; i++)
        sample_fini(&s[i]);
    free(s);
    free(spy);
    return 0;
}
