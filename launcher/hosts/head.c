#include "launcher/hosts/head.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/spawn.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "launcher/hosts/contacts.h"
#include "launcher/hosts/head_files.h"
#include "launcher/hosts/head_output.h"
#include "launcher/hosts/input.h"
#include "launcher/hosts/plans.h"

#define UNREAD_S 5 /* patience with a reader of the output, behind a stopped job */

struct head {
    struct options *o;
    const char *cwd; /* asked for before signals are read: its file system may not answer */
    struct contacts at;
    struct spawner *spawner;
    struct head_rules *rules;

    uv_loop_t loop;
    struct uvx_scope scope;
    uv_prepare_t prepare;
    uv_timer_t timer; /* of what is due next */
    int signals;
    struct uvx_watch *on_signals, *on_streams, *on_dialled;
    struct head_output *output;
    struct input input;
    int events; /* the file of --events; -1: none */

    uint64_t limit_ns; /* when the hosts stop the job by --timeout; 0: not known, or no limit */
};

/* Something has come on the loop. */
static struct head *awake(void *arg)
{
    struct head *h = arg;
    h->at.now_ns = mono_ns();
    return h;
}

/* ------------------------------------------------------------------------------- ends of a host */

/* A host that is not wanted ends what was begun there. */
static void drop_host(struct head *h, struct peer *p)
{
    if (p->state == PEER_WAITING || p->dialing)
        contacts_lose(&h->at, p, "", 1);
    else if (p->state == PEER_CONNECTING)
        peer_kill(p);
    else
        peer_drop(p);
    if (!head_rules_is_left(h->rules, contacts_index(&h->at, p)))
        p->state = PEER_GONE;
}

static void on_exit_frame(struct head *h, struct peer *p, const struct frame *f)
{
    struct frame_exit result;
    if (frame_exit_get(f, &result) < 0) {
        peer_kill(p);
        return;
    }
    p->exited = true;
    input_forget(&h->input, p);
    head_rules_ended(h->rules, contacts_index(&h->at, p), &result, p->report != NULL);
}

/* ---------------------------------------------------------------------------------- the actions */

static void on_planned(void *arg, struct peer *p)
{
    struct head *h = arg;
    input_add(&h->input, p, p->rank);
}

static void plan_all(struct head *h)
{
    const struct plans in = {&h->at, h->cwd, h->events >= 0, on_planned, h};
    plans_send(&in);
    if (opt_seconds(h->o, OPT_timeout) > 0)
        h->limit_ns = h->at.now_ns + (uint64_t)(opt_seconds(h->o, OPT_timeout) * 1e9);
    head_rules_limit(h->rules, h->limit_ns);
}

static void carry_out(struct head *h, const struct head_action *a)
{
    struct peer *p = a->host == HEAD_NO_HOST ? NULL : &h->at.peers[a->host];
    switch (a->act) {
    case HEAD_ACT_LOG:
        log_at(a->level, "%s%s%s", p ? p->host->name : "", p ? ": " : "", a->text);
        break;
    case HEAD_ACT_PLAN:
        plan_all(h);
        break;
    case HEAD_ACT_DROP:
        drop_host(h, p);
        break;
    case HEAD_ACT_SIGNAL:
        if (p->state == PEER_PLANNED)
            peer_send_byte(p, FRAME_SIGNAL, a->signo);
        break;
    case HEAD_ACT_KILL:
        peer_kill(p);
        if (!head_rules_is_left(h->rules, a->host))
            p->state = PEER_GONE;
        break;
    case HEAD_ACT_HURRY:
        head_output_hurry(h->output);
        break;
    }
}

static void go_on(struct head *h)
{
    struct head_action a;
    contacts_start(&h->at);
    while (head_rules_next(h->rules, &a))
        carry_out(h, &a);
}

/* ------------------------------------------------------------------------------- what hosts say */

