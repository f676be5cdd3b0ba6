/* The happy path: adopt -> on_preamble -> HELLO (rdzv_state_hello) -> STATUS, STATUS, ... while
 * coordinator_advance() sends what rdzv_state wants said; the member closes when it has the result.
 *
 *   no preamble of ours              closed
 *   another protocol version         refused, remembered for the join timeout's text
 *   no hello within 5 s, or too      closed (wire/pending.h)
 *   many without a hello
 *   malformed message                closed, with a line; the node may come back
 *   a hello of a node that was in a round of an earlier coordinator, before the first round here
 *                                    answered by a view of epoch 1, then closed: send_back()
 *   PROBE                            answered, then closed
 *   ELSEWHERE                        the same; a coordinator that has begun no round is given up
 *   BEAT                             its connection goes to the thread of the heartbeats
 *
 * In a round with a tree (tree.h), PEERS, TABLE and the requests are sent to the nodes without a
 * parent, which pass them on, and to those that have said DIRECT. */
#include "rendezvous/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "rendezvous/rules/allgather.h"
#include "rendezvous/wire/broadcast.h"
#include "rendezvous/wire/pending.h"
#include "rendezvous/wire/request_log.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/rules/tree.h"

struct caller {
    struct coordinator *coordinator;
    struct link *link; /* NULL: the slot is free */
    uint32_t slot;     /* the state's number for the connection */
    uint32_t next_free;
    bool said_hello, comes_back;
    struct node_id id;      /* the id in its HELLO */
    struct link *beat_link; /* the heartbeats' link, until the thread has it; NULL */
    int beat;               /* beats_add()'s number; -1 */
    struct rdzv_peer peer;
    struct netaddr from;
    const char *unwelcome; /* why the node is not let in; NULL */
    bool wants_events;     /* events of the job before number events_at were sent */
    bool asked_for_events;
    uint64_t events_at;
    bool gathers;    /* the node waits for the result of the all-gather */
    uint64_t output; /* newest output of the node to be acknowledged; 0: none */
    /* The node's place in the tree of this round. */
    struct generation branch;
    bool below;                    /* another node is the node's parent */
    bool direct;                   /* the node does not reach its parent */
    bool peers_below, table_below; /* the parent has these for the node */
    struct pending pending;        /* until the link has said hello */
};

/* The tree of a round. */
struct round_tree {
    struct rdzv_peers nodes; /* n is 0: the round has none */
    struct map ranks;        /* node id -> its index in nodes, plus one */
    int host;                /* the index of this launcher; -1 */
    struct request_log log;
};

#define NO_SLOT       UINT32_MAX
#define OWN_ADDRS_MAX 256

