/* lines.h: how a launcher and dlaunch-inspect talk: in lines of text, none longer than
 * INSPECT_LINE_MAX bytes. Pure.
 *
 * The launcher writes this to standard input, whose end is the end of the question:
 *
 *   dlaunch-inspect 1                      the number of the protocol
 *   look RANK PID RECORDED                 for each worker. RECORDED, 0 or 1: its operations are
 *                                          recorded, so that NCCL and PyTorch need not be asked
 *
 * dlaunch-inspect answers on standard output, each worker's part as soon as it is complete:
 *
 *   dlaunch-inspect 1
 *   sample RANK PID                        begins what is seen of a worker (sample.h)
 *   program TEXT
 *   note TEXT
 *   numbers CPU_MS IO_BYTES STOPPED_US MORE_THREADS
 *   op NUMBER GROUP SEQ AGE_MS OPEN REPORTED TEXT
 *   thread TID STATE PYTHON NAME           the next ones are of this thread; STATE - is not known
 *   wchan TEXT
 *   call TEXT
 *   frame TEXT
 *   done                                   the sample is complete
 *
 * TEXT goes to the end of the line, with \n for a newline in it and \\ for a backslash. A line
 * without a value is left out. Who is asked in another protocol answers the first line only. */
#ifndef AGENT_INSPECT_LINES_H
#define AGENT_INSPECT_LINES_H

#include "agent/inspect/sample.h"
#include "core/err.h"

#define INSPECT_NAME     "dlaunch-inspect"
#define INSPECT_LINE_MAX 1024 /* with its newline */

struct inspect_worker {
    int rank, pid;
    bool recorded;
};

/* The first line of both sides: the number of the protocol. */
void inspect_put_version(struct buf *b);
void inspect_put_worker(struct buf *b, const struct inspect_worker *w);
void inspect_put_sample(struct buf *b, const struct sample *s);

/* Reads "look ...". False: the line is another one. */
bool inspect_get_worker(const char *line, struct inspect_worker *w);

/* Whether the line is the first one of a peer of the same protocol; -EPROTO: what it is instead. */
int inspect_check_version(const char *line, struct err *e);

/* Reads an answer in pieces of any size. */
struct inspect_reader {
    struct samples *all; /* borrowed; complete samples are appended */
    bool (*asked)(void *arg, int rank,
                  int pid); /* the worker asked about; lines about others are refused */
    void *arg;
    struct sample now;
    bool greeted, open;
    char line[INSPECT_LINE_MAX];
    size_t len;
};
#define INSPECT_READER(all_, asked_, arg_)              \
    {                                                   \
        .all = (all_), .asked = (asked_), .arg = (arg_) \
    }

/* 0; -EPROTO, with a text that names the line that is no answer. Nothing may be read after that
 * error; complete samples stay. */
int inspect_read(struct inspect_reader *r, const void *p, size_t n, struct err *e);
void inspect_reader_fini(struct inspect_reader *r); /* drops an incomplete sample */

#endif
