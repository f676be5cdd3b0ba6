/* failure.c: why an operation failed: one truth for every rank.
 *
 * Sources, the best first: the abort record that the agent fills in when a worker of the job has
 * died; a notice that another rank has sent when it gave up; what this rank has seen itself: a
 * closed connection, a deadline, another operation's message. A closed connection alone says
 * little: the peer may have died, or have given up because of a third. Whoever gives up sends its
 * notices before it closes, and the agent is quick, so that a short look around finds out. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm.h"
#include "collectives/error.h"
#include "core/clock.h"
#include "core/log.h"

enum {
    LOOK_WITH_AGENT_MS = 25, /* it knows by what signal the peer died */
    LOOK_ALONE_MS = 5,
};

/* What others have written is shown to people: no control characters. */
static void take_text(char *out, size_t cap, const char *text)
{
    log_escape(out, cap, text, strlen(text), 0);
}

static bool agent_says(const dlcoll_comm *c, struct notice *cause)
{
    struct job_abort a;
    char name[WORLD_NAME_MAX];
    if (!job_segment_aborted(&c->world.segment, &a))
        return false;
    bool known = a.rank >= 0 && a.rank < c->world.size;
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
    snprintf(name, sizeof(name), "rank %d (%s, pid %d)", cause->rank, cause->host, cause->pid);
    const char *abbrev = a.signal ? sigabbrev_np(a.signal) : NULL;
    if (abbrev)
        snprintf(cause->text, sizeof(cause->text), "%s was killed by SIG%s", name, abbrev);
    else if (a.signal)
        snprintf(cause->text, sizeof(cause->text), "%s was killed by signal %d", name, a.signal);
    else if (a.exit_code || !a.text[0])
        snprintf(cause->text, sizeof(cause->text), "%s exited with status %d", name, a.exit_code);
    else
        snprintf(cause->text, sizeof(cause->text), "%s: %s", name, text);
    return true;
}

static bool peer_says(const dlcoll_comm *c, struct notice *cause)
{
    if (!c->transport->notified)
        return false;
    const struct notice *n = &c->transport->notice;
    *cause = *n;
    take_text(cause->host, sizeof(cause->host), n->host);
    take_text(cause->text, sizeof(cause->text), n->text);
    if (cause->rank < 0 || cause->rank >= c->world.size)
        cause->rank = -1;
    if (cause->code > DLCOLL_EINVAL || cause->code < DLCOLL_EINTERNAL)
        cause->code = DLCOLL_EINTERNAL;
    return true;
}

/* For up to ms milliseconds: does the agent or a peer know more? Sets *by_agent. */
static bool look_around(dlcoll_comm *c, int ms, struct notice *cause, bool *by_agent)
{
    uint64_t end = mono_ns() + (uint64_t)ms * 1000000u;
    for (;;) {
        *by_agent = agent_says(c, cause);
        if (*by_agent || peer_says(c, cause))
            return true;
        bool over = mono_ns() >= end;
        if (c->transport->ops->wait(c->transport, NULL, 0, over ? 0 : 1, NULL) < 0)
            return false;
        if (over)
            return peer_says(c, cause);
    }
}

/* ------------------------------------------------------------------------- what it saw itself */

static void set_rank(const dlcoll_comm *c, struct notice *cause, int rank)
{
    char host[MEMBER_HOST_MAX];
    cause->rank = rank;
    if (rank >= 0) {
        world_who(&c->world, rank, host, &cause->pid);
        memcpy(cause->host, host, sizeof(cause->host));
    }
}

/* A rank of this node that has failed itself says whose fault that was. */
static void peer_closed(const dlcoll_comm *c, struct notice *cause, const char *why)
{
    char name[WORLD_NAME_MAX], other[WORLD_NAME_MAX];
    int peer = c->engine.culprit;
    struct segment_local *line = job_segment_local(&c->world.segment, peer);
    uint32_t state = line ? atomic_load_explicit(&line->state, memory_order_acquire) : 0;
    int third = line ? atomic_load_explicit(&line->cause_rank, memory_order_relaxed) : -1;
    cause->code = DLCOLL_EPEER;
    set_rank(c, cause, peer);
    world_name(&c->world, peer, name);
    if (state == SEGMENT_LOCAL_FAILED && third >= 0 && third < c->world.size && third != c->rank) {
        set_rank(c, cause, third);
        snprintf(cause->text, sizeof(cause->text), "%s failed, says %s",
                 world_name(&c->world, third, other), name);
    } else if (state == SEGMENT_LOCAL_DONE) {
        snprintf(cause->text, sizeof(cause->text), "%s has left the job", name);
    } else {
        snprintf(cause->text, sizeof(cause->text), "%s has died or left (%.100s)", name, why);
    }
}

