/* rdzv_conf.h: --rdzv_conf KEY=VALUE,... */
#ifndef LAUNCHER_OPTIONS_RDZV_CONF_H
#define LAUNCHER_OPTIONS_RDZV_CONF_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "launcher/options/options.h"
#include "rendezvous/rdzv.h"

/* The index of a key, or -1. */
int rdzv_conf_find(const char *key, size_t len);

/* Applies the option's list to *c, whose backend is set already; store_type=file turns c10d into
 * RDZV_FILE. As in torchrun, a key that the backend does not read has no effect, whatever its
 * value: `timeout` unless the nodes meet by the static backend (`is_static`), and unknown keys,
 * which are warned of. -EINVAL with a text. */
int rdzv_conf_apply(struct options *o, bool is_static, struct rdzv_config *c, struct err *e);

#endif
