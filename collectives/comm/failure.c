/* failure.c: finds the cause of a failed operation, the same one on every rank.
 *
 * The sources, best first: the abort record, which the agent writes when a worker of the job has
 * died; a notice that another rank has sent when it gave up; this rank's own view: a closed
 * connection, a deadline, a message of another operation. A closed connection alone proves little:
 * the peer may have died, or have given up because of a third rank. A rank that gives up sends its
 * notices before it closes, and the agent reports within milliseconds, so this rank waits a short
 * time for one of them. */
#include "collectives/comm/failure.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/base/error.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

enum {
    LOOK_WITH_AGENT_MS =
        100, /* the agent knows the signal of the death; on a busy host its record comes late */
    LOOK_ALONE_MS = 5,
    LOOK_CLAIMED_MS =
        1000, /* a rank that stops the others sets their word before it has written the cause */
};

/* Text from other processes is shown to people: control characters are escaped. */
static void take_text(char *out, size_t cap, const char *text)
{
    log_escape(out, cap, text, strlen(text), 0);
}

static bool agent_reports(const dlcoll_comm *c, struct notice *cause)
{
    struct job_abort a;
    char name[WORLD_NAME_MAX];
    if (c->after_failure || !job_segment_aborted(&c->world->segment, &a))
        return false;
    bool known = a.rank >= 0 && a.rank < c->world->size;
    *cause = (struct notice){.rank = known ? a.rank : -1,
                             .code = known ? DLCOLL_EPEER : DLCOLL_EABORTED,
                             .pid = a.pid,
                             .signal = a.signal,
                             .exit_code = a.signal ? -1 : a.exit_code};
    take_text(cause->host, sizeof(cause->host), a.host);
    if (!known) {
        take_text(cause->text, sizeof(cause->text),
                  a.text[0] ? a.text : "the job was told to stop");
        return true;
    }
    char text[240];
    take_text(text, sizeof(text), a.text);
    if (cause->pid)
        snprintf(name, sizeof(name), "rank %d (%s, pid %d)", cause->rank, cause->host, cause->pid);
    else /* the culprit's host is lost */
        snprintf(name, sizeof(name), "rank %d (%s)", cause->rank, cause->host);
    const char *abbrev = a.signal ? sigabbrev_np(a.signal) : NULL;
    if (abbrev)
        snprintf(cause->text, sizeof(cause->text), "%s was killed by SIG%s", name, abbrev);
    else if (a.signal)
        snprintf(cause->text, sizeof(cause->text), "%s was killed by signal %d", name, a.signal);
    else if (a.exit_code > 0 || !a.text[0])
        snprintf(cause->text, sizeof(cause->text), "%s exited with status %d", name, a.exit_code);
    else
        snprintf(cause->text, sizeof(cause->text), "%s: %s", name, text);
    return true;
}

/* True if another rank has given up, or another thread of this rank. */
static bool peer_reports(const dlcoll_comm *c, struct notice *cause, int *from)
{
    struct notice n;
    if (!comm_stop_get(&c->own_stop, from, &n) &&
        !(c->shared_stop && comm_stop_get(c->shared_stop, from, &n)))
        return false;
    *cause = n;
    take_text(cause->host, sizeof(cause->host), n.host);
    take_text(cause->text, sizeof(cause->text), n.text);
    if (cause->rank < 0 || cause->rank >= c->world->size)
        cause->rank = -1;
    if (cause->code > DLCOLL_EINVAL || cause->code < DLCOLL_EINTERNAL)
        cause->code = DLCOLL_EINTERNAL;
    return true;
}

/* The source of the cause. MAKER: a rank of the communicator that makes this one. */
enum source { OWN_VIEW, AGENT, PEER, MAKER };

