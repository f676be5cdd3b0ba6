/* rdzv_backend.h: how the nodes find each other: who hosts the coordinator, and where it is.
 *
 * A backend answers one question, again and again until the node has been let in: what now? It
 * looks first (names, files: that may block, so it happens on a thread of libuv's pool, or at once
 * when `quick` says that it cannot block), and then decides, on the loop:
 *
 *     look -> decide -> HOST   listen on f->bind; when the port is taken: join at f->addrs, unless
 *                              f->must_host, which makes it an error
 *                    -> JOIN   connect to f->addrs
 *                    -> RETRY  look again in a moment (f->why)
 *                    -> FAIL   the error is final
 *
 * The rules of the rendezvous are the same for all (rdzv_state.h). To add a backend: one file, one
 * line in the table of backends.c, one value of enum rdzv_backend. */
#ifndef RENDEZVOUS_DISCOVERY_RDZV_BACKEND_H
#define RENDEZVOUS_DISCOVERY_RDZV_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "rendezvous/wire/connector.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/discovery/meeting.h"
#include "rendezvous/rules/etcd_rules.h"
#include "rendezvous/discovery/rdzv_config.h"

enum rdzv_role { RDZV_ROLE_HOST, RDZV_ROLE_JOIN, RDZV_ROLE_RETRY, RDZV_ROLE_FAIL };

/* The search of one node for the coordinator. Owned by the loop's thread, except while look(),
 * publish() or withdraw() run: then the thread of the pool owns it. The strings are copies, so that
 * the struct can outlive the rdzv object when a name server does not answer. */
struct rdzv_discovery {
    const struct rdzv_backend_ops *ops;
    char *host, *path, *run_id, *node_name;
    char *local_addr; /* a name or an address, as the user gave it; NULL: none */
    int port;
    int max_nodes, node_rank, is_host;
    int listen_fd; /* the port to host on, until another process has it; 0: none */
    /* Borrowed; ready when a backend has to probe under TLS. While the token may still come, the
     * owner of this struct is the owner of the auth. */
    struct auth *auth;

    /* Results of look(). */
    struct netaddr addrs[CONNECTOR_ADDRS_MAX];
    int naddrs;
    int status; /* 0, or a negative errno with the reason in `why` */
    char why[ERR_MSG_MAX];
    char note[ERR_MSG_MAX]; /* a line for the user, or "" */
    struct netaddr local;   /* local_addr as an address */
    bool have_local;

    /* static, c10d: the endpoints, the first one being host and port. look() asks who is there:
     * always when they are several (c10d), a single one when somebody answers there who is no
     * coordinator. */
    struct {
        char *host;
        int port;
    } places[RDZV_PLACES_MAX];
    int nplaces;
    bool ask;
    _Atomic bool stop;       /* the result is no longer needed */
    _Atomic bool over;       /* the job is: for withdraw() */
    struct netaddr reported; /* where the coordinator is, as others report; len 0: unknown */
    bool found, wait;        /* addrs are a coordinator's; somebody knows that there will be one */
    /* Where this node listens if it may become the coordinator later: the endpoints that are
     * addresses of this host. */
    struct endpoint_bind standby_binds[RDZV_PLACES_MAX];
    int nstandby_binds;

    /* Results of decide(). */
    struct endpoint_bind bind;
    bool as_called; /* meeting.h */
    bool must_host;
    char doubt[ERR_MSG_MAX]; /* why the other nodes may not find this one, or "" */

    /* For rdzv_discovery_tell(): where this node listens, and the address to tell ("": the one it
     * is heard from). Whom it found, and who has another job token; len is 0: nobody. */
    struct endpoint_bind own;
    char own_addr[ADDR_STRLEN];
    struct netaddr split_brain, wrong_key;

    /* file, etcd: the lock or lease that the backend holds while this node may be, or is, the
     * coordinator. */
    int lock_fd; /* file; -1 */
    bool locked;
    bool published;
    uint64_t nonce;
    int listen_port;

    /* publish(), keep(): the coordinator of this node; then whether etcd votes for it, as of when,
     * or where (`reported`) another coordinator is (`found`). */
    struct rdzv_etcd *etcd; /* rdzv_etcd.c's; NULL: another backend */
    struct etcd_coordinator by;
    bool kept;
    uint64_t kept_ns;
};

struct rdzv_backend_ops {
    const char *name;
    bool tells_endpoint; /* workers are told the endpoint as the user has called it */
    /* Make and free the backend's own part of the struct; NULL: there is none. */
    void (*open)(struct rdzv_discovery *f, const struct rdzv_config *c);
    void (*close)(struct rdzv_discovery *f);
    /* Refuses invalid settings: -EINVAL with a text. */
    int (*check)(const struct rdzv_config *c, struct err *e);
    /* Whether look() cannot block. */
    bool (*quick)(const struct rdzv_discovery *f);
    void (*look)(struct rdzv_discovery *f);
    enum rdzv_role (*decide)(struct rdzv_discovery *f, struct err *e);
    /* Tells the others that this node listens on f->listen_port. May block. Sets f->status, and
     * f->found when another coordinator, at f->reported, has been faster. NULL: not needed. */
    void (*publish)(struct rdzv_discovery *f);
    /* Withdraws what publish() has told: this node is not, or no longer, the coordinator. May
     * block. NULL: nothing to do. */
    void (*withdraw)(struct rdzv_discovery *f);
    /* Renews what publish() has told, or takes it over for an elected coordinator, again and again
     * while this node hosts the coordinator. May block. NULL: not needed. */
    void (*keep)(struct rdzv_discovery *f);
};

/* Whether the nodes learn the coordinator's address from what publish() has told. Else it listens
 * at the endpoint. */
static inline bool rdzv_backend_publishes(enum rdzv_backend b)
{
    return b == RDZV_FILE || b == RDZV_ETCD;
}

/* Whether rdzv_discovery_look() cannot block. */
bool rdzv_discovery_quick(const struct rdzv_discovery *f);
/* Calls the backend's look(); then looks for a job token that may still come, and makes the token
 * if this node is to host. */
void rdzv_discovery_look(struct rdzv_discovery *f);

/* HOST, on loopback or on the address that this node advertises in a job on one node, on all
 * addresses in one of several. For backends that publish where the coordinator is. */
enum rdzv_role rdzv_discovery_host(struct rdzv_discovery *f, int port);

/* Makes f->local of f->local_addr when that is a name. May block. 0 or f->status. */
int rdzv_discovery_resolve_local(struct rdzv_discovery *f);
/* Decides as if no address to advertise had been given. */
void rdzv_discovery_forget_local(struct rdzv_discovery *f);

/* Resolves a name into at most max addresses. Returns how many, or a negative errno with a text in
 * why. Blocks. */
int rdzv_discovery_resolve(const char *host, int port, struct netaddr *out, int max, char *why,
                           size_t cap);

#endif
