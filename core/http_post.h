/* http_post.h: one POST over HTTP/1.1, with TLS for https. Blocks; for a thread of its own. */
#ifndef CORE_HTTP_POST_H
#define CORE_HTTP_POST_H

#include "core/err.h"

/* Sends the body as JSON, with the token as bearer token (NULL: without). ca_file: who may sign the
 * server's certificate (NULL: the system's). Every step takes at most 5 s. Returns the status of
 * the answer (200), or -errno. tls_load() must have been called for https. */
int http_post(const char *url, const char *ca_file, const char *token, const char *body,
              struct err *e);

#endif
