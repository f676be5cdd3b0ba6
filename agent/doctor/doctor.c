#include "agent/doctor/doctor.h"

#include <errno.h>
#include <math.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/doctor/checks.h"
#include "agent/doctor/facts.h"
#include "agent/doctor/path_test.h"
#include "agent/doctor/paths.h"
#include "agent/process/data_socket.h"
#include "agent/process/spawn.h"
#include "agent/report/json_text.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "core/uvx.h"
#include "rendezvous/rdzv.h"

enum {
    ROUNDS_MOST = 15, /* of the tournament; more nodes meet some others only */
    AGAIN_MOST = 16,  /* paths that are measured again, each alone, at a time */
    AGAIN_TIMES = 3,  /* how often */
    BAD_MATCHES = 2,  /* a node with so many is spared the rest of the tournament */
    MATCH_ANSWER_MS = PATH_TEST_MS + PATH_TEST_CALL_MS + 1000,
    RESULT_ID = 1, /* of the answer that is the result; requests count from 2 */
};

struct doctor {
    uv_loop_t loop;
    struct uvx_scope scope;
    uv_timer_t timer; /* the leader's: for the answers to its request */
    const struct job_spec *job;
    struct rdzv *rdzv;
    struct spawner *spawner;
    struct facts_run *facts_run;
    json_t *facts;
    const char *no_facts; /* why there are none */
    bool facts_known, done;
    uint64_t started_ns;
    const struct rank_table *table;
    int group_rank;
    int door_fd;  /* where the other nodes call; -1: closed */
    struct owed { /* a request for the facts, which are not there yet */
        bool any;
        struct rdzv_request request;
        uint64_t wall_ns;
    } owed;
    struct {
        uv_work_t work;
        bool busy;
        struct rdzv_request request;
        struct path_test match;
        int peer;
    } match;
    int exit_status, nclosing;

    /* The leader, the node with rank 0. */
    enum { ASLEEP, ASKING, PLAYING, REPEATING, OVER } phase;
    struct node_facts *nodes; /* of the table; NULL: this node does not lead */
    struct pair_list pairs;
    struct node_id *ids;
    bool *answered;
    int *bad; /* matches of each node */
    json_t **answers;
    int nanswers; /* one for each node; the table is gone when they are freed */
    int missing;  /* answers */
    uint64_t request_id, asked_wall_ns, seed;
    int round, rounds;
    int again[AGAIN_MOST][2], nagain, times;
};

static void send_answer(struct doctor *d, const struct rdzv_request *r, const json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    if (text && strlen(text) <= RDZV_ANSWER_MAX) {
        const struct rdzv_answer a = request_answer(r, text, strlen(text));
        rdzv_answer(d->rdzv, &a);
    }
    free(text);
}

/* ------------------------------------------------------------------------------------- every node
 */

static void answer_facts(struct doctor *d)
{
    struct rdzv_info info;
    char id[2 * sizeof(info.id.b) + 1];
    if (!d->facts_known || !d->owed.any)
        return;
    d->owed.any = false;
    rdzv_get_info(d->rdzv, &info);
    for (size_t i = 0; i < sizeof(info.id.b); i++)
        snprintf(id + 2 * i, 3, "%02x", info.id.b[i]);
    json_t *j = json_pack("{s:i,s:s,s:I,s:I}", "node", d->group_rank, "id", id, "received",
                          (json_int_t)d->owed.wall_ns, "sent", (json_int_t)wall_ns());
    if (d->facts)
        json_object_set(j, "facts", d->facts);
    else
        json_object_set_new(j, "missing", json_string(d->no_facts));
    send_answer(d, &d->owed.request, j);
    json_decref(j);
}

static void on_facts(void *arg, json_t *facts, const char *why)
{
    struct doctor *d = arg;
    d->facts = facts ? json_incref(facts) : NULL;
    d->no_facts = why;
    d->facts_known = true;
    answer_facts(d);
}

/* On a thread of libuv's pool. */
static void play(uv_work_t *work)
{
    struct doctor *d = container_of(work, struct doctor, match.work);
    path_test_run(&d->match.match);
}

