#include "collectives/bootstrap/rendezvous_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collectives/bootstrap/store.h"
#include "core/clock.h"
#include "core/fd.h"

enum { TEXT_MAX = 2048, TRY_MS = 1000, PAUSE_MS = 10, KEY_MAX = 512 };

static void nonce_key(const char *prefix, char key[KEY_MAX])
{
    snprintf(key, KEY_MAX, "%snonce", prefix);
}

/* A device would be replaced, and a pipe read for ever. */
static int check_kind(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, -EINVAL, "%s exists and is not a regular file", path);
    return 0;
}

/* -------------------------------------------------------------------------------------- writing */

static size_t file_format(const struct meeting_place *p, char text[TEXT_MAX])
{
    int n = snprintf(text, TEXT_MAX,
                     "dlcoll 1\nhost %016" PRIx64 " %s\npid %d\nnonce %016" PRIx64 "\nport %d\n",
                     p->host_id, p->host[0] ? p->host : "-", p->pid, p->nonce, p->port);
    for (int i = 0; i < p->naddrs; i++)
        n += snprintf(text + n, TEXT_MAX - (size_t)n, "addr %s\n", p->addrs[i]);
    n += snprintf(text + n, TEXT_MAX - (size_t)n, "end\n");
    return (size_t)n;
}

static int put_nonce(const char *prefix, const struct meeting_place *p, int timeout_ms,
                     struct err *e)
{
    struct store_client *client;
    char key[KEY_MAX];
    int r = store_client_new(&client, "127.0.0.1", p->port, timeout_ms, e);
    if (r < 0)
        return r;
    nonce_key(prefix, key);
    r = store_client_set(client, key, &p->nonce, sizeof(p->nonce), e);
    store_client_free(client);
    return r;
}

int rendezvous_file_write(const char *path, const char *prefix, const struct meeting_place *p,
                          int timeout_ms, struct err *e)
{
    char text[TEXT_MAX], aside[600];
    size_t len = file_format(p, text);
    int r = check_kind(path, e);
    if (r == 0)
        r = put_nonce(prefix, p, timeout_ms, e);
    if (r < 0)
        return r;
    snprintf(aside, sizeof(aside), "%s.%d", path, p->pid);
    _cleanup_fd_ int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(e, errno, "%s", aside);
    r = fd_write_all(fd, text, len);
    if (r == 0 && rename(aside, path) < 0)
        r = -errno;
    if (r < 0) {
        unlink(aside);
        return err_sys(e, -r, "%s", path);
    }
    return 0;
}

void rendezvous_file_remove(const char *path)
{
    unlink(path);
}

/* -------------------------------------------------------------------------------------- finding */

/* False: the text is no record, or not a whole one. */
static bool file_parse(char *text, struct meeting_place *p)
{
    char *at = NULL;
    bool end = false;
    memset(p, 0, sizeof(*p));
    char *line = strtok_r(text, "\n", &at);
    if (!line || strcmp(line, "dlcoll 1") != 0)
        return false;
    while ((line = strtok_r(NULL, "\n", &at)) && !end) {
        struct netaddr a;
        if (sscanf(line, "host %16" SCNx64 " %63s", &p->host_id, p->host) == 2 ||
            sscanf(line, "pid %d", &p->pid) == 1 || sscanf(line, "port %d", &p->port) == 1 ||
            sscanf(line, "nonce %16" SCNx64, &p->nonce) == 1)
            continue;
        if (p->naddrs < MEETING_ADDRS && sscanf(line, "addr %63s", p->addrs[p->naddrs]) == 1) {
            p->naddrs += netaddr_parse_ip(&a, p->addrs[p->naddrs], 0);
            continue;
        }
        end = strcmp(line, "end") == 0;
        if (!end)
            return false;
    }
    return end && p->port > 0 && p->port < 65536;
}

/* Whether the store there is that of the one who wrote the file. */
static bool is_it(const char *host, const struct meeting_place *p, const char *prefix)
{
    struct store_client *client;
    char key[KEY_MAX];
    void *value = NULL;
    size_t len = 0;
    if (store_client_new(&client, host, p->port, TRY_MS, NULL) < 0)
        return false;
    nonce_key(prefix, key);
    bool same = store_client_try_get(client, key, &value, &len, NULL) == 0 &&
                len == sizeof(p->nonce) && memcmp(value, &p->nonce, len) == 0;
    free(value);
    store_client_free(client);
    return same;
}

static bool leads_there(const struct meeting_place *p, const char *prefix, uint64_t host_id,
                        char host[HOST_MAX])
{
    bool same_host = p->host_id == host_id;
    for (int i = same_host ? -1 : 0; i < p->naddrs; i++) {
        snprintf(host, HOST_MAX, "%s", i < 0 ? "127.0.0.1" : p->addrs[i]);
        if (is_it(host, p, prefix))
            return true;
        if (same_host)
            return false; /* the store of a rank 0 on this host would answer */
    }
    return false;
}

int rendezvous_file_find(const char *path, const char *prefix, uint64_t host_id,
                         uint64_t deadline_ns, char host[HOST_MAX], int *port, struct err *e)
{
    struct meeting_place p = {0}, tried = {0};
    for (;;) {
        char text[TEXT_MAX];
        int r = check_kind(path, e);
        if (r < 0)
            return r;
        ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof(text));
        bool known = n > 0 && file_parse(text, &p);
        if (known && leads_there(&p, prefix, host_id, host)) {
            *port = p.port;
            return 0;
        }
        if (known)
            tried = p;
        if (store_ms_until(deadline_ns) == 0) {
            if (known)
                return err_set(e, -ETIMEDOUT,
                               "%s is of an earlier job (pid %d on %s); rank 0 of this one has not "
                               "written it",
                               path, tried.pid, tried.host);
            return err_set(e, -ETIMEDOUT, "%s: %s", path,
                           n == -ENOENT ? "rank 0 has not written it"
                           : n < 0      ? strerror((int)-n)
                                        : "it is not a file that rank 0 has written");
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000}, NULL);
    }
}
