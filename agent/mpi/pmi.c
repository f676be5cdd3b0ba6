/* The happy path of PMI-1: init, get_maxes, get_appnum, get_my_kvsname, then puts, gets and
 * barrier_in (a fence) in turn; finalize. Every request has one answer, and a worker has one
 * request under way; only a fence is answered later, when pmi_gathered() has brought the values of
 * all nodes. PMI-2 begins with the same init, and differs in form: a length in front of each
 * message, other names. */
#include "agent/mpi/pmi.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"

#define MESSAGE_MAX 8192 /* clients keep theirs below 1,024 bytes */
#define FIELDS_MAX  32
#define KEY_MAX     64
#define LENGTH_V2   6 /* characters of the length before a message of PMI-2: digits and blanks */

enum presence { PMI_ABSENT, PMI_HERE, PMI_FINALIZED };

struct pmi_rank {
    struct pmi *pmi;
    int fd;                  /* -1: not connected, or closed */
    struct uvx_watch *watch; /* of fd */
    enum presence presence;
    bool v2;       /* speaks PMI-2 since its init */
    bool in_fence; /* waits for the other ranks */
    bool exited;   /* with 0 */
    bool spawning; /* inside the lines of a spawn */
    int spawn_total, spawn_at;
    char awaits[KEY_MAX + 1]; /* PMI-2: the attribute of the node that it waits for; "" */
    char thread[24];          /* PMI-2: the thread that asked, to be named in the answer */
    char *in;                 /* MESSAGE_MAX; NULL: nothing has come yet */
    size_t len;
};

struct pmi {
    struct uvx_scope *scope;
    struct mpi_events events;
    const struct programs *programs;
    int nnodes, nranks, base_rank, world_size;
    char run_id[48];
    char name[64]; /* of the job in this round, and of its key-value space */
    char mapping[PMI_VALUE_MAX];
    struct map keys;  /* the keys and values known here: strings */
    struct map attrs; /* PMI-2: attributes of this node */
    struct buf puts;  /* of this node since the last fence: key and value, a buf_str() each */
    int nfenced;      /* ranks of this node in the fence */
    struct pmi_rank *ranks;
};

/* ---------------------------------------------------------------------------------- the mapping */

void pmi_mapping(const struct rank_table *t, char out[PMI_VALUE_MAX])
{
    size_t n = (size_t)snprintf(out, PMI_VALUE_MAX, "(vector");
    for (int i = 0, from; i < t->nnodes && n < PMI_VALUE_MAX;) {
        for (from = i; i < t->nnodes && t->nodes[i].nproc == t->nodes[from].nproc;)
            i++;
        n += (size_t)snprintf(out + n, PMI_VALUE_MAX - n, ",(%d,%d,%d)", from, i - from,
                              t->nodes[from].nproc);
    }
    if (n + 2 > PMI_VALUE_MAX)
        out[0] = '\0';
    else
        strcpy(out + n, ")");
}

/* --------------------------------------------------------------------------------- the messages */

/* A request, cut into fields in place: "key=value" with blanks between them (PMI-1), or with ";"
 * behind each (PMI-2). */
struct request {
    int n;
    struct {
        char *key, *value;
    } fields[FIELDS_MAX];
};

/* The values of these keys may hold any byte, so they extend to the end of the line. */
static bool takes_rest(const char *key)
{
    return strcmp(key, "value") == 0 || strcmp(key, "message") == 0 ||
           strcmp(key, "error_msg") == 0;
}

static bool parse_v1(struct request *q, char *text)
{
    q->n = 0;
    for (char *p = text; p && *p;) {
        char *equals = strchr(p, '=');
        if (!equals || q->n == FIELDS_MAX)
            return false;
        *equals = '\0';
        q->fields[q->n].key = p;
        q->fields[q->n].value = equals + 1;
        char *end = takes_rest(p) ? NULL : strchr(equals + 1, ' ');
        q->n++;
        if (end)
            *end++ = '\0';
        p = end ? end + strspn(end, " ") : NULL;
    }
    return q->n > 0;
}

