#include "rendezvous/rules/rdzv_msg.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

/* -------------------------------------------------------------------------------------- framing */

void rdzv_put_preamble(struct buf *b)
{
    buf_put(b, RDZV_MAGIC, 4);
    buf_u32(b, RDZV_PROTOCOL);
}

uint32_t rdzv_get_preamble(const uint8_t p[RDZV_PREAMBLE_LEN])
{
    uint32_t version;
    if (memcmp(p, RDZV_MAGIC, 4) != 0)
        return 0;
    memcpy(&version, p + 4, 4);
    return le32toh(version);
}

static size_t frame_begin(struct buf *b, enum rdzv_msg type)
{
    size_t at = b->len;
    buf_u32(b, 0);
    buf_u8(b, (uint8_t)type);
    return at;
}

static void frame_end(struct buf *b, size_t at)
{
    buf_set_u32(b, at, (uint32_t)(b->len - at - 4));
}

/* --------------------------------------------------------------------------------------- fields */

static unsigned get_enum(struct rd *r, unsigned count)
{
    unsigned v = rd_u8(r);
    if (v >= count)
        r->bad = true;
    return v;
}

static bool get_bool(struct rd *r)
{
    return get_enum(r, 2);
}

static int get_int(struct rd *r, int min, int max)
{
    int v = (int)rd_u32(r);
    if (v < min || v > max)
        r->bad = true;
    return v;
}

static void put_gen(struct buf *b, struct generation g)
{
    buf_u64(b, g.epoch);
    buf_u32(b, g.counter);
}

static struct generation get_gen(struct rd *r)
{
    struct generation g;
    g.epoch = rd_u64(r);
    g.counter = rd_u32(r);
    return g;
}

/* ------------------------------------------------------------------------------------- messages */

void rdzv_put_refusal(struct buf *b, bool retry, const char *text)
{
    size_t at = frame_begin(b, RDZV_MSG_REFUSE);
    buf_u8(b, retry);
    buf_str(b, text);
    frame_end(b, at);
}

bool rdzv_get_refusal(struct rd *r, struct rdzv_refusal *m)
{
    m->retry = get_bool(r);
    rd_str(r, m->text, sizeof(m->text));
    return !r->bad; /* a later version may say more */
}

void rdzv_put_back(struct buf *b)
{
    frame_end(b, frame_begin(b, RDZV_MSG_BACK));
}

void rdzv_put_beat(struct buf *b, const struct node_id *id)
{
    size_t at = frame_begin(b, RDZV_MSG_BEAT);
    if (id)
        buf_put(b, id->b, sizeof(id->b));
    frame_end(b, at);
}

bool rdzv_get_beat(struct rd *r, struct node_id *id)
{
    const uint8_t *p = rd_take(r, sizeof(id->b));
    if (p)
        memcpy(id->b, p, sizeof(id->b));
    return rd_done(r);
}

void rdzv_put_probe(struct buf *b)
{
    frame_end(b, frame_begin(b, RDZV_MSG_PROBE));
}

void rdzv_put_elsewhere(struct buf *b, const struct rdzv_elsewhere *m)
{
    size_t at = frame_begin(b, RDZV_MSG_ELSEWHERE);
    buf_str(b, m->run_id);
    buf_str(b, m->addr);
    buf_u16(b, (uint16_t)m->port);
    frame_end(b, at);
}

bool rdzv_get_elsewhere(struct rd *r, struct rdzv_elsewhere *m)
{
    rd_str(r, m->run_id, sizeof(m->run_id));
    rd_str(r, m->addr, sizeof(m->addr));
    m->port = rd_u16(r);
    return rd_done(r) && m->port > 0;
}

void rdzv_put_relay(struct buf *b, const char *run_id)
{
    size_t at = frame_begin(b, RDZV_MSG_RELAY);
    buf_str(b, run_id);
    frame_end(b, at);
}

void rdzv_put_stream(struct buf *b, enum rdzv_msg type, uint32_t stream, const void *p, size_t n)
{
    size_t at = frame_begin(b, type);
    buf_u32(b, stream);
    buf_put(b, p, n);
    frame_end(b, at);
}

