/* frame.h: what dlaunch -H and the dlaunch that it starts on each host say to each other, over that
 * one's standard input and output; likewise a program that starts a job by dlaunch.h.
 *
 * A host says FRAME_MAGIC first, since a shell's start-up files may print something before. From
 * there on, each way: u32 length of the body, u8 type, body. Numbers are little-endian.
 *
 *     host                                head
 *     magic, HELLO ---------------------->
 *                  <---------------------- PROGRAM (with --bcast), PLAN
 *     OUT, ERR, LOG, EVENTS, BEGAN, TAKEN ->        (any number, any order)
 *                  <---------------------- INPUT, INPUT_END, SIGNAL, UNREAD
 *     REPORT, JSON, EXIT ---------------->
 *
 * A host through which others are reached (--ssh_tree) gets FORWARD from its HELLO on, and says
 * FORWARDED, also after EXIT.
 *
 * The end of standard input without more ado means that the head is gone: the host ends its part of
 * the job at once. */
#ifndef LAUNCHER_HOSTS_FRAME_H
#define LAUNCHER_HOSTS_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "core/protocols.h"

#define FRAME_MAGIC    "\nDLAUNCH HOST 1\n"
#define FRAME_PROTOCOL PROTOCOL_HOSTS /* of the frames behind it; HELLO tells it */
#define FRAME_BODY_MAX (1u << 30)     /* a program; a plan or a report has at most */
#define FRAME_TEXT_MAX (32u << 20)
#define FRAME_DATA_MAX 65536  /* of the rest */
#define FRAME_WINDOW   262144 /* bytes of standard input under way to a host */

enum frame_type {
    /* Frames from a host. */
    FRAME_HELLO = 1, /* struct frame_hello */
    FRAME_OUT,       /* bytes of the workers' standard output */
    FRAME_ERR,       /* and standard error */
    FRAME_LOG,       /* u8 enum log_level, a line of dlaunch */
    FRAME_BEGAN,     /* the workers run, for the first time */
    FRAME_TAKEN,     /* u32: so many bytes of INPUT have been read */
    FRAME_REPORT,    /* the report for people */
    FRAME_JSON,      /* the report of --report */
    FRAME_EVENTS,    /* lines of --events */
    FRAME_EXIT,      /* struct frame_exit, of the launcher; only FORWARDED follows */
    FRAME_FORWARDED, /* struct frame_forward, from a host that is reached through this one */
    /* Frames from the head. */
    FRAME_PROGRAM, /* the bytes of a file, to be run in place of argv[program_at] */
    FRAME_PLAN,    /* struct plan_of_host */
    FRAME_INPUT,
    FRAME_INPUT_END,
    FRAME_SIGNAL,  /* u8 */
    FRAME_UNREAD,  /* u8: this stream (1 or 2) of the head has no reader any more */
    FRAME_FORWARD, /* struct frame_forward, for a host that is reached through this one */
    FRAME_TYPES
};

struct frame {
    enum frame_type type;
    const uint8_t *body;
    size_t len;
};

void frame_put(struct buf *b, enum frame_type type, const void *body, size_t len);
/* The beginning of a frame whose body follows by other means. */
void frame_begin(struct buf *b, enum frame_type type, size_t len);

/* The frame at the beginning of n bytes; returns its whole length. 0: it is not complete.
 * -EPROTO: this is not a frame. */
long frame_get(const void *p, size_t n, struct frame *out);

struct frame_hello {
    char version[64];
    char host[256]; /* gethostname() */
    int port;       /* on which the host listens, on all its addresses; 0: not */
    char here[64];  /* the host's address, as the head has reached it; "" unknown */
    char head[64];  /* the head's address, as seen from there; "" */
    int protocol;   /* FRAME_PROTOCOL there */
};

void frame_hello_put(struct buf *b, const struct frame_hello *h);
int frame_hello_get(const struct frame *f, struct frame_hello *out);
/* Describes how the host's dlaunch differs: a text for people behind the host's name, with the
 * remedy; NULL: it does not differ. */
const char *frame_hello_differs(const struct frame_hello *h, char why[160]);

/* The end of a launcher. */
struct frame_exit {
    int status;
    bool decided; /* from a coordinator; else the launcher had lost it, or left the job */
    uint64_t
        epoch; /* of that coordinator's last view: which of two coordinators is the later one */
    uint32_t counter;
};
void frame_exit_put(struct buf *b, const struct frame_exit *x);
int frame_exit_get(const struct frame *f, struct frame_exit *out); /* 0, -EPROTO */

/* The traffic of a host that is reached through another one. */
enum forward_what {
    /* Frames to a host that is reached through another one. */
    FORWARD_START,   /* struct forward_start: run this command, which reaches it */
    FORWARD_BYTES,   /* bytes for the command's standard input */
    FORWARD_PROGRAM, /* a FRAME_PROGRAM of the program that has been copied there */
    FORWARD_CLOSE,   /* the end of the command's standard input */
    FORWARD_KILL,    /* kill the command */
    /* Frames from such a host. */
    FORWARD_OUT,   /* bytes of the command's standard output */
    FORWARD_ERR,   /* bytes of the command's standard error */
    FORWARD_ENDED, /* u32: the command has ended, with this status of wait(2) */
    FORWARD_WHATS
};
#define FORWARD_MAX 32768 /* bytes of a stream in one such frame */

struct frame_forward {
    uint32_t host; /* as the head counts */
    enum forward_what what;
    const uint8_t *p;
    size_t len;
};
/* Appends bytes of a stream, in as many frames as they take. */
void frame_forward_put(struct buf *b, enum frame_type type, uint32_t host, enum forward_what what,
                       const void *p, size_t len);
int frame_forward_get(const struct frame *f, struct frame_forward *out); /* 0, -EPROTO */

struct forward_start {
    bool copied; /* dlaunch itself is the first that the command reads */
    char **argv;
};
void forward_start_put(struct buf *b, uint32_t host, const struct forward_start *s);
/* Fills in *s, all malloc'ed. -EPROTO. */
int forward_start_get(const struct frame_forward *f, struct forward_start *s);
void forward_start_fini(struct forward_start *s); /* of forward_start_get() */

/* The command that one host is to run. */
struct plan_of_host {
    char *cwd;
    char *name;            /* as the user calls the host */
    char **argv;           /* of dlaunch, NULL-terminated */
    char **env;            /* "NAME=value", NULL-terminated */
    char **programs;       /* of programs_put(); empty: argv has the only one */
    char *token;           /* "" none; the host hands it to dlaunch as --token_fd */
    char *prefix;          /* "" none */
    uint8_t columns;       /* of the terminal that the head's standard error is; 0: it is none */
    bool json;             /* JSON of the report is wanted, */
    bool events;           /* and EVENTS are */
    bool hosts_rendezvous; /* by the socket that HELLO has told of */
    int program_at;        /* where in argv the program is that was copied; 0: it was not */
};

void plan_put(struct buf *b, const struct plan_of_host *p);
/* Fills in *p, all malloc'ed. -EPROTO. */
int plan_get(const struct frame *f, struct plan_of_host *p);
void plan_fini(struct plan_of_host *p); /* of plan_get() */

#endif