static void on_hello(struct head *h, struct peer *p, const struct frame *f)
{
    char why[256], differs[160];
    if (p->state != PEER_CONNECTING || frame_hello_get(f, &p->hello) < 0) {
        peer_kill(p);
        return;
    }
    if (!frame_hello_differs(&p->hello, differs)) {
        p->state = PEER_READY;
        head_rules_ready(h->rules, contacts_index(&h->at, p));
        if (p->is_local || p->by_daemon)
            log_verbose("%s: reached %s", p->host->name,
                        p->is_local ? "without ado: it is this host" : "by its daemon");
        else
            log_verbose("%s: reached by %s%s%s", p->host->name, h->at.reach.words[0],
                        p->through ? " through " : "", p->through ? p->via->host->name : "");
        return;
    }
    snprintf(why, sizeof(why), "%s; --prefix names another, --bcast copies this one", differs);
    if (p->by_daemon && h->at.reach.way == REACH_BOTH) {
        contacts_lose_daemon(&h->at, p, why, false);
        return;
    }
    p->state = PEER_READY;
    peer_drop(p);
    contacts_lose(&h->at, p, why, 1);
}

static void head_keep(char **to, size_t *len, const struct frame *f)
{
    free(*to);
    *to = xstrndup((const char *)f->body, f->len);
    *len = f->len;
}

static void on_forwarded(struct head *h, struct peer *via, const struct frame *f);

static void on_frame(struct head *h, struct peer *p, const struct frame *f)
{
    struct rd r = rd_init(f->body, f->len);
    size_t index = contacts_index(&h->at, p);
    switch (f->type) {
    case FRAME_HELLO:
        on_hello(h, p, f);
        break;
    case FRAME_OUT:
    case FRAME_ERR:
        head_output_put(h->output, index, f->type == FRAME_ERR, f->body, f->len);
        break;
    case FRAME_LOG:
        if (f->len > 1)
            head_output_log(h->output, index, (enum log_level)f->body[0], (const char *)f->body + 1,
                            f->len - 1);
        break;
    case FRAME_BEGAN:
        head_rules_began(h->rules, index);
        break;
    case FRAME_TAKEN:
        input_taken(&h->input, p, rd_u32(&r));
        break;
    case FRAME_REPORT:
        head_keep(&p->report, &p->report_len, f);
        break;
    case FRAME_JSON:
        head_keep(&p->json, &p->json_len, f);
        break;
    case FRAME_EVENTS:
        head_files_add(h->o, &h->events, f->body, f->len);
        break;
    case FRAME_EXIT:
        on_exit_frame(h, p, f);
        break;
    case FRAME_FORWARDED:
        on_forwarded(h, p, f);
        break;
    default:
        peer_kill(p);
    }
}

static void head_take_frames(struct head *h, struct peer *p)
{
    struct frame f;
    size_t at = 0;
    int rc;
    while ((rc = peer_next_frame(p, &at, &f)) > 0)
        on_frame(h, p, &f);
    if (rc < 0)
        peer_kill(p);
}

static void lose_forwarded(struct head *h, struct peer *via);

/* A process or a connection has ended; all that it said has been read. */
static void head_lose_peer(struct head *h, struct peer *p, int status)
{
    struct err e = ERR_INIT;
    peer_close_end(p, PEER_OUT);
    input_forget(&h->input, p);
    peer_explain(p, status, &e);
    p->state = PEER_GONE;
    head_rules_closed(h->rules, contacts_index(&h->at, p), e.msg);
    lose_forwarded(h, p);
}

static void read_peer(struct head *h, struct peer *p, enum peer_end end)
{
    bool open = peer_read(p, end);
    if (end == PEER_OUT)
        head_take_frames(h, p);
    if (open || !p->by_daemon)
        return;
    if (p->state == PEER_CONNECTING) {
        contacts_lose_daemon(&h->at, p, p->said, !p->refused);
        return;
    }
    peer_hang_up(p);
    head_lose_peer(h, p, 0);
}