static void on_played(uv_work_t *work, int status)
{
    struct doctor *d = container_of(work, struct doctor, match.work);
    const struct path_test *m = &d->match.match;
    (void)status;
    d->match.busy = false;
    if (d->done)
        return;
    json_t *j =
        json_pack("{s:i,s:i,s:b,s:i,s:i,s:f,s:f}", "node", d->group_rank, "peer", d->match.peer,
                  "caller", (int)m->caller, "stage", (int)m->stage, "errno", m->error, "rtt_us",
                  m->rtt_us, "bps", m->out_bps < m->in_bps ? m->out_bps : m->in_bps);
    send_answer(d, &d->match.request, j);
    json_decref(j);
}

/* Plays this node's match of the round, or answers that it has none. */
static void on_match_request(struct doctor *d, const struct rdzv_request *r, const json_t *what)
{
    const json_t *pair = json_object_get(what, "pair");
    int me = d->group_rank, peer = -1;
    if (d->table && pair) {
        int a = (int)json_integer_value(json_array_get(pair, 0));
        int b = (int)json_integer_value(json_array_get(pair, 1));
        peer = me == a ? b : me == b ? a : -1;
    } else if (d->table) {
        int round = (int)json_integer_value(json_object_get(what, "round"));
        peer = path_test_partner(d->table->nnodes, round, me);
        if (parse_has(r->doctor.skipped, me) || parse_has(r->doctor.skipped, peer))
            peer = -1;
    }
    if (peer < 0 || peer >= d->table->nnodes || d->match.busy) {
        json_t *none = json_pack("{s:i}", "node", me);
        send_answer(d, r, none);
        json_decref(none);
        return;
    }
    const struct rank_table_node *other = &d->table->nodes[peer];
    d->match.request = *r;
    d->match.peer = peer;
    d->match.match = (struct path_test){
        .listen_fd = d->door_fd,
        .nonce = (uint64_t)json_integer_value(json_object_get(what, "nonce")),
        .caller = me < peer,
        .longer = pair != NULL,
    };
    netaddr_parse_ip(&d->match.match.peer, other->addr, other->ports[0]);
    d->match.busy = true;
    uv_queue_work(&d->loop, &d->match.work, play, on_played);
}

static void on_request(void *arg, const struct rdzv_request *r)
{
    struct doctor *d = arg;
    if (r->kind != REQUEST_DOCTOR)
        return;
    json_t *what = json_loads(r->doctor.question, 0, NULL);
    if (json_object_get(what, "nonce")) {
        on_match_request(d, r, what);
    } else {
        d->owed = (struct owed){.any = true, .request = *r, .wall_ns = wall_ns()};
        answer_facts(d);
    }
    json_decref(what);
}

/* ------------------------------------------------------------------------------------- the leader
 */

static void next_phase(struct doctor *d);

static void on_silence(uv_timer_t *t)
{
    next_phase(container_of(t, struct doctor, timer));
}

/* Asks all nodes; next_phase() follows when all have answered, or `ms` are over. */
static void ask(struct doctor *d, json_t *what, const char *skip, uint64_t ms)
{
    struct rdzv_request r = {.kind = REQUEST_DOCTOR, .id = ++d->request_id};
    char *text = json_dumps(what, JSON_COMPACT);
    snprintf(r.doctor.question, sizeof(r.doctor.question), "%s", text ? text : "");
    snprintf(r.doctor.skipped, sizeof(r.doctor.skipped), "%s", skip);
    free(text);
    json_decref(what);
    d->missing = d->table->nnodes;
    for (int i = 0; i < d->table->nnodes; i++) {
        json_decref(d->answers[i]);
        d->answers[i] = NULL;
    }
    d->asked_wall_ns = wall_ns();
    uv_timer_start(&d->timer, on_silence, rdzv_request(d->rdzv, &r) ? ms : 0, 0);
}

static void ask_for_facts(struct doctor *d)
{
    uint64_t more =
        d->job->doctor.node_check ? (uint64_t)(d->job->doctor.node_check_timeout * 1e3) : 0;
    d->phase = ASKING;
    ask(d, json_object(), "", FACTS_MS + 1000 + more);
}

