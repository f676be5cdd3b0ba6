#include "rendezvous/discovery/rdzv_backend.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/rules/text.h"

bool rdzv_discovery_quick(const struct rdzv_discovery *f)
{
    return f->ops->quick(f) && !auth_may_come(f->auth);
}

void rdzv_discovery_look(struct rdzv_discovery *f)
{
    struct err e = ERR_INIT;
    f->ops->look(f);
    if (auth_may_come(f->auth))
        auth_find(f->auth, f->ops->decide(f, &e) == RDZV_ROLE_HOST);
}

/* Resolves a name into at most max addresses. Returns how many, or a negative errno with a text. */
int rdzv_discovery_resolve(const char *host, int port, struct netaddr *out, int max, char *why,
                           size_t cap)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list), n = 0;
    if (rc != 0) {
        text_set(why, cap, "cannot resolve %s: %s", host,
                 rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
        return -EADDRNOTAVAIL;
    }
    for (struct addrinfo *i = list; i && n < max; i = i->ai_next) {
        netaddr_from_sockaddr(&out[n], i->ai_addr);
        if (out[n].len == 0)
            continue;
        netaddr_set_port(&out[n], port);
        bool seen = false;
        for (int k = 0; k < n; k++)
            seen |= netaddr_same_ip(&out[k], &out[n]);
        n += !seen;
    }
    freeaddrinfo(list);
    if (n == 0)
        text_set(why, cap, "%s has no address", host);
    return n > 0 ? n : -EADDRNOTAVAIL;
}

int rdzv_discovery_resolve_local(struct rdzv_discovery *f)
{
    f->status = 0;
    if (!f->local_addr || f->have_local)
        return 0;
    int n = rdzv_discovery_resolve(f->local_addr, 0, &f->local, 1, f->why, sizeof(f->why));
    f->have_local = n > 0;
    if (n < 0)
        text_add(f->why, sizeof(f->why), " (--local_addr)");
    return f->status = n < 0 ? n : 0;
}

void rdzv_discovery_forget_local(struct rdzv_discovery *f)
{
    free(f->local_addr);
    f->local_addr = NULL;
    f->have_local = false;
}

enum rdzv_role rdzv_discovery_host(struct rdzv_discovery *f, int port)
{
    struct meeting m;
    meeting_choose(&m, f->max_nodes > 1 ? "" : "127.0.0.1", port, NULL, 0, f->max_nodes,
                   f->have_local ? &f->local : NULL);
    f->bind = m.bind;
    f->as_called = false;
    f->must_host = true;
    return RDZV_ROLE_HOST;
}