void rdzv_put_identity(struct buf *b, const struct rdzv_identity *m)
{
    size_t at = frame_begin(b, RDZV_MSG_IDENTITY);
    buf_str(b, m->run_id);
    buf_str(b, m->host);
    buf_u32(b, (uint32_t)m->pid);
    buf_u8(b, m->finished);
    buf_u8(b, m->elsewhere);
    buf_u8(b, m->follows);
    buf_str(b, m->addr);
    buf_u16(b, (uint16_t)m->port);
    frame_end(b, at);
}

bool rdzv_get_identity(struct rd *r, struct rdzv_identity *m)
{
    rd_str(r, m->run_id, sizeof(m->run_id));
    rd_str(r, m->host, sizeof(m->host));
    m->pid = get_int(r, 0, INT32_MAX);
    m->finished = get_bool(r);
    m->elsewhere = get_bool(r);
    m->follows = get_bool(r);
    rd_str(r, m->addr, sizeof(m->addr));
    m->port = rd_u16(r);
    return !r->bad;
}

#define STORE_BY_RELAY 2 /* 0: none, 1: the launchers serve it */

/* One byte for the restart policy and the kind of MPI: earlier versions, which know the first two
 * values only, turn a launcher of an MPI program away. */
enum { POLICY_GROUP, POLICY_WORKER, POLICY_MPI, POLICIES = POLICY_MPI + MPI_KINDS - MPI_PMI };

static uint8_t policy_byte(const struct rdzv_hello *m)
{
    return (uint8_t)(m->mpi != MPI_NONE                    ? POLICY_MPI + (int)m->mpi - MPI_PMI
                     : m->restart_policy == RESTART_WORKER ? POLICY_WORKER
                                                           : POLICY_GROUP);
}

void rdzv_put_hello(struct buf *b, const struct rdzv_hello *m)
{
    size_t at = frame_begin(b, RDZV_MSG_HELLO);
    buf_put(b, m->id.b, sizeof(m->id.b));
    buf_str(b, m->run_id);
    buf_str(b, m->version);
    buf_u8(b, (uint8_t)m->backend);
    buf_u32(b, (uint32_t)m->min_nodes);
    buf_u32(b, (uint32_t)m->max_nodes);
    buf_u32(b, (uint32_t)m->max_restarts);
    buf_u8(b, policy_byte(m));
    buf_u8(b, m->relay ? STORE_BY_RELAY : m->agent_store);
    buf_str(b, m->host);
    buf_str(b, m->role);
    buf_str(b, m->local_addr);
    buf_u32(b, (uint32_t)m->pid);
    buf_u32(b, (uint32_t)m->node_rank);
    buf_u32(b, (uint32_t)m->nproc);
    buf_u16(b, m->peer_port);
    buf_u32(b, (uint32_t)m->prev_rank);
    buf_u64(b, m->seen_epoch);
    frame_end(b, at);
}

bool rdzv_get_hello(struct rd *r, struct rdzv_hello *m)
{
    const uint8_t *id = rd_take(r, sizeof(m->id.b));
    if (id)
        memcpy(m->id.b, id, sizeof(m->id.b));
    rd_str(r, m->run_id, sizeof(m->run_id));
    rd_str(r, m->version, sizeof(m->version));
    m->backend = (enum rdzv_backend)get_enum(r, RDZV_BACKENDS);
    m->min_nodes = get_int(r, 1, NNODES_MAX);
    m->max_nodes = get_int(r, 1, NNODES_MAX);
    m->max_restarts = get_int(r, 0, INT32_MAX);
    int policy = (int)get_enum(r, POLICIES);
    m->restart_policy = policy == POLICY_WORKER ? RESTART_WORKER : RESTART_GROUP;
    m->mpi = policy < POLICY_MPI ? MPI_NONE : (enum mpi_kind)(MPI_PMI + policy - POLICY_MPI);
    unsigned store = get_enum(r, STORE_BY_RELAY + 1);
    m->agent_store = store > 0;
    m->relay = store == STORE_BY_RELAY;
    rd_str(r, m->host, sizeof(m->host));
    rd_str(r, m->role, sizeof(m->role));
    rd_str(r, m->local_addr, sizeof(m->local_addr));
    m->pid = get_int(r, 0, INT32_MAX);
    m->node_rank = get_int(r, -1, NNODES_MAX); /* too high a one is refused with a reason */
    m->nproc = get_int(r, 0, NPROC_MAX);
    m->peer_port = rd_u16(r);
    m->prev_rank = get_int(r, -1, NNODES_MAX - 1);
    m->seen_epoch = rd_u64(r);
    return rd_done(r) && m->min_nodes <= m->max_nodes;
}

