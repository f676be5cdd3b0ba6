/* pump.h: a pump of agent/output/stdio.h whose consoles are pipes that the test reads. */
#ifndef TESTS_LIB_PUMP_H
#define TESTS_LIB_PUMP_H

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/output/stdio.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "rendezvous/rules/rank_table.h"
#include "tests/lib/loop.h"
#include "tests/lib/test.h"

#define WORKERS_MAX 64

/* A pump whose consoles are pipes that the test reads. */
struct fixture {
    uv_loop_t loop;
    struct stdio_pump *pump;
    int out_r, out_w, err_r, err_w;
    struct buf out, err; /* all that the consoles have received, terminated */
    bool drained[NPROC_MAX];
    int nworkers; /* for the options of the pump */
    enum fold_mode fold;
    int ndrained;
    char *const *dup_stdout;
    bool job; /* one console for several pumps; then these are the pump's callbacks */
    void (*on_output)(void *fixture, struct buf *records);
    void (*on_room)(void *fixture);
    bool closed, all; /* the pump is closed; all output was written */
};

/* Opens the pump on these consoles. */
void open_pump(struct fixture *f, int console_out, int console_err);

/* Makes loop and pipes; setup_open() opens the pump on them, too. */
void setup(struct fixture *f);
void setup_open(struct fixture *f);

void read_consoles(struct fixture *f);
const char *text(const struct buf *b);

/* Runs the loop and reads the consoles until the condition holds. */
#define UNTIL(f, condition, what)                                                                 \
    do {                                                                                          \
        uint64_t end_ = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);                           \
        while (!(condition)) {                                                                    \
            ck_assert_msg(mono_ns() < end_, "%s\n--- out (%zu)\n%.2000s\n--- err\n%.2000s", what, \
                          (f)->out.len, text(&(f)->out), text(&(f)->err));                        \
            uv_run(&(f)->loop, UV_RUN_NOWAIT);                                                    \
            read_consoles(f);                                                                     \
            struct pollfd fds_[2] = {{(f)->out_r, POLLIN, 0}, {(f)->err_r, POLLIN, 0}};           \
            poll(fds_, 2, 1);                                                                     \
        }                                                                                         \
    } while (0)

void begin_close(struct fixture *f, double unread_s);

/* Runs the loop until the pump is closed. Returns whether all was written. */
bool close_alone(struct fixture *f, double unread_s);

/* Closes the pump while a thread keeps its consoles empty. */
void close_pump(struct fixture *f);
void teardown(struct fixture *f);

/* A route to the console. */
struct stdio_route shown(const char *prefix);

struct ends {
    int out, err;
};

struct ends open_worker(struct fixture *f, int rank, struct stdio_route out,
                        struct stdio_route err);
void say(int fd, const char *s);
void end_worker(struct fixture *f, int rank, struct ends *w);

/* Opens a raw terminal, whose master receives exactly the bytes written to the slave. */
void make_terminal(int *master, int *slave);

/* Makes loop and pipes; f->out_w is a terminal, for open_pump(). */
void setup_tty(struct fixture *f);

/* A pump whose stdout goes to a terminal that shows nothing while the test does not read it. */
void setup_stopped_terminal(struct fixture *f);

/* Writes `lines` numbered lines; the console is not read meanwhile. */
void write_numbered(int fd, unsigned lines);

/* Parses a size, as 1.5 KiB, into *bytes. Returns the rest of the text. */
char *size_text(char *p, double *bytes);

#endif
