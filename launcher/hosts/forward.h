/* forward.h: the hosts that are reached through this one (--ssh_tree), as this one sees them.
 *
 * For the head, this host runs the ssh to each, and carries what goes in and comes out as frames
 * (FRAME_FORWARD, FRAME_FORWARDED). It does not look into them: a plan for such a host is between
 * the head and that host, as is everything that the host says. */
#ifndef LAUNCHER_HOSTS_FORWARD_H
#define LAUNCHER_HOSTS_FORWARD_H

#include <poll.h>
#include <stdbool.h>

#include "core/bytes.h"
#include "launcher/hosts/frame.h"

struct spawner;
struct forward;

struct forwards {
    const char *inspect;     /* as in copies.h; borrowed */
    struct spawner *spawner; /* NULL: no host has been started */
    struct forward *list;    /* hosts whose ssh has not ended */
    size_t n;
};

/* Carries out a request of the head. program: the path of the program that has been copied to this
 * host; NULL: there is none. What there is to tell is appended to *out. 0, or -EPROTO. */
int forwards_take(struct forwards *f, const struct frame *frame, const char *program,
                  struct buf *out);

/* Fills in the descriptors of all, forwards_polled() of them. full: nothing is read. */
size_t forwards_polled(const struct forwards *f);
void forwards_poll(const struct forwards *f, struct pollfd *fds, bool full);
/* Reads and writes what can be, as poll(2) has told for the same hosts. */
void forwards_go_on(struct forwards *f, const struct pollfd *fds, struct buf *out);
/* To be called after SIGCHLD. */
void forwards_reap(struct forwards *f, struct buf *out);

/* The head is gone: ends the input of the hosts, which tells them. */
void forwards_hang_up(struct forwards *f);
/* Closes the descriptors and forgets the hosts. */
void forwards_fini(struct forwards *f);

#endif