void rdzv_put_status(struct buf *b, const struct rdzv_status *m)
{
    size_t at = frame_begin(b, RDZV_MSG_STATUS);
    buf_u8(b, (uint8_t)m->phase);
    buf_u8(b, m->workers);
    buf_u8(b, m->fenced);
    put_gen(b, m->gen);
    buf_u64(b, m->send_ns);
    buf_u64(b, m->view_sent_ns);
    buf_u64(b, m->view_seen_ns);
    buf_u32(b, m->respawned);
    buf_u16(b, (uint16_t)m->free_port);
    buf_u16(b, (uint16_t)m->nports);
    buf_put(b, m->ports, 2 * (size_t)m->nports);
    if (m->phase == MEMBER_LEAVING) {
        buf_u8(b, (uint8_t)m->leave_reason);
        buf_u32(b, (uint32_t)m->leave_code);
        buf_str(b, m->leave_text);
    }
    buf_u32(b, m->failures_total);
    buf_u32(b, m->first_seq);
    buf_u8(b, (uint8_t)m->nfailures);
    buf_put(b, m->failures, m->failures_len);
    frame_end(b, at);
}

bool rdzv_get_status(struct rd *r, struct rdzv_status *m)
{
    memset(m, 0, sizeof(*m));
    m->phase = (enum member_phase)get_enum(r, MEMBER_PHASES);
    m->workers = get_bool(r);
    m->fenced = get_bool(r);
    m->gen = get_gen(r);
    m->send_ns = rd_u64(r);
    m->view_sent_ns = rd_u64(r);
    m->view_seen_ns = rd_u64(r);
    m->respawned = rd_u32(r);
    m->free_port = rd_u16(r);
    m->nports = rd_u16(r);
    m->ports = rd_take(r, 2 * (size_t)m->nports);
    if (m->nports > NPROC_MAX)
        r->bad = true;
    if (m->phase == MEMBER_LEAVING) {
        m->leave_reason = (enum stop_reason)get_enum(r, STOP_REASONS);
        m->leave_code = get_int(r, 0, 255);
        rd_str(r, m->leave_text, sizeof(m->leave_text));
    }
    m->failures_total = rd_u32(r);
    m->first_seq = rd_u32(r);
    m->nfailures = rd_u8(r);
    if (r->bad || m->nfailures > RDZV_STATUS_FAILURES)
        return false;
    m->failures = r->p;
    for (int i = 0; i < m->nfailures; i++) {
        struct failure f;
        if (!failure_decode(r, &f))
            return false;
    }
    m->failures_len = (size_t)(r->p - m->failures);
    return rd_done(r);
}

static void put_stop(struct buf *b, const struct rdzv_stop *why)
{
    buf_u8(b, (uint8_t)why->reason);
    buf_u8(b, why->restarting);
    buf_str(b, why->text);
    buf_u8(b, why->has_first);
    if (why->has_first)
        failure_encode(b, &why->first);
}

static struct rdzv_stop *get_stop(struct rd *r)
{
    struct rdzv_stop *why = xcalloc(1, sizeof(*why));
    why->reason = (enum stop_reason)get_enum(r, STOP_REASONS);
    why->restarting = get_bool(r);
    rd_str(r, why->text, sizeof(why->text));
    why->has_first = get_bool(r);
    if (why->has_first)
        failure_decode(r, &why->first);
    return why;
}