/* Waits up to ms milliseconds for a cause from the agent or a peer. *from: which peer. */
static enum source look_around(dlcoll_comm *c, int ms, struct notice *cause, int *from)
{
    uint64_t end = mono_ns() + (uint64_t)ms * 1000000u;
    for (;;) {
        struct err e = ERR_INIT;
        if (agent_reports(c, cause))
            return AGENT;
        if (peer_reports(c, cause, from))
            return PEER;
        if (c->maker && peer_reports(c->maker, cause, from))
            return MAKER;
        if (mono_ns() >= end)
            return OWN_VIEW;
        acceptor_serve(&c->job->acceptor, &e);
        const struct wait_word words[] = {{c->job_word, 0}, {&c->own_stop.word, 0}};
        wait_sleep(words, 2, 300 * 1000);
    }
}

/* ------------------------------------------------------------------------------------- own view */

static void set_rank(const dlcoll_comm *c, struct notice *cause, int rank)
{
    char host[MEMBER_HOST_MAX];
    cause->rank = rank;
    if (rank >= 0) {
        world_who(c->world, rank, host, &cause->pid);
        memcpy(cause->host, host, sizeof(cause->host));
    }
}

/* If the peer is on this node and has failed itself, its line of the segment names the rank at
 * fault. */
static void peer_closed(const dlcoll_comm *c, struct notice *cause, int peer, const char *why)
{
    char name[WORLD_NAME_MAX], other[WORLD_NAME_MAX];
    struct segment_local *line = job_segment_local(&c->world->segment, peer);
    uint32_t state = line ? atomic_load_explicit(&line->state, memory_order_acquire) : 0;
    int third = line ? atomic_load_explicit(&line->cause_rank, memory_order_relaxed) : -1;
    bool exited = line && atomic_load_explicit(&line->exited, memory_order_acquire);
    cause->code = DLCOLL_EPEER;
    set_rank(c, cause, peer);
    world_name(c->world, peer, name);
    if (exited)
        cause->exit_code = 0;
    if (state == SEGMENT_LOCAL_FAILED && third >= 0 && third < c->world->size &&
        third != c->world->rank) {
        set_rank(c, cause, third);
        cause->exit_code = -1;
        snprintf(cause->text, sizeof(cause->text), "%s failed, as %s reports",
                 world_name(c->world, third, other), name);
    } else if (state == SEGMENT_LOCAL_DONE) {
        snprintf(cause->text, sizeof(cause->text), "%s has left the job", name);
    } else if (exited) {
        snprintf(cause->text, sizeof(cause->text), "%s has left: it exited with status 0", name);
    } else {
        snprintf(cause->text, sizeof(cause->text), "%s has died or left%s%.100s%s", name,
                 why[0] ? " (" : "", why, why[0] ? ")" : "");
    }
}

/* ", which is in recv #3", as far as the rank's flight recorder shows. */
static void describe_doing(const struct segment_local *line, char *out, size_t size)
{
    dlcoll_record all[SEGMENT_OPS];
    int n = recorder_read(line, all, SEGMENT_OPS), i = 0;
    while (i < n && all[i].end_ns)
        i++;
    if (i < n)
        snprintf(out, size, ", which is in %s #%" PRIu64, all[i].op, all[i].seq);
    else if (n)
        snprintf(out, size, ", which is not in any operation; its last was %s #%" PRIu64, all[0].op,
                 all[0].seq);
    else
        snprintf(out, size, ", which has not called any operation");
}

static void timed_out(const dlcoll_comm *c, struct notice *cause, int peer)
{
    char name[WORLD_NAME_MAX], doing[96] = "";
    struct segment_local *line = peer >= 0 ? job_segment_local(&c->world->segment, peer) : NULL;
    cause->code = DLCOLL_ETIMEDOUT;
    set_rank(c, cause, peer);
    if (peer < 0) {
        snprintf(cause->text, sizeof(cause->text), "timed out");
        return;
    }
    if (line)
        describe_doing(line, doing, sizeof(doing));
    snprintf(cause->text, sizeof(cause->text), "rank %d timed out waiting for %s%s", c->world->rank,
             world_name(c->world, peer, name), doing);
}

