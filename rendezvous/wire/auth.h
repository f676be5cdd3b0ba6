/* auth.h: which processes may connect to a coordinator, and what both sides prove.
 *
 *   from                              not open               open (--insecure)
 *   this host, this user's process    admitted as it is      as it is
 *   this host, another user's         refused                as it is
 *   another host                      TLS under the token    as it is
 *
 * A launcher uses TLS unless it connects to a loopback address; with a token that the user named
 * (`everywhere`), on loopback too. Any user can listen on a port of loopback: so without TLS a
 * launcher sends and accepts nothing before it has checked that the other end is a process of this
 * user. */
#ifndef RENDEZVOUS_WIRE_AUTH_H
#define RENDEZVOUS_WIRE_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/netaddr.h"
#include "core/tls.h"

#define AUTH_SECRET_MIN 16 /* bytes: 128 bits cannot be guessed */
#define AUTH_SECRET_MAX 1024

struct auth {
    bool open;         /* no token: whoever reaches the port may join */
    bool everywhere;   /* loopback connections are protected too */
    size_t secret_len; /* 0: there is no token; `source` is the reason, for messages */
    uint8_t secret[AUTH_SECRET_MAX];
    char source[512]; /* of the token: "/home/ann/.config/dlaunch/token" */
    /* The user's own token, as long as there is none: reads it, or with `make` makes it when it is
     * not there. 0, or a negative errno with the reason in `source`. Blocks. NULL: no token comes
     * in this way. */
    int (*find_own)(struct auth *g, bool make);
    bool made; /* by this launcher: to be reported once */
    bool have_key;
    struct tls_key key; /* for the launchers' connections; derived when first needed */
};

/* Looks for a token that may still come. make: this launcher is about to listen where other hosts
 * can reach it, so that the job's token is its own to make. Blocks. */
void auth_find(struct auth *g, bool make);
/* Whether auth_find() may still bring one. */
static inline bool auth_may_come(const struct auth *g)
{
    return !g->open && g->secret_len == 0 && g->find_own;
}

/* Loads OpenSSL and derives the key. -EACCES: there is no token; the text names the remedy. */
int auth_ready(struct auth *g, struct err *e);

/* Whether a connection to this address uses TLS. */
bool auth_wants_tls(const struct auth *g, const struct netaddr *to);

/* Whether a connection without TLS is admitted: fd is connected to `peer`. */
bool auth_admits_plain(const struct auth *g, int fd, const struct netaddr *peer);

/* The user of the process at the other end. */
enum auth_whose {
    AUTH_ELSEWHERE, /* another host's */
    AUTH_OWN,
    AUTH_OTHERS, /* another user's on this host, or not shown by the kernel */
    AUTH_GONE,   /* on this host, but already closed, so that its user is not known */
};
enum auth_whose auth_whose(int fd, const struct netaddr *peer);

#endif
