/* rdzv_etcd.h: the backend whose endpoint is a server of etcd. */
#ifndef RENDEZVOUS_DISCOVERY_RDZV_ETCD_H
#define RENDEZVOUS_DISCOVERY_RDZV_ETCD_H

#include "rendezvous/discovery/rdzv_backend.h"

extern const struct rdzv_backend_ops rdzv_etcd_ops;

#endif