void rdzv_put_view(struct buf *b, const struct rdzv_view *m)
{
    size_t at = frame_begin(b, RDZV_MSG_VIEW);
    buf_u8(b, (uint8_t)m->phase);
    put_gen(b, m->gen);
    buf_u32(b, (uint32_t)m->group_rank);
    buf_u32(b, (uint32_t)m->nnodes);
    buf_u32(b, (uint32_t)m->restart_count);
    buf_u32(b, (uint32_t)m->node_restarts);
    buf_u64(b, m->sent_ns);
    buf_u64(b, m->echo_ns);
    buf_u32(b, m->acked);
    buf_u32(b, m->heartbeat_ms);
    buf_u32(b, m->dead_ms);
    buf_u8(b, m->spare);
    buf_u8(b, m->elect);
    buf_u8(b, m->lease);
    buf_u32(b, m->why_counter);
    buf_u8(b, m->why != NULL);
    if (m->why)
        put_stop(b, m->why);
    buf_u16(b, (uint16_t)m->nrespawns);
    for (int i = 0; i < m->nrespawns; i++) {
        buf_u32(b, m->respawns[i].id);
        buf_u32(b, (uint32_t)m->respawns[i].local_rank);
        buf_u32(b, (uint32_t)m->respawns[i].restart_count);
    }
    frame_end(b, at);
}

bool rdzv_get_view(struct rd *r, struct rdzv_view *m)
{
    memset(m, 0, sizeof(*m));
    m->phase = (enum rdzv_phase)get_enum(r, RDZV_PHASES);
    m->gen = get_gen(r);
    m->group_rank = get_int(r, -1, NNODES_MAX - 1);
    m->nnodes = get_int(r, 0, NNODES_MAX);
    m->restart_count = get_int(r, 0, INT32_MAX);
    m->node_restarts = get_int(r, 0, INT32_MAX);
    m->sent_ns = rd_u64(r);
    m->echo_ns = rd_u64(r);
    m->acked = rd_u32(r);
    m->heartbeat_ms = (uint32_t)get_int(r, 1, INT32_MAX);
    m->dead_ms = (uint32_t)get_int(r, 1, INT32_MAX);
    m->spare = get_bool(r);
    m->elect = get_bool(r);
    m->lease = get_bool(r);
    m->why_counter = rd_u32(r);
    if (get_bool(r))
        m->why = get_stop(r);
    m->nrespawns = rd_u16(r);
    if (r->bad || m->nrespawns > NPROC_MAX || m->group_rank >= m->nnodes ||
        (size_t)(r->end - r->p) != 12 * (size_t)m->nrespawns) {
        rdzv_view_fini(m);
        return false;
    }
    if (m->nrespawns == 0)
        return true;
    struct rdzv_respawn *orders = xcalloc((size_t)m->nrespawns, sizeof(*orders));
    for (int i = 0; i < m->nrespawns; i++) {
        orders[i].id = rd_u32(r);
        orders[i].local_rank = get_int(r, 0, NPROC_MAX - 1);
        orders[i].restart_count = get_int(r, 0, INT32_MAX);
    }
    m->respawns = orders;
    if (rd_done(r))
        return true;
    rdzv_view_fini(m);
    return false;
}

void rdzv_view_fini(struct rdzv_view *m)
{
    free((void *)m->why);
    free((void *)m->respawns);
    m->why = NULL;
    m->respawns = NULL;
    m->nrespawns = 0;
}

void rdzv_put_table(struct buf *b, const struct rank_table *t)
{
    size_t at = frame_begin(b, RDZV_MSG_TABLE);
    rank_table_encode(b, t);
    frame_end(b, at);
}

void rdzv_put_report(struct buf *b, const struct rdzv_result *m)
{
    size_t at = frame_begin(b, RDZV_MSG_REPORT);
    buf_u32(b, (uint32_t)m->exit_code);
    buf_u8(b, (uint8_t)m->reason);
    buf_str(b, m->text);
    buf_str(b, m->final);
    buf_u32(b, (uint32_t)m->restarts);
    buf_u64(b, m->omitted);
    buf_u8(b, (uint8_t)m->n);
    for (size_t i = 0; i < m->n; i++)
        failure_encode(b, &m->failures[i]);
    frame_end(b, at);
}