static void timed_out(const dlcoll_comm *c, struct notice *cause)
{
    char name[WORLD_NAME_MAX], doing[80] = "";
    int peer = c->engine.culprit;
    struct segment_local *line = peer >= 0 ? job_segment_local(&c->world.segment, peer) : NULL;
    cause->code = DLCOLL_ETIMEDOUT;
    set_rank(c, cause, peer);
    if (peer < 0) {
        snprintf(cause->text, sizeof(cause->text), "timed out");
        return;
    }
    if (line) {
        bool inside =
            atomic_load_explicit(&line->state, memory_order_acquire) == SEGMENT_LOCAL_CALL;
        snprintf(doing, sizeof(doing),
                 inside ? ", which is in its #%" PRIu64
                        : ", which is in no operation; its last was #%" PRIu64,
                 (uint64_t)atomic_load_explicit(&line->seq, memory_order_relaxed));
    }
    snprintf(cause->text, sizeof(cause->text), "rank %d timed out waiting for %s%s", c->rank,
             world_name(&c->world, peer, name), doing);
}

static void mismatch(const dlcoll_comm *c, struct notice *cause, const struct call *call)
{
    char ours[CALL_TEXT_MAX], theirs[CALL_TEXT_MAX], name[WORLD_NAME_MAX];
    const struct frame *f = &c->engine.theirs;
    int peer = c->engine.culprit;
    cause->code = DLCOLL_EMISMATCH;
    set_rank(c, cause, peer);
    world_name(&c->world, peer, name);
    if (f->comm == c->id && f->seq == (uint32_t)c->seq && call_equal(&f->call, call))
        snprintf(cause->text, sizeof(cause->text),
                 "%s sends other messages than rank %d expects for the same %s: "
                 "do they run the same version of libdlcoll?",
                 name, c->rank, call_describe(call, ours));
    else
        snprintf(cause->text, sizeof(cause->text),
                 "%s called %s as its #%" PRIu32 ", rank %d called %s as its #%" PRIu32, name,
                 call_describe(&f->call, theirs), f->seq, c->rank, call_describe(call, ours),
                 (uint32_t)c->seq);
}

static void own_view(const dlcoll_comm *c, int status, const struct call *call,
                     const struct err *why, struct notice *cause)
{
    *cause = (struct notice){.rank = -1, .exit_code = -1};
    switch (status) {
    case -EPIPE:
        peer_closed(c, cause, why->msg);
        break;
    case -ETIMEDOUT:
        timed_out(c, cause);
        break;
    case -EBADMSG:
        mismatch(c, cause, call);
        break;
    default:
        cause->code = DLCOLL_ENET;
        set_rank(c, cause, c->engine.culprit);
        snprintf(cause->text, sizeof(cause->text), "%.*s", (int)sizeof(cause->text) - 1, why->msg);
    }
}

/* ----------------------------------------------------------------------------------- recording */

/* Whose failure this one is a consequence of; -1: of nobody's, it is a first one itself. */
static int consequence_of(const dlcoll_comm *c, const struct notice *cause, bool by_agent)
{
    if (by_agent || (cause->code == DLCOLL_EPEER && cause->rank != c->rank))
        return cause->rank;
    return c->transport->notified ? c->transport->notice_from : -1;
}

static void record(dlcoll_comm *c, const struct notice *cause, const struct call *call,
                   bool by_agent)
{
    dlcoll_error *out = &c->error;
    error_set(out, cause->code, "%s #%" PRIu64 ": %s", call_name(call->kind), c->seq, cause->text);
    out->rank = cause->rank;
    out->pid = cause->pid;
    out->signal = cause->signal;
    out->exit_code = cause->exit_code;
    out->seq = c->seq;
    snprintf(out->op, sizeof(out->op), "%s", call_name(call->kind));
    snprintf(out->host, sizeof(out->host), "%s", cause->host);
    c->failed = true;
    log_verbose("rank %d: %s", c->rank, out->text);

    struct segment_local *line = world_line(&c->world);
    if (line) {
        atomic_store_explicit(&line->cause_rank, consequence_of(c, cause, by_agent),
                              memory_order_relaxed);
        atomic_store_explicit(&line->state, SEGMENT_LOCAL_FAILED, memory_order_release);
    }
}

int comm_fail(dlcoll_comm *c, int status, const struct call *call, const struct err *why)
{
    struct notice cause;
    bool by_agent = false;
    int look_ms = status != -EPIPE ? 0 : c->world.segment.base ? LOOK_WITH_AGENT_MS : LOOK_ALONE_MS;
    if (!look_around(c, look_ms, &cause, &by_agent))
        own_view(c, status, call, why, &cause);
    record(c, &cause, call, by_agent);
    /* What the agent tells one, it tells all. */
    c->transport->ops->give_up(c->transport, by_agent ? NULL : &cause);
    return cause.code;
}
