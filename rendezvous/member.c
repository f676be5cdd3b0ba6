/* The happy path: on_wants_link -> member_attach -> HELLO, STATUS -> VIEW ... -> on_prepare ->
 * STATUS -> TABLE, VIEW -> on_run -> ... -> REPORT, VIEW -> on_finish.
 *
 *   the connection ends, or brings something malformed   member_state decides; a new one is wanted
 *   no preamble of ours                                  the same: something else listens there
 *   another protocol version                             only a refusal is read */
#include "rendezvous/member.h"

#include <assert.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "core/uvx.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/wire/outbox.h"

struct member {
    struct link_hub *hub;
    struct uvx_scope scope;
    uv_timer_t timer;
    uint64_t timer_at;
    uv_timer_t silence;
    bool silence_reported;
    int port; /* the port of the link's other end, if that is on this host */
    struct member_state *state;
    struct link *link;     /* NULL: none */
    struct auth *auth;     /* of the link; NULL: none */
    struct branch *branch; /* NULL: one node */
    struct buf held;       /* a VIEW that waits for a message from the tree; empty: none */
    struct beats *beats;
    struct node_id id;
    char run_id[RDZV_RUN_ID_MAX];
    int beat;                     /* beats_add()'s; -1: none */
    bool local;                   /* the link does not leave this process */
    char link_scope[IF_NAMESIZE]; /* of the link's other end, when that is link-local; "" */
    const char *coordinator;      /* where the coordinator is, for people */
    bool other_version, wanted, closing;
    bool comes_back; /* BACK was received: the end of the link is not the coordinator's */
    bool said_hello, asked_for_events; /* on this link */
    uint64_t events_at;                /* own events before this number were sent on it */
    struct {
        struct generation gen; /* of the round that runs */
        int node;              /* this node's group rank in the round */
        uint32_t number;       /* of the all-gather that is under way, or of the next one */
        bool begun, sent;      /* sent: on this link */
        struct buf value;
    } gather;
    struct outbox outbox;
    bool shows_own; /* the coordinator takes no output: this node shows its own */
    uint32_t dead_ms;
    struct rdzv_callbacks callbacks;
    struct member_events events;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* ------------------------------------------------------------------------------- the connection */

/* The lease goes on by no more heartbeats. */
static void end_beats(struct member *m)
{
    struct beat_news news;
    if (m->beats)
        beats_own(m->beats, false);
    if (m->beat < 0)
        return;
    beats_drop(m->beats, m->beat, &news);
    m->beat = -1;
    member_state_beat(m->state, news.heard_ns, news.lease_ns, news.lag_ms, lease_clock_ns());
}

void member_take_beat(struct member *m, int beat)
{
    struct beat_news news;
    if (!m->link || m->beat >= 0) {
        beats_drop(m->beats, beat, &news);
        return;
    }
    m->beat = beat;
    log_verbose("heartbeats to the coordinator have a connection");
}

void member_look_at_beats(struct member *m)
{
    uint64_t now = lease_clock_ns();
    struct beat_news news;
    if (m->beats && m->local && m->link) {
        member_state_beat(m->state, now, beats_own_lease(m->beats), 0, now);
    } else if (m->beat >= 0) {
        beats_look(m->beats, m->beat, &news);
        member_state_beat(m->state, news.heard_ns, news.lease_ns, news.lag_ms, now);
        if (news.broken)
            end_beats(m);
    }
}

/* The coordinator has answered on the first connection. */
static void begin_beats(struct member *m)
{
    if (m->beats && m->local)
        beats_own(m->beats, true);
    else if (m->beats && m->beat < 0)
        m->events.on_wants_beat(m->events.arg, &m->id, m->dead_ms * 1000000ull);
}

#define SILENCE_MS 2000

/* The other end has accepted the connection and sends nothing. On this host its process can be
 * named. */
static void on_silence(uv_timer_t *timer)
{
    struct member *m = container_of(timer, struct member, silence);
    char owner[64];
    if (!m->link || member_state_answered(m->state) ||
        !endpoint_port_owner(m->port, owner, sizeof(owner)))
        return;
    m->silence_reported = true;
    log_notice("port %d of this host belongs to %s, which accepts connections and does not answer "
               "as a coordinator does",
               m->port, owner);
}

static void watch_silence(struct member *m, int fd)
{
    struct netaddr peer = {.len = sizeof(peer.ss)};
    if (m->silence_reported || m->local || getpeername(fd, &peer.sa, &peer.len) < 0 ||
        !netaddr_is_local(&peer))
        return;
    m->port = netaddr_port(&peer);
    uv_timer_start(&m->silence, on_silence, SILENCE_MS, 0);
}

static void lose_link(struct member *m, enum rdzv_end how, const char *why)
{
    uv_timer_stop(&m->silence);
    end_beats(m);
    m->link = NULL;
    buf_fini(&m->held);
    outbox_again(&m->outbox);
    member_state_disconnected(m->state, how, why, lease_clock_ns());
    link_hub_wake(m->hub);
}

/* The connection ends, the launcher does not: the other side must see the difference. */
static void leave_link(struct link *l)
{
    struct buf b = BUF_INIT;
    rdzv_put_back(&b);
    link_send_buf(l, &b);
    link_finish(l);
}

/* Closes a connection that brought a malformed message. */
static void quit_link(struct member *m, const char *why)
{
    leave_link(m->link);
    lose_link(m, RDZV_END_BROKEN, why);
}

static bool member_on_preamble(struct link *l, uint32_t version)
{
    struct member *m = link_owner(l);
    if (version == 0) {
        quit_link(m, "what listens there is no coordinator of dlaunch");
        return false;
    }
    m->other_version = version != RDZV_PROTOCOL;
    return true;
}

/* The nodes reach each other by link-local addresses: in what the coordinator sends, the scopes are
 * names of its own interfaces, which mean nothing here, or something else. */
static void rescope_table(const struct member *m, struct rank_table *t)
{
    const char *master = strchr(t->master_addr, '%');
    char scope[IF_NAMESIZE];
    text_set(scope, sizeof(scope), "%s", !m->local ? m->link_scope : master ? master + 1 : "");
    if (!scope[0])
        return;
    netaddr_rescope(t->master_addr, sizeof(t->master_addr), scope);
    for (int i = 0; i < t->nnodes; i++)
        netaddr_rescope(t->nodes[i].addr, sizeof(t->nodes[i].addr), scope);
}

static void rescope_peers(const struct member *m, struct rdzv_peers *p)
{
    for (int i = 0; m->link_scope[0] && i < p->n; i++)
        netaddr_rescope(p->e[i].addr, sizeof(p->e[i].addr), m->link_scope);
}

static void on_table(struct member *m, struct rd *body)
{
    struct rank_table t;
    struct err e = ERR_INIT;
    if (rank_table_decode(body, &t, &e) < 0) {
        quit_link(m, e.msg);
        return;
    }
    rescope_table(m, &t);
    member_state_table(m->state, &t);
}

/* The events of the job, in the coordinator's order. */
static bool member_on_events(struct member *m, struct rd *body)
{
    struct event e;
    uint64_t sent;
    int n;
    bool good = rdzv_get_events(body, &sent, &n);
    for (; good && n > 0; n--) {
        good = event_decode(body, &e);
        if (good && m->callbacks.events)
            event_log_take(m->callbacks.events, &e);
        else if (good)
            event_fini(&e);
    }
    return good && rd_done(body);
}

/* Asks the coordinator for the events of the job if they are wanted here, and sends own events if
 * they are wanted anywhere. */
static void member_exchange_events(struct member *m)
{
    struct event_log *log = m->callbacks.events;
    struct buf b = BUF_INIT;
    if (!log || !m->link || m->local || !m->said_hello)
        return;
    if (log->wanted && !m->asked_for_events) {
        rdzv_put_want(&b);
        link_send_buf(m->link, &b);
        m->asked_for_events = true;
    }
    for (b = (struct buf)BUF_INIT;
         log->send && rdzv_put_events(&b, lease_clock_ns(), &log->own, &m->events_at);
         b = (struct buf)BUF_INIT)
        link_send_buf(m->link, &b);
}

static void member_send(void *arg, struct buf *frame)
{
    struct member *m = arg;
    if (m->link && m->said_hello)
        link_send_buf(m->link, frame);
    buf_fini(frame);
    link_hub_wake(m->hub);
}

struct branch *member_branch(struct member *m)
{
    return m->branch;
}

bool member_request(struct member *m, const struct rdzv_request *request)
{
    struct buf b = BUF_INIT;
    if (!m->link || !m->said_hello || !member_state_answered(m->state))
        return false;
    rdzv_put_request(&b, request);
    link_send_buf(m->link, &b);
    link_hub_wake(m->hub);
    return true;
}

void member_answer(struct member *m, const struct rdzv_answer *answer)
{
    struct buf b = BUF_INIT;
    link_hub_wake(m->hub);
    if (m->branch && branch_answer(m->branch, answer))
        return;
    rdzv_put_answer(&b, answer);
    member_send(m, &b);
}

/* ------------------------------------------------------------------------------------- the tree */

static void member_on_request(void *arg, const struct rdzv_request *request)
{
    struct member *m = arg;
    if (m->callbacks.on_request)
        m->callbacks.on_request(m->callbacks.arg, request);
}

static void member_on_answers(struct member *m, struct rdzv_answers *answers)
{
    struct rdzv_answer answer;
    while (m->callbacks.on_answer && rdzv_next_answer(answers, &answer))
        m->callbacks.on_answer(m->callbacks.arg, &answer);
}

static void on_branch(struct member *m, struct rdzv_branch *place)
{
    if (m->link_scope[0])
        netaddr_rescope(place->addr, sizeof(place->addr), m->link_scope);
    branch_move(m->branch, place, m->auth);
}

static void member_view(struct member *m, const struct rdzv_view *view)
{
    member_state_view(m->state, view, lease_clock_ns());
    m->dead_ms = view->dead_ms;
    if (member_state_joined(m->state))
        begin_beats(m);
}

/* A view is kept back until the tree has brought what the rules need first. A newer view replaces
 * it, as each is the whole answer of the coordinator. */
static void on_view(struct member *m, const struct rdzv_view *view, const struct rd *body)
{
    buf_fini(&m->held);
    if (m->branch && branch_awaits(m->branch, view))
        buf_put(&m->held, body->p, (size_t)(body->end - body->p));
    else
        member_view(m, view);
}

/* The tree has brought something. */
static void release_view(struct member *m)
{
    struct buf held = m->held;
    struct rd body = rd_init(held.data, held.len), whole = body;
    struct rdzv_view view;
    if (!held.len)
        return;
    m->held = (struct buf)BUF_INIT;
    if (rdzv_get_view(&body, &view)) {
        on_view(m, &view, &whole);
        rdzv_view_fini(&view);
    }
    buf_fini(&held);
}

/* ------------------------------------------------------------------------- the job's console */

void member_output(struct member *m, struct buf *output)
{
    outbox_add(&m->outbox, output);
    link_hub_wake(m->hub);
}

/* Shows output that has not been sent on the console of this node. */
static void show_here(struct member *m)
{
    for (struct buf b; (b = outbox_take(&m->outbox)).len; buf_fini(&b)) {
        m->callbacks.on_output(m->callbacks.arg, b.data, b.len);
        m->callbacks.on_output_taken(m->callbacks.arg, b.len);
    }
}

static void on_shown(struct member *m, const struct rdzv_shown *s)
{
    if (s->taken) {
        size_t n = outbox_taken(&m->outbox, s->number);
        if (n)
            m->callbacks.on_output_taken(m->callbacks.arg, n);
    } else if (!m->shows_own) {
        m->shows_own = true;
        outbox_again(&m->outbox);
    }
}

static void send_output(struct member *m, bool all)
{
    if (m->shows_own)
        show_here(m);
    else if (m->link && m->said_hello)
        outbox_send(&m->outbox, m->link, all);
}

/* ----------------------------------------------------------------------------------- all-gather */

void member_gather(struct member *m, const void *value, size_t len)
{
    assert(!m->gather.begun);
    m->gather.begun = true;
    buf_put(&m->gather.value, value, len);
    link_hub_wake(m->hub);
}

/* A connection that breaks may lose the value or the result: the value is sent on the next one,
 * too. */
static void send_gather(struct member *m)
{
    const struct rdzv_gather value = {.gen = m->gather.gen,
                                      .number = m->gather.number,
                                      .node = m->gather.node,
                                      .value = m->gather.value.data,
                                      .len = m->gather.value.len};
    struct buf b = BUF_INIT;
    if (!m->gather.begun || m->gather.sent || !m->link || !m->said_hello)
        return;
    m->gather.sent = true;
    rdzv_put_gather(&b, &value);
    link_send_buf(m->link, &b);
}

static void on_gathered(struct member *m, const struct rdzv_gathered *all)
{
    if (!m->gather.begun || all->number != m->gather.number ||
        !generation_equal(all->gen, m->gather.gen))
        return;
    m->gather.number++;
    m->gather.begun = m->gather.sent = false;
    buf_fini(&m->gather.value);
    m->callbacks.on_gathered(m->callbacks.arg, all->values, all->nnodes);
}

/* An all-gather that is under way ends with its round. */
static void reset_gather(struct member *m, struct generation gen, int node)
{
    buf_fini(&m->gather.value);
    m->gather.gen = gen;
    m->gather.node = node;
    m->gather.number = 0;
    m->gather.begun = m->gather.sent = false;
}

/* False: the message is malformed. */
static bool on_request(struct member *m, struct rd *body)
{
    struct rdzv_request request;
    if (rdzv_get_request(body, &request)) {
        member_on_request(m, &request);
        return true;
    }
    bool named = request.kind == REQUEST_KINDS && *request.unknown.name;
    if (named)
        log_warn("the coordinator asks for \"%s\", which this launcher does not know: refused",
                 request.unknown.name);
    return named;
}

static bool on_message(struct member *m, uint8_t type, struct rd *body)
{
    uint64_t now = lease_clock_ns();
    struct rd whole = *body;
    struct rdzv_view view;
    struct rdzv_result result;
    struct rdzv_refusal refusal;
    char notice[RDZV_NOTICE_MAX];
    struct rdzv_peers peers = {0};
    struct rdzv_answer answer;
    struct rdzv_gathered gathered;
    struct rdzv_answers answers;
    struct rdzv_branch place;
    struct rdzv_shown shown;
    if (type == RDZV_MSG_REFUSE && rdzv_get_refusal(body, &refusal)) {
        member_state_refused(m->state, &refusal, now);
    } else if (m->other_version) {
        return true; /* the coordinator is about to refuse this launcher */
    } else if (type == RDZV_MSG_VIEW && rdzv_get_view(body, &view)) {
        on_view(m, &view, &whole);
        rdzv_view_fini(&view);
    } else if (type == RDZV_MSG_REPORT && rdzv_get_report(body, &result)) {
        member_state_report(m->state, &result);
    } else if (type == RDZV_MSG_PEERS && rdzv_get_peers(body, &peers)) {
        rescope_peers(m, &peers);
        member_state_peers(m->state, &peers);
    } else if (type == RDZV_MSG_NOTICE && rdzv_get_notice(body, notice)) {
        log_notice("%s", notice);
        member_state_noticed(m->state, now);
    } else if (type == RDZV_MSG_BACK) {
        m->comes_back = true;
    } else if (type == RDZV_MSG_WANT && rd_done(body)) {
        if (m->callbacks.events)
            m->callbacks.events->send = true;
    } else if (type == RDZV_MSG_EVENTS) {
        return member_on_events(m, body);
    } else if (type == RDZV_MSG_REQUEST) {
        return on_request(m, body);
    } else if (type == RDZV_MSG_ANSWER && rdzv_get_answer(body, &answer)) {
        if (m->callbacks.on_answer)
            m->callbacks.on_answer(m->callbacks.arg, &answer);
    } else if (type == RDZV_MSG_GATHERED && rdzv_get_gathered(body, &gathered)) {
        on_gathered(m, &gathered);
    } else if (type == RDZV_MSG_ANSWERS && rdzv_get_answers(body, &answers)) {
        member_on_answers(m, &answers);
    } else if (type == RDZV_MSG_BRANCH && m->branch && rdzv_get_branch(body, &place)) {
        on_branch(m, &place);
    } else if (type == RDZV_MSG_SHOWN && rdzv_get_shown(body, &shown)) {
        on_shown(m, &shown);
    } else if (type == RDZV_MSG_TOLD && m->branch) {
        return branch_pass(m->branch, type, *body);
    } else {
        return false;
    }
    return true;
}

static void member_on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct member *m = link_owner(l);
    struct rd whole = body;
    link_hub_wake(m->hub);
    if (type == RDZV_MSG_TABLE && !m->other_version)
        on_table(m, &body);
    else if (!on_message(m, type, &body))
        quit_link(m, "the coordinator sent a malformed message");
    if (!m->link || !m->branch || (type != RDZV_MSG_TABLE && type != RDZV_MSG_PEERS))
        return;
    branch_pass(m->branch, type, whole);
    release_view(m);
}