/* Looks for the calls in which the two ranks differed before call number `seq`: what the flight
 * recorders have of both, where the peer is on this node; else what either called last. */
static bool find_earlier(const dlcoll_comm *c, int peer, uint64_t seq, struct coll_done *own,
                         struct coll_theirs *theirs)
{
    const struct segment_local *line = job_segment_local(&c->world->segment, peer);
    struct coll_done last = theirs->last;
    for (int k = 0; line && k < SEGMENT_OPS && --seq > 0; k++) {
        own->seq = theirs->seq = seq;
        if (recorder_find(line, c->id, &theirs->seq, &theirs->sig) &&
            recorder_find(c->job->recorder.line, c->id, &own->seq, &own->sig) &&
            (theirs->seq != own->seq || !sig_same(&theirs->sig, &own->sig)))
            return true;
    }
    *own = c->last;
    *theirs = (struct coll_theirs){.seq = last.seq, .sig = last.sig};
    return last.seq && own->seq && (last.seq != own->seq || !sig_equal(&last.sig, &own->sig));
}

/* Says what was called by `who` and by `others`: the operation's number once, if it is that of
 * both. */
static void two_calls(struct notice *cause, const char *who, const struct op_signature *sig,
                      uint64_t seq, const char *others, const struct op_signature *theirs,
                      uint64_t their_seq)
{
    char called[SIG_TEXT_MAX], other[SIG_TEXT_MAX];
    uint32_t number = (uint32_t)seq, their_number = (uint32_t)their_seq;
    sig_describe(sig, called);
    sig_describe(theirs, other);
    cause->seq = seq < their_seq ? number : their_number;
    if (number == their_number)
        snprintf(cause->text, sizeof(cause->text),
                 "operation #%" PRIu32 ": %s called %s, %s called %s", number, who, called, others,
                 other);
    else
        snprintf(cause->text, sizeof(cause->text),
                 "%s called %s as operation #%" PRIu32 ", %s called %s as operation #%" PRIu32, who,
                 called, number, others, other, their_number);
}

/* The peer made the call `theirs` where this rank made `own`. */
static void mismatch(const dlcoll_comm *c, struct notice *cause, int peer, struct coll_done own,
                     struct coll_theirs theirs)
{
    char text[SIG_TEXT_MAX], other[SIG_TEXT_MAX], name[WORLD_NAME_MAX], self[24];
    struct coll_done before = own;
    struct coll_theirs before_theirs = theirs;
    bool differed_before = theirs.differed_before;
    if (differed_before && find_earlier(c, peer, own.seq, &before, &before_theirs)) {
        own = before;
        theirs = before_theirs;
        differed_before = false;
    }
    cause->code = DLCOLL_EMISMATCH;
    set_rank(c, cause, peer);
    world_name(c->world, peer, name);
    if (theirs.sig.settings != own.sig.settings)
        snprintf(
            cause->text, sizeof(cause->text),
            "%s has different settings from rank %d: DLCOLL_ALGO, DLCOLL_TUNE_FILE, DLCOLL_SHM, "
            "DLCOLL_SOCKETS and DLCOLL_NCCL_ROOTS must be the same on all ranks, and dlaunch "
            "have room for shared memory on every node (ulimit -f, ulimit -v) or on none",
            name, c->world->rank);
    else if (differed_before)
        snprintf(cause->text, sizeof(cause->text),
                 "%s and rank %d called different operations before %s, which is #%" PRIu32
                 " of both",
                 name, c->world->rank, sig_describe(&own.sig, text), (uint32_t)own.seq);
    else if ((uint32_t)theirs.seq == (uint32_t)own.seq && sig_alike(&theirs.sig, &own.sig))
        snprintf(cause->text, sizeof(cause->text),
                 "%s sends other messages than rank %d expects for the same %s: do the counts of "
                 "their parts differ?",
                 name, c->world->rank, sig_describe(&own.sig, text));
    else if (theirs.sig.kind == CALL_SEND) /* two ranks number their messages themselves */
        snprintf(cause->text, sizeof(cause->text),
                 "%s called %s (message %" PRIu32
                 " from there), rank %d called %s as its #%" PRIu32,
                 name, sig_describe(&theirs.sig, other), (uint32_t)theirs.seq, c->world->rank,
                 sig_describe(&own.sig, text), (uint32_t)own.seq);
    else {
        snprintf(self, sizeof(self), "rank %d", c->world->rank);
        two_calls(cause, name, &theirs.sig, theirs.seq, self, &own.sig, own.seq);
    }
}

