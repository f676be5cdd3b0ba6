/* etcd_api.h: a client of etcd, by the JSON gateway of its v3 API (etcd 3.4 and later). Every call
 * blocks, and asks the servers one after the other until one answers. One thread at a time. */
#ifndef RENDEZVOUS_DISCOVERY_ETCD_API_H
#define RENDEZVOUS_DISCOVERY_ETCD_API_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/tls.h"

#define ETCD_SERVERS_MAX 16

struct etcd_server {
    const char *host;
    int port;
};

/* Strings are borrowed for the life of the client. */
struct etcd_config {
    struct etcd_server servers[ETCD_SERVERS_MAX];
    int nservers;
    bool tls;
    struct tls_files files;
    const char *user, *password; /* NULL: none */
};

struct etcd;

struct etcd *etcd_new(const struct etcd_config *c);
void etcd_free(struct etcd *c); /* NULL is allowed */

/* Calls return 0 or more, or a negative errno with a text that names the server:
 *   -ENOENT        there is no such lease
 *   -EACCES        it does not accept the user, the password, the certificate, or the key
 *   -EOPNOTSUPP    it has no v3 gateway
 *   anything else  no server answers, or what answers is not etcd */

/* *lease: for ttl_s seconds from now; keys that were put with it go when it ends. */
int etcd_grant(struct etcd *c, int ttl_s, int64_t *lease, struct err *e);
/* 1; 0: the lease has ended. */
int etcd_keep_alive(struct etcd *c, int64_t lease, struct err *e);
int etcd_revoke(struct etcd *c, int64_t lease, struct err *e);

/* *value is malloc'ed, terminated; NULL: there is no such key. */
int etcd_get(struct etcd *c, const char *key, char **value, struct err *e);

struct etcd_put {
    const char *key, *value; /* value NULL: the key is deleted */
    int64_t lease;           /* 0: none */
};

/* Does all of it at once, if `key` has the value `is` (NULL: if there is no such key). 1: done;
 * 0: it has another one. A call whose answer is lost may be repeated by the client itself and then
 * returns 0, although it was done. */
int etcd_put_if(struct etcd *c, const char *key, const char *is, const struct etcd_put *puts, int n,
                struct err *e);

/* The revision of etcd's data, by the newest answer: it rises with each change, and goes back only
 * when etcd has lost data. 0: that answer had none. */
int64_t etcd_revision(const struct etcd *c);

#endif
