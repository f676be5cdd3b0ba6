#include "rendezvous/wire/branch.h"

#include <stdlib.h>
#include <string.h>

#include "core/list.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/wire/connector.h"
#include "rendezvous/wire/request_log.h"

struct branch_child {
    struct list_node node;
    struct branch *branch;
    struct link *link;
    struct generation gen; /* of the round for which the child has registered */
};

/* A request whose answers are under way. */
struct branch_request {
    struct list_node node;
    struct tree_answers answers;
    uint64_t due_ms; /* when the answers go up; UINT64_MAX: there are none */
    uint64_t end_ms;
};

struct branch {
    struct link_hub *hub;
    const char *run_id;
    struct node_id id;
    struct branch_events events;
    struct auth *auth;
    struct rdzv_branch place; /* gen is 0: in no tree */
    struct link *up;          /* to the parent; NULL: none */
    struct connector *connector;
    bool direct;                            /* the coordinator stands in for the parent */
    struct shared_buf *ran, *peers, *table; /* of the round of `place`; NULL: not here yet */
    struct request_log log;
    struct list_node children, requests;
    int nchildren;
    uv_timer_t timer;        /* of the requests */
    uv_timer_t view_timeout; /* a view waits for a message */
    bool stopped;
};

/* ------------------------------------------------------------------------------------ the parent
 */

/* Makes the coordinator send, until the next round, the messages that the parent would have
 * sent. */
static void branch_go_direct(struct branch *b, const char *why)
{
    const struct rdzv_direct m = {.gen = b->place.gen,
                                  .told = b->log.last,
                                  .peers = b->place.peers && !b->peers,
                                  .table = !b->table};
    struct buf f = BUF_INIT;
    connector_cancel(b->connector);
    b->connector = NULL;
    if (b->up)
        link_close(b->up);
    b->up = NULL;
    if (b->place.port == 0 || b->stopped)
        return;
    if (!b->direct)
        log_verbose("in the tree of launchers, the one above this node is not in reach: %s", why);
    b->direct = true;
    rdzv_put_direct(&f, &m);
    b->events.on_send(b->events.arg, &f);
}

static void branch_register(struct branch *b)
{
    struct rdzv_child m = {.parent = b->place.parent, .gen = b->place.gen, .told = b->log.last};
    struct buf f = BUF_INIT;
    text_set(m.run_id, sizeof(m.run_id), "%s", b->run_id);
    rdzv_put_child(&f, &m);
    link_send_buf(b->up, &f);
}

static bool up_on_preamble(struct link *l, uint32_t version)
{
    if (version == RDZV_PROTOCOL)
        return true;
    branch_go_direct(link_owner(l), "another version");
    return false;
}

static void up_on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct branch *b = link_owner(l);
    bool message = type == RDZV_MSG_PEERS || type == RDZV_MSG_TABLE;
    link_hub_wake(b->hub);
    if ((!message && type != RDZV_MSG_TOLD) || !branch_pass(b, type, body))
        branch_go_direct(b, "it sent a malformed message");
    else if (message)
        b->events.on_message(b->events.arg, type, body);
}

static void up_on_end(struct link *l, enum rdzv_end how, const char *why)
{
    (void)how;
    branch_go_direct(link_owner(l), why);
}

static const struct link_events up_events = {up_on_preamble, up_on_frame, up_on_end};

static void branch_on_connected(void *arg, int fd, const struct netaddr *peer, bool refused,
                                const char *why)
{
    struct branch *b = arg;
    (void)peer, (void)refused;
    b->connector = NULL;
    if (fd < 0) {
        branch_go_direct(b, why);
        return;
    }
    link_tune(fd, 10 * BRANCH_WAIT_MS);
    b->up = link_new(b->hub, fd, false, &up_events, b);
    if (!b->up) {
        branch_go_direct(b, "libuv does not take the connection");
        return;
    }
    if (b->auth)
        link_auth(b->up, b->auth);
    link_set_frame_max(b->up, RDZV_FRAME_MAX);
    branch_register(b);
    log_verbose("in the tree of launchers, this node is below the one at %s port %d", b->place.addr,
                b->place.port);
}

