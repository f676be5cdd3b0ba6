#include "agent/inspect/py_spy.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

extern char **environ;

enum { OUTPUT_MAX = 4 << 20 };

const char *py_spy_named(void)
{
    const char *named = getenv("PYSPY_BIN");
    return named && *named ? named : NULL;
}

bool py_spy_start(struct py_spy *p, int pid)
{
    char number[16];
    char *argv[] = {"py-spy", "dump", "--json", "--nonblocking", "--pid", number, NULL};
    int fds[2];
    posix_spawn_file_actions_t actions;
    *p = (struct py_spy){.fd = -1};
    snprintf(number, sizeof(number), "%d", pid);
    if (pipe2(fds, O_CLOEXEC) < 0)
        return false;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(&p->pid, py_spy_named() ? py_spy_named() : "py-spy", &actions, NULL, argv,
                          environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    p->fd = fds[0];
    if (rc != 0) {
        close_fd(&p->fd);
        p->pid = 0;
    }
    return rc == 0;
}

static void add_frames(const json_t *thread, bool last, struct sample *s)
{
    const json_t *frames = json_object_get(thread, "frames"), *f;
    long tid = (long)json_integer_value(json_object_get(thread, "os_thread_id"));
    size_t i;
    if (!tid && last) /* before 3.11 Python does not know it; the oldest thread stands last */
        tid = s->pid;
    for (int k = 0; k < s->nthreads; k++) {
        struct sample_thread *t = &s->threads[k];
        if (t->tid != tid)
            continue;
        json_array_foreach(frames, i, f)
        {
            char text[SAMPLE_TEXT_MAX];
            const char *name = json_string_value(json_object_get(f, "name"));
            const char *file = json_string_value(json_object_get(f, "filename"));
            const char *slash = file ? strrchr(file, '/') : NULL;
            snprintf(text, sizeof(text), "%.160s (%.80s:%d)", name ? name : "?",
                     slash  ? slash + 1
                     : file ? file
                            : "?",
                     (int)json_integer_value(json_object_get(f, "line")));
            sample_add_frame(t, text);
        }
        sample_reverse(t);
        t->python = t->nframes > 0;
    }
}

bool py_spy_finish(struct py_spy *p, struct sample *s)
{
    struct buf b = BUF_INIT;
    ssize_t n = 0;
    int status = -1;
    do {
        xbuf_reserve(&b, 65536);
        n = read(p->fd, b.data + b.len, 65536);
        b.len += n > 0 ? (size_t)n : 0;
    } while (n > 0 && b.len < OUTPUT_MAX);
    close_fd(&p->fd);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
        ;
    json_t *all = status == 0 ? json_loadb((char *)b.data, b.len, 0, NULL) : NULL, *thread;
    size_t i;
    json_array_foreach(all, i, thread) add_frames(thread, i + 1 == json_array_size(all), s);
    bool good = json_array_size(all) > 0;
    json_decref(all);
    buf_fini(&b);
    return good;
}