/* -------------------------------------------------------------------------------- the odd one out
 */

enum {
    VOTERS = TCP_ASK_RANKS, /* ranks of the communicator whose calls are looked at */
    VOTE_MS = 1000          /* at most: a rank that computes does not answer */
};

/* Reads the call that rank i has made as its operation `seq`; call->seq is 0 if there is none yet.
 * False: the flight recorder of rank i cannot be seen from here. */
static bool see_call(const dlcoll_comm *c, int i, uint64_t seq, struct ask *call)
{
    const struct segment_local *line =
        i == c->rank ? c->job->recorder.line
                     : job_segment_local(&c->world->segment, c->world_ranks[i]);
    call->seq = seq;
    if (!line || !recorder_find(line, c->id, &call->seq, &call->sig))
        call->seq = 0;
    return line;
}

static bool same_call(const struct ask *a, const struct ask *b)
{
    return a->seq == b->seq && sig_same(&a->sig, &b->sig);
}

/* The call of more than half of them; NULL: there is none. *n: how many. */
static const struct ask *find_majority(const struct ask *calls, int voters, int *n)
{
    for (int i = 0; i < voters; i++) {
        *n = 0;
        for (int k = 0; k < voters && calls[i].seq; k++)
            *n += calls[k].seq && same_call(&calls[i], &calls[k]);
        if (*n > voters / 2)
            return &calls[i];
    }
    return NULL;
}

/* True if another rank has found a cause, which is then that of every rank. */
static bool others_report(const dlcoll_comm *c)
{
    struct notice n;
    int from;
    return peer_reports(c, &n, &from) && from != c->world->rank;
}

/* Collects what the voters have called as their operation `seq`, until most calls are the same and
 * one is not, all are known, another rank reports, or the time is over. *agree: how many called
 * what most did. NULL: nobody is known to be odd. */
static const struct ask *vote(dlcoll_comm *c, uint64_t seq, const int *voters, int n,
                              struct ask *calls, uint64_t end_ns, int *agree)
{
    struct tcp_opts o = comm_tcp_opts(c, CHANNEL_COLL);
    struct tcp_question asked[VOTERS];
    const struct ask *most = NULL;
    memset(calls, 0, (size_t)n * sizeof(*calls));
    for (int i = 0; i < n; i++)
        asked[i].fd = -1;
    for (int known = 0; known < n && mono_ns() < end_ns && !others_report(c);) {
        known = 0;
        for (int i = 0; i < n; i++) {
            if (!calls[i].seq && !see_call(c, voters[i], seq, &calls[i]) &&
                !tcp_ask_call(&o, voters[i], seq, &asked[i], &calls[i]))
                calls[i].seq = 0;
            known += calls[i].seq != 0;
        }
        most = find_majority(calls, n, agree);
        if (most && *agree < known)
            break;
        most = NULL;
        acceptor_serve(&c->job->acceptor, NULL); /* the others ask this rank */
        const struct wait_word words[] = {{c->job_word, 0}};
        wait_sleep(words, 1, known < n ? 1000 * 1000 : 1);
    }
    for (int i = 0; i < n; i++)
        close_fd(&asked[i].fd);
    return most;
}