struct coordinator {
    struct link_hub *hub;
    struct caller *arbiter; /* the slot of one without a link; NULL: none votes here */
    struct beats *beats;
    struct uvx_scope scope;
    uv_timer_t timer;
    uint64_t timer_at;
    struct rdzv_state *state;
    struct rdzv_rules rules;
    struct rdzv_identity identity;
    struct coordinator_events events;
    struct caller **callers;
    uint32_t ncallers, free_slot;
    struct pending_queue pending;
    bool closing, finished;
    bool elected;
    struct broadcast broadcast;
    struct event_log *log; /* NULL: none is kept */
    bool events_wanted;    /* by some launcher of the job */
    bool events_due;       /* callers may have to be asked for events, or to be sent some */
    struct allgather allgather;
    struct shared_buf *gathered; /* the newest result of the round; NULL: none */
    struct map output;           /* node id -> number of its newest output */
    struct map addrs; /* of the round's other nodes: from the table, and of their connections */
    struct generation addrs_gen; /* that round */
    struct round_tree tree;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* -------------------------------------------------------------------------------------- callers */

static void tell_beat(struct caller *k, const struct beat_news *news, uint64_t now)
{
    const struct rdzv_beat b = {news->heard_ns, news->touch_ns, news->lag_ms};
    rdzv_state_beat(k->coordinator->state, &k->id, &b, now);
}

/* Stops the heartbeats of the node and takes over those that the thread has answered, before the
 * rules learn how the connection has ended. */
static void end_beats(struct caller *k)
{
    struct beat_news news;
    if (k->beat_link)
        link_close(k->beat_link);
    k->beat_link = NULL;
    if (k->beat < 0)
        return;
    beats_drop(k->coordinator->beats, k->beat, &news);
    k->beat = -1;
    tell_beat(k, &news, lease_clock_ns());
}

static void look_at_beats(struct coordinator *c, uint64_t now)
{
    struct beat_news news;
    for (uint32_t i = 0; i < c->ncallers; i++) {
        struct caller *k = c->callers[i];
        if (!k->link || k->beat < 0)
            continue;
        beats_look(c->beats, k->beat, &news);
        tell_beat(k, &news, now);
        if (news.broken)
            end_beats(k);
    }
}

void coordinator_look_at_beats(struct coordinator *c)
{
    look_at_beats(c, lease_clock_ns());
    link_hub_wake(c->hub);
}

/* The caller's link has been given up; its slot is free again. */
static void free_caller(struct caller *k)
{
    struct coordinator *c = k->coordinator;
    end_beats(k);
    if (!k->said_hello)
        pending_remove(&c->pending, &k->pending);
    k->link = NULL;
    k->next_free = c->free_slot;
    c->free_slot = k->slot;
}

static struct caller *new_caller(struct coordinator *c)
{
    struct caller *k;
    if (c->free_slot != NO_SLOT) {
        k = c->callers[c->free_slot];
        c->free_slot = k->next_free;
    } else {
        if ((c->ncallers & (c->ncallers - 1)) == 0) /* 0, 1, 2, 4, ...: full */
            c->callers = xrealloc(c->callers, (c->ncallers ? 2 * (size_t)c->ncallers : 1) *
                                                  sizeof(struct caller *));
        k = xcalloc(1, sizeof(*k));
        k->slot = c->ncallers;
        c->callers[c->ncallers++] = k;
    }
    *k = (struct caller){.coordinator = c, .slot = k->slot, .beat = -1};
    return k;
}

static void turn_away(struct caller *k, const char *text)
{
    struct coordinator *c = k->coordinator;
    struct buf b = BUF_INIT;
    log_verbose("turned away %s: %s", k->peer.addr, text);
    rdzv_put_refusal(&b, false, text);
    link_send_buf(k->link, &b);
    link_refuse(k->link);
    if (!k->unwelcome) /* else the endpoint has logged the refusal */
        rdzv_state_turned_away(c->state, k->peer.addr, text, lease_clock_ns());
    free_caller(k);
}

/* Closes a connection so that it does not look like the end of this launcher. */
static void leave_link(struct link *l)
{
    struct buf b = BUF_INIT;
    rdzv_put_back(&b);
    link_send_buf(l, &b);
    link_finish(l);
}

/* Closes a connection that sent a malformed message. A node that has said hello may connect again.
 */
static void coordinator_drop(struct caller *k, const char *why)
{
    struct coordinator *c = k->coordinator;
    log_verbose("the connection from %s is closed: %s", k->peer.addr, why);
    if (k->said_hello)
        leave_link(k->link);
    else
        link_close(k->link);
    end_beats(k);
    if (k->said_hello)
        rdzv_state_closed(c->state, k->slot, RDZV_END_BROKEN, lease_clock_ns());
    free_caller(k);
}

static void coordinator_drop_pending(struct pending *p, const char *why)
{
    coordinator_drop(container_of(p, struct caller, pending), why);
}

/* ------------------------------------------------------------------------------------- messages */

static bool coordinator_on_preamble(struct link *l, uint32_t version)
{
    struct caller *k = link_owner(l);
    char text[RDZV_TEXT_MAX];
    if (k->unwelcome && version != 0) {
        turn_away(k, k->unwelcome);
        return false;
    }
    if (version == RDZV_PROTOCOL)
        return true;
    if (version == 0) {
        coordinator_drop(k, "it does not speak the protocol of dlaunch");
        return false;
    }
    turn_away(k, protocols_refusal(version, "the coordinator", text, sizeof(text)));
    return false;
}

static void answer_probe(struct caller *k)
{
    struct coordinator *c = k->coordinator;
    struct buf b = BUF_INIT;
    c->identity.finished = coordinator_ended(c);
    rdzv_put_identity(&b, &c->identity);
    link_send_buf(k->link, &b);
    link_finish(k->link);
    free_caller(k);
}

/* An elected coordinator redirects this one. If this one was elected, too, it does not follow:
 * votes decide which of the two goes on. */
static void on_elsewhere(struct caller *k, struct rd *body)
{
    struct coordinator *c = k->coordinator;
    struct rdzv_elsewhere m = {0};
    struct rdzv_state_info info;
    struct netaddr there;
    char ip[ADDR_STRLEN];
    bool good = rdzv_get_elsewhere(body, &m) && !k->peer.own;
    netaddr_rescope_like(m.addr, sizeof(m.addr), &k->from);
    if (!good || !netaddr_parse_ip(&there, m.addr[0] ? m.addr : netaddr_ip(&k->from, ip), m.port)) {
        coordinator_drop(k, "malformed message");
        return;
    }
    if (netaddr_is_loopback(&there) &&
        !netaddr_is_local(&k->from)) /* on the host of the other end */
        netaddr_parse_ip(&there, netaddr_ip(&k->from, ip), m.port);
    rdzv_state_get_info(c->state, &info);
    if (c->elected) {
        coordinator_drop(k, "it was elected, too");
        return;
    }
    if (info.finished || strcmp(m.run_id, c->identity.run_id) != 0) {
        answer_probe(k);
        return;
    }
    c->identity.elsewhere = c->identity.follows = info.gen.counter == 0;
    answer_probe(k);
    c->events.on_elsewhere(c->events.arg, &there, info.gen.counter > 0);
}

/* Whether the node has been in a round of an earlier coordinator at this address, and has not
 * noticed that this is another one. It is not let in, since its round has members that this
 * coordinator does not know. send_back() answers with an epoch below all others: the node never
 * returns to an older epoch, concludes that its coordinator is lost, and looks for the members. */
static bool is_from_before(const struct coordinator *c, const struct rdzv_hello *h)
{
    struct rdzv_state_info info;
    rdzv_state_get_info(c->state, &info);
    return !c->elected && info.gen.counter == 0 && h->prev_rank >= 0;
}

static void send_back(struct caller *k)
{
    const struct rdzv_rules *rules = &k->coordinator->rules;
    const struct rdzv_view v = {.phase = RDZV_COLLECT,
                                .gen = {.epoch = 1},
                                .group_rank = -1,
                                .heartbeat_ms = (uint32_t)(rules->heartbeat_ns / 1000000),
                                .dead_ms = (uint32_t)(rules->dead_ns / 1000000)};
    struct buf b = BUF_INIT;
    rdzv_put_view(&b, &v);
    link_send_buf(k->link, &b);
    link_finish(k->link);
    free_caller(k);
}

static void on_hello(struct caller *k, struct rd *body)
{
    struct rdzv_hello h;
    if (!rdzv_get_hello(body, &h)) {
        turn_away(k, RDZV_BAD_HELLO);
        return;
    }
    if (is_from_before(k->coordinator, &h)) {
        send_back(k);
        return;
    }
    /* The first term's coordinators were not elected: to have followed another one of them, which
     * has begun no round, is no reason to turn a node away. */
    if (k->coordinator->elected && rdzv_epoch_term(h.seen_epoch) <= 1)
        h.seen_epoch = 0;
    pending_remove(&k->coordinator->pending, &k->pending);
    k->said_hello = true;
    k->coordinator->events_due = true;
    k->id = h.id;
    link_set_frame_max(k->link, RDZV_FRAME_MAX);
    rdzv_state_hello(k->coordinator->state, k->slot, &h, &k->peer, lease_clock_ns());
}

static void on_relay(struct caller *k, struct rd *body)
{
    struct coordinator *c = k->coordinator;
    char run_id[RDZV_RUN_ID_MAX + 1];
    struct link *l = k->link;
    rd_str(body, run_id, sizeof(run_id));
    if (!rd_done(body) || strcmp(run_id, c->identity.run_id) != 0) {
        coordinator_drop(k, "it carries the store of another job");
    } else if (!c->events.on_relay) {
        coordinator_drop(k, "it carries the store, and there is no --master_store relay here");
    } else {
        free_caller(k);
        c->events.on_relay(c->events.arg, l);
    }
}

/* ----------------------------------------------------------------------------------- heartbeats */

static void on_beat_taken(void *owner, int fd, struct tls *tls)
{
    struct caller *k = owner;
    k->beat_link = NULL;
    k->beat =
        beats_add(k->coordinator->beats, BEAT_COORDINATOR, fd, tls, k->coordinator->rules.dead_ns);
    if (k->beat >= 0)
        log_verbose("the heartbeats of the node at %s have a connection", k->peer.addr);
}

static bool on_beat_preamble(struct link *l, uint32_t version)
{
    (void)l, (void)version; /* the preamble came before the frame */
    return true;
}

static void on_beat_frame(struct link *l, uint8_t type, struct rd body)
{
    (void)l, (void)type, (void)body; /* there is none */
}

static void on_beat_end(struct link *l, enum rdzv_end how, const char *why)
{
    struct caller *k = link_owner(l);
    (void)how, (void)why;
    link_close(l);
    k->beat_link = NULL;
}

static const struct link_events beat_events = {on_beat_preamble, on_beat_frame, on_beat_end};

static struct caller *find_node(struct coordinator *c, const struct node_id *id, const char *addr)
{
    for (uint32_t i = 0; i < c->ncallers; i++) {
        struct caller *k = c->callers[i];
        if (k->link && k->said_hello && node_id_equal(&k->id, id) &&
            strcmp(k->peer.addr, addr) == 0)
            return k;
    }
    return NULL;
}

/* A second connection of a node that is here. */
static void on_beat(struct caller *k, struct rd *body)
{
    struct coordinator *c = k->coordinator;
    struct link *l = k->link;
    struct buf b = BUF_INIT;
    struct node_id id;
    struct caller *node = rdzv_get_beat(body, &id) ? find_node(c, &id, k->peer.addr) : NULL;
    if (!node || !c->beats) {
        coordinator_drop(k, "heartbeats of a node that is not here");
        return;
    }
    free_caller(k);
    end_beats(node);
    node->beat_link = l;
    link_set_owner(l, &beat_events, node);
    rdzv_put_beat(&b, NULL);
    link_send_buf(l, &b);
    link_detach(l, on_beat_taken);
}

static void on_peers(struct caller *k, struct rd *body)
{
    struct rdzv_peers p = {0};
    if (!rdzv_get_peers(body, &p)) {
        coordinator_drop(k, "malformed message");
        return;
    }
    rdzv_state_peers(k->coordinator->state, k->slot, &p);
    rdzv_peers_fini(&p);
}

/* --------------------------------------------------------------------------------------- events */

static void on_want(struct caller *k)
{
    struct coordinator *c = k->coordinator;
    k->wants_events = c->events_wanted = c->events_due = true;
    if (c->log)
        c->log->send = true;
}

/* The events of a node. Their times are put on this host's clock. */
static void on_events(struct caller *k, struct rd *body)
{
    struct coordinator *c = k->coordinator;
    struct event e;
    uint64_t sent, now = lease_clock_ns(), day = day_ns();
    int n;
    bool good = rdzv_get_events(body, &sent, &n);
    for (; good && n > 0; n--) {
        good = event_decode(body, &e);
        if (!good)
            break;
        if (!c->log || !rdzv_state_to_ours(c->state, k->slot, e.at_ns, sent, now, &e.at_ns)) {
            event_fini(&e);
            continue;
        }
        e.wall_ns = day - (now - e.at_ns);
        event_log_take(c->log, &e);
    }
    if (!good || !rd_done(body))
        coordinator_drop(k, "malformed message");
    c->events_due = true;
}

static void keep_event(struct coordinator *c, const struct event *event)
{
    struct event e = *event;
    uint64_t now = lease_clock_ns();
    e.wall_ns = day_ns() - (now > e.at_ns ? now - e.at_ns : 0);
    if (e.name == EVENT_ELECTED)
        event_log_lead(c->log, true);
    event_log_add(c->log, &e);
    c->events_due = true;
}

static void send_events(struct caller *k)
{
    struct buf b = BUF_INIT;
    while (k->wants_events &&
           rdzv_put_events(&b, lease_clock_ns(), &k->coordinator->log->job, &k->events_at)) {
        link_send_buf(k->link, &b);
        b = (struct buf)BUF_INIT;
    }
}

/* Sends a message to the node that has this rank in the round, if there is one. Takes the
 * content. */
static void send_to_rank(const struct coordinator *c, int rank, struct buf *b)
{
    uint32_t conn = rdzv_state_conn_of(c->state, rank);
    if (conn < c->ncallers && c->callers[conn]->link)
        link_send_buf(c->callers[conn]->link, b);
    else
        buf_fini(b);
}

/* A request to the job, of a user or between launchers. Every node gets it, the asking one
 * included, unless only one can answer. */
static void on_request(struct caller *k, struct rd *body)
{
    struct coordinator *c = k->coordinator;
    struct round_tree *t = &c->tree;
    struct rdzv_request request;
    struct rdzv_state_info info;
    struct shared_buf *numbered = NULL;
    struct buf b = BUF_INIT;
    if (!rdzv_get_request(body, &request)) {
        if (request.kind == REQUEST_KINDS && *request.unknown.name)
            log_warn("%s asks for \"%s\", which this launcher does not know: refused", k->peer.addr,
                     request.unknown.name);
        else
            coordinator_drop(k, "malformed message");
        return;
    }
    if (request.kind == REQUEST_RESTART) {
        rdzv_state_restart(c->state, request.restart.text, lease_clock_ns());
        return;
    }
    request.from = k->id;
    rdzv_put_request(&b, &request);
    if (request.kind == REQUEST_MODEX) {
        send_to_rank(c, request.modex.rank, &b);
        return;
    }
    struct shared_buf *plain = shared_buf_new(&b);
    rdzv_state_get_info(c->state, &info);
    if (t->nodes.n && info.phase == RDZV_RUN) {
        rdzv_put_told(&b, t->nodes.gen, t->log.last + 1, &request);
        numbered = shared_buf_new(&b);
        request_log_add(&t->log, t->log.last + 1, numbered);
    }
    for (uint32_t i = 0; i < c->ncallers; i++) {
        const struct caller *to = c->callers[i];
        bool in_tree = numbered && generation_equal(to->branch, t->nodes.gen);
        if (to->link && to->said_hello && !(in_tree && to->below && !to->direct))
            link_send(to->link, in_tree ? numbered : plain);
    }
    shared_buf_unref(plain);
    shared_buf_unref(numbered);
}

/* Answers go to the node that has asked, if it is still there. */
static void on_answer(struct caller *k, uint8_t type, struct rd body)
{
    const struct coordinator *c = k->coordinator;
    struct rdzv_answer answer;
    struct rdzv_answers answers;
    struct rd whole = body;
    const struct node_id *id = type == RDZV_MSG_ANSWER ? &answer.to : &answers.to;
    if (type == RDZV_MSG_ANSWER ? !rdzv_get_answer(&body, &answer)
                                : !rdzv_get_answers(&body, &answers)) {
        coordinator_drop(k, "malformed message");
        return;
    }
    for (uint32_t i = 0; i < c->ncallers; i++) {
        struct buf b = BUF_INIT;
        const struct caller *to = c->callers[i];
        if (!to->link || !to->said_hello || !node_id_equal(&to->id, id))
            continue;
        rdzv_put_frame(&b, type, &whole);
        link_send_buf(to->link, &b);
        return;
    }
}

/* Takes a node's value. The result goes to the nodes that wait for the all-gather. */
static void on_gather(struct caller *k, struct rd *body)
{
    struct coordinator *c = k->coordinator;
    struct rdzv_state_info info;
    struct rdzv_gather m;
    if (!rdzv_get_gather(body, &m)) {
        coordinator_drop(k, "malformed message");
        return;
    }
    rdzv_state_get_info(c->state, &info);
    enum allgather_step step = allgather_take(&c->allgather, info.gen, info.nnodes, &m);
    k->gathers = step == ALLGATHER_WAITS || step == ALLGATHER_COMPLETE;
    if (step == ALLGATHER_AGAIN && c->gathered)
        link_send(k->link, c->gathered);
    if (step != ALLGATHER_COMPLETE)
        return;
    struct buf b = BUF_INIT;
    shared_buf_unref(c->gathered);
    allgather_encode(&c->allgather, &b);
    c->gathered = shared_buf_new(&b);
    for (uint32_t i = 0; i < c->ncallers; i++) {
        if (c->callers[i]->link && c->callers[i]->gathers)
            link_send(c->callers[i]->link, c->gathered);
        c->callers[i]->gathers = false;
    }
}

/* --------------------------------------------------------------------------- the job's console */

static void tell_shown(struct caller *k, uint64_t number, bool taken)
{
    const struct rdzv_shown m = {number, taken};
    struct buf b = BUF_INIT;
    rdzv_put_shown(&b, &m);
    link_send_buf(k->link, &b);
}

/* Drops what has arrived before: a node sends again, on another connection, all output that was not
 * acknowledged. */
static void on_output(struct caller *k, struct rd *body)
{
    struct coordinator *c = k->coordinator;
    struct rd output;
    uint64_t number;
    bool room = true;
    if (!rdzv_get_output(body, &number, &output)) {
        coordinator_drop(k, "malformed message");
        return;
    }
    if (!c->events.on_output) {
        tell_shown(k, number, false);
        return;
    }
    void **newest = map_put(&c->output, k->id.b, sizeof(k->id.b));
    if (newest && (uintptr_t)*newest < number) {
        *newest = (void *)(uintptr_t)number;
        room = c->events.on_output(c->events.arg, output.p, (size_t)(output.end - output.p));
    }
    if (room)
        tell_shown(k, number, true);
    k->output = room ? 0 : number;
}

void coordinator_output_room(struct coordinator *c)
{
    for (uint32_t i = 0; i < c->ncallers; i++) {
        struct caller *k = c->callers[i];
        if (k->link && k->output)
            tell_shown(k, k->output, true);
        k->output = 0;
    }
}

/* ------------------------------------------------------------------------------------- the tree */

static void round_tree_clear(struct round_tree *t)
{
    rdzv_peers_fini(&t->nodes);
    map_fini(&t->ranks, NULL);
    request_log_clear(&t->log);
    t->host = -1;
}

static void round_tree_begin(struct coordinator *c)
{
    struct round_tree *t = &c->tree;
    struct rdzv_state_info info;
    rdzv_state_get_info(c->state, &info);
    round_tree_clear(t);
    if (c->rules.tree_width <= 0 || info.nnodes <= c->rules.tree_width)
        return;
    map_init(&t->ranks);
    rdzv_state_get_members(c->state, &t->nodes);
    for (int i = 0; i < t->nodes.n; i++) {
        const struct rdzv_peer_entry *e = &t->nodes.e[i];
        void **value = map_put(&t->ranks, e->id.b, sizeof(e->id.b));
        if (value)
            *value = (void *)(uintptr_t)(i + 1);
        t->host = e->host ? i : t->host;
    }
}

/* Tells a node its parent, before the first message of a round. A node that does not listen is
 * nobody's parent. */
static void place_in_tree(struct caller *k)
{
    const struct coordinator *c = k->coordinator;
    const struct round_tree *t = &c->tree;
    struct rdzv_branch m = {.gen = t->nodes.gen, .peers = c->rules.elect};
    struct buf b = BUF_INIT;
    if (!t->nodes.n || generation_equal(k->branch, m.gen))
        return;
    int rank = (int)(uintptr_t)map_get(&t->ranks, k->id.b, sizeof(k->id.b)) - 1;
    if (rank < 0 || k->peer.own)
        return;
    int parent = tree_parent(rank, t->host, c->rules.tree_width);
    k->branch = m.gen;
    k->direct = false;
    k->below = k->peers_below = k->table_below = parent >= 0 && t->nodes.e[parent].port;
    if (k->below) {
        m.parent = t->nodes.e[parent].id;
        m.port = t->nodes.e[parent].port;
        strcpy(m.addr, t->nodes.e[parent].addr);
    }
    rdzv_put_branch(&b, &m);
    link_send_buf(k->link, &b);
}

/* Whether the node gets a message from its parent: each message once in a round; a repetition is
 * sent directly. */
static bool comes_by_tree(struct caller *k, bool *below)
{
    bool by_tree =
        *below && !k->direct && generation_equal(k->branch, k->coordinator->tree.nodes.gen);
    *below = false;
    return by_tree;
}

static void on_direct(struct caller *k, struct rd *body)
{
    const struct round_tree *t = &k->coordinator->tree;
    struct rdzv_direct m;
    if (!rdzv_get_direct(body, &m)) {
        coordinator_drop(k, "malformed message");
        return;
    }
    if (!generation_equal(m.gen, t->nodes.gen) || !generation_equal(k->branch, m.gen))
        return; /* of a round that is over */
    k->direct = true;
    request_log_send(&t->log, k->link, m.told);
    if (m.peers || m.table)
        rdzv_state_missed(k->coordinator->state, k->slot, m.peers, m.table);
}

/* Asks for the nodes' events and sends those of the job, if a launcher wants them. */
static void exchange_events(struct coordinator *c)
{
    if (!c->log)
        return;
    c->events_due |= c->log->wanted && !c->events_wanted;
    c->events_wanted |= c->log->wanted;
    if (!c->events_wanted || !c->events_due)
        return;
    c->events_due = false;
    for (uint32_t i = 0; i < c->ncallers; i++) {
        struct caller *k = c->callers[i];
        struct buf b = BUF_INIT;
        if (!k->link || !k->said_hello || k->peer.own)
            continue;
        if (!k->asked_for_events) {
            rdzv_put_want(&b);
            link_send_buf(k->link, &b);
            k->asked_for_events = true;
        }
        send_events(k);
    }
}

void coordinator_events_changed(struct coordinator *c)
{
    c->events_due = true;
}

static void coordinator_on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct caller *k = link_owner(l);
    struct rdzv_status st;
    link_hub_wake(k->coordinator->hub);
    if (!k->said_hello && type == RDZV_MSG_HELLO)
        on_hello(k, &body);
    else if (!k->said_hello && type == RDZV_MSG_PROBE)
        answer_probe(k);
    else if (!k->said_hello && type == RDZV_MSG_RELAY)
        on_relay(k, &body);
    else if (!k->said_hello && type == RDZV_MSG_ELSEWHERE)
        on_elsewhere(k, &body);
    else if (!k->said_hello && type == RDZV_MSG_BEAT)
        on_beat(k, &body);
    else if (k->said_hello && type == RDZV_MSG_BACK)
        k->comes_back = true;
    else if (k->said_hello && type == RDZV_MSG_PEERS)
        on_peers(k, &body);
    else if (k->said_hello && type == RDZV_MSG_WANT && rd_done(&body))
        on_want(k);
    else if (k->said_hello && type == RDZV_MSG_EVENTS)
        on_events(k, &body);
    else if (k->said_hello && type == RDZV_MSG_REQUEST)
        on_request(k, &body);
    else if (k->said_hello && type == RDZV_MSG_GATHER)
        on_gather(k, &body);
    else if (k->said_hello && (type == RDZV_MSG_ANSWER || type == RDZV_MSG_ANSWERS))
        on_answer(k, type, body);
    else if (k->said_hello && type == RDZV_MSG_DIRECT)
        on_direct(k, &body);
    else if (k->said_hello && type == RDZV_MSG_OUTPUT)
        on_output(k, &body);
    else if (k->said_hello && type == RDZV_MSG_STATUS && rdzv_get_status(&body, &st))
        rdzv_state_status(k->coordinator->state, k->slot, &st, lease_clock_ns());
    else
        coordinator_drop(k, "malformed message");
}

