/* rdzv_file.h: the backend whose endpoint is a file. */
#ifndef RENDEZVOUS_DISCOVERY_RDZV_FILE_H
#define RENDEZVOUS_DISCOVERY_RDZV_FILE_H

#include "rendezvous/discovery/rdzv_backend.h"

extern const struct rdzv_backend_ops rdzv_file_ops;

#endif