/* PEERS or TABLE from the parent in the tree, as if the coordinator had sent it. */
static void on_tree_message(void *arg, uint8_t type, struct rd body)
{
    struct member *m = arg;
    if (!m->link || m->closing)
        return;
    if (type == RDZV_MSG_TABLE)
        on_table(m, &body);
    else if (!on_message(m, type, &body))
        quit_link(m, "the tree of launchers brought a malformed message");
    if (m->link)
        release_view(m);
}

static void member_on_end(struct link *l, enum rdzv_end how, const char *why)
{
    struct member *m = link_owner(l);
    char text[RDZV_TEXT_MAX];
    link_close(l);
    if (how == RDZV_END_USER && !member_state_joined(m->state) &&
        !member_state_electing(m->state)) {
        text_set(text, sizeof(text),
                 "the coordinator at %s is another user's: choose another port, or agree on a job "
                 "token and name it on both sides (--token_file)",
                 m->coordinator);
        member_state_fail(m->state, text);
    }
    lose_link(m, m->comes_back ? RDZV_END_BROKEN : how, why);
}

static const struct link_events link_events = {member_on_preamble, member_on_frame, member_on_end};

/* The interface of a connection to a link-local address; otherwise "". */
static void get_scope(int fd, char scope[IF_NAMESIZE])
{
    struct netaddr peer = {.len = sizeof(peer.ss)};
    bool is = getpeername(fd, &peer.sa, &peer.len) == 0 && peer.sa.sa_family == AF_INET6 &&
              netaddr_is_link_local(&peer);
    if (!is || !if_indextoname(peer.in6.sin6_scope_id, scope))
        scope[0] = '\0';
}

