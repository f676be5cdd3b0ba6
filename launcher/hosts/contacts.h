/* contacts.h: the hosts of dlaunch -H, and how the head gets through to them: who is tried, when,
 * and by which way: the host's daemon, a command such as ssh, or a host that has been reached.
 *
 *   a host refuses or resets the connection    tried again, ever later, until --start_timeout
 *   no daemon answers within DAEMON_MS         ssh, unless --launch_agent is daemon
 *   the host that is to reach it is lost       the one above that reaches it
 *   a host cannot be reached in time           head_rules_absent() */
#ifndef LAUNCHER_HOSTS_CONTACTS_H
#define LAUNCHER_HOSTS_CONTACTS_H

#include "core/tls.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/dial.h"
#include "launcher/hosts/head_rules.h"
#include "launcher/hosts/peer.h"
#include "launcher/hosts/reach.h"
#include "launcher/options/token.h"

struct contacts {
    struct options *o;
    const struct head_tokens *tokens;
    struct reach reach;
    struct copies copies; /* of --bcast */
    struct dial dial;     /* connections to daemons; not open: every host is reached by ssh */
    struct tls_key key;   /* of the daemons' token */
    double timeout_s;
    int min, max, spares; /* hosts that the job has at least, at most, and beyond */
    struct peer *peers;
    size_t npeers;
    struct spawner *spawner;  /* borrowed, as is rules; before contacts_start() */
    struct head_rules *rules; /* what becomes of the hosts */
    uint64_t now_ns;          /* of this turn of the loop */
};

/* What the options say of these hosts. -errno: they contradict each other, or a file is missing. */
int contacts_init(struct contacts *a, struct options *o, const struct host_list *hosts,
                  const struct head_tokens *tokens, struct err *e);
void contacts_fini(struct contacts *a);

/* Daemons are tried from now on, if there is a token for them: a->dial.results is to be watched. */
int contacts_open(struct contacts *a, struct err *e);
void contacts_read(struct contacts *a); /* a->dial.results is readable */

/* Begins the attempts that are due. */
void contacts_start(struct contacts *a);
/* Gives up those whose time is over. */
void contacts_check(struct contacts *a);
/* When the attempt ends. */
uint64_t contacts_deadline(const struct contacts *a, const struct peer *p);

size_t contacts_index(const struct contacts *a, const struct peer *p);
/* The host is not in the job, for the reason in `why`. */
void contacts_lose(struct contacts *a, struct peer *p, const char *why, int status);
/* No daemon can start the job on this host. again: one may do so soon. */
void contacts_lose_daemon(struct contacts *a, struct peer *p, const char *why, bool again);

#endif
