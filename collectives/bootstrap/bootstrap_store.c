/* bootstrap_store.c: ranks that were started without a launcher meet through a store: at an address
 * from the environment or a URL, at an address in a file (rendezvous_file.c), or one that the
 * program has opened.
 *
 *   every rank   opens its listening socket, finds the address by which others reach it, and stores
 *                that under <prefix>rank/<r>, which must be empty
 *   rank 0       hosts the store, unless the address has one; gets all of these, sets
 *                <prefix>table to them all and waits for every <prefix>read/<r>
 *   the others   get <prefix>table and set <prefix>read/<r>
 *   rank 0       takes the keys out of the store, which serves the program from now on
 *
 * Failures: the store cannot be reached, or is lost: every step is repeated until the deadline.
 * Ranks that do not arrive: -ETIMEDOUT with their list. Two processes with one rank: -EEXIST. The
 * values from the store are checked like any message from the network. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collectives/bootstrap/host_id.h"
#include "collectives/bootstrap/bootstrap.h"
#include "collectives/bootstrap/env.h"
#include "collectives/bootstrap/world.h"
#include "collectives/bootstrap/rendezvous_file.h"
#include "collectives/bootstrap/starter.h"
#include "collectives/bootstrap/store.h"
#include "collectives/base/wait.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/parse.h"
#include "core/protocols.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_thread.h"

#define MEMBER_MAGIC 0x4d434c44u /* "DLCM" */
#define MEMBER_OLD   1u          /* the version of records that have none */

enum {
    KEY_MAX = 512,
    WORLD_MAX = 1 << 24,
    RETRY_MS = 20,
    HOST_AGAIN_MS = 500,
    FIRST_PORT_MS = 300, /* at the first of several ports where rank 0 may be */
    NEXT_PORT_MS = 50,
    LATE_MS = 2000,    /* ranks that arrive within this time learn that the sizes differ */
    NOTICE_MS = 10000, /* a longer wait is reported, once */
    MISSING_MAX = 16,  /* ranks that are listed by name */
};

struct meeting {
    struct world *w;
    char host[HOST_MAX]; /* where the store is */
    int port;
    const char *whence; /* the source of the address, for messages */
    char path[512];
    const char *file; /* `path`, which has the address; NULL: the address is known */
    bool served;      /* another process serves the store */
    int base_port,
        ports; /* number of ports from base_port on at which rank 0 may serve; 0: at `port` only */
    unsigned tries; /* attempts of another rank to find it at one of them */
    bool borrowed;  /* the client belongs to the program */
    char prefix[KEY_MAX / 2];
    uint64_t deadline_ns;
    uint64_t notice_ns; /* when the wait is reported; 0: it has been reported */
    struct member self;
    struct store_thread *server;
    struct store_client *client;
};

/* --------------------------------------------------------------------------------- ways to meet */

static int need_int(const char *name, long min, long max, int *out, struct err *e)
{
    const char *v = getenv(name);
    if (!v || !*v)
        return err_set(e, -EINVAL, "%s is not set", name);
    return env_read_int(name, min, max, out, e);
}

static const char *env_or(const char *name, const char *otherwise)
{
    const char *v = getenv(name);
    return v && *v ? v : otherwise;
}

/* "rank=1&world_size=4", behind the question mark of an URL. */
static int read_query(const char *query, const char *url, int *rank, int *size, struct err *e)
{
    char copy[128], *at = NULL;
    if (snprintf(copy, sizeof(copy), "%s", query) >= (int)sizeof(copy))
        return err_set(e, -EINVAL, "%s is too long", url);
    for (char *word = strtok_r(copy, "&", &at); word; word = strtok_r(NULL, "&", &at)) {
        char *value = strchr(word, '=');
        long n;
        if (value)
            *value++ = '\0';
        if (!value || (strcmp(word, "rank") != 0 && strcmp(word, "world_size") != 0))
            return err_set(e, -EINVAL, "%s: '%s' is neither rank=N nor world_size=N", url, word);
        if (parse_int(value, 0, WORLD_MAX, &n, e) < 0)
            return err_wrap(e, "%s: %s", url, word);
        *(strcmp(word, "rank") == 0 ? rank : size) = (int)n;
    }
    return 0;
}