void member_attach(struct member *m, int fd, bool local, struct auth *auth)
{
    m->wanted = false;
    m->auth = auth;
    m->local = local;
    get_scope(fd, m->link_scope);
    watch_silence(m, fd);
    if (!local)
        link_tune(fd, m->dead_ms);
    m->link = link_new(m->hub, fd, local, &link_events, m);
    if (!m->link) {
        member_unreachable(m, false, "libuv does not take the connection");
        return;
    }
    if (auth)
        link_auth(m->link, auth);
    m->other_version = m->comes_back = m->said_hello = m->asked_for_events = false;
    m->gather.sent = m->shows_own = false;
    m->events_at = 0;
    link_set_frame_max(m->link, RDZV_FRAME_MAX);
    member_state_connected(m->state, lease_clock_ns());
    link_hub_wake(m->hub);
}

void member_unreachable(struct member *m, bool refused, const char *why)
{
    m->wanted = false;
    member_state_unreachable(m->state, refused, why, lease_clock_ns());
    link_hub_wake(m->hub);
}

/* -------------------------------------------------------------------------------------- actions */

static void disconnect(struct member *m, bool reset)
{
    end_beats(m);
    if (!m->link)
        return;
    if (reset)
        leave_link(m->link);
    else
        link_close(m->link);
    m->link = NULL;
    buf_fini(&m->held);
    if (reset)
        outbox_again(&m->outbox);
}

