/* auth.h: who may talk to a coordinator, how, and with which coordinator.
 *
 *   from                              not open               open (--insecure)
 *   this host, this user's process    admitted as it is      as it is
 *   this host, another user's         refused                as it is
 *   another host                      TLS under the token    as it is
 *
 * A launcher that connects to a loopback address does so in the clear, to any other under TLS. With
 * a token that the user named (`everywhere`), loopback is treated as any other address. In the
 * clear it says and believes nothing before the other end, too, is seen to be this user's: anybody
 * may listen on a port of loopback. */
#ifndef RENDEZVOUS_WIRE_AUTH_H
#define RENDEZVOUS_WIRE_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/netaddr.h"
#include "core/tls.h"

#define GUARD_SECRET_MIN 16 /* bytes: 128 bits cannot be guessed */
#define GUARD_SECRET_MAX 1024

struct auth {
    bool open;         /* no token: whoever reaches the port may join */
    bool everywhere;   /* loopback connections are protected too */
    size_t secret_len; /* 0: there is no token; `source` says why, for people */
    uint8_t secret[GUARD_SECRET_MAX];
    char source[512]; /* where the token is from: "/home/ann/.config/dlaunch/token" */
    bool have_key;
    struct tls_key key; /* for the launchers' connections; made when first needed */
};

/* Loads what protection needs and derives the key. -EACCES: there is no token, and what to do. */
int auth_ready(struct auth *g, struct err *e);

/* A connection to this address is to be under TLS. */
bool auth_wants_tls(const struct auth *g, const struct netaddr *to);

/* A connection that has come in the clear is let in: fd is connected to `peer`. */
bool auth_admits_plain(const struct auth *g, int fd, const struct netaddr *peer);

/* Whose process the other end is. */
enum auth_whose {
    AUTH_ELSEWHERE, /* another host's */
    AUTH_OWN,
    AUTH_OTHERS, /* another user's on this host; or the kernel does not tell */
    AUTH_GONE,   /* on this host, and closed already: whose it was is not known any more */
};
enum auth_whose auth_whose(int fd, const struct netaddr *peer);

#endif