bool rdzv_get_report(struct rd *r, struct rdzv_result *m)
{
    memset(m, 0, sizeof(*m));
    m->exit_code = get_int(r, 0, 255);
    m->reason = (enum stop_reason)get_enum(r, STOP_REASONS);
    rd_str(r, m->text, sizeof(m->text));
    rd_str(r, m->final, sizeof(m->final));
    m->restarts = get_int(r, 0, INT32_MAX);
    m->omitted = rd_u64(r);
    m->n = rd_u8(r);
    if (r->bad || m->n > RDZV_REPORT_MAX)
        return false;
    if (m->n == 0)
        return rd_done(r);
    struct failure *f = xcalloc(m->n, sizeof(*f));
    for (size_t i = 0; i < m->n && !r->bad; i++)
        failure_decode(r, &f[i]);
    m->failures = f;
    if (rd_done(r))
        return true;
    free(f);
    m->failures = NULL;
    return false;
}

void rdzv_put_peers(struct buf *b, const struct rdzv_peers *m)
{
    size_t at = frame_begin(b, RDZV_MSG_PEERS);
    put_gen(b, m->gen);
    buf_u8(b, m->ran);
    buf_u32(b, (uint32_t)m->n);
    for (int i = 0; i < m->n; i++) {
        const struct rdzv_peer_entry *e = &m->e[i];
        buf_put(b, e->id.b, sizeof(e->id.b));
        buf_str(b, e->addr);
        buf_u16(b, e->port);
        buf_u8(b, e->host);
    }
    frame_end(b, at);
}

bool rdzv_get_peers(struct rd *r, struct rdzv_peers *m)
{
    enum { LEAST = 16 + 4 + 2 + 1 }; /* bytes of an entry */
    m->gen = get_gen(r);
    m->ran = get_bool(r);
    int n = get_int(r, 0, NNODES_MAX);
    if (r->bad || (size_t)n > (size_t)(r->end - r->p) / LEAST)
        return false;
    m->e = xcalloc((size_t)n, sizeof(*m->e));
    for (m->n = 0; m->n < n && !r->bad; m->n++) {
        struct rdzv_peer_entry *e = &m->e[m->n];
        const uint8_t *id = rd_take(r, sizeof(e->id.b));
        if (id)
            memcpy(e->id.b, id, sizeof(e->id.b));
        rd_str(r, e->addr, sizeof(e->addr));
        e->port = rd_u16(r);
        e->host = get_bool(r);
    }
    if (rd_done(r))
        return true;
    rdzv_peers_fini(m);
    return false;
}

void rdzv_put_notice(struct buf *b, const char *text)
{
    size_t at = frame_begin(b, RDZV_MSG_NOTICE);
    buf_str(b, text);
    frame_end(b, at);
}

bool rdzv_get_notice(struct rd *r, char text[RDZV_NOTICE_MAX])
{
    rd_str(r, text, RDZV_NOTICE_MAX);
    return rd_done(r);
}

void rdzv_put_want(struct buf *b)
{
    frame_end(b, frame_begin(b, RDZV_MSG_WANT));
}

bool rdzv_put_events(struct buf *b, uint64_t now, const struct event_list *l, uint64_t *at)
{
    uint32_t n = 0;
    const struct event *e = event_list_next(l, at);
    if (!e)
        return false;
    size_t begin = frame_begin(b, RDZV_MSG_EVENTS);
    buf_u64(b, now);
    size_t count = b->len;
    buf_u32(b, 0);
    for (; e; e = ++n < RDZV_EVENTS_MAX ? event_list_next(l, at) : NULL)
        event_encode(b, e);
    buf_set_u32(b, count, n);
    frame_end(b, begin);
    return true;
}

bool rdzv_get_events(struct rd *r, uint64_t *now, int *n)
{
    *now = rd_u64(r);
    *n = get_int(r, 1, RDZV_EVENTS_MAX);
    return !r->bad;
}

static void put_id(struct buf *b, const struct node_id *id)
{
    buf_put(b, id->b, sizeof(id->b));
}