static void act(struct member *m, const struct member_action *a)
{
    const struct rdzv_callbacks *cb = &m->callbacks;
    struct buf b = BUF_INIT;
    switch (a->act) {
    case MEMBER_ACT_LOG:
        (a->level == LOG_LEVEL_WARN ? log_warn : log_notice)("%s", a->text);
        break;
    case MEMBER_ACT_HELLO:
        rdzv_put_hello(&b, a->hello);
        link_send_buf(m->link, &b);
        m->said_hello = true;
        break;
    case MEMBER_ACT_PEERS:
        rdzv_put_peers(&b, a->peers);
        link_send_buf(m->link, &b);
        break;
    case MEMBER_ACT_STATUS:
        member_exchange_events(m); /* the events that led to the status are sent before it */
        send_output(m, a->status->phase != MEMBER_RUNNING); /* and what the workers printed */
        rdzv_put_status(&b, a->status);
        link_send_buf(m->link, &b);
        break;
    case MEMBER_ACT_DISCONNECT:
        disconnect(m, a->reset);
        break;
    case MEMBER_ACT_PREPARE:
        cb->on_prepare(cb->arg, a->gen, a->group_rank, a->nnodes);
        break;
    case MEMBER_ACT_RUN:
        reset_gather(m, a->table->gen, a->group_rank);
        outbox_set_nodes(&m->outbox, a->table->nnodes);
        cb->on_run(cb->arg, a->table, a->group_rank);
        break;
    case MEMBER_ACT_RESPAWN:
        cb->on_respawn(cb->arg, a->respawn.local_rank, a->respawn.restart_count);
        break;
    case MEMBER_ACT_STOP:
        reset_gather(m, m->gather.gen, m->gather.node);
        cb->on_stop(cb->arg, a->why);
        break;
    case MEMBER_ACT_FENCE:
        if (cb->on_fence)
            cb->on_fence(cb->arg);
        break;
    case MEMBER_ACT_LEASE:
        if (cb->on_lease)
            cb->on_lease(cb->arg, a->until_ns);
        break;
    case MEMBER_ACT_FINISH:
        if (m->beats)
            beats_rest(m->beats);
        show_here(m);
        cb->on_finish(cb->arg, a->result);
        break;
    }
}