static void coordinator_on_end(struct link *l, enum rdzv_end how, const char *why)
{
    struct caller *k = link_owner(l);
    struct coordinator *c = k->coordinator;
    log_verbose("the connection from %s ended: %s", k->peer.addr[0] ? k->peer.addr : "here", why);
    link_close(l);
    if (how == RDZV_END_KEY)
        c->events.on_wrong_key(c->events.arg, &k->from);
    if (k->comes_back)
        how = RDZV_END_BROKEN;
    end_beats(k);
    if (k->said_hello)
        rdzv_state_closed(c->state, k->slot, how, lease_clock_ns());
    free_caller(k);
    link_hub_wake(c->hub);
}

static const struct link_events link_events = {coordinator_on_preamble, coordinator_on_frame,
                                               coordinator_on_end};

static void describe_peer(struct rdzv_peer *p, int fd, const struct netaddr *peer)
{
    struct netaddr own = {.len = sizeof(own.ss)};
    netaddr_ip(peer, p->addr);
    if (getsockname(fd, &own.sa, &own.len) < 0)
        own = *peer;
    netaddr_ip(&own, p->via);
    p->same_host = netaddr_same_ip(peer, &own) || netaddr_is_local(peer);
}

static void adopt(struct coordinator *c, int fd, const struct netaddr *peer,
                  const struct tls_key *key, const char *unwelcome)
{
    struct caller *k = new_caller(c);
    k->unwelcome = unwelcome;
    pending_add(&c->pending, &k->pending, peer);
    if (peer) {
        k->from = *peer;
        describe_peer(&k->peer, fd, peer);
        link_tune(fd, (uint32_t)(c->rules.dead_ns / 1000000));
    } else {
        k->peer.own = k->peer.same_host = true;
    }
    k->link = link_new(c->hub, fd, !peer, &link_events, k);
    if (!k->link) {
        free_caller(k);
        return;
    }
    if (key)
        link_protect(k->link, TLS_SERVER, key);
    pending_limit(&c->pending);
    link_hub_wake(c->hub);
}