static void branch_connect(struct branch *b)
{
    struct netaddr a;
    struct err e = ERR_INIT;
    if (!netaddr_parse_ip(&a, b->place.addr, b->place.port))
        branch_go_direct(b, "not an address");
    else if (b->auth && auth_wants_tls(b->auth, &a) && auth_ready(b->auth, &e) < 0)
        branch_go_direct(b, e.msg);
    else
        b->connector = connector_new(b->hub->loop, &a, 1, BRANCH_WAIT_MS, branch_on_connected, b);
}

/* ---------------------------------------------------------------------------------- the children
 */

static void child_send_all(struct branch_child *c, uint32_t told)
{
    struct branch *b = c->branch;
    struct shared_buf *const messages[] = {b->ran, b->peers, b->table};
    if (!generation_equal(c->gen, b->place.gen))
        return; /* sent when this node's own BRANCH has come, or never */
    for (size_t i = 0; i < ARRAY_LEN(messages); i++) {
        if (messages[i])
            link_send(c->link, messages[i]);
    }
    request_log_send(&b->log, c->link, told);
}

static void child_drop(struct branch_child *c)
{
    link_close(c->link);
    list_remove(&c->node);
    c->branch->nchildren--;
    free(c);
}

static void branch_send_down(struct branch *b, struct shared_buf *s)
{
    for (struct list_node *n = b->children.next; n != &b->children; n = n->next) {
        struct branch_child *c = container_of(n, struct branch_child, node);
        if (generation_equal(c->gen, b->place.gen))
            link_send(c->link, s);
    }
}

static bool child_register(struct branch_child *c, struct rd *body)
{
    struct rdzv_child m;
    if (!rdzv_get_child(body, &m) || strcmp(m.run_id, c->branch->run_id) != 0 ||
        !node_id_equal(&m.parent, &c->branch->id))
        return false;
    c->gen = m.gen;
    child_send_all(c, m.told);
    return true;
}

static bool branch_collect(struct branch *b, const struct rdzv_answers *m);
static void branch_send_up(struct branch *b, struct buf *frame);

static bool child_on_preamble(struct link *l, uint32_t version)
{
    (void)l, (void)version; /* the frame follows it in the buffer */
    return true;
}

static void child_on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct branch_child *c = link_owner(l);
    struct rdzv_answers answers;
    struct rd whole = body;
    struct buf f = BUF_INIT;
    link_hub_wake(c->branch->hub);
    if (type == RDZV_MSG_ANSWERS && rdzv_get_answers(&body, &answers)) {
        if (branch_collect(c->branch, &answers))
            return;
        rdzv_put_frame(&f, type, &whole); /* too late for the other answers */
        branch_send_up(c->branch, &f);
    } else if (type != RDZV_MSG_CHILD || !child_register(c, &body)) {
        child_drop(c);
    }
}

static void child_on_end(struct link *l, enum rdzv_end how, const char *why)
{
    (void)how, (void)why;
    child_drop(link_owner(l));
}

static const struct link_events child_events = {child_on_preamble, child_on_frame, child_on_end};

bool branch_adopt(struct branch *b, struct link *l, struct rd body)
{
    struct branch_child *c = xcalloc(1, sizeof(*c));
    c->branch = b;
    c->link = l;
    if (b->stopped || b->nchildren == BRANCH_CHILDREN || !child_register(c, &body)) {
        free(c);
        return false;
    }
    list_append(&b->children, &c->node);
    b->nchildren++;
    link_set_owner(l, &child_events, c);
    link_set_frame_max(l, RDZV_FRAME_MAX);
    return true;
}

/* --------------------------------------------------------------------------------------- answers
 */

static void branch_send_up(struct branch *b, struct buf *frame)
{
    if (b->up)
        link_send_buf(b->up, frame);
    else
        b->events.on_send(b->events.arg, frame);
}

static void request_flush(struct branch *b, struct branch_request *q)
{
    struct buf f = BUF_INIT;
    q->due_ms = UINT64_MAX;
    if (tree_answers_take(&q->answers, b->events.merge, b->events.merge_arg, &f))
        branch_send_up(b, &f);
}

static void request_end(struct branch_request *q)
{
    list_remove(&q->node);
    tree_answers_fini(&q->answers);
    free(q);
}

static void branch_on_timer(uv_timer_t *timer);