static void member_on_timer(uv_timer_t *timer)
{
    struct member *m = container_of(timer, struct member, timer);
    m->timer_at = UINT64_MAX;
    member_look_at_beats(m);
    member_state_tick(m->state, lease_clock_ns());
    link_hub_wake(m->hub);
}

static void member_set_timer(struct member *m, uint64_t now)
{
    uint64_t at = member_state_deadline(m->state);
    if (at == m->timer_at)
        return;
    m->timer_at = at;
    if (at == UINT64_MAX)
        uv_timer_stop(&m->timer);
    else
        uv_timer_start(&m->timer, member_on_timer, at > now ? (at - now + 999999) / 1000000 : 0, 0);
}

void member_advance(struct member *m)
{
    struct member_action a;
    while (!m->closing && member_state_next(m->state, &a, lease_clock_ns()))
        act(m, &a);
    if (m->closing)
        return;
    member_exchange_events(m);
    send_gather(m);
    send_output(m, false);
    member_set_timer(m, lease_clock_ns());
    if (member_state_wants_link(m->state) && !m->link && !m->wanted) {
        m->wanted = true;
        m->events.on_wants_link(m->events.arg);
    }
}

/* ------------------------------------------------------------------------------- open and close */

struct member *member_new(struct link_hub *hub, struct beats *beats,
                          const struct member_rules *rules, const struct rdzv_callbacks *callbacks,
                          const struct member_events *events)
{
    struct member *m = xcalloc(1, sizeof(*m));
    m->hub = hub;
    m->beats = beats;
    m->beat = -1;
    m->id = rules->hello.id;
    text_set(m->run_id, sizeof(m->run_id), "%s", rules->hello.run_id);
    m->coordinator = rules->coordinator;
    m->callbacks = *callbacks;
    m->events = *events;
    outbox_init(&m->outbox);
    m->timer_at = UINT64_MAX;
    m->dead_ms = (uint32_t)(rules->dead_ns / 1000000);
    m->state = member_state_new(rules, lease_clock_ns());
    uvx_scope_init(&m->scope, hub->loop);
    uv_timer_init(hub->loop, &m->timer);
    uvx_own(&m->scope, &m->timer);
    uv_timer_init(hub->loop, &m->silence);
    uvx_own(&m->scope, &m->silence);
    const struct branch_events branch = {m,           on_tree_message,  member_on_request,
                                         member_send, callbacks->merge, callbacks->arg};
    if (beats)
        m->branch = branch_new(hub, &m->scope, m->run_id, &m->id, &branch);
    link_hub_wake(hub);
    return m;
}

struct member_state *member_state_of(struct member *m)
{
    return m->state;
}

static void free_member(void *arg)
{
    struct member *m = arg;
    void (*on_closed)(void *arg) = m->on_closed;
    void *on_closed_arg = m->on_closed_arg;
    member_state_free(m->state);
    buf_fini(&m->gather.value);
    branch_free(m->branch);
    buf_fini(&m->held);
    outbox_fini(&m->outbox);
    free(m);
    on_closed(on_closed_arg);
}

void member_close(struct member *m, void (*on_closed)(void *arg), void *arg)
{
    m->closing = true;
    end_beats(m);
    if (m->branch)
        branch_stop(m->branch);
    m->on_closed = on_closed;
    m->on_closed_arg = arg;
    uvx_scope_close(&m->scope, free_member, m);
}