/* ";;" in a value stands for ";". */
static bool parse_v2(struct request *q, char *text)
{
    q->n = 0;
    for (char *p = text; *p;) {
        char *equals = strchr(p, '='), *to;
        if (!equals || q->n == FIELDS_MAX)
            return false;
        *equals = '\0';
        q->fields[q->n].key = p;
        q->fields[q->n++].value = to = p = equals + 1;
        while (*p && (*p != ';' || p[1] == ';')) {
            p += *p == ';';
            *to++ = *p++;
        }
        p += *p == ';';
        *to = '\0';
    }
    return q->n > 0;
}

static const char *get(const struct request *q, const char *key)
{
    for (int i = 0; i < q->n; i++) {
        if (strcmp(q->fields[i].key, key) == 0)
            return q->fields[i].value;
    }
    return NULL;
}

static int local_rank_of(const struct pmi *p, const struct pmi_rank *r)
{
    return (int)(r - p->ranks);
}

static int appnum(const struct pmi *p, const struct pmi_rank *r)
{
    return programs_find(p->programs, p->base_rank + local_rank_of(p, r), NULL);
}

static void hang_up(struct pmi_rank *r)
{
    uvx_watch_free(r->watch);
    r->watch = NULL;
    close_fd(&r->fd);
}

/* The worker cannot go on. */
__attribute__((format(printf, 3, 4))) static void broken(struct pmi *p, struct pmi_rank *r,
                                                         const char *fmt, ...)
{
    char how[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(how, sizeof(how), fmt, ap);
    va_end(ap);
    hang_up(r);
    p->events.on_abort(p->events.arg, local_rank_of(p, r), 1, how);
}

/* A client has one request under way and so reads its answer: its socket always has room. */
__attribute__((format(printf, 3, 4))) static void answer(struct pmi *p, struct pmi_rank *r,
                                                         const char *fmt, ...)
{
    char text[MESSAGE_MAX];
    size_t at = r->v2 ? LENGTH_V2 : 0;
    va_list ap;
    va_start(ap, fmt);
    at += (size_t)vsnprintf(text + at, sizeof(text) - at, fmt, ap);
    va_end(ap);
    if (r->v2 && r->thread[0])
        at += (size_t)snprintf(text + at, at < sizeof(text) ? sizeof(text) - at : 0, "thrid=%s;",
                               r->thread);
    assert(at < sizeof(text));
    if (r->v2) {
        char length[LENGTH_V2 + 1];
        snprintf(length, sizeof(length), "%6zu", (at - LENGTH_V2) % 1000000);
        memcpy(text, length, LENGTH_V2);
    }
    ssize_t sent = r->fd < 0 ? (ssize_t)at : send(r->fd, text, at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != (ssize_t)at && (sent >= 0 || (errno != EPIPE && errno != ECONNRESET)))
        broken(p, r, "does not read the answers to its PMI requests");
}

/* ---------------------------------------------------------------------------- keys and the fence
 */

static const char *look_up(const struct map *m, const char *key)
{
    return map_get(m, key, strlen(key));
}

static void keep(struct map *m, const char *key, const char *value)
{
    void **v = map_put(m, key, strlen(key));
    if (!v)
        return;
    free(*v);
    *v = xstrdup(value);
}

static bool put(struct pmi *p, const struct request *q)
{
    const char *key = get(q, "key"), *value = get(q, "value");
    if (!key || !*key || strlen(key) > KEY_MAX || !value || strlen(value) > PMI_VALUE_MAX)
        return false;
    keep(&p->keys, key, value);
    buf_str(&p->puts, key);
    buf_str(&p->puts, value);
    return true;
}

/* The value that a rank gets for a key: dlaunch's own, or the one that a rank has put. */
static const char *find(const struct pmi *p, const char *key)
{
    if (!key)
        return NULL;
    if (strcmp(key, "PMI_process_mapping") == 0)
        return p->mapping[0] ? p->mapping : NULL;
    return look_up(&p->keys, key);
}

static void enter_fence(struct pmi *p, struct pmi_rank *r)
{
    if (r->in_fence) {
        broken(p, r, "entered a PMI barrier twice");
        return;
    }
    r->in_fence = true;
    if (++p->nfenced < p->nranks)
        return;
    struct buf value = p->puts;
    p->puts = (struct buf)BUF_INIT;
    p->events.on_fence(p->events.arg, value.data, value.len);
    buf_fini(&value);
}

static bool take_values(struct pmi *p, struct rd values, int nnodes)
{
    char key[KEY_MAX + 1], value[PMI_VALUE_MAX + 1];
    for (int i = 0; i < nnodes; i++) {
        size_t len = rd_u32(&values);
        const uint8_t *bytes = rd_take(&values, len);
        struct rd r = rd_init(bytes, bytes ? len : 0);
        while (r.p < r.end && !r.bad) {
            rd_str(&r, key, sizeof(key));
            rd_str(&r, value, sizeof(value));
            if (!r.bad)
                keep(&p->keys, key, value);
        }
        if (r.bad || values.bad)
            return false;
    }
    return true;
}

void pmi_gathered(struct pmi *p, struct rd values, int nnodes)
{
    assert(p->nfenced == p->nranks);
    bool good = nnodes > 0 && take_values(p, values, nnodes);
    p->nfenced = 0;
    for (int i = 0; i < p->nranks; i++)
        p->ranks[i].in_fence = false;
    for (int i = 0; i < p->nranks; i++) {
        struct pmi_rank *r = &p->ranks[i];
        if (!good)
            broken(p, r,
                   "could not exchange addresses with the other nodes: together they are "
                   "too large, or malformed");
        else if (r->v2)
            answer(p, r, "cmd=kvs-fence-response;rc=0;");
        else
            answer(p, r, "cmd=barrier_out rc=0\n");
        if (!good)
            return;
    }
}

/* ---------------------------------------------------------------------------------- the requests
 */

static void do_init(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *version = get(q, "pmi_version");
    for (int i = 0; i < p->nranks; i++) {
        if (p->ranks[i].exited && p->ranks[i].presence == PMI_ABSENT) {
            broken(p, r, "called MPI_Init, and rank %d had exited without it", p->base_rank + i);
            return;
        }
    }
    r->presence = PMI_HERE;
    if (version && strcmp(version, "2") == 0) {
        answer(p, r, "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n");
        r->v2 = true;
    } else {
        answer(p, r, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    }
}

static void do_get_maxes(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    answer(p, r, "cmd=maxes kvsname_max=256 keylen_max=%d vallen_max=%d\n", KEY_MAX, PMI_VALUE_MAX);
}

static void do_get_appnum(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    answer(p, r, "cmd=appnum appnum=%d\n", appnum(p, r));
}

static void do_get_my_kvsname(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    answer(p, r, "cmd=my_kvsname kvsname=%s\n", p->name);
}

static void do_get_universe_size(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    answer(p, r, "cmd=universe_size size=%d\n", p->world_size);
}

static void do_put(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    if (put(p, q))
        answer(p, r, "cmd=put_result rc=0 msg=success\n");
    else
        answer(p, r, "cmd=put_result rc=-1 msg=key_or_value_too_long\n");
}

static void do_get(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *value = find(p, get(q, "key"));
    if (value)
        answer(p, r, "cmd=get_result rc=0 msg=success value=%s\n", value);
    else
        answer(p, r, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
}

static void do_barrier_in(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    enter_fence(p, r);
}

static void do_finalize(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    r->presence = PMI_FINALIZED;
    answer(p, r, r->v2 ? "cmd=finalize-response;rc=0;" : "cmd=finalize_ack\n");
}

static void do_abort(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *code = get(q, "exitcode"), *text = get(q, "message");
    char how[160];
    int exit_code = code ? atoi(code) : 1;
    if (!text)
        text = r->v2 ? get(q, "msg") : get(q, "error_msg");
    if (code)
        snprintf(how, sizeof(how), "called MPI_Abort with code %d", exit_code);
    else
        snprintf(how, sizeof(how), "called MPI_Abort%s%.100s", text ? ": " : "", text ? text : "");
    p->events.on_abort(p->events.arg, local_rank_of(p, r), exit_code & 255, how);
}

static void refuse_spawn(struct pmi *p, struct pmi_rank *r)
{
    log_warn("rank %d asks for further processes (MPI_Comm_spawn): refused, because dlaunch starts "
             "all ranks when the job starts",
             p->base_rank + local_rank_of(p, r));
}

/* Names that are published are known on one node, so only a job on one node has them. */
static void do_publish_name(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *service = get(q, "service"), *port = get(q, "port");
    bool good = p->nnodes == 1 && service && port && strlen(service) <= PMI_VALUE_MAX &&
                strlen(port) <= PMI_VALUE_MAX && !look_up(&p->attrs, service);
    if (good)
        keep(&p->attrs, service, port);
    answer(p, r, "cmd=publish_result info=%s rc=%d msg=%s\n", good ? "ok" : "error", !good,
           good             ? "success"
           : p->nnodes == 1 ? "key_already_present"
                            : "not_supported_on_several_nodes");
}

static void do_unpublish_name(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *service = get(q, "service");
    char *port = service ? map_remove(&p->attrs, service, strlen(service)) : NULL;
    answer(p, r, "cmd=unpublish_result info=%s rc=%d msg=%s\n", port ? "ok" : "error", !port,
           port ? "success" : "service_not_found");
    free(port);
}

static void do_lookup_name(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *service = get(q, "service"), *port = service ? look_up(&p->attrs, service) : NULL;
    if (port)
        answer(p, r, "cmd=lookup_result port=%s info=ok rc=0 msg=success\n", port);
    else
        answer(p, r, "cmd=lookup_result rc=1 msg=service_not_found\n");
}

/* --------------------------------------------------------------------------------------- PMI-2 */

static void do_fullinit(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    answer(p, r,
           "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=%d;size=%d;appnum=%d;"
           "debugged=FALSE;pmiverbose=FALSE;",
           p->base_rank + local_rank_of(p, r), p->world_size, appnum(p, r));
}

static void do_job_getid(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    answer(p, r, "cmd=job-getid-response;rc=0;jobid=%s;", p->name);
}

static void answer_value(struct pmi *p, struct pmi_rank *r, const char *what, const char *value)
{
    char escaped[2 * PMI_VALUE_MAX + 1], *to = escaped;
    for (const char *from = value; from && *from; from++) {
        *to++ = *from;
        if (*from == ';')
            *to++ = ';';
    }
    *to = '\0';
    if (value)
        answer(p, r, "cmd=%s-response;rc=0;flag=TRUE;found=TRUE;value=%s;", what, escaped);
    else
        answer(p, r, "cmd=%s-response;rc=0;flag=FALSE;found=FALSE;", what);
}

static void do_getjobattr(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *key = get(q, "key");
    char size[16];
    snprintf(size, sizeof(size), "%d", p->world_size);
    bool universe = key && strcmp(key, "universeSize") == 0;
    answer_value(p, r, "info-getjobattr", universe ? size : find(p, key));
}

static void do_getnodeattr(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *key = get(q, "key"), *wait = get(q, "wait");
    const char *value = key ? look_up(&p->attrs, key) : NULL;
    if (!value && key && strlen(key) <= KEY_MAX && wait && strcmp(wait, "TRUE") == 0)
        strcpy(r->awaits, key); /* answered by the put of another rank */
    else
        answer_value(p, r, "info-getnodeattr", value);
}

static void do_putnodeattr(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    const char *key = get(q, "key"), *value = get(q, "value");
    if (!key || strlen(key) > KEY_MAX || !value || strlen(value) > PMI_VALUE_MAX) {
        answer(p, r, "cmd=info-putnodeattr-response;rc=1;errmsg=key or value too long;");
        return;
    }
    keep(&p->attrs, key, value);
    answer(p, r, "cmd=info-putnodeattr-response;rc=0;");
    for (int i = 0; i < p->nranks; i++) {
        struct pmi_rank *other = &p->ranks[i];
        if (strcmp(other->awaits, key) != 0)
            continue;
        other->awaits[0] = '\0';
        answer_value(p, other, "info-getnodeattr", look_up(&p->attrs, key));
    }
}

static void do_kvs_put(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    if (put(p, q))
        answer(p, r, "cmd=kvs-put-response;rc=0;");
    else
        answer(p, r, "cmd=kvs-put-response;rc=1;errmsg=key or value too long;");
}

static void do_kvs_get(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    answer_value(p, r, "kvs-get", find(p, get(q, "key")));
}

static void do_spawn(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    (void)q;
    refuse_spawn(p, r);
    answer(p, r, "cmd=spawn-response;rc=1;errmsg=spawn is not supported;");
}

static void do_name(struct pmi *p, struct pmi_rank *r, const struct request *q)
{
    answer(p, r, "cmd=%s-response;rc=1;errmsg=not supported;", get(q, "cmd"));
}

static const struct command {
    const char *name;
    void (*run)(struct pmi *p, struct pmi_rank *r, const struct request *q);
} commands[] =
    {
        {"init", do_init},
        {"get_maxes", do_get_maxes},
        {"get_appnum", do_get_appnum},
        {"get_my_kvsname", do_get_my_kvsname},
        {"get_universe_size", do_get_universe_size},
        {"put", do_put},
        {"get", do_get},
        {"barrier_in", do_barrier_in},
        {"finalize", do_finalize},
        {"abort", do_abort},
        {"publish_name", do_publish_name},
        {"unpublish_name", do_unpublish_name},
        {"lookup_name", do_lookup_name},
},
  commands_v2[] = {
      {"fullinit", do_fullinit},
      {"job-getid", do_job_getid},
      {"info-getjobattr", do_getjobattr},
      {"info-getnodeattr", do_getnodeattr},
      {"info-putnodeattr", do_putnodeattr},
      {"kvs-put", do_kvs_put},
      {"kvs-get", do_kvs_get},
      {"kvs-fence", do_barrier_in},
      {"finalize", do_finalize},
      {"abort", do_abort},
      {"spawn", do_spawn},
      {"name-publish", do_name},
      {"name-unpublish", do_name},
      {"name-lookup", do_name},
};

/* A spawn of PMI-1 is lines from "mcmd=spawn" to "endcmd", once for each program. True: the line
 * belongs to one. */
static bool take_spawn_line(struct pmi *p, struct pmi_rank *r, const char *line)
{
    if (strcmp(line, "mcmd=spawn") == 0) {
        r->spawning = true;
        r->spawn_total = r->spawn_at = 1;
        return true;
    }
    if (!r->spawning)
        return false;
    sscanf(line, "totspawns=%d", &r->spawn_total);
    sscanf(line, "spawnssofar=%d", &r->spawn_at);
    r->spawning = strcmp(line, "endcmd") != 0;
    if (!r->spawning && r->spawn_at >= r->spawn_total) {
        refuse_spawn(p, r);
        answer(p, r, "cmd=spawn_result rc=-1\n");
    }
    return true;
}

static void handle(struct pmi *p, struct pmi_rank *r, char *text)
{
    struct request q;
    char shown[64];
    snprintf(shown, sizeof(shown), "%.60s", text);
    if (!r->v2 && take_spawn_line(p, r, text))
        return;
    bool good = r->v2 ? parse_v2(&q, text) : parse_v1(&q, text);
    const char *cmd = good ? get(&q, "cmd") : NULL, *thread = good ? get(&q, "thrid") : NULL;
    const struct command *c = r->v2 ? commands_v2 : commands;
    size_t n = r->v2 ? ARRAY_LEN(commands_v2) : ARRAY_LEN(commands);
    snprintf(r->thread, sizeof(r->thread), "%s", thread ? thread : "");
    for (size_t i = 0; cmd && i < n; i++) {
        if (strcmp(cmd, c[i].name) == 0) {
            c[i].run(p, r, &q);
            return;
        }
    }
    broken(p, r, "sent a PMI request that dlaunch does not know: %s", shown);
}

/* The length of the first whole message in the buffer, and where its text begins; 0: there is none
 * yet. -1: malformed. */
static ssize_t whole_message(const struct pmi_rank *r, size_t *begin)
{
    char number[LENGTH_V2 + 1] = "", *end;
    *begin = r->v2 ? LENGTH_V2 : 0;
    if (!r->v2) {
        const char *nl = memchr(r->in, '\n', r->len);
        return nl ? nl + 1 - r->in : 0;
    }
    if (r->len < LENGTH_V2)
        return 0;
    memcpy(number, r->in, LENGTH_V2);
    long n = strtol(number, &end, 10);
    if (end[strspn(end, " ")] || n <= 0 || n > MESSAGE_MAX - LENGTH_V2 - 1)
        return -1;
    return r->len >= (size_t)n + LENGTH_V2 ? n + LENGTH_V2 : 0;
}

static void take_messages(struct pmi *p, struct pmi_rank *r)
{
    char text[MESSAGE_MAX];
    while (r->fd >= 0) {
        size_t begin;
        ssize_t n = whole_message(r, &begin);
        if (n < 0 || (n == 0 && r->len == MESSAGE_MAX))
            broken(p, r, "sent what is not PMI: %.*s", (int)(r->len < 40 ? r->len : 40), r->in);
        if (n <= 0)
            return;
        size_t len = (size_t)n - begin - !r->v2; /* PMI-1: without the newline */
        memcpy(text, r->in + begin, len);
        text[len] = '\0';
        r->len -= (size_t)n;
        memmove(r->in, r->in + n, r->len);
        handle(p, r, text);
    }
}

static void receive(struct pmi *p, struct pmi_rank *r)
{
    if (!r->in)
        r->in = xmalloc(MESSAGE_MAX);
    ssize_t n = recv(r->fd, r->in + r->len, MESSAGE_MAX - r->len, MSG_DONTWAIT);
    if (n > 0) {
        r->len += (size_t)n;
        take_messages(p, r);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        hang_up(r); /* the worker's exit says the rest */
    }
}

/* ------------------------------------------------------------------------------------ the driver
 */

static void on_readable(void *arg)
{
    struct pmi_rank *r = arg;
    receive(r->pmi, r);
}

void pmi_look(struct pmi *p, int local_rank)
{
    struct pmi_rank *r = &p->ranks[local_rank];
    if (r->fd >= 0)
        receive(p, r);
}

int pmi_connect(struct pmi *p, int local_rank, struct err *e)
{
    struct pmi_rank *r = &p->ranks[local_rank];
    int fds[2];
    assert(r->fd < 0 && r->presence == PMI_ABSENT);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return err_sys(e, errno, "PMI connection of local rank %d", local_rank);
    r->fd = fds[0];
    r->watch = uvx_watch_new(p->scope, r->fd, on_readable, r);
    if (!r->watch) {
        int rc = err_sys(e, errno, "PMI connection of local rank %d", local_rank);
        close_fd(&r->fd);
        close(fds[1]);
        return rc;
    }
    uvx_watch_for(r->watch, UV_READABLE);
    return fds[1];
}

const char *pmi_exit_fault(struct pmi *p, int local_rank)
{
    struct pmi_rank *r = &p->ranks[local_rank];
    bool used = false;
    r->exited = true;
    for (int i = 0; i < p->nranks; i++)
        used |= p->ranks[i].presence == PMI_HERE;
    if (r->presence == PMI_HERE)
        return "exited with code 0 after MPI_Init, without MPI_Finalize";
    if (r->presence == PMI_ABSENT && used)
        return "exited with code 0 without MPI_Init, which other ranks have called";
    return NULL;
}

struct pmi *pmi_new(struct uvx_scope *scope, const char *run_id, const struct programs *programs,
                    const struct mpi_events *events)
{
    struct pmi *p = xcalloc(1, sizeof(*p));
    *p = (struct pmi){.scope = scope, .events = *events, .programs = programs};
    snprintf(p->run_id, sizeof(p->run_id), "%s", run_id);
    for (char *c = p->run_id; *c; c++) { /* a word of the protocol */
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", *c))
            *c = '_';
    }
    map_init(&p->keys);
    map_init(&p->attrs);
    return p;
}

void pmi_end(struct pmi *p)
{
    for (int i = 0; i < p->nranks; i++)
        hang_up(&p->ranks[i]);
}

static void end_round(struct pmi *p)
{
    pmi_end(p);
    for (int i = 0; i < p->nranks; i++)
        free(p->ranks[i].in);
    free(p->ranks);
    p->ranks = NULL;
    p->nranks = p->nfenced = 0;
    map_fini(&p->keys, free);
    map_fini(&p->attrs, free);
    buf_fini(&p->puts);
}

void pmi_begin(struct pmi *p, const struct rank_table *table, int group_rank)
{
    const struct rank_table_node *node = &table->nodes[group_rank];
    end_round(p);
    p->nnodes = table->nnodes;
    p->nranks = node->nproc;
    p->base_rank = node->base_rank;
    p->world_size = table->world_size;
    p->ranks = xcalloc((size_t)p->nranks, sizeof(*p->ranks));
    for (int i = 0; i < p->nranks; i++)
        p->ranks[i] = (struct pmi_rank){.pmi = p, .fd = -1};
    pmi_mapping(table, p->mapping);
    snprintf(p->name, sizeof(p->name), "%s_%u", p->run_id, table->gen.counter);
}

void pmi_free(struct pmi *p)
{
    if (!p)
        return;
    end_round(p);
    free(p);
}
