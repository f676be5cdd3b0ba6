/* rdzv_conf.h: --rdzv_conf KEY=VALUE,... */
#ifndef LAUNCHER_RDZV_CONF_H
#define LAUNCHER_RDZV_CONF_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "rendezvous/rdzv.h"

/* The index of a key, or -1. */
int rdzv_conf_find(const char *key, size_t len);

/* Sets what the text says in *c, whose backend is set already; store_type=file turns c10d into
 * RDZV_FILE. torchrun ignores a key that it does not know: with `lenient`, it is only warned of.
 * -EINVAL with a text. */
int rdzv_conf_apply(const char *text, bool lenient, struct rdzv_config *c, struct err *e);

#endif
