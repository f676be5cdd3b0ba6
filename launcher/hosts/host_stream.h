/* host_stream.h: read(2) and write(2) for a connection between a head and a host, which is a pipe
 * of ssh or a socket under TLS. */
#ifndef LAUNCHER_HOSTS_HOST_STREAM_H
#define LAUNCHER_HOSTS_HOST_STREAM_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/bytes.h"
#include "core/tls.h"

struct host_stream {
    struct tls *tls; /* NULL: bytes go as they are */
    struct buf wire; /* encrypted, and not written yet */
};
void host_stream_fini(struct host_stream *s);

/* The key of connections to daemons that have this token. Loads OpenSSL. */
int host_stream_key(struct tls_key *out, const char *token, struct err *e);

/* Appends to *to what has come. Returns how many bytes were read, some of which may have been
 * TLS's own; 0 at the end; or -1 with errno: EACCES (the other side has another token), EPROTO, or
 * what read(2) sets. */
ssize_t host_stream_read(struct host_stream *s, int fd, struct buf *to);

/* Returns how many of the n bytes need not be given again, or -1 with errno. They are all written
 * when host_stream_unsent() is 0; n is 0: only writes what is pending. */
ssize_t host_stream_write(struct host_stream *s, int fd, const void *p, size_t n);
size_t host_stream_unsent(const struct host_stream *s);

#endif