/* The timer runs until the first request is due or ends. */
static void branch_set_timer(struct branch *b)
{
    uint64_t now = uv_now(b->hub->loop), next = UINT64_MAX;
    for (struct list_node *n = b->requests.next; n != &b->requests; n = n->next) {
        const struct branch_request *q = container_of(n, struct branch_request, node);
        uint64_t at = q->due_ms < q->end_ms ? q->due_ms : q->end_ms;
        next = at < next ? at : next;
    }
    if (next != UINT64_MAX)
        uv_timer_start(&b->timer, branch_on_timer, next > now ? next - now : 0, 0);
}

static void branch_on_timer(uv_timer_t *timer)
{
    struct branch *b = container_of(timer, struct branch, timer);
    uint64_t now = uv_now(b->hub->loop);
    for (struct list_node *n = b->requests.next, *after; n != &b->requests; n = after) {
        struct branch_request *q = container_of(n, struct branch_request, node);
        after = n->next;
        if (now >= q->due_ms || now >= q->end_ms)
            request_flush(b, q);
        if (now >= q->end_ms)
            request_end(q);
    }
    branch_set_timer(b);
}

static struct branch_request *find_request(struct branch *b, const struct node_id *to,
                                           enum request_kind kind, uint64_t id)
{
    for (struct list_node *n = b->requests.next; n != &b->requests; n = n->next) {
        struct branch_request *q = container_of(n, struct branch_request, node);
        if (q->answers.kind == kind && q->answers.id == id && node_id_equal(&q->answers.to, to))
            return q;
    }
    return NULL;
}

static void branch_add_answer(struct branch *b, struct branch_request *q, const uint8_t *p,
                              size_t len)
{
    tree_answers_add(&q->answers, p, len);
    if (q->due_ms != UINT64_MAX)
        return;
    q->due_ms = uv_now(b->hub->loop) + BRANCH_ANSWERS_MS;
    branch_set_timer(b);
}

/* Sends the answers up after the last message of this node and its children, or when they are
 * larger than TREE_ANSWERS_MAX. */
static void branch_added(struct branch *b, struct branch_request *q)
{
    q->answers.have++;
    if (tree_answers_complete(&q->answers)) {
        request_flush(b, q);
        request_end(q);
    } else if (q->answers.items.len > TREE_ANSWERS_MAX) {
        request_flush(b, q);
    }
}

static bool branch_collect(struct branch *b, const struct rdzv_answers *m)
{
    struct branch_request *q = find_request(b, &m->to, m->kind, m->id);
    struct rdzv_answers rest = *m;
    struct rdzv_answer a;
    if (!q)
        return false;
    while (rdzv_next_answer(&rest, &a))
        branch_add_answer(b, q, a.data, a.len);
    branch_added(b, q);
    return true;
}

bool branch_answer(struct branch *b, const struct rdzv_answer *a)
{
    struct branch_request *q = find_request(b, &a->to, a->kind, a->id);
    if (!q)
        return false;
    branch_add_answer(b, q, a->data, a->len);
    branch_added(b, q);
    return true;
}

/* ------------------------------------------------------------------------------------- requests */

static int registered_children(const struct branch *b)
{
    int n = 0;
    for (const struct list_node *l = b->children.next; l != &b->children; l = l->next)
        n += generation_equal(container_of(l, struct branch_child, node)->gen, b->place.gen);
    return n;
}

static bool branch_told(struct branch *b, struct rd body)
{
    struct generation gen;
    struct rdzv_request r;
    struct rd whole = body;
    struct buf f = BUF_INIT;
    uint32_t number;
    if (!rdzv_get_told(&body, &gen, &number, &r))
        return false;
    if (!generation_equal(gen, b->place.gen) || number <= b->log.last)
        return true; /* the message has come both ways, or belongs to another round */
    rdzv_put_frame(&f, RDZV_MSG_TOLD, &whole);
    struct shared_buf *s = shared_buf_new(&f);
    request_log_add(&b->log, number, s);
    branch_send_down(b, s);
    shared_buf_unref(s);
    if (request_is_collected(r.kind) && !find_request(b, &r.from, r.kind, r.id)) {
        struct branch_request *q = xcalloc(1, sizeof(*q));
        q->answers = (struct tree_answers){
            .to = r.from, .kind = r.kind, .id = r.id, .wanted = 1 + registered_children(b)};
        q->due_ms = UINT64_MAX;
        q->end_ms = uv_now(b->hub->loop) + BRANCH_REQUESTS_MS;
        list_append(&b->requests, &q->node);
        branch_set_timer(b);
    }
    b->events.on_request(b->events.arg, &r);
    return true;
}