static bool parse_id(const char *hex, struct node_id *out)
{
    for (size_t i = 0; i < sizeof(out->b); i++) {
        if (sscanf(hex + 2 * i, "%2hhx", &out->b[i]) != 1)
            return false;
    }
    return true;
}

/* NTP's two differences; the message that took longer explains at most so much of them. */
static void note_clock(struct doctor *d, struct node_facts *node, const json_t *answer,
                       uint64_t now)
{
    double t0 = 0, t3 = (double)(now - d->asked_wall_ns);
    double t1 = (double)(json_integer_value(json_object_get(answer, "received")) -
                         (json_int_t)d->asked_wall_ns);
    double t2 = (double)(json_integer_value(json_object_get(answer, "sent")) -
                         (json_int_t)d->asked_wall_ns);
    node->clock_s = ((t1 - t0) + (t2 - t3)) / 2e9;
    node->clock_error_s = ((t3 - t0) - (t2 - t1)) / 2e9;
}

static void set(char **to, const char *text)
{
    free(*to);
    *to = xstrdup(text);
}

static void take_facts(struct doctor *d, int i, const json_t *answer)
{
    const struct rank_table_node *n = &d->table->nodes[i];
    struct node_facts *node = &d->nodes[i];
    const json_t *facts = json_object_get(answer, "facts");
    const char *id = json_string_value(json_object_get(answer, "id"));
    const char *missing = json_string_value(json_object_get(answer, "missing"));
    node_facts_get(node, facts);
    if (!facts || missing)
        set(&node->missing, missing ? missing : answer ? "it took too long" : "no answer");
    node->node = i;
    node->nproc = n->nproc;
    set(&node->host, n->host);
    set(&node->addr, n->addr);
    if (answer && i != d->group_rank)
        note_clock(d, node, answer,
                   (uint64_t)json_integer_value(json_object_get(answer, "arrived")));
    else if (answer)
        node->clock_s = 0;
    d->answered[i] = id && strlen(id) == 2 * sizeof(d->ids[i].b) && parse_id(id, &d->ids[i]);
}