/* Rank and size: from the program's options, else the starter's variables, the URL, the
 * environment. */
static int find_self(struct world *w, const struct world_opts *o, const char *url, struct err *e)
{
    const char *query = url ? strchr(url, '?') : NULL;
    int rank = -1, size = 0, r = query ? read_query(query + 1, url, &rank, &size, e) : 0;
    if (r < 0)
        return r;
    if (o->size > 0) {
        rank = o->rank;
        size = o->size;
    } else if (o->starter) {
        rank = o->starter->rank;
        size = o->starter->size;
    }
    if (size <= 0 && (r = need_int("WORLD_SIZE", 1, WORLD_MAX, &size, e)) < 0)
        return r;
    if (rank < 0 && o->size <= 0 && (r = need_int("RANK", 0, size - 1, &rank, e)) < 0)
        return r;
    if (rank < 0 || rank >= size)
        return err_set(e, -EINVAL, "rank %d is out of range (0 to %d)", rank, size - 1);
    w->rank = rank;
    w->size = size;
    return 0;
}

static int from_environment(struct meeting *m, struct err *e)
{
    const char *host = env_or("MASTER_ADDR", NULL);
    m->whence = "MASTER_ADDR";
    if (!host)
        return err_set(e, -EINVAL, "MASTER_ADDR is not set");
    if (snprintf(m->host, sizeof(m->host), "%s", host) >= (int)sizeof(m->host))
        return err_set(e, -EINVAL, "MASTER_ADDR is too long");
    m->served = strcmp(env_or("TORCHELASTIC_USE_AGENT_STORE", ""), "True") == 0;
    return need_int("MASTER_PORT", 1, 65535, &m->port, e);
}

/* The starter's variables say where rank 0 is, unless the user's do. */
static int from_starter(struct meeting *m, const struct starter *s, struct err *e)
{
    const char *host = env_or("MASTER_ADDR", NULL);
    m->whence = host ? "MASTER_ADDR" : "SLURM_STEP_NODELIST";
    snprintf(m->host, sizeof(m->host), "%s", host ? host : s->head);
    if (env_or("MASTER_PORT", NULL))
        return need_int("MASTER_PORT", 1, 65535, &m->port, e);
    m->base_port = m->port = s->port;
    m->ports = STARTER_PORTS;
    return 0;
}

static int from_url(struct meeting *m, const char *url, struct err *e)
{
    char place[512];
    const char *rest = strstr(url, "://") ? strstr(url, "://") + 3 : "";
    size_t n = strcspn(rest, "?");
    m->whence = "the address";
    if (n >= sizeof(place))
        return err_set(e, -EINVAL, "%.60s... is too long", url);
    snprintf(place, sizeof(place), "%.*s", (int)n, rest);
    if (strncmp(url, "env://", 6) == 0)
        return from_environment(m, e);
    if (strncmp(url, "tcp://", 6) == 0) {
        if (endpoint_parse(place, 0, m->host, &m->port, e) < 0)
            return err_wrap(e, "%s", url);
        return m->port > 0 ? 0 : err_set(e, -EINVAL, "%s has no port", url);
    }
    if (strncmp(url, "file://", 7) == 0 && place[0] == '/') {
        snprintf(m->path, sizeof(m->path), "%s", place);
        m->file = m->path;
        return 0;
    }
    return err_set(e, -EINVAL, "%s is none of env://, tcp://HOST:PORT and file:///PATH", url);
}