void coordinator_adopt(struct coordinator *c, int fd, const struct netaddr *peer,
                       const struct tls_key *key)
{
    adopt(c, fd, peer, key, NULL);
}

void coordinator_turn_away(struct coordinator *c, int fd, const struct netaddr *peer,
                           const char *why)
{
    adopt(c, fd, peer, NULL, why);
}

/* -------------------------------------------------------------------------------------- arbiter */

struct generation coordinator_newest_list(const struct coordinator *c)
{
    return rdzv_state_newest_list(c->state);
}

uint64_t coordinator_dead_epoch(const struct coordinator *c)
{
    return rdzv_state_dead_epoch(c->state);
}

static void arbiter_joins(struct coordinator *c, const char *name, uint64_t now)
{
    /* The arbiter has the same id under every coordinator of the job, so that it is one voter. */
    struct rdzv_hello h = {.id = {"dlaunch arbiter"}, .node_rank = -1, .prev_rank = -1};
    struct caller *k = c->arbiter = new_caller(c);
    k->said_hello = true;
    text_set(h.run_id, sizeof(h.run_id), "%s", c->identity.run_id);
    text_set(h.version, sizeof(h.version), "%s", c->rules.version);
    text_set(h.host, sizeof(h.host), "%s", name);
    k->id = h.id;
    rdzv_state_hello(c->state, k->slot, &h, &k->peer, now);
}

