#include "rendezvous/rules/member_state.c"

#include "tests/sim/all/all.h"

static void forget_output(struct member_state *m)
{
    enum member_phase phase = m->status.phase;
    uint64_t sent = m->status.send_ns;
    m->status = (struct rdzv_status){.phase = phase, .send_ns = sent < now ? 0 : sent};
    buf_fini(&m->failures.taken);
    m->rules.hello.prev_rank = 0;
    m->rules.hello.seen_epoch = 0;
    if (!(m->due & DUE_LOG))
        memset(m->line, 0, sizeof(m->line));
    if (!(m->due & DUE_STOP))
        m->why = (struct rdzv_stop){0};
    if (m->nrespawns == 0) {
        free(m->respawns);
        m->respawns = NULL;
    }
    if (!m->electing)
        memset(m->loss_text, 0, sizeof(m->loss_text));
    ALL_WIPE(m->loss_text);
    ALL_WIPE(m->trouble);
    ALL_WIPE(m->leave_text);
    ALL_WIPE(m->result.text);
}

/* The sum of the delays counts only by what was added to it since somebody was heard of. */
static void forget_delays(struct member_state *m)
{
    m->delay.late_ns -= m->late_ns;
    m->late_ns = 0;
    if (m->delay.grace_at < now)
        m->delay.grace_at = 0;
    m->delay.graced_ns = all_cap(m->delay.graced_ns, 3 * m->dead_ns);
}

void all_forget_member(struct member_state *m)
{
    forget_output(m);
    forget_delays(m);
    if (m->joined || m->electing || m->ended)
        m->began_ns = m->log_at = 0;
    if (!m->connected || m->answered)
        m->connected_ns = 0;
    if (!m->electing)
        m->elect_ns = 0;
    if (m->round.state != PREPARED)
        m->unleased_ns = 0;
    m->sent_ns = all_cap(m->sent_ns, m->heartbeat_ns);
    m->heard_ns = all_cap(m->heard_ns, 3 * m->dead_ns + m->delay.late_ns);
    m->leave_ns = all_cap(m->leave_ns, LEAVE_NS + m->delay.late_ns);
    if (m->lease_ns && m->lease_ns < now)
        m->lease_ns = all_cap(m->lease_ns, m->dead_ns);
    if (m->finished) {
        m->status.send_ns = 0;
        m->view_sent_ns = m->view_seen_ns = m->heard_ns = m->sent_ns = m->leave_ns = m->lease_ns =
            0;
        m->delay = (struct delay){0};
    }
}