static int meeting_find_way(struct meeting *m, const struct world_opts *o, struct err *e)
{
    struct world *w = m->w;
    const char *url = o->store ? NULL : o->method;
    int r = url ? from_url(m, url, e) : 0; /* errors of this address have precedence */
    if (r < 0 && strncmp(url, "env://", 6) != 0)
        return err_wrap(e, "%s", o->whence);
    if (r == 0)
        r = find_self(w, o, url, e);
    if (r < 0 || (w->size == 1 && !url))
        return r;
    if (o->store) {
        m->whence = "the store";
        m->borrowed = m->served = true;
        m->client = o->store->client;
        m->port = o->store->port;
        snprintf(m->host, sizeof(m->host), "%s", o->store->host);
    } else if (o->starter) {
        r = from_starter(m, o->starter, e);
    } else if (!url) {
        r = from_environment(m, e);
    }
    /* A store may outlive a round: keys of an earlier round must not be read. */
    int n = snprintf(m->prefix, sizeof(m->prefix), "dlcoll/%s%s/%s/%" PRIu32 "/",
                     o->starter ? o->starter->id : env_or("TORCHELASTIC_RUN_ID", ""), o->name,
                     env_or("TORCHELASTIC_RESTART_COUNT", "0"), w->instance);
    if (r == 0 && n >= (int)sizeof(m->prefix))
        return err_set(e, -EINVAL, "the job's name is too long");
    return r;
}

static int remaining_ms(const struct meeting *m)
{
    return store_ms_until(m->deadline_ns);
}

static bool is_over(const struct meeting *m)
{
    return remaining_ms(m) == 0;
}

/* The time to wait for at most: until the deadline, or the notice. */
static int wait_limit_ms(const struct meeting *m)
{
    int left = remaining_ms(m), notice = store_ms_until(m->notice_ns);
    return m->notice_ns && (left < 0 || notice < left) ? notice : left;
}

/* Prints once, when it is time, what this rank waits for. */
static void notice_wait(struct meeting *m, const char *why)
{
    if (!m->notice_ns || mono_ns() < m->notice_ns)
        return;
    m->notice_ns = 0;
    log_notice("rank %d has waited %d s for the other ranks: %s", m->w->rank, NOTICE_MS / 1000,
               why);
}

static void pause_before_retry(void)
{
    nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000}, NULL);
}

/* ---------------------------------------------------------------------------------- own address */

/* Finds the local address from which the kernel would send to `to`. Sends nothing. */
static bool local_address(const struct sockaddr *to, socklen_t len, struct netaddr *out)
{
    struct sockaddr_storage ss;
    socklen_t n = sizeof(ss);
    _cleanup_fd_ int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, to, len) < 0 || getsockname(fd, (struct sockaddr *)&ss, &n) < 0)
        return false;
    netaddr_from_sockaddr(out, (struct sockaddr *)&ss);
    return true;
}

/* Resolves MASTER_ADDR, again and again until the deadline, because the name may be created while
 * the job starts. */
static int find_master(struct meeting *m, struct netaddr *local, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[16];
    snprintf(port, sizeof(port), "%d", m->port);
    for (;;) {
        int r = getaddrinfo(m->host, port, &hints, &list);
        for (struct addrinfo *a = r == 0 ? list : NULL; a; a = a->ai_next) {
            struct netaddr master;
            if (!local_address(a->ai_addr, a->ai_addrlen, local))
                continue;
            netaddr_from_sockaddr(&master, a->ai_addr);
            netaddr_ip(&master, m->w->master_ip);
            freeaddrinfo(list);
            return 0;
        }
        if (r == 0)
            freeaddrinfo(list);
        struct err why;
        err_set(&why, -ETIMEDOUT, "%s %s: %s", m->whence, m->host,
                r ? gai_strerror(r) : "no route to host");
        if (is_over(m))
            return err_set(e, why.code, "%s", why.msg);
        notice_wait(m, why.msg);
        pause_before_retry();
    }
}

/* Two containers of one host may have the same pids. */
static uint64_t pid_ns(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) < 0 ? 0 : st.st_ino;
}