/* ------------------------------------------------------------------------------- the coordinator
 */

static void forget_round(struct branch *b)
{
    struct shared_buf **const messages[] = {&b->ran, &b->peers, &b->table};
    for (size_t i = 0; i < ARRAY_LEN(messages); i++) {
        shared_buf_unref(*messages[i]);
        *messages[i] = NULL;
    }
    request_log_clear(&b->log);
}

void branch_move(struct branch *b, const struct rdzv_branch *place, struct auth *auth)
{
    bool same = b->up && !b->direct && b->place.port == place->port &&
                node_id_equal(&b->place.parent, &place->parent);
    if (generation_equal(b->place.gen, place->gen)) { /* on a new connection to the coordinator */
        if (b->direct)
            branch_go_direct(b, "lost");
        return;
    }
    uv_timer_stop(&b->view_timeout);
    forget_round(b);
    b->place = *place;
    b->auth = auth;
    b->direct = false;
    if (!same) {
        connector_cancel(b->connector);
        b->connector = NULL;
        if (b->up)
            link_close(b->up);
        b->up = NULL;
        if (place->port)
            branch_connect(b);
    } else {
        branch_register(b);
    }
}

static void on_view_timeout(uv_timer_t *timer)
{
    branch_go_direct(container_of(timer, struct branch, view_timeout), "it sends nothing");
}

bool branch_awaits(struct branch *b, const struct rdzv_view *v)
{
    bool below = b->place.port && v->group_rank >= 0 && generation_equal(v->gen, b->place.gen);
    bool awaits = below && ((v->phase == RDZV_PREPARE && b->place.peers && !b->peers) ||
                            (v->phase == RDZV_RUN && !b->table));
    if (!awaits)
        uv_timer_stop(&b->view_timeout);
    else if (!uv_is_active((uv_handle_t *)&b->view_timeout))
        uv_timer_start(&b->view_timeout, on_view_timeout, BRANCH_WAIT_MS, 0);
    return awaits;
}

static void branch_keep(struct branch *b, struct shared_buf **place, uint8_t type, struct rd body)
{
    struct buf f = BUF_INIT;
    rdzv_put_frame(&f, type, &body);
    shared_buf_unref(*place);
    *place = shared_buf_new(&f);
    branch_send_down(b, *place);
}

bool branch_pass(struct branch *b, uint8_t type, struct rd body)
{
    struct generation gen = rdzv_peek_gen(body);
    bool current = generation_equal(gen, b->place.gen);
    if (type == RDZV_MSG_TOLD)
        return branch_told(b, body);
    if (b->place.gen.counter == 0)
        return true;
    if (type == RDZV_MSG_TABLE && current)
        branch_keep(b, &b->table, type, body);
    else if (type == RDZV_MSG_PEERS && current)
        branch_keep(b, &b->peers, type, body);
    else if (type == RDZV_MSG_PEERS && generation_before(gen, b->place.gen) && !b->peers)
        branch_keep(b, &b->ran, type,
                    body); /* the older list is sent before the list of the round */
    return true;
}

/* ----------------------------------------------------------------------------- start and end */

struct branch *branch_new(struct link_hub *hub, struct uvx_scope *scope, const char *run_id,
                          const struct node_id *id, const struct branch_events *events)
{
    struct branch *b = xcalloc(1, sizeof(*b));
    b->hub = hub;
    b->run_id = run_id;
    b->id = *id;
    b->events = *events;
    list_init(&b->children);
    list_init(&b->requests);
    uv_timer_init(hub->loop, &b->timer);
    uvx_own(scope, &b->timer);
    uv_timer_init(hub->loop, &b->view_timeout);
    uvx_own(scope, &b->view_timeout);
    return b;
}

void branch_stop(struct branch *b)
{
    b->stopped = true;
    connector_cancel(b->connector);
    b->connector = NULL;
    b->up = NULL;
    while (!list_alone(&b->requests))
        request_end(container_of(b->requests.next, struct branch_request, node));
}

void branch_free(struct branch *b)
{
    if (!b)
        return;
    for (struct list_node *n = b->children.next, *next; n != &b->children; n = next) {
        next = n->next;
        free(container_of(n, struct branch_child, node));
    }
    forget_round(b);
    free(b);
}
