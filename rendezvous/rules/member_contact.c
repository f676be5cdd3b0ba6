/* The coordinator, as this launcher has it: connection, silence, loss and election. */
#include <string.h>

#include "rendezvous/rules/member_state_impl.h"
#include "rendezvous/rules/text.h"

/* Which round's nodes choose another coordinator; NULL: there is none. */
static const struct rdzv_peers *electors(const struct member_state *m)
{
    return m->ran.n ? &m->ran : m->told.n ? &m->told : NULL;
}

/* The list of a round that was prepared after the one that ran here; NULL: there is none. */
static const struct rdzv_peers *newer(const struct member_state *m)
{
    return generation_before(m->ran.gen, m->told.gen) ? &m->told : NULL;
}

/* The workers stop, and the nodes look for each other. dead: the coordinator has ended for sure. */
static void begin_election(struct member_state *m, const char *how, bool dead, uint64_t now)
{
    struct rdzv_stop why = {.reason = STOP_COORDINATOR_LOST, .restarting = true};
    text_set(why.text, sizeof(why.text), "the coordinator at %s was lost: %s", m->rules.coordinator,
             how);
    strcpy(m->gone, why.text);
    m->electing = true;
    m->joined = m->spare = false;
    m->host_dead = dead;
    m->elect_ns = now;
    m->refused_ns = 0;
    m->ended_how = RDZV_END_BROKEN;
    m->out = true;
    member_state_stop_round(m, &why);
}