/* Two calls differ: says which rank made another call than most of them, if one did. The two differ
 * in the operation that the cause names, or in the next one, where an earlier one of either came to
 * nothing. */
static void name_odd_one(dlcoll_comm *c, const struct coll_call *call, struct notice *cause)
{
    int voters[VOTERS], n = 0, agree = 0, met = c->rank;
    struct ask calls[VOTERS];
    char name[WORLD_NAME_MAX];
    uint64_t end_ns = mono_ns() + VOTE_MS * 1000000u;
    for (int i = 0; i < c->size; i++) {
        if (c->world_ranks[i] == cause->rank)
            met = i;
    }
    voters[n++] = met;
    if (met != c->rank)
        voters[n++] = c->rank;
    for (int i = 0; i < c->size && n < VOTERS; i++) {
        if (i != met && i != c->rank)
            voters[n++] = i;
    }
    uint64_t seq = call->seq - (uint32_t)((uint32_t)call->seq - cause->seq);
    const struct ask *most = n > 2 ? vote(c, seq, voters, n, calls, end_ns, &agree) : NULL;
    if (n > 2 && !most)
        most = vote(c, seq + 1, voters, n, calls, end_ns, &agree);
    for (int i = 0; most && i < n; i++) {
        if (!calls[i].seq || same_call(most, &calls[i]))
            continue;
        int rank = c->world_ranks[voters[i]];
        set_rank(c, cause, rank);
        two_calls(cause, world_name(c->world, rank, name), &calls[i].sig, calls[i].seq,
                  agree == c->size - 1 ? "all others" : "most others", &most->sig, most->seq);
        return;
    }
}

bool comm_asked(struct acceptor_subscriber *subscriber, int from, struct ask *ask)
{
    dlcoll_comm *c = container_of(subscriber, dlcoll_comm, subscriber);
    if (ask->sig.kind == CALL_NONE) {
        if (!recorder_find(c->job->recorder.line, c->id, &ask->seq, &ask->sig))
            ask->seq = 0;
        return true;
    }
    struct coll_done own = {.seq = ask->seq};
    struct notice cause = {.rank = -1, .exit_code = -1};
    if (!recorder_find(c->job->recorder.line, c->id, &own.seq, &own.sig) ||
        (own.seq == ask->seq && sig_same(&own.sig, &ask->sig)))
        return false;
    mismatch(c, &cause, from, own, (struct coll_theirs){.sig = ask->sig, .seq = ask->seq});
    comm_stop_set(&c->own_stop, c->world->rank, &cause);
    return false;
}

static void own_view(const dlcoll_comm *c, int status, const struct coll_call *call,
                     struct notice *cause)
{
    const struct coll_failure *f = call->failure;
    char name[WORLD_NAME_MAX], text[240];
    int peer = f->culprit >= 0 && f->culprit < c->size ? c->world_ranks[f->culprit] : -1;
    *cause = (struct notice){.rank = -1, .exit_code = -1};
    switch (status) {
    case -EPIPE:
        peer_closed(c, cause, peer, f->err.msg);
        break;
    case -ETIMEDOUT:
        timed_out(c, cause, peer);
        break;
    case -EBADMSG:
        mismatch(c, cause, peer, (struct coll_done){call->seq, call->sig}, f->theirs);
        break;
    case -EPROTONOSUPPORT:
        cause->code = DLCOLL_EMISMATCH;
        set_rank(c, cause, peer);
        snprintf(cause->text, sizeof(cause->text), "%.*s", (int)sizeof(cause->text) - 1,
                 f->err.msg);
        break;
    case -ECANCELED:
        cause->code = DLCOLL_EABORTED;
        snprintf(cause->text, sizeof(cause->text),
                 "stopped by a rank that died before it could report the reason");
        break;
    case -EREMOTEIO:
        cause->code = DLCOLL_EBACKEND;
        set_rank(c, cause, c->world->rank);
        snprintf(cause->text, sizeof(cause->text), "%.*s", (int)sizeof(cause->text) - 1,
                 f->err.msg);
        break;
    case -EBADE:
        cause->code = DLCOLL_EABORTED;
        set_rank(c, cause, c->world->rank);
        take_text(text, sizeof(text), f->err.msg);
        snprintf(cause->text, sizeof(cause->text), "the reduction of %s failed: %s",
                 world_name(c->world, c->world->rank, name), text);
        break;
    case -ENOMEM:
        cause->code = DLCOLL_ENOMEM;
        snprintf(cause->text, sizeof(cause->text), "rank %d has no memory for the operation",
                 c->world->rank);
        break;
    default:
        cause->code = DLCOLL_ENET;
        set_rank(c, cause, peer);
        snprintf(cause->text, sizeof(cause->text), "%.*s", (int)sizeof(cause->text) - 1,
                 f->err.msg);
    }
}