void coordinator_hear_arbiter(struct coordinator *c, const char *name, uint64_t since_ns)
{
    uint64_t now = lease_clock_ns();
    if (c->closing || coordinator_ended(c))
        return;
    if (!c->arbiter)
        arbiter_joins(c, name, now);
    const struct rdzv_status st = {
        .phase = MEMBER_IDLE, .send_ns = now, .view_sent_ns = since_ns, .view_seen_ns = since_ns};
    rdzv_state_status(c->state, c->arbiter->slot, &st, now);
    link_hub_wake(c->hub);
}

/* -------------------------------------------------------------------------------------- actions */

static void note_addr(struct coordinator *c, const char *ip)
{
    void **value = map_put(&c->addrs, ip, strlen(ip));
    if (value)
        *value = c;
}

/* An address of this host proves nothing: every user of the host can connect from any of them.
 * Processes of this host are identified by their user instead (auth_whose()). */
static void forget_own_addrs(struct coordinator *c)
{
    struct netaddr own[OWN_ADDRS_MAX];
    char ip[ADDR_STRLEN];
    int n = netaddr_list_local(own, OWN_ADDRS_MAX);
    for (int i = 0; i < n; i++) {
        netaddr_ip(&own[i], ip);
        map_remove(&c->addrs, ip, strlen(ip));
    }
}

