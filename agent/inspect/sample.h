/* sample.h: what is seen of one worker from outside at one moment: its threads, their stacks, and
 * what the kernel says of them. Plain values; encode and decode are exact inverses. */
#ifndef AGENT_INSPECT_SAMPLE_H
#define AGENT_INSPECT_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"

#define SAMPLE_FRAMES_MAX  256 /* frames of one thread; further outer frames are left out */
#define SAMPLE_THREADS_MAX 64  /* threads of one worker; further threads are counted only */
#define SAMPLE_TEXT_MAX    256 /* bytes of one frame, or of the call in which a thread waits */
/* The bytes that the threads of all samples of a message may take. A message has each stack once,
 * however many threads are in it: without a limit one of 4 MiB could become gigabytes. */
#define SAMPLES_BYTES_MAX (256u << 20)

struct sample_thread {
    int tid;
    char name[16];
    char state; /* as in /proc/pid/stat: R, S, D, T, t; 0: not known */
    bool python;
    char wchan[64];             /* the kernel function in which it sleeps; "" */
    char call[SAMPLE_TEXT_MAX]; /* the system call: "read of a pipe"; "" */
    int nframes;
    char **frames; /* owned; the outermost first: "step (train.py:31)" */
};

/* The worker's last collective operation, from its flight recorder in the launcher's segment, else
 * as NCCL or PyTorch says. */
struct sample_op {
    uint64_t number; /* number among all operations of the worker; 0: none has begun */
    uint64_t group, seq;
    uint64_t age_ms;            /* since the beginning of an open operation, else since its end */
    bool open;                  /* the operation has not ended */
    bool hidden;                /* others may be under way that nobody tells of */
    bool reported;              /* by NCCL or PyTorch, which may not answer for the next sample */
    char text[SAMPLE_TEXT_MAX]; /* "all_reduce of 3 f32 (sum)" */
};

struct sample {
    int rank, node, pid;
    char host[256];
    char program[16];           /* the process's name */
    char note[SAMPLE_TEXT_MAX]; /* why there is less than there could be; "" */
    uint64_t cpu_ms, io_bytes;  /* since the worker started */
    uint32_t stopped_us;        /* how long a thread was stopped for the sample; 0: none was */
    struct sample_op op;
    bool active;  /* with --hang_after: the worker has not been silent for unusually long */
    bool silent;  /* the worker's node has not answered; not encoded */
    int nthreads; /* in `threads` */
    int more_threads;
    struct sample_thread *threads; /* owned; the main thread first */
};

/* The samples of some workers. */
struct samples {
    struct sample *s;
    size_t n;
    size_t bytes; /* of the threads that samples_decode() has added */
};

void sample_fini(struct sample *s);

/* Whether a frame, or a file's name, is the C library's or a sanitizer's, whose lines say nothing
 * to anybody: they are not looked up. */
bool sample_is_libc(const char *text);
struct sample_thread *sample_add_thread(struct sample *s, int tid);
/* Takes a copy of the text. The innermost frame is added last. */
void sample_add_frame(struct sample_thread *t, const char *text);
/* Reverses frames that were added the innermost first. */
void sample_reverse(struct sample_thread *t);
void sample_drop_frames(struct sample_thread *t);

struct sample *samples_add(struct samples *all);
void samples_fini(struct samples *all);
void samples_sort(struct samples *all); /* by rank */

void samples_encode(struct buf *b, const struct samples *all);
/* Encodes samples so that b has `most` bytes at most: threads are left out of the samples, the last
 * ones of each first, and their notes say so. */
void samples_encode_within(struct buf *b, const struct samples *all, size_t most);
/* Appends to *all. False: malformed; some may have been appended. Threads for which there is no
 * room any more (SAMPLES_BYTES_MAX) are counted only, and the sample's note says so. */
bool samples_decode(struct rd *r, struct samples *all);

#endif