/* A process has ended. What it has written is in the pipe. */
static void on_ended(struct head *h, struct peer *p, int status)
{
    if (peer_ended(p, status) && peer_again(p, contacts_deadline(&h->at, p), h->at.now_ns)) {
        log_verbose("%s: %s; trying again", p->host->name, p->said);
        return;
    }
    for (size_t before = SIZE_MAX; p->out >= 0 && p->from.len != before;) {
        before = p->from.len;
        read_peer(h, p, PEER_OUT);
    }
    head_lose_peer(h, p, status);
}

/* A host has told of one that is reached through it. */
static void on_forwarded(struct head *h, struct peer *via, const struct frame *f)
{
    struct frame_forward w;
    int status = 0;
    if (frame_forward_get(f, &w) < 0 || w.host >= h->at.npeers || h->at.peers[w.host].via != via ||
        !h->at.peers[w.host].through) {
        peer_kill(via);
        return;
    }
    struct peer *p = &h->at.peers[w.host];
    int rc = peer_forwarded(p, &w, &status);
    head_take_frames(h, p);
    if (rc < 0)
        peer_kill(via);
    else if (rc)
        on_ended(h, p, status);
}

/* A host is gone, and so are those that are reached through it. One that has not answered yet is
 * reached by the host above. */
static void lose_forwarded(struct head *h, struct peer *via)
{
    for (size_t i = 0; i < h->at.npeers; i++) {
        struct peer *p = &h->at.peers[i];
        if (p->via != via || !p->through)
            continue;
        bool early = p->state == PEER_CONNECTING && !head_rules_ends(h->rules);
        peer_lose_via(p);
        if (early) {
            p->state = PEER_WAITING;
            p->next_ns = h->at.now_ns;
        } else {
            on_ended(h, p, 0);
        }
    }
}

static void reap(struct head *h)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (size_t i = 0; i < h->at.npeers; i++) {
            if (h->at.peers[i].pid == pid)
                on_ended(h, &h->at.peers[i], status);
        }
    }
}

/* -------------------------------------------------------------------------------------- signals */

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

static void read_signals(void *arg)
{
    struct head *h = awake(arg);
    struct signalfd_siginfo si[8];
    ssize_t n = read(h->signals, si, sizeof(si));
    for (ssize_t i = 0; i < n / (ssize_t)sizeof(si[0]); i++) {
        int signo = (int)si[i].ssi_signo;
        if (signo == SIGCHLD)
            reap(h);
        else if (signo == SIGTSTP)
            log_warn("not suspended: the hosts would go on without this process");
        else if (signo == SIGCONT)
            input_retry(&h->input);
        else
            head_rules_signal(h->rules, signo, h->at.now_ns);
    }
}

/* Signals are read from a descriptor; what is ignored stays so. */
static int open_signals(struct head *h, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    static const int own[] = {SIGCHLD, SIGTSTP, SIGCONT};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        sigaddset(&set, own[i]);
    for (size_t i = 0; i < ARRAY_LEN(passed_on); i++) {
        if (!spawn_was_ignored(passed_on[i]))
            sigaddset(&set, passed_on[i]);
    }
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &set, NULL);
    h->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (h->signals < 0)
        return err_sys(e, errno, "signalfd");
    sigaddset(&set, SIGTTIN); /* read(2) fails instead */
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return 0;
}

/* ----------------------------------------------------------------------------------------- loop */

/* The job is over: a first signal that asks to stop ends this process, which may still wait for a
 * reader. */
static void let_signals_end(struct head *h)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(passed_on); i++) {
        if (passed_on[i] != SIGUSR1 && passed_on[i] != SIGUSR2)
            sigaddset(&set, passed_on[i]);
    }
    uvx_watch_free(h->on_signals);
    h->on_signals = NULL;
    close_fd(&h->signals);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static int earlier(int ms, uint64_t when_ns, uint64_t now)
{
    uint64_t left = when_ns > now ? (when_ns - now + 999999) / 1000000 : 0;
    return ms < 0 || left < (uint64_t)ms ? (int)left : ms;
}

