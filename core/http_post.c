#include "core/http_post.h"

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

#define STEP_S     5
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

static int connect_to(const struct url *u, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    struct timeval limit = {.tv_sec = STEP_S};
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

int http_post(const char *url, const char *ca_file, const char *token, const char *body,
              struct err *e)
{
    struct url u;
    char reply[HEAD_BYTES];
    int status, n, rc = url_parse(&u, url, e);
    if (rc < 0)
        return rc;
    _cleanup_fd_ int fd = connect_to(&u, e);
    if (fd < 0)
        return fd;
    char *request =
        xasprintf("POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\nConnection: close\r\n%s%s%s\r\n%s",
                  u.path, u.host, u.port, strlen(body), token ? "Authorization: Bearer " : "",
                  token ? token : "", token ? "\r\n" : "", body);
    size_t len = strlen(request);
    if (u.tls)
        n = tls_exchange(fd, u.host, ca_file, request, len, reply, sizeof(reply) - 1, e);
    else
        n = exchange_plain(fd, request, len, reply, sizeof(reply) - 1, e);
    tls_wipe(request, len); /* the token is in it */
    free(request);
    if (n < 0)
        return n;
    reply[n] = '\0';
    if (sscanf(reply, "HTTP/%*1[1].%*1[01] %3d", &status) != 1)
        return err_set(e, -EPROTO, "%s port %s does not answer in HTTP", u.host, u.port);
    return status;
}
