/* peer.h: one host of dlaunch -H as the head has it: the ssh client, the dlaunch of this host, or a
 * connection to the host's daemon, and what goes to and comes from it (frame.h).
 *
 *     WAITING -> CONNECTING -> READY -> PLANNED -> GONE
 *        ^           |           |                  ^
 *        +-- again --+-----------+------------------+
 *
 *   WAITING     for its turn, or for the next attempt
 *   CONNECTING  started; it has not said FRAME_HELLO
 *   READY       dlaunch runs there and waits for the plan
 *   PLANNED     it has the plan
 *   GONE        its process or connection has ended and all that it said has been read */
#ifndef LAUNCHER_HOSTS_PEER_H
#define LAUNCHER_HOSTS_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/bytes.h"
#include "core/err.h"
#include "launcher/hosts/frame.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/host_stream.h"

struct spawner;
struct uvx_scope;
struct uvx_watch;

enum peer_state { PEER_WAITING, PEER_CONNECTING, PEER_READY, PEER_PLANNED, PEER_GONE };

/* Bytes that go to a host before all frames. */
struct peer_piece {
    const uint8_t *p;
    size_t n;
};

struct peer {
    const struct host *host;
    enum peer_state state;
    bool is_local; /* this host: no ssh */
    bool
        srun; /* reached by srun, which ends its step when it is told to end, and not when killed */
    int rank; /* of its node; -1: not planned */

    uint32_t number;  /* of this host, for FRAME_FORWARD */
    struct peer *via; /* the host that is to reach this host; NULL: the head */
    bool through;     /* being reached, or reached, by that host, which has not told of the end */

    bool by_daemon, no_daemon; /* of this attempt; dlaunch is missing there, or cannot be used */
    bool dialing;              /* being connected to the daemon */
    struct host_stream stream; /* the connection */
    bool refused;              /* the daemon has another token */
    bool mute;                 /* nothing more goes to the daemon, or by way of p->via */

    pid_t pid;          /* -1: no process */
    bool end_requested; /* SIGTERM was sent: srun ends its step by the first one, and dies of the
                           next */
    int in, out, err;   /* pipes, or one socket under two numbers; -1 closed */
    struct buf to, from;
    struct peer_piece piece[2]; /* sent before `to` */
    size_t skipped;             /* bytes before FRAME_MAGIC */
    bool magic;
    char said[512]; /* the last that ssh has printed itself */
    size_t said_len;

    uint64_t first_ns, next_ns; /* the first attempt; when to try (again) */
    unsigned attempts;
    struct frame_hello hello;

    bool exited;         /* the launcher has told how it ended */
    char *report, *json; /* malloc'ed, or NULL */
    size_t report_len, json_len;
    uint32_t input_out;         /* bytes of standard input that the host has not taken */
    struct uvx_watch *watch[3]; /* of enum peer_end */
    void *owner;                /* of the callbacks of peer_watch() */
};

enum peer_end { PEER_IN, PEER_OUT, PEER_ERR };

void peer_init(struct peer *p, const struct host *h, uint32_t number, bool is_local, bool srun);
void peer_fini(struct peer *p);

static inline bool peer_is_left(const struct peer *p)
{
    return p->state != PEER_GONE;
}

/* Starts the process. */
int peer_start(struct peer *p, struct spawner *s, const char *path, char **argv, struct err *e);

/* Starts the connection from the host p->via, which is READY. copied: dlaunch is sent in front of
 * everything else. */
void peer_start_through(struct peer *p, char **argv, bool copied);
/* Takes what p->via tells of p. 1: the process has ended, with *status; 0; -EPROTO. */
int peer_forwarded(struct peer *p, const struct frame_forward *f, int *status);
/* p->via is gone, so the process is. */
void peer_lose_via(struct peer *p);

/* An attempt by the daemon begins: somebody connects (dial.h). */
void peer_dial(struct peer *p);
/* Takes over the connected socket to the peer's daemon. */
int peer_connected(struct peer *p, int fd, const struct tls_key *key, struct err *e);
/* The daemon knows the key. */
bool peer_is_known(const struct peer *p);
/* Ends the connection to the daemon, or the attempt. */
void peer_hang_up(struct peer *p);

/* Makes the loop look for what can be done now, and call back for the end of the peer; reads:
 * whether PEER_OUT is read. -errno: an end cannot be watched. */
int peer_watch(struct peer *p, struct uvx_scope *s, void (*const on_ready[3])(void *peer),
               bool reads);
/* Closes an end, which may be closed. */
void peer_close_end(struct peer *p, enum peer_end end);

/* Whether there is something to write; writes what is taken. */
bool peer_has_to_write(const struct peer *p);
void peer_write(struct peer *p);

/* Reads once. False: this end is closed now. */
bool peer_read(struct peer *p, enum peer_end end);

/* The next frame that has come, consumed by `*used` bytes of p->from. 1, 0: none, -EPROTO. */
int peer_next_frame(struct peer *p, size_t *at, struct frame *f);

/* Sends the program that p->via has got. */
void peer_forward_program(struct peer *p);
void peer_send(struct peer *p, enum frame_type type, const void *body, size_t n);
void peer_send_byte(struct peer *p, enum frame_type type, int byte);

/* The host learns that it is not wanted: it ends what it runs. */
void peer_drop(struct peer *p);
/* Ends the process without waiting for its end. srun is asked to end its step first; a second call
 * kills srun. */
void peer_kill(struct peer *p);

/* The process has ended; its status as wait(2) gives it. Reads what is left of it. True: ssh could
 * not get through for now, and another attempt may do. */
bool peer_ended(struct peer *p, int status);

/* Tries again later. False: not before the deadline. */
bool peer_again(struct peer *p, uint64_t deadline_ns, uint64_t now);

/* Why there is no dlaunch on the host, in one line. */
void peer_explain(const struct peer *p, int status, struct err *e);

#endif