static void get_id(struct rd *r, struct node_id *id)
{
    const uint8_t *p = rd_take(r, sizeof(id->b));
    if (p)
        memcpy(id->b, p, sizeof(id->b));
}

void rdzv_put_request(struct buf *b, const struct rdzv_request *m)
{
    size_t at = frame_begin(b, RDZV_MSG_REQUEST);
    request_encode(b, m);
    frame_end(b, at);
}

bool rdzv_get_request(struct rd *r, struct rdzv_request *m)
{
    return request_decode(r, m);
}

void rdzv_put_answer(struct buf *b, const struct rdzv_answer *m)
{
    size_t at = frame_begin(b, RDZV_MSG_ANSWER);
    put_id(b, &m->to);
    request_put_kind(b, m->kind);
    buf_u64(b, m->id);
    buf_put(b, m->data, m->len);
    frame_end(b, at);
}

bool rdzv_get_answer(struct rd *r, struct rdzv_answer *m)
{
    get_id(r, &m->to);
    m->kind = request_get_kind(r, NULL);
    m->id = rd_u64(r);
    m->len = r->bad ? 0 : (size_t)(r->end - r->p);
    m->data = rd_take(r, m->len);
    return rd_done(r) && m->len <= RDZV_ANSWER_MAX;
}

void rdzv_put_gather(struct buf *b, const struct rdzv_gather *m)
{
    size_t at = frame_begin(b, RDZV_MSG_GATHER);
    put_gen(b, m->gen);
    buf_u32(b, m->number);
    buf_u32(b, (uint32_t)m->node);
    buf_put(b, m->value, m->len);
    frame_end(b, at);
}

bool rdzv_get_gather(struct rd *r, struct rdzv_gather *m)
{
    m->gen = get_gen(r);
    m->number = rd_u32(r);
    m->node = get_int(r, 0, NNODES_MAX);
    m->len = r->bad ? 0 : (size_t)(r->end - r->p);
    m->value = rd_take(r, m->len);
    return rd_done(r);
}

void rdzv_put_gathered(struct buf *b, struct generation gen, uint32_t number,
                       const struct buf *values, int nnodes)
{
    size_t at = frame_begin(b, RDZV_MSG_GATHERED), total = 0;
    for (int i = 0; i < nnodes; i++)
        total += 4 + values[i].len;
    if (total > RDZV_GATHER_MAX)
        nnodes = 0;
    put_gen(b, gen);
    buf_u32(b, number);
    buf_u32(b, (uint32_t)nnodes);
    for (int i = 0; i < nnodes; i++) {
        buf_u32(b, (uint32_t)values[i].len);
        buf_put(b, values[i].data, values[i].len);
    }
    frame_end(b, at);
}

bool rdzv_get_gathered(struct rd *r, struct rdzv_gathered *m)
{
    m->gen = get_gen(r);
    m->number = rd_u32(r);
    m->nnodes = get_int(r, 0, NNODES_MAX);
    m->values = *r;
    for (int i = 0; i < m->nnodes && !r->bad; i++)
        rd_take(r, rd_u32(r));
    return rd_done(r);
}

void rdzv_put_output(struct buf *b, uint64_t number, const void *output, size_t n)
{
    size_t at = frame_begin(b, RDZV_MSG_OUTPUT);
    buf_u64(b, number);
    buf_put(b, output, n);
    frame_end(b, at);
}

bool rdzv_get_output(struct rd *r, uint64_t *number, struct rd *output)
{
    *number = rd_u64(r);
    *output = *r;
    r->p = r->end;
    return rd_done(r) && *number > 0;
}

void rdzv_put_shown(struct buf *b, const struct rdzv_shown *m)
{
    size_t at = frame_begin(b, RDZV_MSG_SHOWN);
    buf_u64(b, m->number);
    buf_u8(b, m->taken);
    frame_end(b, at);
}

bool rdzv_get_shown(struct rd *r, struct rdzv_shown *m)
{
    m->number = rd_u64(r);
    m->taken = get_bool(r);
    return rd_done(r);
}