static int listen_here(struct meeting *m, const struct netaddr *local, struct err *e)
{
    struct netaddr any = {.len = local->len};
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    any.sa.sa_family = local->sa.sa_family;
    int fd = fd_above_std(socket(any.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    m->w->listen_fd = fd;
    if (fd < 0)
        return err_sys(e, errno, "socket");
    if (bind(fd, &any.sa, any.len) < 0 || listen(fd, SOMAXCONN) < 0 ||
        getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
        return err_sys(e, errno, "listen");
    netaddr_from_sockaddr(&any, (struct sockaddr *)&ss);
    m->self.port = (uint16_t)netaddr_port(&any);
    netaddr_ip(local, m->self.addr);
    m->self.pid = (uint32_t)getpid();
    m->self.host_id = host_id();
    m->self.pid_ns = pid_ns();
    m->self.size = (uint32_t)m->w->size;
    char name[HOST_MAX] = "";
    if (gethostname(name, sizeof(name) - 1) == 0)
        snprintf(m->self.host, sizeof(m->self.host), "%.*s", MEMBER_HOST_MAX - 1, name);
    return 0;
}

/* ------------------------------------------------------------------------------------- encoding */

/* Every version begins with these: the ranks of another one can be told. */
static void member_encode(struct buf *b, const struct member *m)
{
    buf_u32(b, MEMBER_MAGIC);
    buf_u32(b, PROTOCOL_DATA);
    buf_str(b, m->host);
    buf_str(b, m->addr);
    buf_u16(b, m->port);
    buf_u32(b, m->pid);
    buf_u64(b, m->host_id);
    buf_u64(b, m->pid_ns);
    buf_u32(b, m->size);
    size_t len = sizeof(m->cpus.mask);
    while (len && !m->cpus.mask[len - 1])
        len--;
    buf_u8(b, (uint8_t)len);
    buf_put(b, m->cpus.mask, len);
    buf_u32(b, m->cpus.quota);
}

/* own: an address of this rank. Link-local addresses of the others are on its interface. True with
 * another version: it is all that has been read. */
static bool member_decode(struct rd *r, const char *own, struct member *m)
{
    struct netaddr a;
    const char *scope = strchr(own, '%');
    uint32_t magic = rd_u32(r);
    m->version = rd_u32(r);
    if (r->bad)
        return false;
    if (magic != MEMBER_MAGIC)
        m->version = MEMBER_OLD;
    if (m->version != PROTOCOL_DATA)
        return true;
    rd_str(r, m->host, sizeof(m->host));
    rd_str(r, m->addr, sizeof(m->addr));
    if (scope)
        netaddr_rescope(m->addr, sizeof(m->addr), scope + 1);
    m->port = rd_u16(r);
    m->pid = rd_u32(r);
    m->host_id = rd_u64(r);
    m->pid_ns = rd_u64(r);
    m->size = rd_u32(r);
    m->cpus = (struct wait_cpus){0};
    size_t len = rd_u8(r);
    const uint8_t *mask = len <= sizeof(m->cpus.mask) ? rd_take(r, len) : NULL;
    if (!mask)
        return false;
    memcpy(m->cpus.mask, mask, len);
    m->cpus.quota = rd_u32(r);
    return !r->bad && m->port && m->size > 0 && m->size <= WORLD_MAX &&
           netaddr_parse_ip(&a, m->addr, m->port);
}

static int another_size(int rank, uint32_t size, uint32_t leaders, struct err *e)
{
    return err_set(e, -EINVAL,
                   "rank %d was given a world of %" PRIu32 " ranks, rank 0 one of %" PRIu32
                   ": WORLD_SIZE must be the same on all",
                   rank, size, leaders);
}

static int another_version(int rank, uint32_t version, struct err *e)
{
    char which[24];
    snprintf(which, sizeof(which), version != MEMBER_OLD ? "version %" PRIu32 : "an older version",
             version);
    return err_set(e, -EPROTONOSUPPORT,
                   "rank %d speaks %s of libdlcoll's protocol, this one version %u: all ranks need "
                   "the same libdlcoll",
                   rank, which, PROTOCOL_DATA);
}

/* Reads the epoch, the size and as many members; or only the members up to the first that was given
 * another size. */
static int table_decode(const struct meeting *m, const void *data, size_t len, struct err *e)
{
    struct world *w = m->w;
    struct rd r = rd_init(data, len);
    w->epoch = rd_u64(&r);
    uint32_t size = rd_u32(&r);
    for (uint32_t i = 0; i < size; i++) {
        struct member one;
        if (!member_decode(&r, m->self.addr, &one))
            return err_set(e, -EPROTO, "the table of ranks is malformed");
        if (one.version != PROTOCOL_DATA)
            return another_version((int)i, one.version, e);
        if (one.size != size)
            return another_size((int)i, one.size, size, e);
        if (i < (uint32_t)w->size)
            w->members[i] = one;
    }
    if (!rd_done(&r) || size == 0)
        return err_set(e, -EPROTO, "the table of ranks is malformed");
    return size == (uint32_t)w->size ? 0 : another_size(w->rank, (uint32_t)w->size, size, e);
}

/* -------------------------------------------------------------------------------------- meeting */

/* <prefix><name>/<rank> */
static const char *rank_key(const struct meeting *m, const char *name, int rank, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s%s/%d", m->prefix, name, rank);
    return out;
}

static const char *table_key(const struct meeting *m, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%stable", m->prefix);
    return out;
}

/* A record of this rank exists: this process has stored it in an earlier attempt, or another
 * process has. */
static int replace_record(struct meeting *m, const char *key, const struct buf *record,
                          const void *there, size_t len, struct err *e)
{
    struct member other;
    struct rd r = rd_init(there, len);
    if (!member_decode(&r, m->self.addr, &other))
        return err_set(e, -EPROTO, "what is stored for rank %d is malformed", m->w->rank);
    if (other.version != PROTOCOL_DATA)
        return another_version(m->w->rank, other.version, e);
    if (other.pid != m->self.pid || other.host_id != m->self.host_id ||
        other.pid_ns != m->self.pid_ns)
        return err_set(e, -EEXIST,
                       "there is a rank %d at %s:%d already (%s, pid %" PRIu32
                       "): does another job use that port?",
                       m->w->rank, m->host, m->port, other.host, other.pid);
    return store_client_set(m->client, key, record->data, record->len, e);
}

static int publish_self(struct meeting *m, struct err *e)
{
    char key[KEY_MAX];
    struct buf b = BUF_INIT;
    void *now = NULL;
    size_t len = 0;
    rank_key(m, "rank", m->w->rank, key);
    member_encode(&b, &m->self);
    int r = b.oom ? err_set(e, -ENOMEM, "no memory")
                  : store_client_compare_set(m->client, key, "", 0, b.data, b.len, &now, &len, e);
    if (r == 0 && (len != b.len || memcmp(now, b.data, len) != 0))
        r = replace_record(m, key, &b, now, len, e);
    free(now);
    buf_fini(&b);
    return r;
}

/* Lists the ranks that have not arrived: "2, 3". Returns how many. */
static int list_missing(struct meeting *m, char list[160])
{
    char key[KEY_MAX];
    int missing = 0;
    list[0] = '\0';
    for (int i = 0; i < m->w->size && missing <= MISSING_MAX; i++) {
        const char *k = rank_key(m, "rank", i, key);
        bool there = false;
        if (store_client_check(m->client, &k, 1, &there, NULL) < 0)
            break;
        if (there)
            continue;
        size_t n = strlen(list);
        snprintf(list + n, 160 - n, missing == MISSING_MAX ? " and more" : "%s%d",
                 missing ? ", " : "", i);
        missing++;
    }
    return missing;
}

static int timed_out(struct meeting *m, struct err *e)
{
    char list[160];
    if (list_missing(m, list))
        return err_set(e, -ETIMEDOUT, "not all of the %d ranks have arrived at %s:%d; missing: %s",
                       m->w->size, m->host, m->port, list);
    return err_set(e, -ETIMEDOUT, "the %d ranks did not meet at %s:%d in time", m->w->size, m->host,
                   m->port);
}

/* Waits for the key and gets it, from another rank. */
static int get_from_rank(struct meeting *m, const char *key, void **value, size_t *len,
                         struct err *e)
{
    int r = store_client_get(m->client, key, value, len, wait_limit_ms(m), e);
    if (r != -ETIMEDOUT || is_over(m))
        return r;
    struct err why;
    char list[160];
    if (list_missing(m, list))
        err_set(&why, 0, "not all of the %d have arrived at %s:%d; missing: %s", m->w->size,
                m->host, m->port, list);
    else
        err_set(&why, 0, "all have arrived at %s:%d, and rank 0 does not answer", m->host, m->port);
    notice_wait(m, why.msg);
    return store_client_get(m->client, key, value, len, remaining_ms(m), e);
}

/* Rank 0: collects the records of the others. *last: the last rank in the table; if it is not size
 * - 1, that rank was given another size than this one, or has another version. */
static int gather_members(struct meeting *m, struct buf *table, int *last, struct err *e)
{
    char key[KEY_MAX];
    int r = 0;
    bool same = true;
    for (int i = 0; i < m->w->size && r == 0 && same; i++) {
        void *value = NULL;
        size_t len = 0;
        r = get_from_rank(m, rank_key(m, "rank", i, key), &value, &len, e);
        if (r == 0) {
            struct rd rd = rd_init(value, len);
            struct member *one = &m->w->members[i];
            bool read = member_decode(&rd, m->self.addr, one);
            bool known = one->version == PROTOCOL_DATA;
            if (!read || (known && !rd_done(&rd)))
                r = err_set(e, -EPROTO, "what rank %d has published is malformed", i);
            buf_put(table, value, len);
            same = known && one->size == (uint32_t)m->w->size;
            *last = i;
        }
        free(value);
    }
    return r;
}

static int lead(struct meeting *m, struct err *e)
{
    struct world *w = m->w;
    char key[KEY_MAX];
    struct buf table = BUF_INIT;
    if (!w->epoch && getrandom(&w->epoch, sizeof(w->epoch), 0) != sizeof(w->epoch))
        w->epoch = mono_ns();
    buf_u64(&table, w->epoch);
    buf_u32(&table, (uint32_t)w->size);
    int last = 0, r = gather_members(m, &table, &last, e);
    if (r == 0)
        r = table.oom ? err_set(e, -ENOMEM, "no memory")
                      : store_client_set(m->client, table_key(m, key), table.data, table.len, e);
    buf_fini(&table);
    const struct member *odd = &w->members[last];
    uint32_t given = odd->size, own = (uint32_t)w->size;
    for (int i = 1; i < w->size && r == 0; i++) {
        const char *k = rank_key(m, "read", i, key);
        int ms = remaining_ms(m);
        if (i <= last)
            r = store_client_wait(m->client, &k, 1, ms, e);
        else if (store_client_wait(m->client, &k, 1, ms < 0 || ms > LATE_MS ? LATE_MS : ms, NULL) <
                 0)
            break; /* not all ranks that arrive later will learn of the mistake */
    }
    if (odd->version && odd->version != PROTOCOL_DATA)
        return another_version(last, odd->version, e);
    return given && given != own ? another_size(last, given, own, e) : r;
}

static int follow(struct meeting *m, struct err *e)
{
    char key[KEY_MAX];
    void *value = NULL;
    size_t len = 0;
    int r = get_from_rank(m, table_key(m, key), &value, &len, e);
    if (r < 0)
        return r;
    int bad = table_decode(m, value, len, e);
    free(value);
    r = store_client_set(m->client, rank_key(m, "read", m->w->rank, key), "1", 1, bad ? NULL : e);
    return bad < 0 ? bad : r;
}

/* Removes the keys, because another run of the program may use the same store. */
static void clean_up(struct meeting *m)
{
    char key[KEY_MAX];
    bool deleted;
    int r = store_client_delete(m->client, table_key(m, key), &deleted, NULL);
    for (int i = 0; i < m->w->size && r == 0; i++) {
        r = store_client_delete(m->client, rank_key(m, "rank", i, key), &deleted, NULL);
        if (r == 0 && i > 0)
            r = store_client_delete(m->client, rank_key(m, "read", i, key), &deleted, NULL);
    }
}

/* Rank 0 hosts the store unless another process does. */
static int host_store(struct meeting *m, struct err *e)
{
    if (m->w->rank != 0 || m->served || m->server)
        return 0;
    /* 127.0.0.1 and ::1 mean this host everywhere; another loopback address may be that of this
     * host's own name, which other hosts resolve to an address that they can reach. */
    bool loopback =
        strcmp(m->w->master_ip, "127.0.0.1") == 0 || strcmp(m->w->master_ip, "::1") == 0;
    struct store_thread_opts opts = {.addr = loopback && !m->file ? m->w->master_ip : NULL,
                                     .port = m->file ? 0 : m->port};
    int r = store_thread_new(&m->server, &opts, e);
    for (int i = 1; r == -EADDRINUSE && i < m->ports; i++) {
        opts.port = m->base_port + i;
        r = store_thread_new(&m->server, &opts, e);
    }
    if (r == -EADDRINUSE && m->ports)
        return err_set(e, -EADDRINUSE,
                       "rank 0 cannot serve the store: the ports %d to %d are in use (set "
                       "MASTER_PORT)",
                       m->base_port, m->base_port + m->ports - 1);
    if (r == 0)
        m->port = store_thread_port(m->server);
    return r == -EADDRINUSE
               ? 0
               : r; /* EADDRINUSE: a store is served there, or connecting will show the error */
}

/* Finds the port, one of several, at which rank 0 serves. A server at another port does not belong
 * to this job: it has no record of rank 0 under this job's keys. */
static int search_store(struct meeting *m, struct err *e)
{
    char key[KEY_MAX];
    const char *k = rank_key(m, "rank", 0, key);
    int left = remaining_ms(m), ms = m->tries % (unsigned)m->ports ? NEXT_PORT_MS : FIRST_PORT_MS;
    m->port = m->base_port + (int)(m->tries++ % (unsigned)m->ports);
    int r = store_client_new(&m->client, m->host, m->port, ms, e);
    if (r == 0 && store_client_wait(m->client, &k, 1, ms, NULL) == 0) {
        store_client_set_timeout(m->client, left);
        return 0;
    }
    store_client_free(m->client);
    m->client = NULL;
    return err_set(e, is_over(m) ? -ETIMEDOUT : -ECONNREFUSED,
                   "rank 0 was not found at %s, ports %d to %d", m->host, m->base_port,
                   m->base_port + m->ports - 1);
}

static int reach_store(struct meeting *m, struct err *e)
{
    int r = host_store(m, e), left = remaining_ms(m), ms = wait_limit_ms(m);
    if (r < 0 || m->client)
        return r;
    if (m->ports && m->w->rank > 0)
        return search_store(m, e);
    /* Rank 0 has found the port in use: by another store, or as the local port of a connection that
     * will end. */
    bool in_use = m->w->rank == 0 && !m->served && !m->server;
    if (in_use && (ms < 0 || ms > HOST_AGAIN_MS))
        ms = HOST_AGAIN_MS;
    r = store_client_new(&m->client, m->host, m->port, ms, e);
    if (r == 0)
        store_client_set_timeout(m->client, left);
    if (r < 0 && in_use)
        err_wrap(e,
                 "rank 0 cannot serve the store at %s:%d, as the port is in use, nor is one there",
                 m->host, m->port);
    return r == -ETIMEDOUT && ms != left ? -ECONNREFUSED : r;
}

static int meet_once(struct meeting *m, struct err *e)
{
    int r = reach_store(m, e);
    if (r < 0)
        return r;
    r = publish_self(m, e);
    if (r == 0)
        r = m->w->rank == 0 ? lead(m, e) : follow(m, e);
    if (r == -ETIMEDOUT)
        r = timed_out(m, e);
    if ((r == 0 || r == -EINVAL) && m->w->rank == 0)
        clean_up(m);
    if (!m->borrowed) {
        store_client_free(m->client);
        m->client = NULL;
    }
    return r;
}

static bool worth_another_try(int r)
{
    return r == -ENOTCONN || r == -ECONNRESET || r == -EPIPE || r == -ECONNREFUSED ||
           r == -ECONNABORTED;
}

static int meet(struct meeting *m, struct err *e)
{
    for (;;) {
        int r = meet_once(m, e);
        if (!worth_another_try(r) || is_over(m) || m->borrowed)
            return r;
        notice_wait(m, e ? e->msg : "");
        pause_before_retry();
    }
}

/* Counts the ranks of this host, this rank's place among them, and their CPUs: each rank may be
 * bound to its own. */
static int count_neighbours(struct world *w, const struct starter *starter, struct err *e)
{
    int before = 0;
    struct wait_cpus cpus = {0};
    for (int i = 0; i < w->size; i++) {
        if (w->members[i].host_id == w->members[w->rank].host_id) {
            wait_add_cpus(&cpus, &w->members[i].cpus);
            w->neighbours++;
            before += i < w->rank;
        }
    }
    w->usable_cpus = wait_count_cpus(&cpus);
    w->local_rank = starter ? starter->local_rank : before;
    return env_or("LOCAL_RANK", "")[0] ? need_int("LOCAL_RANK", 0, WORLD_MAX, &w->local_rank, e)
                                       : 0;
}

/* Rank 0 serves the store at a port of its own and writes into the file how it is reached. */
static int publish_file(struct meeting *m, struct err *e)
{
    struct netaddr own[MEETING_ADDRS];
    struct meeting_place p = {.host_id = m->self.host_id, .pid = getpid()};
    int r = host_store(m, e);
    if (r < 0)
        return r;
    p.port = m->port;
    p.naddrs = netaddr_list_local(own, MEETING_ADDRS);
    for (int i = 0; i < p.naddrs; i++)
        netaddr_ip(&own[i], p.addrs[i]);
    snprintf(p.host, sizeof(p.host), "%s", m->self.host);
    if (getrandom(&p.nonce, sizeof(p.nonce), 0) != sizeof(p.nonce))
        p.nonce = mono_ns();
    snprintf(m->host, sizeof(m->host), "127.0.0.1");
    return rendezvous_file_write(m->file, m->prefix, &p, remaining_ms(m), e);
}

static int find_by_file(struct meeting *m, struct err *e)
{
    bool notice_first = !m->deadline_ns || m->notice_ns < m->deadline_ns;
    int r =
        rendezvous_file_find(m->file, m->prefix, m->self.host_id,
                             notice_first ? m->notice_ns : m->deadline_ns, m->host, &m->port, e);
    if (r != -ETIMEDOUT || !notice_first)
        return r;
    notice_wait(m, e ? e->msg : "");
    return rendezvous_file_find(m->file, m->prefix, m->self.host_id, m->deadline_ns, m->host,
                                &m->port, e);
}

static int meet_by_file(struct meeting *m, struct err *e)
{
    struct netaddr any = {0};
    int r;
    m->self.host_id = host_id();
    char name[HOST_MAX] = "";
    if (gethostname(name, sizeof(name) - 1) == 0)
        snprintf(m->self.host, sizeof(m->self.host), "%.*s", MEMBER_HOST_MAX - 1, name);
    if (m->w->rank == 0)
        r = publish_file(m, e);
    else
        r = find_by_file(m, e);
    bool wrote = m->w->rank == 0 && r == 0;
    if (r == 0)
        r = find_master(m, &any, e);
    /* Other hosts reach the store's own host at an address that is not loopback. */
    if (r == 0 && netaddr_is_loopback(&any) && m->w->rank == 0) {
        struct netaddr own;
        if (netaddr_list_local(&own, 1) == 1 && !netaddr_is_link_local(&own))
            any = own;
    }
    if (r == 0 && (r = listen_here(m, &any, e)) == 0)
        r = meet(m, e);
    if (wrote)
        rendezvous_file_remove(m->file);
    return r;
}

int bootstrap_store(struct world *w, const struct world_opts *o, struct err *e)
{
    struct meeting m = {.w = w,
                        .deadline_ns = o->deadline_ns,
                        .notice_ns = mono_ns() + NOTICE_MS * UINT64_C(1000000)};
    struct netaddr local;
    int r = meeting_find_way(&m, o, e);
    if (r < 0)
        return r;
    if (w->size == 1)
        return 0;
    m.self.cpus = wait_own_cpus();
    w->members = calloc((size_t)w->size, sizeof(*w->members));
    if (!w->members)
        return err_set(e, -ENOMEM, "no memory for %d ranks", w->size);
    if (m.file)
        r = meet_by_file(&m, e);
    else if ((r = find_master(&m, &local, e)) == 0 && (r = listen_here(&m, &local, e)) == 0)
        r = meet(&m, e);
    w->store_server = m.server;
    w->store_port = m.port;
    snprintf(w->store_host, sizeof(w->store_host), "%s", m.host);
    return r < 0 ? r : count_neighbours(w, o->starter, e);
}
