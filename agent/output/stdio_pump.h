/* stdio_pump.h: what stdio.c (the agent's side of the pump) and stdio_pump.c (its thread) share;
 * for these two files only.
 *
 * `lock` guards what both use; the rest belongs to one of them, as the comments say. A worker is
 * the agent's until its pipes are in the epoll set, then the thread's until it is in `news`, then
 * the agent's again. */
#ifndef AGENT_OUTPUT_STDIO_PUMP_H
#define AGENT_OUTPUT_STDIO_PUMP_H

#include <uv.h>

#include <pthread.h>
#include <stdatomic.h>

#include "agent/base/stdio_opts.h"
#include "agent/output/fold_console.h"
#include "agent/output/stdio_console.h"
#include "agent/output/stdio_job.h"
#include "agent/output/stdio_stream.h"
#include "agent/output/stdio_tail.h"
#include "core/bytes.h"

struct worker {
    int local_rank;
    struct stdio_stream stream[2];
    struct stdio_tail tail; /* lock */
    struct stream_filter *filter;
    bool reported;             /* the agent's: stdio_worker_exited() was called */
    bool drained;              /* the agent's: taken from `news` */
    bool exited;               /* the thread's: taken from `orders`; the worker is dead */
    uint64_t deadline_ns;      /* the thread's: when it closes the worker's pipes */
    _Atomic uint64_t first_ns; /* when the thread has read the first bytes; 0: none yet */
    _Atomic uint64_t last_ns;  /* when the newest output was read */
    struct worker *next;       /* lock; in `orders`, then in `news` */
    struct worker *prev_live, *next_live;
};

/* Epoll events point to streams and consoles; the lowest bit tells them apart. */
#define TAG_CONSOLE 1u

struct stdio_pump {
    /* Read by agent and thread; unchanged while the thread runs. */
    int epfd, wakefd;
    pthread_t thread;
    struct stdio_pump_opts opts;
    uv_async_t async;      /* sent when `news` is not empty, or the thread has ended */
    bool shows[2];         /* there is a console that takes stdout, stderr */
    struct stdio_job *job; /* NULL: each node has a console of its own */

    pthread_mutex_t lock;
    struct worker *live;             /* the thread's workers; it alone takes them out */
    struct worker *orders;           /* workers that have exited, not yet taken by the thread */
    struct worker *news, **news_end; /* drained workers, not yet taken by the agent */
    struct buf inbox;                /* dlaunch's own lines */
    uint64_t inbox_lost;             /* bytes that had no room */
    struct buf trouble; /* for on_trouble: 1 or 0 (shown), then the text with its NUL; repeated */
    bool closing, woken;
    bool begins; /* a round does, on the job's console */
    bool room;   /* the job's console has room again */
    bool ended;  /* the thread ends */

    /* Set by the agent before `closing`; unchanged afterwards. */
    struct stdio_pump_end end;
    atomic_bool hurry; /* the thread stops waiting for readers */

    /* The agent's. */
    bool is_sink;            /* output of the job has come here */
    struct worker **workers; /* by local rank */
    int nworkers;
    struct stream_filter *filter; /* for the workers to come */

    /* The thread's. */
    struct console console[2];
    struct console
        *route[2]; /* the consoles of stdout and stderr; equal if both lead to one place */
    TAILQ_HEAD(held_streams, stdio_stream)
    held[2], held_for_job; /* by console; the next to be read first */
    struct fold *fold[2];  /* by console; NULL: its lines are not folded */
    struct fold_console folded[2];
    struct stream_buffers buffers;
    struct stdio_stream *waiting; /* streams with text that is not shown yet */
    uint64_t partial_ns;          /* when to look through `waiting`; 0: empty */
    uint64_t drain_ns;            /* when to look for workers past their deadline; 0: none */
    uint64_t now_ns;
    struct buf own; /* dlaunch's own lines that wait until own_due_ns; empty: none */
    uint64_t own_lost, own_due_ns;
    bool own_lines_wait;       /* in the inbox, behind those, or for a console that is full */
    bool finishing;            /* all is read: only the consoles are waited for */
    bool gave_up;              /* the consoles have not taken everything */
    bool reported[2];          /* the failure of the console was reported */
    uint64_t file_reported_ns; /* when the failure of a log file was last reported */
    unsigned files_lacking;    /* log files that were closed with missing output */
    uint64_t bytes_lacking;
    char lacking_path[1024]; /* the first held stream */
};

/* The thread; its argument is the pump. Returns when the pump is to be closed and the last words
 * are written. */
void *stdio_pump_main(void *arg);

/* The thread: a stream that is no worker's of this node has changed (stdio_job_opts.on_stream). */
void stdio_pump_look_at_stream(void *pump, struct stdio_stream *s);

void stream_filter_unref(struct stream_filter *f); /* any thread; NULL is allowed */

#endif