/* ------------------------------------------------------------------------------------ recording */

/* The rank whose failure caused this one; -1: this one is a first failure. */
static int consequence_of(const dlcoll_comm *c, const struct notice *cause, enum source source,
                          int from)
{
    if (source == AGENT || (cause->code == DLCOLL_EPEER && cause->rank != c->world->rank))
        return cause->rank;
    return source != OWN_VIEW && from != c->world->rank ? from : -1;
}

/* Records the first failure. False: another thread has recorded one before. */
static bool record(dlcoll_comm *c, const struct notice *cause, const struct coll_call *call,
                   int consequence)
{
    dlcoll_error *out = &c->error;
    pthread_mutex_lock(&c->error_lock);
    bool first = !atomic_load(&c->failed);
    if (first) {
        char where[64] = "";
        if (cause->seq) /* the text of the cause has the operation */
            where[0] = '\0';
        else if (call && call->seq)
            snprintf(where, sizeof(where), "%s #%" PRIu64 ": ", call_name(call->sig.kind),
                     call->seq);
        else if (call &&
                 call->sig.kind != CALL_NONE) /* the creation of a group, which has no number */
            snprintf(where, sizeof(where), "%s: ", call_name(call->sig.kind));
        error_set(out, cause->code, "%s%s%s%s%s", c->name[0] ? "group " : "", c->name,
                  c->name[0] ? ": " : "", where, cause->text);
        out->rank = cause->rank;
        out->pid = cause->pid;
        out->signal = cause->signal;
        out->exit_code = cause->exit_code;
        out->seq = call ? call->seq : 0;
        snprintf(out->op, sizeof(out->op), "%s", call ? call_name(call->sig.kind) : "");
        snprintf(out->host, sizeof(out->host), "%s", cause->host);
        atomic_store(&c->failed_code, cause->code);
        atomic_store(&c->failed, true);
        log_verbose("rank %d: %s", c->rank, out->text);
    }
    pthread_mutex_unlock(&c->error_lock);

    struct segment_local *line = first ? world_line(c->world) : NULL;
    if (line) {
        atomic_store_explicit(&line->cause_rank, consequence, memory_order_relaxed);
        atomic_store_explicit(&line->cause_code, cause->code, memory_order_relaxed);
        atomic_store_explicit(&line->state, SEGMENT_LOCAL_FAILED, memory_order_release);
    }
    return first;
}

/* Notifies those that do not know the cause yet: this process's other threads, the other ranks of
 * the node, and the ranks of other nodes or, without shared memory, of this one. Only this rank
 * knows its own view. */
