/* The happy path: a rank connects (client_connected), puts its addresses, and enters a fence; when
 * all ranks of this node have, libpmix hands over what they put (fence), and gets that of all nodes
 * back. Two more fences are empty. Then client_finalized. Fences of a job on one node never come
 * here.
 *
 * libpmix calls the functions of the module in its own thread: each of them appends a note to the
 * queue, and pmix_ready() acts on the notes in the loop's thread. */
#include "agent/mpi/pmix.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "agent/mpi/pmix_api.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

#define FOLDER_PREFIX "dlaunch_pmix_"

enum note_kind {
    NOTE_CONNECTED,
    NOTE_FINALIZED,
    NOTE_ABORT,
    NOTE_FENCE,
    NOTE_MODEX,
    NOTE_FOUND,
    NOTE_SPAWN
};

struct note {
    struct note *next;
    enum note_kind kind;
    char nspace[PMIX_NAME_MAX + 1]; /* of the note's round */
    uint32_t rank;
    int status;          /* NOTE_ABORT, NOTE_FOUND */
    struct buf data;     /* NOTE_FENCE, NOTE_FOUND */
    pmix_blob_fn *reply; /* NOTE_FENCE, NOTE_MODEX */
    void *reply_arg;
    uint64_t id;       /* NOTE_MODEX, NOTE_FOUND */
    struct node_id to; /* NOTE_FOUND */
};

enum presence { PMIX_ABSENT, PMIX_HERE, PMIX_FINALIZED };

struct pmix {
    struct pmix_api api;
    struct mpi_events events;
    const struct programs *programs;
    bool up;     /* PMIx_server_init() has succeeded */
    bool spoilt; /* libpmix must not end what it has begun, see end_round() */
    char host[HOST_MAX + 16];
    char run_id[48];
    char folder[256];               /* of temporary files; "": none */
    char session[272];              /* the folder in it that ranks empty when they end */
    int folder_fd;                  /* holds the folder's lock */
    char nspace[PMIX_NAME_MAX + 1]; /* of the round; "": none is registered */
    int nranks, base_rank, world_size;
    bool oversubscribed;
    enum presence *presence; /* nranks */
    bool *exited;            /* nranks; with 0 */
    struct note *fence;      /* waits for the other nodes */
    struct note *modexes;    /* wait for another node each */
    uint64_t modex_id;
    int wake; /* eventfd: there are notes */
    pthread_mutex_t lock;
    struct note *first, **last; /* under the lock */
};

static struct pmix *g_pmix; /* libpmix has one server a process */

/* ------------------------------------------------------------------------------ libpmix's thread
 */

static struct note *note_new(enum note_kind kind, const struct pmix_name *who)
{
    struct note *n = xcalloc(1, sizeof(*n));
    n->kind = kind;
    n->rank = who->rank;
    memcpy(n->nspace, who->nspace, sizeof(n->nspace));
    return n;
}

