/* What is said to the coordinator, and what the agent and the owner are to do. */
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/member_state_impl.h"
#include "rendezvous/rules/text.h"

/* ----------------------------------------------------------------------------------- actions */

static enum member_phase phase_of(const struct member_state *m)
{
    static const enum member_phase phases[] = {
        [IDLE] = MEMBER_IDLE,       [PREPARING] = MEMBER_IDLE,    [PREPARED] = MEMBER_PREPARED,
        [RUNNING] = MEMBER_RUNNING, [STOPPING] = MEMBER_STOPPING, [DONE] = MEMBER_DONE,
    };
    return m->leaving ? MEMBER_LEAVING : phases[m->round];
}

/* Failures that have not been sent on this connection, as many as fit. */
static void fill_failures(struct member_state *m, struct rdzv_status *st)
{
    size_t i = 0;
    m->failure_bytes.len = 0;
    while (i < m->nqueue && m->queue[i].seq <= m->sent_seq)
        i++;
    st->first_seq = i < m->nqueue ? m->queue[i].seq : 0;
    for (; i < m->nqueue && st->nfailures < RDZV_STATUS_FAILURES; i++) {
        buf_put(&m->failure_bytes, m->queue[i].bytes, m->queue[i].len);
        m->sent_seq = m->queue[i].seq;
        st->nfailures++;
    }
    xbuf_reserve(&m->failure_bytes, 0);
    st->failures = m->failure_bytes.data;
    st->failures_len = m->failure_bytes.len;
    if (i < m->nqueue)
        m->due |= DUE_STATUS; /* and the rest right after */
}

static void fill_status(struct member_state *m, uint64_t now)
{
    struct rdzv_status *st = &m->status;
    /* One that only says that an order is carried out gets no answer. It is no heartbeat: the lease
     * might run out between two answers. */
    if (st->phase == phase_of(m))
        m->sent_ns = now;
    *st = (struct rdzv_status){
        .phase = phase_of(m),
        .workers = member_state_has_workers(m),
        .fenced = m->fenced || m->out,
        .gen = m->gen,
        /* Never twice the same, so that an older one is known. */
        .send_ns = now > st->send_ns ? now : st->send_ns + 1,
        .view_sent_ns = m->view_sent_ns,
        .view_seen_ns = m->view_seen_ns,
        .respawned = m->respawned,
        .leave_reason = m->leave_reason,
        .leave_code = m->leave_code,
        .failures_total = m->failures_total,
    };
    if (m->leaving)
        text_set(st->leave_text, sizeof(st->leave_text), "%s", m->leave_text);
    if (m->round == PREPARED) {
        st->nports = m->nports;
        st->ports = m->ports;
        st->free_port = m->free_port;
    }
    fill_failures(m, st);
}

static bool take_due(struct member_state *m, unsigned bit)
{
    bool due = m->due & bit;
    m->due &= ~bit;
    return due;
}

/* What the agent is to be told. */
static bool next_callback(struct member_state *m, struct member_action *a)
{
    if (take_due(m, DUE_STOP)) {
        *a = (struct member_action){.act = MEMBER_ACT_STOP, .why = &m->why};
    } else if (take_due(m, DUE_FENCE)) {
        *a = (struct member_action){.act = MEMBER_ACT_FENCE};
    } else if (take_due(m, DUE_LEASE)) {
        uint64_t beyond = rdzv_guardian_lease_ns(m->dead_ns) - rdzv_lease_ns(m->dead_ns);
        *a = (struct member_action){.act = MEMBER_ACT_LEASE,
                                    .until_ns = m->lease_ns ? m->lease_ns + beyond : 0};
    } else if (take_due(m, DUE_PREPARE)) {
        *a = (struct member_action){.act = MEMBER_ACT_PREPARE,
                                    .gen = m->gen,
                                    .group_rank = m->group_rank,
                                    .nnodes = m->nnodes};
    } else if (take_due(m, DUE_RUN)) {
        *a = (struct member_action){
            .act = MEMBER_ACT_RUN, .table = &m->table, .group_rank = m->group_rank};
    } else if (m->nrespawns > 0) {
        *a = (struct member_action){.act = MEMBER_ACT_RESPAWN, .respawn = m->respawns[0]};
        memmove(m->respawns, m->respawns + 1, (size_t)--m->nrespawns * sizeof(*m->respawns));
    } else {
        return false;
    }
    return true;
}

bool member_state_next(struct member_state *m, struct member_action *a, uint64_t now)
{
    if (take_due(m, DUE_DISCONNECT)) {
        m->connected = false;
        m->due &= ~(DUE_HELLO | DUE_RAN | DUE_TOLD | DUE_STATUS);
        *a = (struct member_action){.act = MEMBER_ACT_DISCONNECT, .reset = !m->ended};
    } else if (take_due(m, DUE_HELLO)) {
        m->rules.hello.prev_rank = m->ran_rank;
        m->rules.hello.seen_epoch = m->seen_epoch;
        *a = (struct member_action){.act = MEMBER_ACT_HELLO, .hello = &m->rules.hello};
    } else if (take_due(m, DUE_RAN)) {
        *a = (struct member_action){.act = MEMBER_ACT_PEERS, .peers = &m->ran};
    } else if (take_due(m, DUE_TOLD)) {
        *a = (struct member_action){.act = MEMBER_ACT_PEERS, .peers = &m->told};
    } else if (next_callback(m, a)) {
        return true;
    } else if (m->connected && take_due(m, DUE_STATUS)) {
        fill_status(m, now);
        *a = (struct member_action){.act = MEMBER_ACT_STATUS, .status = &m->status};
    } else if (take_due(m, DUE_LOG)) {
        *a = (struct member_action){.act = MEMBER_ACT_LOG, .level = m->line_level, .text = m->line};
    } else if (take_due(m, DUE_FINISH)) {
        m->finished = true;
        *a = (struct member_action){.act = MEMBER_ACT_FINISH, .result = &m->result};
    } else {
        return false;
    }
    return true;
}