static int next_timeout(const struct head *h)
{
    int ms = head_output_timeout(h->output, h->at.now_ns);
    for (size_t i = 0; i < h->at.npeers; i++) {
        const struct peer *p = &h->at.peers[i];
        if (p->state == PEER_CONNECTING)
            ms = earlier(ms, contacts_deadline(&h->at, p), h->at.now_ns);
        else if (p->state == PEER_WAITING && p->next_ns)
            ms = earlier(ms, p->next_ns, h->at.now_ns);
    }
    uint64_t due = head_rules_deadline(h->rules, head_output_takes(h->output));
    if (due != UINT64_MAX)
        ms = earlier(ms, due, h->at.now_ns);
    return input_timeout(&h->input) ? earlier(ms, h->at.now_ns + INPUT_RETRY_NS, h->at.now_ns) : ms;
}

static void on_in(void *peer)
{
    struct peer *p = peer;
    awake(p->owner);
    peer_write(p);
}

static void on_out(void *peer)
{
    struct peer *p = peer;
    read_peer(awake(p->owner), p, PEER_OUT);
}

static void on_err(void *peer)
{
    struct peer *p = peer;
    read_peer(awake(p->owner), p, PEER_ERR);
}

static void on_streams(void *arg)
{
    struct head *h = awake(arg);
    if (head_output_ready(h->output, &h->input, h->at.now_ns))
        input_read(&h->input);
}

static void on_dialled(void *arg)
{
    struct head *h = awake(arg);
    contacts_read(&h->at);
}

static void on_due(uv_timer_t *t)
{
    (void)t; /* the turn looks at the time */
}

/* The loop is about to wait: for what can be done now, and until something is due. */
static void on_prepare(uv_prepare_t *prepare)
{
    static void (*const on_ready[])(void *) = {on_in, on_out, on_err};
    struct head *h = container_of(prepare, struct head, prepare);
    bool room = head_output_takes(h->output);
    for (size_t i = 0; i < h->at.npeers; i++) {
        struct peer *p = &h->at.peers[i];
        if (peer_watch(p, &h->scope, on_ready, room || (p->by_daemon && p->end_requested)) < 0)
            peer_kill(p);
    }
    int ms = next_timeout(h);
    uv_update_time(&h->loop);
    if (ms >= 0)
        uv_timer_start(&h->timer, on_due, (uint64_t)ms, 0);
    else
        uv_timer_stop(&h->timer);
}

static void head_turn(struct head *h)
{
    uv_run(&h->loop, UV_RUN_ONCE);
    h->at.now_ns = mono_ns();
    input_go_on(&h->input, h->at.now_ns);
    head_output_turn(h->output, h->at.now_ns);
    for (int i = 1; i <= 2; i++) {
        if (!head_output_lost_reader(h->output, i))
            continue;
        for (size_t k = 0; k < h->at.npeers; k++) {
            if (h->at.peers[k].state == PEER_PLANNED)
                peer_send_byte(&h->at.peers[k], FRAME_UNREAD, i);
        }
    }
    contacts_check(&h->at);
    head_rules_tick(h->rules, head_output_takes(h->output), h->at.now_ns);
    go_on(h);
}