static void notify_others(dlcoll_comm *c, const struct notice *cause, enum source source, int from)
{
    bool share = c->shared_stop && source != AGENT; /* the agent's record reaches every rank */
    if (share) { /* first, because a thread that own_stop wakes gets its buffers back */
        comm_stop_set(c->shared_stop, c->world->rank, cause);
        c->wake_sharers(c->shm);
    }
    comm_stop_set(&c->own_stop, c->world->rank, cause);
    if (source == AGENT)
        return;
    if (source == PEER && from != c->world->rank && c->size <= TCP_NOTICE_RANKS)
        return; /* the sender has notified every rank */
    char *notified = calloc((size_t)c->size, 1);
    if (!notified)
        return;
    /* A rank of this node with other settings may not look into the shared memory. */
    bool all_look = c->shared_stop && cause->code != DLCOLL_EMISMATCH;
    for (int i = 0; i < c->size; i++)
        notified[i] = (all_look && c->topo.node_of[i] == c->topo.node) ||
                      (cause->code == DLCOLL_EPEER && c->world_ranks[i] == cause->rank);
    struct tcp_opts o = comm_tcp_opts(c, CHANNEL_COLL);
    tcp_send_notices(&o, cause, notified);
    free(notified);
}

int comm_fail(dlcoll_comm *c, int status, const struct coll_call *call)
{
    struct notice cause;
    int from = -1;
    int look_ms = 0;
    int culprit = call->failure->culprit;
    assert(status < 0 && culprit < c->size);
    bool exited =
        culprit >= 0 && comm_has_exited(c, culprit); /* then the agent will report nothing more */
    if (status == -EPIPE)
        look_ms = c->world->segment.base && !exited ? LOOK_WITH_AGENT_MS : LOOK_ALONE_MS;
    else if (status == -ECANCELED)
        look_ms = LOOK_CLAIMED_MS;
    enum source source = look_around(c, look_ms, &cause, &from);
    if (source == OWN_VIEW)
        own_view(c, status, call, &cause);
    if (cause.seq && call->seq && (source == OWN_VIEW || from == c->world->rank)) {
        name_odd_one(c, call, &cause);
        if (others_report(c))
            source = look_around(c, 0, &cause, &from);
    }
    if (record(c, &cause, call, consequence_of(c, &cause, source, from)))
        notify_others(c, &cause, source, from);
    return atomic_load(&c->failed_code);
}

int comm_fail_as(dlcoll_comm *c, const dlcoll_comm *group, enum call_kind kind)
{
    struct coll_call call = {.sig = {.kind = (uint8_t)kind}};
    struct notice cause;
    int from;
    if (!comm_stop_get(&group->own_stop, &from, &cause))
        return group->error.code;
    enum source source = atomic_load(c->job_word) ? AGENT
                         : from == c->world->rank ? OWN_VIEW
                                                  : PEER;
    if (record(c, &cause, &call, consequence_of(c, &cause, source, from)))
        notify_others(c, &cause, source == AGENT ? AGENT : OWN_VIEW,
                      -1); /* other ranks of c are not in the group */
    return atomic_load(&c->failed_code);
}

bool comm_give_up(dlcoll_comm *c, int code, int theirs, const char *clause)
{
    char name[WORLD_NAME_MAX];
    struct notice cause = {.code = code, .exit_code = -1};
    set_rank(c, &cause, c->world->rank);
    snprintf(cause.text, sizeof(cause.text), "%s %.200s",
             world_name(c->world, c->world->rank, name), clause);
    if (!record(c, &cause, NULL, -1))
        return false;
    cause.code = theirs;
    notify_others(c, &cause, OWN_VIEW, -1);
    acceptor_wake(&c->job->acceptor);
    return true;
}

int dlcoll_abort(dlcoll_comm *comm, const char *reason)
{
    char clause[240];
    if (!comm)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_abort: comm is NULL");
    if (comm_is_forked(comm))
        return DLCOLL_ESTATE;
    snprintf(clause, sizeof(clause), "aborted%s%.200s", reason ? ": " : "", reason ? reason : "");
    if (!comm_give_up(comm, DLCOLL_EABORTED, DLCOLL_EABORTED, clause))
        return DLCOLL_ESTATE;
    atomic_store(&comm->returned, true);
    return 0;
}