static double number_of(const json_t *answer, const char *key)
{
    const json_t *v = json_object_get(answer, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void set_error(struct pair_facts *p, const json_t *answer, int from, int to)
{
    p->error.at = from;
    p->error.to = to;
    p->error.stage = number_of(answer, "stage");
    p->error.code = number_of(answer, "errno");
}

static bool went_well(const json_t *answer)
{
    return json_integer_value(json_object_get(answer, "stage")) == PATH_TEST_OVER;
}

/* Joins the reports of both sides of each match. A match that only one side reports is left out. */
static void take_matches(struct doctor *d)
{
    for (int b = 0; b < d->table->nnodes; b++) {
        const json_t *of_b = d->answers[b], *of_a;
        int a = json_object_get(of_b, "peer")
                    ? (int)json_integer_value(json_object_get(of_b, "peer"))
                    : -1;
        if (a < 0 || a >= b) /* each match once, by its server */
            continue;
        of_a = d->answers[a];
        if (!of_a || json_integer_value(json_object_get(of_a, "peer")) != b)
            continue;
        const struct rank_table_node *n = d->table->nodes;
        struct pair_facts pair;
        pair_facts_init(&pair);
        pair.a = a;
        pair.b = b;
        pair.local = strcmp(n[a].addr, n[b].addr) == 0;
        pair.rtt_us = number_of(of_a, "rtt_us");
        pair.bps = number_of(of_a, "bps");
        if (!went_well(of_a))
            set_error(&pair, of_a, a, b);
        else if (!went_well(of_b))
            set_error(&pair, of_b, b, a);
        d->bad[a] += !isnan(pair.error.at);
        d->bad[b] += !isnan(pair.error.at);
        paths_take(&d->pairs, &pair);
    }
}

static json_t *match_order(struct doctor *d)
{
    return json_pack("{s:I}", "nonce", (json_int_t)(d->seed << 16 | (d->request_id & 0xffff)));
}

/* The next round of the tournament, without nodes that have shown that they reach nobody. */
static bool ask_for_round(struct doctor *d)
{
    char skip[224] = "";
    size_t len = 0;
    json_t *what;
    if (d->round == d->rounds)
        return false;
    for (int i = 0; i < d->table->nnodes && len + 12 < sizeof(skip); i++) {
        if (d->bad[i] >= BAD_MATCHES)
            len += (size_t)snprintf(skip + len, sizeof(skip) - len, "%s%d", len ? "," : "", i);
    }
    d->phase = PLAYING;
    what = match_order(d);
    json_object_set_new(what, "round", json_integer(d->round++));
    ask(d, what, skip, MATCH_ANSWER_MS);
    return true;
}

/* One path after the other: what disturbed the first measurement is not there then. */
static bool ask_again(struct doctor *d)
{
    if (d->nagain == 0 && d->times++ < AGAIN_TIMES)
        d->nagain = paths_suspects(&d->pairs, d->table->nnodes, d->again, AGAIN_MOST);
    if (d->nagain == 0)
        return false;
    const int *pair = d->again[--d->nagain];
    json_t *what = match_order(d);
    json_object_set_new(what, "pair", json_pack("[i,i]", pair[0], pair[1]));
    d->phase = REPEATING;
    ask(d, what, "", MATCH_ANSWER_MS);
    return true;
}

static json_t *make_result(struct doctor *d)
{
    struct problems all = {0};
    struct path_figures f;
    json_t *list = json_array(), *pairs = json_array(), *nodes = json_array(), *result;
    checks_of_job(d->nodes, (size_t)d->table->nnodes, &d->pairs, &all);
    for (size_t i = 0; i < all.n; i++)
        json_array_append_new(list, problem_json(&all.p[i]));
    for (size_t i = 0; i < d->pairs.n; i++)
        json_array_append_new(pairs, pair_facts_json(&d->pairs.v[i]));
    for (int i = 0; i < d->table->nnodes; i++)
        json_array_append_new(nodes, node_facts_json(&d->nodes[i]));
    result = json_pack("{s:b,s:i,s:i,s:f,s:o,s:o,s:o}", "ok", all.n == 0, "nnodes",
                       d->table->nnodes, "world_size", d->table->world_size, "seconds",
                       (double)(mono_ns() - d->started_ns) / 1e9, "problems", list, "pairs", pairs,
                       "nodes", nodes);
    if (paths_figures(&d->pairs, &f))
        json_object_set_new(result, "paths",
                            json_pack("{s:i,s:f,s:f}", "n", f.n, "rtt_us", f.rtt_us, "bps", f.bps));
    char *text = problems_text(&all);
    json_object_set_new(result, "text", json_of_text(text));
    free(text);
    problems_fini(&all);
    return result;
}

/* The facts of very many nodes are too long for a message. */
static void send_result(struct doctor *d)
{
    json_t *result = make_result(d);
    char *text = json_dumps(result, JSON_COMPACT);
    if (!text || strlen(text) > RDZV_ANSWER_MAX) {
        json_object_del(result, "nodes");
        json_object_del(result, "pairs");
    }
    free(text);
    d->phase = OVER;
    for (int i = d->table->nnodes - 1; i >= 0; i--) {
        const struct rdzv_request of = {.kind = REQUEST_DOCTOR, .id = RESULT_ID, .from = d->ids[i]};
        if (d->answered[i])
            send_answer(d, &of, result);
    }
    json_decref(result);
}

static void next_phase(struct doctor *d)
{
    uv_timer_stop(&d->timer);
    if (d->phase == ASKING) {
        for (int i = 0; i < d->table->nnodes; i++)
            take_facts(d, i, d->answers[i]);
    } else if (d->phase != OVER) {
        take_matches(d);
    }
    if (!ask_for_round(d) && !ask_again(d))
        send_result(d);
}

static void lead(struct doctor *d)
{
    size_t n = (size_t)d->table->nnodes;
    uint32_t seed;
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        seed = (uint32_t)mono_ns();
    d->seed = seed;
    d->request_id = RESULT_ID;
    d->nodes = xcalloc(n, sizeof(*d->nodes));
    for (size_t i = 0; i < n; i++)
        node_facts_init(&d->nodes[i]);
    d->ids = xcalloc(n, sizeof(*d->ids));
    d->answered = xcalloc(n, sizeof(*d->answered));
    d->bad = xcalloc(n, sizeof(*d->bad));
    d->answers = xcalloc(n, sizeof(json_t *));
    d->nanswers = (int)n;
    d->rounds = path_test_rounds(d->table->nnodes);
    d->rounds = d->rounds < ROUNDS_MOST ? d->rounds : ROUNDS_MOST;
    ask_for_facts(d);
}

/* ------------------------------------------------------------------------------------- the result
 */

static void print_result(const struct doctor *d, const json_t *result)
{
    json_t *list = json_object_get(result, "problems");
    const json_t *paths = json_object_get(result, "paths");
    bool remote = d->job->report_fd != 0;
    int nnodes = (int)json_integer_value(json_object_get(result, "nnodes"));
    size_t n = json_array_size(list);
    if (d->job->doctor.json) {
        char *text = json_dumps(result, JSON_INDENT(2));
        if (text && (!remote || d->group_rank == 0))
            printf("%s\n", text);
        free(text);
        fflush(stdout);
        return;
    }
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    fputs(json_string_value(json_object_get(result, "text")), f);
    if (n)
        fprintf(f, "%zu problem%s found on %d node%s", n, n == 1 ? "" : "s", nnodes,
                nnodes == 1 ? "" : "s");
    else
        fprintf(f, "%d node%s, %d worker%s: no problem found", nnodes, nnodes == 1 ? "" : "s",
                (int)json_integer_value(json_object_get(result, "world_size")),
                json_integer_value(json_object_get(result, "world_size")) == 1 ? "" : "s");
    if (paths)
        fprintf(f, "; between nodes: %.0f us, %.3g GB/s",
                json_number_value(json_object_get(paths, "rtt_us")),
                json_number_value(json_object_get(paths, "bps")) / 1e9);
    fprintf(f, " (%.1f s)\n", json_number_value(json_object_get(result, "seconds")));
    fclose(f);
    fd_write_all(remote ? d->job->report_fd : STDOUT_FILENO, text, len);
    free(text);
}

static void on_result(struct doctor *d, const json_t *result)
{
    if (d->done)
        return;
    d->done = true;
    d->exit_status = json_is_true(json_object_get(result, "ok")) ? 0 : DOCTOR_PROBLEMS;
    print_result(d, result);
    rdzv_done(d->rdzv);
}

static void on_answer(void *arg, const struct rdzv_answer *a)
{
    struct doctor *d = arg;
    json_t *j = json_loadb((const char *)a->data, a->len, 0, NULL);
    int node = j ? (int)json_integer_value(json_object_get(j, "node")) : -1;
    if (j && a->id == RESULT_ID) {
        on_result(d, j);
    } else if (j && d->phase != ASLEEP && a->id == d->request_id && node >= 0 &&
               node < d->table->nnodes && !d->answers[node]) {
        json_object_set_new(j, "arrived", json_integer((json_int_t)wall_ns()));
        d->answers[node] = json_incref(j);
        if (--d->missing == 0) /* from the loop: what follows sends messages */
            uv_timer_start(&d->timer, on_silence, 0, 0);
    }
    json_decref(j);
}

/* ---------------------------------------------------------------------------------- the rendezvous
 */

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    struct doctor *d = arg;
    struct err e = ERR_INIT;
    (void)gen;
    d->group_rank = group_rank;
    uint16_t port;
    close_fd(&d->door_fd);
    d->door_fd = data_socket_listen(0, nnodes == 1, &port, &e);
    if (d->door_fd < 0) {
        rdzv_leave(d->rdzv, STOP_INTERNAL, 125, e.msg);
        return;
    }
    uint16_t *ports = xcalloc((size_t)d->job->nproc, sizeof(*ports));
    ports[0] = port;
    rdzv_prepared(d->rdzv, ports, d->job->nproc);
    free(ports);
}

static void on_run(void *arg, const struct rank_table *table, int group_rank)
{
    struct doctor *d = arg;
    d->table = table;
    d->group_rank = group_rank;
    if (group_rank == 0 && d->phase == ASLEEP)
        lead(d);
}

static void on_respawn(void *arg, int local_rank, int restart_count)
{
    (void)arg, (void)local_rank, (void)restart_count;
}

static void on_stop(void *arg, const struct rdzv_stop *why)
{
    struct doctor *d = arg;
    (void)why;
    uv_timer_stop(&d->timer);
    d->phase = OVER;
    rdzv_stopped(d->rdzv, NULL, 0);
}

static void on_part_closed(void *arg)
{
    struct doctor *d = arg;
    d->nclosing--;
}

/* The checks of this node alone are printed also when the nodes have not met. */
static void print_own_problems(const struct doctor *d)
{
    struct problems all = {0};
    struct node_facts node;
    if (!d->facts)
        return;
    node_facts_get(&node, d->facts);
    node.node = d->group_rank;
    checks_of_node(&node, &all);
    char *text = problems_text(&all);
    fputs(text, stderr);
    free(text);
    problems_fini(&all);
    node_facts_fini(&node);
}

static void on_finish(void *arg, const struct rdzv_result *result)
{
    struct doctor *d = arg;
    if (!d->done) {
        print_own_problems(d);
        log_error("the nodes could not be examined: %s",
                  *result->text ? result->text : "the others have ended");
        d->exit_status = result->exit_code ? result->exit_code : DOCTOR_PROBLEMS;
    }
    d->done = true;
    d->nclosing = 3;
    rdzv_close(d->rdzv, on_part_closed, d);
    facts_close(d->facts_run, on_part_closed, d);
    uvx_scope_close(&d->scope, on_part_closed, d);
}

/* ------------------------------------------------------------------------------------------ the
 * start */

static int open_doctor(struct doctor *d, struct err *e)
{
    const struct rdzv_callbacks cb = {.arg = d,
                                      .on_prepare = on_prepare,
                                      .on_run = on_run,
                                      .on_respawn = on_respawn,
                                      .on_stop = on_stop,
                                      .on_request = on_request,
                                      .on_answer = on_answer,
                                      .on_finish = on_finish};
    int r = spawner_new(&d->spawner, e);
    if (r == 0)
        r = rdzv_open(&d->rdzv, &d->loop, &d->job->rdzv, &cb, e);
    if (r < 0)
        return r;
    uvx_scope_init(&d->scope, &d->loop);
    uv_timer_init(&d->loop, &d->timer);
    uvx_own(&d->scope, &d->timer);
    json_t *question = facts_question(d->job, false);
    d->facts_run = facts_start(&d->loop, d->spawner, question, on_facts, d);
    json_decref(question);
    return 0;
}

static void free_doctor(struct doctor *d)
{
    for (int i = 0; i < d->nanswers; i++)
        json_decref(d->answers[i]);
    free(d->nodes);
    free(d->pairs.v);
    json_decref(d->facts);
    free(d->answers);
    free(d->ids);
    free(d->answered);
    free(d->bad);
    close_fd(&d->door_fd);
    spawner_free(d->spawner);
}

int doctor_run(const struct job_spec *job)
{
    struct err e = ERR_INIT;
    struct doctor *d = xcalloc(1, sizeof(*d));
    sigset_t set;
    *d = (struct doctor){
        .job = job, .door_fd = -1, .started_ns = mono_ns(), .nclosing = -1, .exit_status = 125};
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    uv_loop_init(&d->loop);
    if (open_doctor(d, &e) < 0) {
        log_error("%s", e.msg);
        fflush(NULL);
        _exit(2); /* of what is half open nothing outlives the process */
    }
    while (d->nclosing != 0)
        uv_run(&d->loop, UV_RUN_ONCE);
    while (d->match.busy)
        uv_run(&d->loop, UV_RUN_ONCE);
    int status = d->exit_status;
    if (uv_loop_close(&d->loop) < 0) { /* a call of libuv's pool does not return */
        fflush(NULL);
        _exit(status);
    }
    free_doctor(d);
    free(d);
    return status;
}