static bool head_is_over(const struct head *h)
{
    for (size_t i = 0; i < h->at.npeers; i++) {
        if (peer_is_left(&h->at.peers[i]) || h->at.peers[i].pid > 0 || h->at.peers[i].through)
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------ the start */

/* Three descriptors for each host that is connected. */
static void raise_descriptor_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int watch(struct head *h, struct uvx_watch **out, int fd, void (*on_ready)(void *arg),
                 struct err *e)
{
    *out = uvx_watch_new(&h->scope, fd, on_ready, h);
    if (!*out)
        return err_sys(e, errno, "watch a descriptor");
    uvx_watch_for(*out, UV_READABLE);
    return 0;
}

static int open_loop(struct head *h, const struct host_list *hosts, struct err *e)
{
    int r = uv_loop_init(&h->loop);
    if (r < 0)
        return uvx_err(e, r, "the event loop");
    uvx_scope_init(&h->scope, &h->loop);
    uv_prepare_init(&h->loop, &h->prepare);
    uv_timer_init(&h->loop, &h->timer);
    uvx_own(&h->scope, &h->prepare);
    uvx_own(&h->scope, &h->timer);
    uv_prepare_start(&h->prepare, on_prepare);
    h->output = head_output_new(hosts->host, h->at.npeers, opt_flag(h->o, OPT_verbose), e);
    if (!h->output || watch(h, &h->on_signals, h->signals, read_signals, e) < 0 ||
        watch(h, &h->on_streams, head_output_fd(h->output), on_streams, e) < 0)
        return e->code;
    return h->at.dial.results < 0 ? 0 : watch(h, &h->on_dialled, h->at.dial.results, on_dialled, e);
}

/* 0, or the exit status. */
static int open_head(struct head *h, const struct host_list *hosts,
                     const struct head_tokens *tokens, struct err *e)
{
    struct options *o = h->o;
    if (contacts_init(&h->at, o, hosts, tokens, e) < 0)
        return 2;
    h->events = head_files_events(o, e);
    if (e->code)
        return 2;
    spawn_remember();
    raise_descriptor_limit();
    if (spawner_new(&h->spawner, e) < 0 || open_signals(h, e) < 0 || contacts_open(&h->at, e) < 0 ||
        open_loop(h, hosts, e) < 0)
        return 125;
    for (size_t i = 0; i < h->at.npeers; i++)
        h->at.peers[i].owner = h;
    h->at.spawner = h->spawner;
    h->at.rules = h->rules = head_rules_new(h->at.npeers, h->at.min, h->at.max, h->at.spares);
    input_init(&h->input, head_output_fd(h->output),
               opt_is(o, OPT_stdin, "none")    ? INPUT_NONE
               : opt_is(o, OPT_stdin, "rank0") ? INPUT_RANK0
                                               : INPUT_ALL);
    return 0;
}

static void on_closed(void *closed)
{
    *(bool *)closed = true;
}

static void close_head(struct head *h)
{
    bool closed = false;
    uvx_watch_free(h->on_signals);
    uvx_watch_free(h->on_dialled);
    contacts_fini(&h->at);
    uvx_scope_close(&h->scope, on_closed, &closed);
    while (!closed)
        uv_run(&h->loop, UV_RUN_ONCE);
    uv_loop_close(&h->loop);
    head_rules_free(h->rules);
    spawner_free(h->spawner);
    close_fd(&h->events);
    close_fd(&h->signals);
}

/* What a host tells of the job's end comes behind all output. */
static void show_end(struct head *h)
{
    size_t teller = head_rules_teller(h->rules);
    const struct peer *t = teller == HEAD_NO_HOST ? NULL : &h->at.peers[teller];
    if (t && t->report && !head_rules_ends(h->rules))
        head_output_report(h->output, t->report, t->report_len);
    if (t && t->json && opt_given(h->o, OPT_report))
        head_files_report(h->o, t->json, t->json_len);
    if (!head_rules_was_stopped(h->rules))
        let_signals_end(h);
    uint64_t soon = mono_ns() + UNREAD_S * 1000000000ull;
    uvx_watch_free(h->on_streams);
    head_output_finish(h->output, head_rules_was_stopped(h->rules) ? UNREAD_S : -1,
                       h->limit_ns && h->limit_ns < soon ? soon : h->limit_ns);
}

int head_run(struct options *o, const struct host_list *hosts, const struct head_tokens *tokens)
{
    struct head h = {.o = o, .cwd = plans_cwd(o), .signals = -1, .events = -1};
    struct err e = ERR_INIT;
    uvx_explain_abort();
    int rc = open_head(&h, hosts, tokens, &e);
    if (rc) {
        log_error("%s", e.msg);
        return rc;
    }
    h.at.now_ns = mono_ns();
    go_on(&h);
    while (!head_is_over(&h))
        head_turn(&h);
    input_fini(&h.input);
    head_rules_check(h.rules);
    int status = head_rules_status(h.rules);
    show_end(&h);
    close_head(&h);
    return status;
}
