#include "agent/hostname_check.h"

#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/base/job_spec.h"
#include "agent/worker_env.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/thread.h"
#include "core/uvx.h"

/* The round waits for the look-up no longer than this: a library looks the name up again. */
#define PATIENCE_MS 2000

struct hostname_check {
    atomic_int refs; /* one reference of the loop, one of the thread */

    /* Written by the thread until `found`, then read by the loop. */
    char host[HOST_MAX];
    char trouble[128]; /* the fault of the name; "": none */
    pthread_mutex_t lock;
    bool found, closed;
    uv_async_t woken;

    /* The loop's. */
    const struct job_spec *job;
    bool settled, in_time, said;
    uv_timer_t patience;
    struct uvx_scope scope;
    char interface[IF_NAMESIZE];
    void (*on_settled)(void *arg);
    void *arg;
};

static void unref(struct hostname_check *n)
{
    if (atomic_fetch_sub(&n->refs, 1) > 1)
        return;
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* ----------------------------------------------------------------------------------- the thread */

/* Takes the address that Gloo would take: the first that this host can bind to. */
static void judge(struct hostname_check *n, const struct addrinfo *list)
{
    struct netaddr a;
    char ip[ADDR_STRLEN];
    for (; list; list = list->ai_next) {
        netaddr_from_sockaddr(&a, list->ai_addr);
        if (a.len == 0 || !netaddr_is_local(&a))
            continue;
        if (netaddr_is_loopback(&a))
            snprintf(n->trouble, sizeof(n->trouble), "resolves to %s", netaddr_ip(&a, ip));
        return;
    }
    snprintf(n->trouble, sizeof(n->trouble), "resolves to no address of this host");
}

static void *hostname_look_up(void *arg)
{
    struct hostname_check *n = arg;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(n->host, NULL, &hints, &list);
    if (rc == 0)
        judge(n, list);
    else
        snprintf(n->trouble, sizeof(n->trouble), "does not resolve (%s)", gai_strerror(rc));
    if (list)
        freeaddrinfo(list);
    pthread_mutex_lock(&n->lock);
    n->found = true;
    if (!n->closed)
        uv_async_send(&n->woken);
    pthread_mutex_unlock(&n->lock);
    unref(n);
    return NULL;
}

/* ------------------------------------------------------------------------------------- the loop */

static void hostname_settle(struct hostname_check *n, bool in_time)
{
    if (n->settled)
        return;
    n->settled = true;
    n->in_time = in_time;
    uv_timer_stop(&n->patience);
    n->on_settled(n->arg);
}

static void on_woken(uv_async_t *woken)
{
    hostname_settle(container_of(woken, struct hostname_check, woken), true);
}

static void on_patience(uv_timer_t *timer)
{
    hostname_settle(container_of(timer, struct hostname_check, patience), false);
}

static bool is_this_host(const char *endpoint)
{
    struct netaddr a;
    return endpoint && (strcmp(endpoint, "localhost") == 0 ||
                        (netaddr_parse_ip(&a, endpoint, 0) && netaddr_is_loopback(&a)));
}

struct hostname_check *hostname_check_open(uv_loop_t *loop, const struct job_spec *job,
                                           void (*on_settled)(void *arg), void *arg)
{
    char names[128];
    if (job->rdzv.max_nodes == 1 || is_this_host(job->rdzv.endpoint_host) ||
        worker_env_ifname_unset(job, names, sizeof(names)) == 0)
        return NULL;
    struct hostname_check *n = xcalloc(1, sizeof(*n));
    *n = (struct hostname_check){.refs = 2, .job = job, .on_settled = on_settled, .arg = arg};
    pthread_mutex_init(&n->lock, NULL);
    if (gethostname(n->host, sizeof(n->host)) < 0 || !n->host[0])
        strcpy(n->host, "localhost");
    n->host[sizeof(n->host) - 1] = '\0';
    uvx_scope_init(&n->scope, loop);
    uv_async_init(loop, &n->woken, on_woken);
    uv_timer_init(loop, &n->patience);
    uvx_own(&n->scope, &n->woken);
    uvx_own(&n->scope, &n->patience);
    if (thread_start(NULL, 0, hostname_look_up, n) != 0) { /* as a name that is not found in time */
        unref(n);
        n->settled = true;
    }
    return n;
}

bool hostname_check_settled(struct hostname_check *n)
{
    if (!n || n->settled)
        return true;
    if (!uv_is_active((uv_handle_t *)&n->patience))
        uv_timer_start(&n->patience, on_patience, PATIENCE_MS, 0);
    return false;
}

static bool on_several_hosts(const struct rank_table *t)
{
    for (int i = 1; i < t->nnodes; i++) {
        if (strcmp(t->nodes[i].addr, t->nodes[0].addr) != 0)
            return true;
    }
    return false;
}

const char *hostname_check_interface(struct hostname_check *n, const struct rank_table *t,
                                     int group_rank)
{
    struct netaddr own;
    char names[128];
    if (!n || !on_several_hosts(t))
        return NULL;
    const char *trouble = n->in_time ? n->trouble : "takes long to resolve";
    if (!trouble[0] || !netaddr_parse_ip(&own, t->nodes[group_rank].addr, 0) ||
        netaddr_is_loopback(&own) || !netaddr_interface(&own, n->interface))
        return NULL;
    worker_env_ifname_unset(n->job, names, sizeof(names));
    if (!n->said)
        log_notice("this host's name, %s, %s: the workers are told to use %s (%s)", n->host,
                   trouble, n->interface, names);
    n->said = true;
    return n->interface;
}

static void hostname_on_closed(void *arg)
{
    unref(arg);
}

void hostname_check_close(struct hostname_check *n)
{
    if (!n)
        return;
    pthread_mutex_lock(&n->lock);
    n->closed = true;
    pthread_mutex_unlock(&n->lock);
    n->settled = true;
    uvx_scope_close(&n->scope, hostname_on_closed, n);
}