void member_contact_heard(struct member_state *m, uint64_t now)
{
    m->heard_ns = now;
    m->late_ns = 0;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When the coordinator has been silent for so long; what this process was late does not count. */
static uint64_t silent_at(const struct member_state *m, uint64_t ns)
{
    return later(m->heard_ns + m->late_ns + ns, m->grace_at);
}

void member_contact_lost(struct member_state *m, const char *how, bool dead, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    if (m->leaving) {
        member_state_end_alone(m, m->leave_reason, m->leave_code, m->leave_text);
    } else if (m->elect && electors(m) && rdzv_peers_may_elect(electors(m))) {
        begin_election(m, how, dead, now);
    } else if (m->gen.counter == 0) { /* nothing has begun: look for it again */
        m->joined = false;
        m->high = (struct generation){0};
    } else {
        text_set(text, sizeof(text), "the coordinator at %s was lost: %s", m->rules.coordinator,
                 how);
        if (m->elect && electors(m) && electors(m)->n == 2)
            text_add(text, sizeof(text),
                     " (one node of two is no majority; with a witness it would "
                     "go on: --witness)");
        if (dead)
            member_state_drop_lease(m);
        member_state_end_alone(m, STOP_COORDINATOR_LOST, 1, text);
    }
}

/* ----------------------------------------------------------------------------- the connection */

bool member_state_wants_link(const struct member_state *m)
{
    return !m->ended && !m->connected;
}

bool member_state_joined(const struct member_state *m)
{
    return m->joined;
}

bool member_state_answered(const struct member_state *m)
{
    return m->answered;
}

void member_state_connected(struct member_state *m, bool here, uint64_t now)
{
    if (m->ended)
        return;
    m->connected = true;
    m->answered = false;
    m->connected_ns = now;
    m->here = here;
    m->refused_ns = 0;
    m->view_sent_ns = m->view_seen_ns = 0;
    m->sent_seq = 0; /* all that is not acknowledged is sent again */
    m->due &= ~DUE_DISCONNECT;
    m->due |= DUE_HELLO | DUE_STATUS;
    /* It may be one that stands. (A witness that has lost its coordinator votes, too.) */
    if (!m->joined)
        m->due |= (m->ran.n ? DUE_RAN : 0) | (newer(m) ? DUE_TOLD : 0);
}

void member_state_disconnected(struct member_state *m, enum rdzv_end how, const char *why,
                               uint64_t now)
{
    (void)now;
    m->connected = false;
    if (m->answered || m->ended_how == RDZV_END_BROKEN)
        m->ended_how = how; /* else: it ended while it was being let go of */
    m->due &= ~(DUE_DISCONNECT | DUE_HELLO | DUE_RAN | DUE_TOLD | DUE_STATUS);
    if (m->ended)
        return;
    text_set(m->trouble, sizeof(m->trouble), "%s", why);
    if (m->leaving && !member_state_has_workers(m)) {
        member_state_end_alone(m, m->leave_reason, m->leave_code, m->leave_text);
    } else if (how == RDZV_END_KEY && !m->joined) {
        char text[RDZV_TEXT_MAX];
        text_set(text, sizeof(text),
                 "the coordinator at %s has another job token than this node (%s): copy the file, "
                 "or name it with --token_file",
                 m->rules.coordinator, m->rules.token);
        member_state_end_alone(m, STOP_RENDEZVOUS, 2, text);
    }
}

void member_state_unreachable(struct member_state *m, bool refused, const char *why, uint64_t now)
{
    if (m->ended)
        return;
    m->answered = false;
    text_set(m->trouble, sizeof(m->trouble), "%s", why);
    if (!refused)
        m->refused_ns = 0;
    else if (m->refused_ns == 0)
        m->refused_ns = now;
    if (m->joined && refused && m->ended_how == RDZV_END_CLOSED)
        member_contact_lost(m, "its launcher is gone (connection closed, then refused)", true, now);
    else if (m->joined && refused && m->ended_how == RDZV_END_RESET &&
             (m->here || now - m->refused_ns >= REFUSED_NS))
        member_contact_lost(m, "its launcher is gone (connection reset, then refused)", true, now);
    else if (m->joined && now >= silent_at(m, m->dead_ns))
        member_contact_lost(m, why, false, now);
}

void member_state_refused(struct member_state *m, const struct rdzv_refusal *r, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    if (m->ended)
        return;
    m->due &= ~DUE_STATUS;
    m->due |= DUE_DISCONNECT;
    bool again = strcmp(m->trouble, r->text) == 0;
    if (r->retry && !again)
        text_set(m->trouble, sizeof(m->trouble), "%s", r->text);
    if (r->retry && (m->electing || (again && m->gen.counter == 0)))
        return; /* electing: it has a coordinator, or does not know yet that it has none */
    text_set(text, sizeof(text), "the coordinator at %s turned this node away: %s",
             m->rules.coordinator, r->text);
    if (!r->retry || m->gen.counter > 0) {
        /* Turned away at the door: what it was started with is wrong. */
        member_state_end_alone(m, STOP_RENDEZVOUS, m->gen.counter > 0 ? 1 : 2, text);
        return;
    }
    m->say_at = now + SAY_NS;
    text_add(text, sizeof(text), " (trying again)");
    member_state_say(m, LOG_LEVEL_NOTICE, text);
}

void member_state_noticed(struct member_state *m, uint64_t now)
{
    if (m->electing && m->connected) {
        m->answered = true;
        member_contact_heard(m, now);
    }
}

bool member_state_electing(const struct member_state *m)
{
    return m->electing;
}

const struct rdzv_peers *member_state_electors(const struct member_state *m, int *self)
{
    const struct rdzv_peers *p = electors(m);
    *self = p ? rdzv_peers_find(p, &m->rules.hello.id) : -1;
    return p;
}

bool member_state_may_stand(const struct member_state *m)
{
    return m->ran.n > 0;
}

void member_state_electorate(const struct member_state *m, struct rdzv_electorate *out)
{
    *out = (struct rdzv_electorate){.ran = &m->ran,
                                    .prepared = newer(m),
                                    .seen_epoch = m->seen_epoch,
                                    .restarts = m->restart_count,
                                    .node_restarts = m->node_restarts,
                                    .host_dead = m->host_dead,
                                    .gone = m->gone};
}

void member_state_set_peer_port(struct member_state *m, int port)
{
    m->rules.hello.peer_port = (uint16_t)port;
}

/* --------------------------------------------------------------------------------------- time */

static void say_waiting(struct member_state *m, uint64_t now)
{
    char text[2 * RDZV_TEXT_MAX];
    m->say_at = now + SAY_NS;
    if (m->answered)
        return; /* the coordinator says who is missing */
    text_set(text, sizeof(text), "waiting for the coordinator at %s%s%s%s, %.0f s",
             m->rules.coordinator, m->trouble[0] ? " (" : "", m->trouble, m->trouble[0] ? ")" : "",
             (double)(now - m->began_ns) / 1e9);
    member_state_say(m, LOG_LEVEL_NOTICE, text);
}

static void join_timeout(struct member_state *m, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    text_set(text, sizeof(text), "no coordinator at %s within %.0f s", m->rules.coordinator,
             (double)(now - m->began_ns) / 1e9);
    if (m->trouble[0])
        text_add(text, sizeof(text), ": %s", m->trouble);
    member_state_end_alone(m, STOP_RENDEZVOUS, 1, text);
}

/* Nobody is heard of, and the others may go on without this node soon: its workers end now. */
static void fence(struct member_state *m, uint64_t now)
{
    struct rdzv_stop why = {.reason = STOP_COORDINATOR_LOST, .restarting = true};
    text_set(why.text, sizeof(why.text),
             "nothing heard of the coordinator at %s for %.1f s: the workers are killed, since the "
             "other nodes may go on without them",
             m->rules.coordinator, (double)(now - m->heard_ns) / 1e9);
    m->fenced = true;
    member_state_stop_round(m, &why);
    m->due |= DUE_FENCE;
}

/* One that stands gives up after twice the dead time; whoever follows waits a little longer. */
static uint64_t elect_until(const struct member_state *m)
{
    return m->elect_ns + 4 * m->dead_ns;
}

/* Before the connection is made anew. One that stands says nothing until it knows. */
static uint64_t silent_ns(const struct member_state *m)
{
    return m->electing ? 3 * m->dead_ns : m->dead_ns / 4 * 3;
}

static uint64_t answer_at(const struct member_state *m)
{
    bool soon = m->electing && m->dead_ns < m->rules.read_ns;
    return later(m->connected_ns + (soon ? m->dead_ns : m->rules.read_ns), m->grace_at);
}

static bool on_lease(const struct member_state *m)
{
    return m->lease_ns && !m->fenced && member_state_has_workers(m);
}

static bool lease_is_over(const struct member_state *m, uint64_t now)
{
    return on_lease(m) && now >= m->lease_ns && !(m->due & DUE_RUN);
}

/* The silence of a time in which this process was late may be its own. When it was much, there is
 * at least one heartbeat's time to hear the coordinator, whose words may lie here unread. The lease
 * is not extended: the others go on without this node, whatever has kept it. */
static void doubt_oneself(struct member_state *m, uint64_t late, uint64_t now)
{
    m->late_ns += late;
    if (late <= m->heartbeat_ns / 2 || m->heard_ns < m->graced_ns) /* once in one silence */
        return;
    m->graced_ns = now;
    m->grace_at = now + m->heartbeat_ns;
}

void member_state_tick(struct member_state *m, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    if (m->ended && lease_is_over(m, now))
        fence(m, now);
    if (m->ended)
        return;
    if (now > m->pulse_at)
        doubt_oneself(m, now - m->pulse_at, now);
    if (now >= m->pulse_at)
        m->pulse_at = now + m->heartbeat_ns;
    if (m->electing && !(m->connected && m->answered) &&
        now >= later(elect_until(m), m->grace_at)) {
        text_set(text, sizeof(text), "%s; no other node could be made coordinator%s%s", m->gone,
                 m->trouble[0] ? ": " : "", m->trouble);
        member_state_end_alone(m, STOP_COORDINATOR_LOST, 1, text);
        return;
    }
    if (!m->joined && !m->electing && now - m->began_ns >= m->rules.join_ns) {
        join_timeout(m, now);
        return;
    }
    if (!m->joined && !m->electing && now >= m->say_at)
        say_waiting(m, now);
    if (m->connected && !m->answered && now >= answer_at(m)) {
        text_set(m->trouble, sizeof(m->trouble), "it accepted the connection and did not answer");
        m->due |= DUE_DISCONNECT;
    }
    if (lease_is_over(m, now))
        fence(m, now);
    if (m->joined && now >= silent_at(m, m->dead_ns)) {
        text_set(text, sizeof(text), "nothing heard of it for %.1f s%s%s",
                 (double)(now - m->heard_ns) / 1e9, m->connected || !m->trouble[0] ? "" : "; ",
                 m->connected ? "" : m->trouble);
        member_contact_lost(m, text, false, now);
        if (m->connected)
            m->due |= DUE_DISCONNECT;
    } else if (m->connected && m->answered && now >= silent_at(m, silent_ns(m))) {
        text_set(m->trouble, sizeof(m->trouble), "it has fallen silent");
        m->due |= DUE_DISCONNECT;
    }
    if (m->connected && now - m->sent_ns >= m->heartbeat_ns)
        m->due |= DUE_STATUS;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t member_state_deadline(const struct member_state *m)
{
    uint64_t at = NEVER;
    if (m->ended)
        return on_lease(m) ? m->lease_ns : NEVER;
    if (m->electing && !(m->connected && m->answered))
        at = later(elect_until(m), m->grace_at);
    else if (!m->electing && !m->joined)
        at = sooner(m->began_ns + m->rules.join_ns, m->say_at);
    if (m->connected)
        at = sooner(at, m->sent_ns + m->heartbeat_ns);
    if (m->connected && !m->answered)
        at = sooner(at, answer_at(m));
    if (m->connected && m->answered)
        at = sooner(at, silent_at(m, silent_ns(m)));
    if (on_lease(m))
        at = sooner(at, m->lease_ns);
    if (m->joined)
        at = sooner(at, silent_at(m, m->dead_ns));
    if (m->joined || m->connected || m->electing)
        at = sooner(at, m->pulse_at);
    return at;
}