static void post(struct note *n)
{
    struct pmix *p = g_pmix;
    uint64_t one = 1;
    pthread_mutex_lock(&p->lock);
    *p->last = n;
    p->last = &n->next;
    pthread_mutex_unlock(&p->lock);
    while (write(p->wake, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static int on_connected(const struct pmix_name *who, void *object, pmix_done_fn *done, void *arg)
{
    (void)object, (void)done, (void)arg;
    post(note_new(NOTE_CONNECTED, who));
    return PMIX_DONE;
}

static int on_finalized(const struct pmix_name *who, void *object, pmix_done_fn *done, void *arg)
{
    (void)object, (void)done, (void)arg;
    post(note_new(NOTE_FINALIZED, who));
    return PMIX_DONE;
}

/* Without an answer the rank waits here until it is killed. */
static int on_abort(const struct pmix_name *who, void *object, int status, const char *text,
                    struct pmix_name *victims, size_t nvictims, pmix_done_fn *done, void *arg)
{
    struct note *n = note_new(NOTE_ABORT, who);
    (void)object, (void)text, (void)victims, (void)nvictims, (void)done, (void)arg;
    n->status = status;
    post(n);
    return PMIX_OK;
}

static int on_fence(const struct pmix_name *who, size_t nwho, const struct pmix_item *info,
                    size_t ninfo, char *data, size_t len, pmix_blob_fn *reply, void *arg)
{
    (void)info, (void)ninfo;
    if (nwho != 1 || who->rank != PMIX_ALL)
        return PMIX_IS_UNSUPPORTED; /* a part of the job: no MPI asks for that */
    struct note *n = note_new(NOTE_FENCE, who);
    buf_put(&n->data, data, len);
    n->reply = reply;
    n->reply_arg = arg;
    post(n);
    return PMIX_OK;
}

static int on_modex(const struct pmix_name *of, const struct pmix_item *info, size_t ninfo,
                    pmix_blob_fn *reply, void *arg)
{
    struct note *n = note_new(NOTE_MODEX, of);
    (void)info, (void)ninfo;
    n->reply = reply;
    n->reply_arg = arg;
    post(n);
    return PMIX_OK;
}

static void on_found(int status, char *data, size_t len, void *arg)
{
    struct note *n = arg;
    n->status = status;
    buf_put(&n->data, data, status == PMIX_OK ? len : 0);
    post(n);
}

static int on_spawn(const struct pmix_name *who, const struct pmix_item *info, size_t ninfo,
                    const void *apps, size_t napps, void *done, void *arg)
{
    (void)info, (void)ninfo, (void)apps, (void)napps, (void)done, (void)arg;
    post(note_new(NOTE_SPAWN, who));
    return PMIX_IS_UNSUPPORTED;
}

static void release_data(void *arg)
{
    free(arg);
}

/* ------------------------------------------------------------------------------------ the notes */

static void note_free(struct note *n)
{
    if (n)
        buf_fini(&n->data);
    free(n);
}

static void notes_free(struct note *n)
{
    for (struct note *next; n; n = next) {
        next = n->next;
        note_free(n);
    }
}

/* Hands bytes to libpmix, which releases them. */
static void reply_with(struct note *n, int status, struct buf *b)
{
    char *data = (char *)b->data;
    n->reply(status, data, b->len, n->reply_arg, release_data, data);
    *b = (struct buf)BUF_INIT;
}

/* True: the note is kept. */
static bool take_note(struct pmix *p, struct note *n)
{
    struct buf none = BUF_INIT;
    int local = (int)n->rank - p->base_rank;
    bool on_node = local >= 0 && local < p->nranks;
    char how[64];
    if (strcmp(n->nspace, p->nspace) != 0)
        return false; /* of an earlier round, whose ranks are gone */
    switch (n->kind) {
    case NOTE_CONNECTED:
        if (on_node && p->presence[local] == PMIX_ABSENT)
            p->presence[local] = PMIX_HERE;
        for (int i = 0; on_node && i < p->nranks; i++) {
            snprintf(how, sizeof(how), "called MPI_Init, and rank %d had exited without it",
                     p->base_rank + i);
            if (p->exited[i] && p->presence[i] == PMIX_ABSENT) {
                p->events.on_abort(p->events.arg, local, 1, how);
                break;
            }
        }
        return false;
    case NOTE_FINALIZED:
        if (on_node)
            p->presence[local] = PMIX_FINALIZED;
        return false;
    case NOTE_ABORT:
        snprintf(how, sizeof(how), "called MPI_Abort with code %d", n->status);
        if (on_node)
            p->events.on_abort(p->events.arg, local, n->status & 255, how);
        return false;
    case NOTE_FENCE:
        assert(!p->fence);
        p->fence = n;
        p->events.on_fence(p->events.arg, n->data.data, n->data.len);
        return true;
    case NOTE_MODEX:
        n->id = ++p->modex_id;
        if (!p->events.on_modex(p->events.arg, (int)n->rank, n->id)) {
            reply_with(n, PMIX_IS_UNKNOWN, &none);
            return false;
        }
        n->next = p->modexes;
        p->modexes = n;
        return true;
    case NOTE_FOUND:
        p->events.on_modex_found(p->events.arg, &n->to, n->id, n->data.data, n->data.len);
        return false;
    case NOTE_SPAWN:
        log_warn("rank %u asks for further processes (MPI_Comm_spawn): refused, because dlaunch "
                 "starts all ranks when the job starts",
                 n->rank);
        /* Open MPI tells the rank, and its other ranks wait for it in MPI_Comm_spawn. */
        if (on_node && p->world_size > 1)
            p->events.on_abort(p->events.arg, local, 1, "called MPI_Comm_spawn, which was refused");
        return false;
    }
    return false;
}

int pmix_fd(const struct pmix *p)
{
    return p->wake;
}

void pmix_ready(struct pmix *p)
{
    uint64_t count;
    if (read(p->wake, &count, sizeof(count)) < 0)
        return; /* no note is queued */
    pthread_mutex_lock(&p->lock);
    struct note *n = p->first;
    p->first = NULL;
    p->last = &p->first;
    pthread_mutex_unlock(&p->lock);
    for (struct note *next; n; n = next) {
        next = n->next;
        n->next = NULL;
        if (!take_note(p, n))
            note_free(n);
    }
}

void pmix_gathered(struct pmix *p, struct rd values, int nnodes)
{
    struct note *n = p->fence;
    struct buf all = BUF_INIT;
    int status = nnodes > 0 ? PMIX_OK : PMIX_FAILED;
    if (!n)
        return;
    for (int i = 0; i < nnodes; i++) {
        size_t len = rd_u32(&values);
        const uint8_t *bytes = rd_take(&values, len);
        if (bytes)
            buf_put(&all, bytes, len);
    }
    p->fence = NULL;
    reply_with(n, status, &all);
    note_free(n);
}

void pmix_modex(struct pmix *p, int rank, uint64_t id, const struct node_id *from)
{
    int local = rank - p->base_rank;
    struct pmix_name name = {.rank = (uint32_t)rank};
    if (local < 0 || local >= p->nranks || !p->nspace[0])
        return;
    memcpy(name.nspace, p->nspace, sizeof(name.nspace));
    struct note *n = note_new(NOTE_FOUND, &name);
    n->id = id;
    n->to = *from;
    int rc = p->api.PMIx_server_dmodex_request(&name, on_found, n);
    if (rc != PMIX_OK)
        on_found(rc, NULL, 0, n);
}

void pmix_modex_found(struct pmix *p, uint64_t id, const void *data, size_t len)
{
    struct note **at = &p->modexes, *n;
    struct buf b = BUF_INIT;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    if (!(n = *at))
        return; /* of an earlier round */
    *at = n->next;
    buf_put(&b, data, len);
    reply_with(n, len ? PMIX_OK : PMIX_IS_UNKNOWN, &b);
    note_free(n);
}

const char *pmix_exit_fault(struct pmix *p, int local_rank)
{
    bool used = false;
    p->exited[local_rank] = true;
    for (int i = 0; i < p->nranks; i++)
        used |= p->presence[i] == PMIX_HERE;
    if (p->presence[local_rank] == PMIX_HERE)
        return "exited with code 0 after MPI_Init, without MPI_Finalize";
    if (p->presence[local_rank] == PMIX_ABSENT && used)
        return "exited with code 0 without MPI_Init, which other ranks have called";
    return NULL;
}

/* ------------------------------------------------------------------------------------ a round's */

static struct pmix_item item(const char *key, uint16_t type)
{
    struct pmix_item i = {.value.type = type};
    strcpy(i.key, key);
    return i;
}

static struct pmix_item item_u32(const char *key, uint32_t value)
{
    struct pmix_item i = item(key, PMIX_T_U32);
    i.value.data.u32 = value;
    return i;
}

static struct pmix_item item_u16(const char *key, int value)
{
    struct pmix_item i = item(key, PMIX_T_U16);
    i.value.data.u16 = (uint16_t)value;
    return i;
}

static struct pmix_item item_rank(const char *key, int value)
{
    struct pmix_item i = item(key, PMIX_T_RANK);
    i.value.data.u32 = (uint32_t)value;
    return i;
}

static struct pmix_item item_bool(const char *key, bool value)
{
    struct pmix_item i = item(key, PMIX_T_BOOL);
    i.value.data.flag = value;
    return i;
}

/* Borrows. */
static struct pmix_item item_text(const char *key, const char *value)
{
    struct pmix_item i = item(key, PMIX_T_STRING);
    i.value.data.string = value;
    return i;
}

/* The name of a node: its host's, with the pid of the launcher if several nodes are on the host. */
static void node_name(const struct rank_table *t, int node, char out[HOST_MAX + 16])
{
    const struct rank_table_node *n = &t->nodes[node];
    bool alone = true;
    for (int i = 0; i < t->nnodes && alone; i++)
        alone = i == node || strcmp(t->nodes[i].host, n->host) != 0;
    snprintf(out, HOST_MAX + 16, alone ? "%s" : "%s-%d", n->host, n->pid);
}

__attribute__((format(printf, 2, 3))) static void add(struct buf *b, const char *fmt, ...)
{
    char text[HOST_MAX + 32];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    buf_put(b, text, (size_t)n);
}

/* "node-a,node-b" and "0,1;2,3". */
static void maps(const struct rank_table *t, struct buf *nodes, struct buf *ranks)
{
    char name[HOST_MAX + 16];
    for (int i = 0; i < t->nnodes; i++) {
        node_name(t, i, name);
        add(nodes, "%s%s", i ? "," : "", name);
        for (int k = 0; k < t->nodes[i].nproc; k++)
            add(ranks, "%s%d", k ? "," : i ? ";" : "", t->nodes[i].base_rank + k);
    }
    buf_u8(nodes, 0);
    buf_u8(ranks, 0);
}

enum { ITEMS_OF_RANK = 7, ITEMS_OF_APP = 3, ITEMS_OF_JOB = 15 };

/* The keys that every rank may ask for about this rank. */
static void describe_rank(struct pmix_item *out, const struct programs *programs, int rank,
                          int local_rank, int node)
{
    int in_program, program = programs_find(programs, rank, &in_program);
    const struct pmix_item all[ITEMS_OF_RANK] = {
        item_rank("pmix.rank", rank),
        item_u16("pmix.lrank", local_rank),
        item_u16("pmix.nrank", local_rank),
        item_u32("pmix.nodeid", (uint32_t)node),
        item_rank("pmix.grank", rank),
        item_rank("pmix.apprank", in_program),
        item_u32("pmix.appnum", (uint32_t)program),
    };
    memcpy(out, all, sizeof(all));
}

/* The keys of each program: its size, and its first rank. */
static void describe_apps(const struct programs *programs, int world_size, struct pmix_item *out)
{
    for (int i = 0; programs && i < programs->n; i++) {
        out[ITEMS_OF_APP * i] = item_u32("pmix.appnum", (uint32_t)i);
        out[ITEMS_OF_APP * i + 1] = item_u32("pmix.app.size", 0);
        out[ITEMS_OF_APP * i + 2] = item_rank("pmix.aldr", 0);
    }
    for (int rank = 0; programs && rank < world_size; rank++) {
        int offset, i = programs_find(programs, rank, &offset);
        out[ITEMS_OF_APP * i + 1].value.data.u32++;
        if (offset == 0)
            out[ITEMS_OF_APP * i + 2].value.data.u32 = (uint32_t)rank;
    }
}

static int register_job(struct pmix *p, const struct rank_table *t, int group_rank)
{
    struct buf nodes = BUF_INIT, ranks = BUF_INIT, peers = BUF_INIT;
    size_t n = 0, world = (size_t)t->world_size, napps = p->programs ? (size_t)p->programs->n : 0;
    struct pmix_item *items = xcalloc(ITEMS_OF_JOB + 1 + napps + world, sizeof(*items));
    struct pmix_item *of_apps = xcalloc(ITEMS_OF_APP * (napps + 1), sizeof(*of_apps));
    struct pmix_item *of_ranks = xcalloc(ITEMS_OF_RANK * world, sizeof(*of_ranks));
    struct pmix_array *arrays = xcalloc(world + napps, sizeof(*arrays));
    const struct rank_table_node *own = &t->nodes[group_rank];
    maps(t, &nodes, &ranks);
    for (int k = 0; k < own->nproc; k++)
        add(&peers, "%s%d", k ? "," : "", own->base_rank + k);
    buf_u8(&peers, 0);
    items[n++] = item_text("pmix.nmap", (char *)nodes.data);
    items[n++] = item_text("pmix.pmap", (char *)ranks.data);
    items[n++] = item_u32("pmix.job.size", (uint32_t)world);
    items[n++] = item_u32("pmix.univ.size", (uint32_t)world);
    items[n++] = item_u32("pmix.max.size", (uint32_t)world);
    items[n++] = item_u32("pmix.num.nodes", (uint32_t)t->nnodes);
    items[n++] = item_u32("pmix.job.napps", p->programs ? (uint32_t)p->programs->n : 1);
    items[n++] = item_u32("pmix.local.size", (uint32_t)own->nproc);
    items[n++] = item_u32("pmix.node.size", (uint32_t)own->nproc);
    items[n++] = item_text("pmix.lpeers", (char *)peers.data);
    items[n++] = item_rank("pmix.lldr", own->base_rank);
    items[n++] = item_text("pmix.jobid", p->nspace);
    items[n++] = item_text("pmix.tmpdir", p->session);
    items[n++] = item_text("pmix.nsdir", p->session);
    items[n++] = item_bool("pmix.ndosub", p->oversubscribed);
    assert(n == ITEMS_OF_JOB);
    if (napps == 0)
        items[n++] = item_u32("pmix.app.size", (uint32_t)world);
    describe_apps(p->programs, t->world_size, of_apps);
    for (size_t i = 0; i < napps; i++) {
        arrays[world + i] =
            (struct pmix_array){PMIX_T_INFO, ITEMS_OF_APP, of_apps + i * ITEMS_OF_APP};
        items[n] = item("pmix.app.arr", PMIX_T_ARRAY);
        items[n++].value.data.array = &arrays[world + i];
    }
    for (int i = 0, rank = 0; i < t->nnodes; i++) {
        for (int k = 0; k < t->nodes[i].nproc; k++, rank++) {
            arrays[rank] = (struct pmix_array){PMIX_T_INFO, ITEMS_OF_RANK,
                                               of_ranks + (size_t)rank * ITEMS_OF_RANK};
            describe_rank(arrays[rank].array, p->programs, rank, k, i);
            items[n] = item("pmix.pdata", PMIX_T_ARRAY);
            items[n++].value.data.array = &arrays[rank];
        }
    }
    int rc = p->api.PMIx_server_register_nspace(p->nspace, own->nproc, items, n, NULL, NULL);
    free(arrays);
    free(of_ranks);
    free(of_apps);
    free(items);
    buf_fini(&nodes);
    buf_fini(&ranks);
    buf_fini(&peers);
    return rc == PMIX_DONE ? PMIX_OK : rc;
}

/* A part of the name of the job that the program sees. */
static void name_round(struct pmix *p, const struct rank_table *t)
{
    snprintf(p->nspace, sizeof(p->nspace), "%s_%u", p->run_id, t->gen.counter);
}

static void deregister(struct pmix *p)
{
    struct pmix_name name = {0};
    memcpy(name.nspace, p->nspace, sizeof(name.nspace));
    for (int i = 0; i < p->nranks; i++) {
        name.rank = (uint32_t)(p->base_rank + i);
        p->api.PMIx_server_deregister_client(&name, NULL, NULL);
    }
    p->api.PMIx_server_deregister_nspace(p->nspace, NULL, NULL);
}

/* When a rank dies while it connects, libpmix 4.2 frees what it knows of the rank, and keeps it in
 * the list of the job's ranks: whatever takes the list apart, PMIx_server_finalize() too, then
 * waits for a lock in freed memory. So the ranks stay registered if one has not connected. */
static void end_round(struct pmix *p)
{
    for (int i = 0; i < p->nranks; i++)
        p->spoilt |= p->presence[i] == PMIX_ABSENT;
    if (p->nspace[0] && !p->spoilt)
        deregister(p);
    p->nspace[0] = '\0';
    note_free(p->fence); /* libpmix has given the namespace up with the ranks */
    notes_free(p->modexes);
    p->fence = p->modexes = NULL;
    free(p->presence);
    free(p->exited);
    p->presence = NULL;
    p->exited = NULL;
    p->nranks = 0;
}

/* ----------------------------------------------------------------------------------- the server */

/* The folder is in memory where that can be had: Open MPI puts its shared memory there, too. */
static int make_folder(struct pmix *p, struct err *e)
{
    const char *tmp = getenv("TMPDIR"), *place = "/dev/shm";
    char suffix[FS_SUFFIX_LEN + 1];
    for (;;) {
        fs_random_suffix(suffix);
        snprintf(p->folder, sizeof(p->folder), "%s/" FOLDER_PREFIX "%s", place, suffix);
        if (mkdir(p->folder, 0700) < 0) {
            int rc = err_sys(e, errno, "a folder for PMIx: %s", p->folder);
            bool last = strcmp(place, "/dev/shm") != 0;
            place = tmp && *tmp == '/' && strlen(tmp) < 128 ? tmp : "/tmp";
            p->folder[0] = '\0';
            if (last)
                return rc;
            continue;
        }
        p->folder_fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (p->folder_fd >= 0 && fs_lock_temporary(p->folder_fd))
            return 0;
        close_fd(&p->folder_fd);
    }
}

static int server_open(struct pmix *p, struct err *e)
{
    static struct pmix_module module = {
        .client_connected = on_connected,
        .client_finalized = on_finalized,
        .abort = on_abort,
        .fence = on_fence,
        .direct_modex = on_modex,
        .spawn = on_spawn,
    };
    struct pmix_item items[] = {
        item_text("pmix.srvr.tmpdir", p->folder),
        item_text("pmix.sys.tmpdir", p->folder),
        item_text("pmix.hname", p->host),
    };
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* for libpmix's threads */
    int rc = p->api.PMIx_server_init(&module, items, ARRAY_LEN(items));
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != PMIX_OK)
        return err_set(e, -EIO, "libpmix cannot begin to serve: %s", p->api.PMIx_Error_string(rc));
    p->up = true;
    return 0;
}

static void server_close(struct pmix *p)
{
    if (p->up && !p->spoilt)
        p->api.PMIx_server_finalize();
    p->up &= p->spoilt;
}

int pmix_begin(struct pmix *p, const struct rank_table *t, int group_rank, bool oversubscribed,
               struct err *e)
{
    const struct rank_table_node *own = &t->nodes[group_rank];
    char host[HOST_MAX + 16];
    struct pmix_name name = {0};
    end_round(p);
    node_name(t, group_rank, host);
    if (strcmp(host, p->host) != 0)
        server_close(p);
    if (p->up && strcmp(host, p->host) != 0)
        return err_set(e, -EIO,
                       "libpmix cannot serve under another name than %s, as a rank had "
                       "ended before MPI_Init was over",
                       p->host);
    strcpy(p->host, host);
    int rc = p->up ? 0 : server_open(p, e);
    if (rc < 0)
        return rc;
    /* Each rank of Open MPI that ends removes all that is in its session's folder: neither the
     * server's files nor what others share may be there. */
    snprintf(p->session, sizeof(p->session), "%s/session", p->folder);
    if (mkdir(p->session, 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "a folder for PMIx: %s", p->session);
    p->nranks = own->nproc;
    p->base_rank = own->base_rank;
    p->world_size = t->world_size;
    p->oversubscribed = oversubscribed;
    p->presence = xcalloc((size_t)p->nranks, sizeof(*p->presence));
    p->exited = xcalloc((size_t)p->nranks, sizeof(*p->exited));
    name_round(p, t);
    rc = register_job(p, t, group_rank);
    memcpy(name.nspace, p->nspace, sizeof(name.nspace));
    for (int i = 0; i < p->nranks && rc == PMIX_OK; i++) {
        name.rank = (uint32_t)(p->base_rank + i);
        rc = p->api.PMIx_server_register_client(&name, geteuid(), getegid(), NULL, NULL, NULL);
        if (rc == PMIX_DONE)
            rc = PMIX_OK;
    }
    return rc == PMIX_OK ? 0
                         : err_set(e, -EIO, "libpmix does not take the job: %s",
                                   p->api.PMIx_Error_string(rc));
}

/* Sets the variable unless the user has set it. */
static void env_add(char ***env, const char *name, const char *value)
{
    size_t n = 0;
    if (getenv(name))
        return;
    while ((*env)[n])
        n++;
    *env = xrealloc(*env, (n + 2) * sizeof(**env));
    (*env)[n] = xasprintf("%s=%s", name, value);
    (*env)[n + 1] = NULL;
}

int pmix_env(struct pmix *p, int local_rank, char ***out, struct err *e)
{
    struct pmix_name name = {.rank = (uint32_t)(p->base_rank + local_rank)};
    memcpy(name.nspace, p->nspace, sizeof(name.nspace));
    *out = xcalloc(1, sizeof(**out));
    int rc = p->api.PMIx_server_setup_fork(&name, out);
    if (rc != PMIX_OK)
        return err_set(e, -EIO, "libpmix has no variables for local rank %d: %s", local_rank,
                       p->api.PMIx_Error_string(rc));
    /* Open MPI 4 asks the PMIx server only if it believes to know the launcher; as under jsrun, it
     * leaves the CPUs to it. */
    env_add(out, "JSM_JSRUN_PORT", "1");
    if (p->oversubscribed) /* ranks then yield the CPU while they wait, as under mpirun */
        env_add(out, "OMPI_MCA_mpi_oversubscribe", "1");
    /* By default, Open MPI's shared memory has the same names under two launchers on one host,
     * and outlives ranks that are killed. vader is the name in Open MPI 4, sm in Open MPI 5. */
    env_add(out, "OMPI_MCA_btl_vader_backing_directory", p->folder);
    env_add(out, "OMPI_MCA_btl_sm_backing_directory", p->folder);
    return 0;
}

int pmix_new(struct pmix **out, const char *run_id, const struct programs *programs,
             const struct mpi_events *events, struct err *e)
{
    struct pmix *p = xcalloc(1, sizeof(*p));
    assert(!g_pmix);
    p->events = *events;
    p->programs = programs;
    p->folder_fd = -1;
    p->last = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    snprintf(p->run_id, sizeof(p->run_id), "%s", run_id);
    g_pmix = p;
    int rc = p->wake < 0 ? err_sys(e, errno, "eventfd for PMIx") : pmix_api_load(&p->api, e);
    if (rc == 0)
        rc = make_folder(p, e);
    if (rc < 0) {
        pmix_free(p);
        return rc;
    }
    fs_sweep_temporary(p->folder, FOLDER_PREFIX, S_IFDIR, true);
    *out = p;
    return 0;
}

void pmix_free(struct pmix *p)
{
    if (!p)
        return;
    end_round(p);
    server_close(p);
    if (p->folder[0])
        fs_remove_tree(p->folder);
    if (p->up)
        return; /* libpmix's thread goes on until the process ends */
    close_fd(&p->folder_fd);
    close_fd(&p->wake);
    notes_free(p->first);
    pthread_mutex_destroy(&p->lock);
    g_pmix = NULL;
    free(p);
}