/* Sets whose workers may come to the store, before the table of a round goes out. */
static void note_addrs(struct coordinator *c, const struct rank_table *t)
{
    if (generation_equal(c->addrs_gen, t->gen))
        return;
    c->addrs_gen = t->gen;
    map_fini(&c->addrs, NULL);
    map_init(&c->addrs);
    for (int i = 0; i < t->nnodes; i++)
        note_addr(c, t->nodes[i].addr);
    for (uint32_t i = 0; i < c->ncallers; i++) {
        if (c->callers[i]->link && c->callers[i]->said_hello && !c->callers[i]->peer.own)
            note_addr(c, c->callers[i]->peer.addr);
    }
    forget_own_addrs(c);
}

bool coordinator_is_node(const struct coordinator *c, const struct netaddr *a)
{
    char ip[ADDR_STRLEN];
    netaddr_ip(a, ip);
    return !netaddr_is_loopback(a) && map_get(&c->addrs, ip, strlen(ip)) != NULL;
}

static void log_line(enum log_level level, const char *text)
{
    if (level == LOG_LEVEL_WARN)
        log_warn("%s", text);
    else if (level == LOG_LEVEL_NOTICE)
        log_notice("%s", text);
    else
        log_verbose("%s", text);
}

static void close_caller(struct caller *k, const struct rdzv_action *a)
{
    if (a->text) {
        struct buf b = BUF_INIT;
        rdzv_put_refusal(&b, a->retry, a->text);
        link_send_buf(k->link, &b);
        link_finish(k->link);
    } else {
        leave_link(k->link);
    }
    free_caller(k);
}

