#include "rendezvous/wire/auth.h"

#include <errno.h>
#include <unistd.h>

#include "core/peer_uid.h"

#define PURPOSE "dlaunch 1 launchers"

void auth_find(struct auth *g, bool make)
{
    if (auth_may_come(g))
        g->find_own(g, make);
}

int auth_ready(struct auth *g, struct err *e)
{
    if (g->have_key)
        return 0;
    if (g->secret_len == 0)
        return err_set(e, -EACCES, "there is no job token (%s)", g->source);
    int rc = tls_load(e);
    if (rc == 0)
        rc = tls_key_derive(&g->key, g->secret, g->secret_len, PURPOSE, e);
    g->have_key = rc == 0;
    return rc;
}

bool auth_wants_tls(const struct auth *g, const struct netaddr *to)
{
    return !g->open && (g->everywhere || !netaddr_is_loopback(to));
}

enum auth_whose auth_whose(int fd, const struct netaddr *peer)
{
    struct netaddr own = {.len = sizeof(own.ss)};
    uid_t uid;
    if (getsockname(fd, &own.sa, &own.len) < 0)
        return AUTH_ELSEWHERE;
    /* Of several addresses of one network, the kernel connects from the first to each of them. */
    if (!netaddr_same_ip(peer, &own) && !netaddr_is_local(peer))
        return AUTH_ELSEWHERE;
    int rc = peer_uid(fd, &uid);
    return rc == -ENOENT ? AUTH_GONE : rc == 0 && uid == geteuid() ? AUTH_OWN : AUTH_OTHERS;
}

bool auth_admits_plain(const struct auth *g, int fd, const struct netaddr *peer)
{
    return g->open || (!g->everywhere && auth_whose(fd, peer) == AUTH_OWN);
}