void rdzv_put_branch(struct buf *b, const struct rdzv_branch *m)
{
    size_t at = frame_begin(b, RDZV_MSG_BRANCH);
    put_gen(b, m->gen);
    buf_u8(b, m->peers);
    put_id(b, &m->parent);
    buf_str(b, m->addr);
    buf_u16(b, (uint16_t)m->port);
    frame_end(b, at);
}

bool rdzv_get_branch(struct rd *r, struct rdzv_branch *m)
{
    m->gen = get_gen(r);
    m->peers = get_bool(r);
    get_id(r, &m->parent);
    rd_str(r, m->addr, sizeof(m->addr));
    m->port = rd_u16(r);
    return rd_done(r);
}

void rdzv_put_child(struct buf *b, const struct rdzv_child *m)
{
    size_t at = frame_begin(b, RDZV_MSG_CHILD);
    buf_str(b, m->run_id);
    put_id(b, &m->parent);
    put_gen(b, m->gen);
    buf_u32(b, m->told);
    frame_end(b, at);
}

bool rdzv_get_child(struct rd *r, struct rdzv_child *m)
{
    rd_str(r, m->run_id, sizeof(m->run_id));
    get_id(r, &m->parent);
    m->gen = get_gen(r);
    m->told = rd_u32(r);
    return rd_done(r);
}

void rdzv_put_told(struct buf *b, struct generation gen, uint32_t number,
                   const struct rdzv_request *m)
{
    size_t at = frame_begin(b, RDZV_MSG_TOLD);
    put_gen(b, gen);
    buf_u32(b, number);
    request_encode(b, m);
    frame_end(b, at);
}

bool rdzv_get_told(struct rd *r, struct generation *gen, uint32_t *number, struct rdzv_request *m)
{
    *gen = get_gen(r);
    *number = rd_u32(r);
    return rdzv_get_request(r, m);
}

void rdzv_put_direct(struct buf *b, const struct rdzv_direct *m)
{
    size_t at = frame_begin(b, RDZV_MSG_DIRECT);
    put_gen(b, m->gen);
    buf_u32(b, m->told);
    buf_u8(b, m->peers);
    buf_u8(b, m->table);
    frame_end(b, at);
}

bool rdzv_get_direct(struct rd *r, struct rdzv_direct *m)
{
    m->gen = get_gen(r);
    m->told = rd_u32(r);
    m->peers = get_bool(r);
    m->table = get_bool(r);
    return rd_done(r);
}

void rdzv_put_answers(struct buf *b, const struct node_id *to, enum request_kind kind, uint64_t id,
                      int n, const struct buf *items)
{
    size_t at = frame_begin(b, RDZV_MSG_ANSWERS);
    put_id(b, to);
    request_put_kind(b, kind);
    buf_u64(b, id);
    buf_u32(b, (uint32_t)n);
    buf_put(b, items->data, items->len);
    frame_end(b, at);
}

bool rdzv_get_answers(struct rd *r, struct rdzv_answers *m)
{
    get_id(r, &m->to);
    m->kind = request_get_kind(r, NULL);
    m->id = rd_u64(r);
    m->n = get_int(r, 1, NNODES_MAX);
    m->items = *r;
    for (int i = 0; i < m->n && !r->bad; i++) {
        uint32_t len = rd_u32(r);
        rd_take(r, len);
        r->bad |= len > RDZV_ANSWER_MAX;
    }
    m->items.end = r->p;
    return rd_done(r);
}

bool rdzv_next_answer(struct rdzv_answers *m, struct rdzv_answer *out)
{
    if (m->items.p == m->items.end)
        return false;
    out->to = m->to;
    out->kind = m->kind;
    out->id = m->id;
    out->len = rd_u32(&m->items);
    out->data = rd_take(&m->items, out->len);
    return !m->items.bad;
}

void rdzv_put_frame(struct buf *b, uint8_t type, const struct rd *body)
{
    size_t at = frame_begin(b, (enum rdzv_msg)type);
    buf_put(b, body->p, (size_t)(body->end - body->p));
    frame_end(b, at);
}

struct generation rdzv_peek_gen(struct rd body)
{
    return get_gen(&body);
}