/* The arbiter ignores all actions but the job's end and its own removal. */
static void act_on_arbiter(struct coordinator *c, const struct rdzv_action *a)
{
    struct caller *k = c->arbiter;
    bool over = a->act == RDZV_ACT_VIEW && a->view.phase >= RDZV_FINISH;
    if (!over && a->act != RDZV_ACT_CLOSE)
        return;
    c->arbiter = NULL;
    if (over)
        rdzv_state_closed(c->state, k->slot, RDZV_END_CLOSED, lease_clock_ns());
    free_caller(k);
}

static bool is_for_a_caller(const struct rdzv_action *a)
{
    return a->act == RDZV_ACT_TABLE || a->act == RDZV_ACT_PEERS || a->act == RDZV_ACT_REPORT ||
           a->act == RDZV_ACT_VIEW || a->act == RDZV_ACT_NOTICE || a->act == RDZV_ACT_CLOSE;
}

static void act(struct coordinator *c, const struct rdzv_action *a)
{
    struct caller *k = a->conn < c->ncallers ? c->callers[a->conn] : NULL;
    struct buf b = BUF_INIT;
    if (k && k == c->arbiter && is_for_a_caller(a)) {
        act_on_arbiter(c, a);
        return;
    }
    switch (a->act) {
    case RDZV_ACT_LOG:
        log_line(a->level, a->text);
        break;
    case RDZV_ACT_EVENT:
        keep_event(c, a->event);
        break;
    case RDZV_ACT_NEW_ROUND:
        broadcast_new_round(&c->broadcast);
        shared_buf_unref(c->gathered);
        c->gathered = NULL;
        round_tree_begin(c);
        c->events.on_new_round(c->events.arg);
        break;
    case RDZV_ACT_TABLE:
        note_addrs(c, a->table);
        place_in_tree(k);
        if (!comes_by_tree(k, &k->table_below))
            broadcast_table(&c->broadcast, k->link, a->table);
        break;
    case RDZV_ACT_PEERS:
        place_in_tree(k);
        if (!comes_by_tree(k, &k->peers_below))
            broadcast_peers(&c->broadcast, k->link, a->ran, a->peers);
        break;
    case RDZV_ACT_REPORT:
        send_events(k); /* the node leaves when it has the report */
        broadcast_report(&c->broadcast, k->link, a->result);
        break;
    case RDZV_ACT_VIEW:
        if (a->view.group_rank >= 0 && (a->view.phase == RDZV_PREPARE || a->view.phase == RDZV_RUN))
            place_in_tree(k);
        rdzv_put_view(&b, &a->view);
        link_send_buf(k->link, &b);
        break;
    case RDZV_ACT_NOTICE:
        broadcast_notice(&c->broadcast, k->link, a->text);
        break;
    case RDZV_ACT_CLOSE:
        close_caller(k, a);
        break;
    case RDZV_ACT_FINISHED:
        c->finished = true;
        c->events.on_finished(c->events.arg);
        break;
    }
}

