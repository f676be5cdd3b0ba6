#include "agent/hostname_check.h"

#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/base/job_env.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/thread.h"
#include "core/uvx.h"

/* The round waits for the look-up no longer than this: a library looks the name up again. */
#define WAIT_MS 2000

struct hostname_check {
    atomic_int refs; /* one reference of the loop, one of the thread */

    /* Written by the thread until `found`, then read by the loop. */
    char host[HOST_MAX];
    char trouble[128]; /* the fault of the name; "": none */
    pthread_mutex_t lock;
    bool found, closed;
    uv_async_t woken;

    /* The loop's. */
    struct node *n;
    bool settled, in_time, said;
    uv_timer_t timeout;
    struct uvx_scope scope;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* The variables that name the interface. NCCL treats a name as a prefix, unless "=" stands in front
 * of it. */
static const struct {
    const char *name, *prefix;
} variables[] = {{"GLOO_SOCKET_IFNAME", ""}, {"NCCL_SOCKET_IFNAME", "="}, {"TP_SOCKET_IFNAME", ""}};

static void unref(struct hostname_check *n)
{
    if (atomic_fetch_sub(&n->refs, 1) > 1)
        return;
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* ----------------------------------------------------------------------------------- the thread */

/* Takes the address that Gloo would take: the first that this host can bind to. */
static void check_addresses(struct hostname_check *n, const struct addrinfo *list)
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
        check_addresses(n, list);
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

static void hostname_settle(struct hostname_check *h, bool in_time)
{
    if (h->settled)
        return;
    h->settled = true;
    h->in_time = in_time;
    uv_timer_stop(&h->timeout);
    h->n->calls->go_on(h->n);
}

static void on_woken(uv_async_t *woken)
{
    hostname_settle(container_of(woken, struct hostname_check, woken), true);
}

static void on_timeout(uv_timer_t *timer)
{
    hostname_settle(container_of(timer, struct hostname_check, timeout), false);
}

static bool is_this_host(const char *endpoint)
{
    struct netaddr a;
    return endpoint && (strcmp(endpoint, "localhost") == 0 ||
                        (netaddr_parse_ip(&a, endpoint, 0) && netaddr_is_loopback(&a)));
}

/* Returns how many of the variables are set neither in the environment nor in [env]; writes their
 * names, with blanks between them, to `names`. */
static int unset(const struct job_spec *job, char *names, size_t cap)
{
    int n = 0;
    names[0] = '\0';
    for (size_t i = 0, used = 0; i < ARRAY_LEN(variables) && used < cap; i++) {
        if (job_env(job, variables[i].name))
            continue;
        used += (size_t)snprintf(names + used, cap - used, "%s%s", n ? " " : "", variables[i].name);
        n++;
    }
    return n;
}

/* Begins to look the name up if the job may run on several hosts. */
static int hostname_open(void **state, struct node *n, struct err *e)
{
    char names[128];
    (void)e;
    if (n->job->rdzv.max_nodes == 1 || is_this_host(n->job->rdzv.endpoint_host) ||
        unset(n->job, names, sizeof(names)) == 0)
        return 0;
    struct hostname_check *h = xcalloc(1, sizeof(*h));
    *h = (struct hostname_check){.refs = 2, .n = n};
    pthread_mutex_init(&h->lock, NULL);
    if (gethostname(h->host, sizeof(h->host)) < 0 || !h->host[0])
        strcpy(h->host, "localhost");
    h->host[sizeof(h->host) - 1] = '\0';
    uvx_scope_init(&h->scope, n->loop);
    uv_async_init(n->loop, &h->woken, on_woken);
    uv_timer_init(n->loop, &h->timeout);
    uvx_own(&h->scope, &h->woken);
    uvx_own(&h->scope, &h->timeout);
    if (thread_start(NULL, 0, hostname_look_up, h) != 0) { /* as a name that is not found in time */
        unref(h);
        h->settled = true;
    }
    *state = h;
    return 0;
}

/* The wait for the answer ends some time after the node has been asked to prepare. */
static void hostname_prepare(void *state)
{
    struct hostname_check *h = state;
    if (!h->settled && !uv_is_active((uv_handle_t *)&h->timeout))
        uv_timer_start(&h->timeout, on_timeout, WAIT_MS, 0);
}

static bool hostname_ready(void *state)
{
    struct hostname_check *h = state;
    return h->settled;
}

static bool on_several_hosts(const struct rank_table *t)
{
    for (int i = 1; i < t->nnodes; i++) {
        if (strcmp(t->nodes[i].addr, t->nodes[0].addr) != 0)
            return true;
    }
    return false;
}

/* Returns the variables, or none if all nodes are on this host or the name is right. Logs the
 * choice in one line, once. */
static void hostname_variables(void *state, struct variables *out)
{
    struct hostname_check *h = state;
    const struct rank_table *t = h->n->table;
    const char *trouble = h->in_time ? h->trouble : "takes long to resolve";
    struct netaddr own;
    char names[128], interface[IF_NAMESIZE];
    if (!on_several_hosts(t) || !trouble[0] ||
        !netaddr_parse_ip(&own, t->nodes[h->n->group_rank].addr, 0) || netaddr_is_loopback(&own) ||
        !netaddr_interface(&own, interface))
        return;
    unset(h->n->job, names, sizeof(names));
    if (!h->said)
        log_notice("this host's name, %s, %s: the workers are told to use %s (%s)", h->host,
                   trouble, interface, names);
    h->said = true;
    for (size_t i = 0; i < ARRAY_LEN(variables); i++) {
        if (!job_env(h->n->job, variables[i].name))
            variables_add(out,
                          xasprintf("%s=%s%s", variables[i].name, variables[i].prefix, interface));
    }
}

static void hostname_on_closed(void *arg)
{
    struct hostname_check *h = arg;
    void (*on_closed)(void *arg) = h->on_closed;
    void *on_closed_arg = h->on_closed_arg;
    unref(h);
    on_closed(on_closed_arg);
}

static void hostname_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct hostname_check *h = state;
    pthread_mutex_lock(&h->lock);
    h->closed = true;
    pthread_mutex_unlock(&h->lock);
    h->settled = true;
    h->on_closed = on_closed;
    h->on_closed_arg = arg;
    uvx_scope_close(&h->scope, hostname_on_closed, h);
}

const struct feature hostname_feature = {
    .name = "hostname check",
    .open = hostname_open,
    .prepare = hostname_prepare,
    .ready = hostname_ready,
    .variables = hostname_variables,
    .close = hostname_close,
};
