#include "core/http.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"
#include "core/tls.h"

#define STEP_MS    5000
#define HOST_BYTES 254 /* of a name in DNS, terminated */
#define HEAD_BYTES 1024

struct url {
    bool tls;
    char host[HOST_BYTES], port[8];
    const char *path;
};

static int url_parse(struct url *u, const char *text, struct err *e)
{
    u->tls = strncmp(text, "https://", 8) == 0;
    if (!u->tls && strncmp(text, "http://", 7) != 0)
        return err_set(e, -EINVAL, "'%.80s' does not begin with http:// or https://", text);
    const char *host = text + (u->tls ? 8 : 7), *end = host + strcspn(host, "/?#");
    const char *name = host + (*host == '['),
               *after = name + strcspn(name, *host == '[' ? "]" : ":/?#");
    const char *colon = after + (*after == ']');
    size_t len = (size_t)(after - name), nport = *colon == ':' ? (size_t)(end - colon - 1) : 0;
    if (len == 0 || len >= sizeof(u->host) || nport >= sizeof(u->port) || colon > end ||
        (*colon == ':' && strspn(colon + 1, "0123456789") != nport))
        return err_set(e, -EINVAL, "'%.80s' is not a URL with a host and a port", text);
    snprintf(u->host, sizeof(u->host), "%.*s", (int)len, name);
    snprintf(u->port, sizeof(u->port), "%.*s", (int)nport, colon + 1);
    if (nport == 0)
        strcpy(u->port, u->tls ? "443" : "80");
    u->path = *end == '/' ? end : "/";
    return 0;
}

static int connect_to(const struct url *u, int step_ms, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    struct timeval limit = {.tv_sec = step_ms / 1000, .tv_usec = step_ms % 1000 * 1000};
    int rc = getaddrinfo(u->host, u->port, &hints, &list), fd = -1, errnum = 0;
    if (rc != 0)
        return err_set(e, -EHOSTUNREACH, "%s: %s", u->host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
            connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        errnum = errno == EINPROGRESS ? ETIMEDOUT : errno;
        close_fd(&fd);
    }
    freeaddrinfo(list);
    return fd >= 0 ? fd : err_sys(e, errnum, "connect to %s port %s", u->host, u->port);
}

static int exchange_plain(int fd, const char *request, size_t len, char *reply, size_t cap,
                          struct err *e)
{
    size_t n = 0;
    ssize_t r;
    while (len && (r = send(fd, request, len, MSG_NOSIGNAL)) > 0) {
        request += r;
        len -= (size_t)r;
    }
    if (len)
        return err_sys(e, errno, "send");
    while (n < cap && (r = recv(fd, reply + n, cap - n, 0)) > 0)
        n += (size_t)r;
    return n ? (int)n : err_sys(e, r < 0 ? errno : ECONNRESET, "wait for the answer");
}

/* ------------------------------------------------------------------------------------ the answer
 */

/* The value of a header in lines that end with CR LF; NULL: the lines lack the header. */
static const char *find_header(const char *head, const char *name)
{
    size_t len = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, len) == 0 && line[len] == ':')
            return line + len + 1 + strspn(line + len + 1, " \t");
    }
    return NULL;
}

/* Appends the chunks at p, up to the empty one. False: the last one is missing. */
static bool take_chunks(const char *p, const char *end, struct buf *answer)
{
    for (;;) {
        char *rest;
        const char *line = memmem(p, (size_t)(end - p), "\r\n", 2);
        unsigned long n = line ? strtoul(p, &rest, 16) : 0;
        if (!line || rest == p || n > (size_t)(end - line - 2))
            return false;
        if (n == 0)
            return true;
        buf_put(answer, line + 2, n);
        p = line + 2 + n;
        if (end - p < 2 || memcmp(p, "\r\n", 2) != 0)
            return false;
        p += 2;
    }
}

/* Appends the body of the reply, which a NUL follows. False: the body is cut off. */
static bool take_body(char *reply, size_t n, struct buf *answer)
{
    char *body = strstr(reply, "\r\n\r\n");
    if (!body)
        return false;
    *body = '\0';
    body += 4;
    const char *chunked = find_header(reply, "Transfer-Encoding"),
               *length = find_header(reply, "Content-Length");
    size_t have = n - (size_t)(body - reply);
    if (chunked && strncasecmp(chunked, "chunked", 7) == 0)
        return take_chunks(body, body + have, answer);
    size_t want = length ? strtoul(length, NULL, 10) : have;
    buf_put(answer, body, want < have ? want : have);
    return want <= have;
}

int http_post(const struct http_post *p, struct buf *answer, struct err *e)
{
    struct url u;
    int status, n, rc = url_parse(&u, p->url, e);
    if (rc < 0)
        return rc;
    _cleanup_fd_ int fd = connect_to(&u, p->step_ms ? p->step_ms : STEP_MS, e);
    if (fd < 0)
        return fd;
    const char *auth = p->authorization;
    char *request =
        xasprintf("POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\nConnection: close\r\n%s%s%s\r\n%s",
                  u.path, u.host, u.port, strlen(p->body), auth ? "Authorization: " : "",
                  auth ? auth : "", auth ? "\r\n" : "", p->body);
    size_t len = strlen(request), cap = answer ? HTTP_ANSWER_MAX : HEAD_BYTES;
    char *reply = xmalloc(cap + 1);
    if (u.tls)
        n = tls_exchange(fd, u.host, &p->files, request, len, reply, cap, e);
    else
        n = exchange_plain(fd, request, len, reply, cap, e);
    tls_wipe(request, len); /* a token may be in it */
    free(request);
    reply[n > 0 ? n : 0] = '\0';
    if (n < 0)
        status = n;
    else if (sscanf(reply, "HTTP/%*1[1].%*1[01] %3d", &status) != 1)
        status = err_set(e, -EPROTO, "%s port %s does not answer in HTTP", u.host, u.port);
    else if (answer && !take_body(reply, (size_t)n, answer))
        status = err_set(e, -EPROTO, "the answer of %s port %s is not whole", u.host, u.port);
    tls_wipe(reply, n > 0 ? (size_t)n : 0); /* for the same reason */
    free(reply);
    return status;
}
