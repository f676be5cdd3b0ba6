#include "launcher/hosts/host_stream.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"

#define PART 65536 /* bytes that are read, or encrypted, at once */

void host_stream_fini(struct host_stream *s)
{
    tls_free(s->tls);
    s->tls = NULL;
    buf_fini(&s->wire);
}

static ssize_t read_plain(int fd, struct buf *to)
{
    xbuf_reserve(to, PART);
    ssize_t n = read(fd, to->data + to->len, PART);
    if (n > 0)
        to->len += (size_t)n;
    return n;
}

ssize_t host_stream_read(struct host_stream *s, int fd, struct buf *to)
{
    uint8_t bytes[PART];
    if (!s->tls)
        return read_plain(fd, to);
    ssize_t n = read(fd, bytes, sizeof(bytes));
    int rc = n > 0 ? tls_feed(s->tls, bytes, (size_t)n, to, &s->wire, NULL) : 0;
    if (rc == 0)
        return n;
    errno = -rc;
    return -1;
}

size_t host_stream_unsent(const struct host_stream *s)
{
    return s->wire.len;
}

/* Writes what is pending. False with errno: some is left. */
static bool flush(struct host_stream *s, int fd)
{
    while (s->wire.len) {
        ssize_t n = write(fd, s->wire.data, s->wire.len);
        if (n < 0)
            return false;
        buf_consume(&s->wire, (size_t)n);
    }
    return true;
}

ssize_t host_stream_write(struct host_stream *s, int fd, const void *p, size_t n)
{
    if (!s->tls)
        return write(fd, p, n);
    if (!flush(s, fd))
        return -1;
    n = n < PART ? n : PART;
    int rc = n ? tls_encrypt(s->tls, p, n, &s->wire, NULL) : 0;
    if (rc < 0) {
        errno = -rc;
        return -1;
    }
    if (!flush(s, fd) && errno != EAGAIN && errno != EINTR)
        return -1;
    return (ssize_t)n;
}

int host_stream_key(struct tls_key *out, const char *token, struct err *e)
{
    int rc = tls_load(e);
    return rc < 0 ? rc : tls_key_derive(out, token, strlen(token), "dlaunch 1 daemon", e);
}