static void coordinator_on_timer(uv_timer_t *timer)
{
    struct coordinator *c = container_of(timer, struct coordinator, timer);
    uint64_t now = lease_clock_ns();
    c->timer_at = UINT64_MAX;
    look_at_beats(c, now); /* the clock was read before: see beat.h */
    rdzv_state_tick(c->state, now);
    link_hub_wake(c->hub);
}

static void coordinator_set_timer(struct coordinator *c, uint64_t now)
{
    uint64_t at = rdzv_state_deadline(c->state);
    if (at == c->timer_at)
        return;
    c->timer_at = at;
    if (at == UINT64_MAX)
        uv_timer_stop(&c->timer);
    else
        uv_timer_start(&c->timer, coordinator_on_timer,
                       at > now ? (at - now + 999999) / 1000000 : 0, 0);
}

void coordinator_advance(struct coordinator *c)
{
    struct rdzv_action a;
    uint64_t now = lease_clock_ns();
    while (!c->closing && rdzv_state_next(c->state, &a, now))
        act(c, &a);
    if (c->closing)
        return;
    exchange_events(c);
    if (c->beats)
        beats_grant(c->beats, rdzv_state_lease_until(c->state, now));
    coordinator_set_timer(c, now);
}

/* ------------------------------------------------------------------------------- open and close */

static uint64_t draw(void)
{
    uint64_t random = 0;
    if (uv_random(NULL, NULL, &random, sizeof(random), 0, NULL) < 0)
        random = lease_clock_ns() ^ (uint64_t)getpid() << 20;
    return random;
}

struct coordinator *coordinator_new(struct link_hub *hub, struct beats *beats,
                                    const struct rdzv_rules *rules, const char *host, int pid,
                                    const struct rdzv_electorate *electorate,
                                    const struct coordinator_events *events, struct event_log *log)
{
    struct coordinator *c = xcalloc(1, sizeof(*c));
    c->hub = hub;
    c->beats = beats;
    c->rules = *rules;
    c->rules.events = log != NULL;
    c->log = log;
    c->events = *events;
    c->free_slot = NO_SLOT;
    c->timer_at = UINT64_MAX;
    map_init(&c->addrs);
    map_init(&c->output);
    c->tree.host = -1;
    uvx_scope_init(&c->scope, hub->loop);
    uv_timer_init(hub->loop, &c->timer);
    uvx_own(&c->scope, &c->timer);
    pending_init(&c->pending, hub->loop, PENDING_MAX(rules->max_nodes + rules->spares),
                 coordinator_drop_pending);
    uvx_own(&c->scope, &c->pending.timer);
    text_set(c->identity.run_id, sizeof(c->identity.run_id), "%s", rules->run_id);
    text_set(c->identity.host, sizeof(c->identity.host), "%s", host);
    c->identity.pid = pid;
    c->elected = electorate != NULL;
    if (log && !electorate)
        event_log_lead(log, true);
    if (electorate) {
        struct rdzv_electorate e = *electorate;
        e.random = draw();
        c->state = rdzv_state_stand(&c->rules, &e, lease_clock_ns());
    } else {
        c->state = rdzv_state_new(&c->rules, rdzv_epoch(1, draw()), lease_clock_ns());
    }
    link_hub_wake(hub);
    return c;
}

bool coordinator_ended(const struct coordinator *c)
{
    struct rdzv_state_info info;
    rdzv_state_get_info(c->state, &info);
    return info.finished;
}

bool coordinator_leads(const struct coordinator *c)
{
    struct rdzv_state_info info;
    rdzv_state_get_info(c->state, &info);
    return c->elected && !info.standing && !info.finished;
}

bool coordinator_is_elected(const struct coordinator *c)
{
    return c->elected;
}

bool coordinator_stands(const struct coordinator *c)
{
    struct rdzv_state_info info;
    rdzv_state_get_info(c->state, &info);
    return info.standing;
}

bool coordinator_has_begun(const struct coordinator *c)
{
    struct rdzv_state_info info;
    rdzv_state_get_info(c->state, &info);
    return info.gen.counter > 0;
}

bool coordinator_finished(const struct coordinator *c)
{
    return c->finished;
}

static void free_coordinator(void *arg)
{
    struct coordinator *c = arg;
    void (*on_closed)(void *arg) = c->on_closed;
    void *on_closed_arg = c->on_closed_arg;
    rdzv_state_free(c->state);
    for (uint32_t i = 0; i < c->ncallers; i++)
        free(c->callers[i]);
    free(c->callers);
    map_fini(&c->addrs, NULL);
    map_fini(&c->output, NULL);
    round_tree_clear(&c->tree);
    pending_fini(&c->pending);
    broadcast_fini(&c->broadcast);
    allgather_fini(&c->allgather);
    shared_buf_unref(c->gathered);
    free(c);
    on_closed(on_closed_arg);
}

void coordinator_dismiss(struct coordinator *c)
{
    for (uint32_t i = 0; i < c->ncallers; i++) {
        struct caller *k = c->callers[i];
        if (!k->link)
            continue;
        link_finish(k->link);
        free_caller(k);
    }
}

void coordinator_close(struct coordinator *c, void (*on_closed)(void *arg), void *arg)
{
    for (uint32_t i = 0; i < c->ncallers; i++)
        end_beats(c->callers[i]);
    if (c->beats)
        beats_grant(c->beats, 0);
    c->closing = true;
    if (c->log)
        event_log_lead(c->log, false);
    c->on_closed = on_closed;
    c->on_closed_arg = arg;
    uvx_scope_close(&c->scope, free_coordinator, c);
}
