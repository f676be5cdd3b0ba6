/* http.h: one POST over HTTP/1.1, with TLS for https. Blocks; for any thread. */
#ifndef CORE_HTTP_H
#define CORE_HTTP_H

#include "core/bytes.h"
#include "core/err.h"
#include "core/tls.h"

#define HTTP_ANSWER_MAX (256u << 10) /* with its head */

/* All is borrowed for the call. */
struct http_post {
    const char *url;
    struct tls_files files;    /* for https */
    const char *authorization; /* the header's value; NULL: none */
    const char *body;          /* JSON */
    int step_ms;               /* for the connection, and for each wait for bytes; 0: 5000 */
};

/* Returns the status of the answer (200), or -errno. The body of the answer is appended to *answer
 * (NULL: not wanted), and is whole. tls_load() must have been called for https. */
int http_post(const struct http_post *p, struct buf *answer, struct err *e);

#endif
