#include "launcher/hosts/head.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/spawn.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/named_file.h"
#include "core/netaddr.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/dial.h"
#include "launcher/hosts/head_output.h"
#include "launcher/hosts/head_rules.h"
#include "launcher/hosts/input.h"
#include "launcher/hosts/peer.h"
#include "launcher/hosts/plan_options.h"
#include "launcher/hosts/reach.h"
#include "launcher/options/programs.h"
#include "launcher/options/shell_split.h"
#include "rendezvous/rules/tree.h"

#define CONNECTING_MAX 64
#define DAEMON_MS      500 /* for a daemon to show that it knows the token, before ssh is tried */
#define EVENTS         64
#define READER_MS      1000 /* for the reader of a FIFO: of --events, of --report */
#define UNREAD_S       5    /* patience with a reader of the output, behind a stopped job */

extern char **environ;

/* The source of an epoll event: a descriptor of a peer, or one of these. */
struct source {
    struct peer *peer; /* NULL: signals, input */
    int end;           /* enum peer_end; SIGNALS, INPUT, DIAL */
};
enum { SIGNALS = 8, INPUT, DIAL };

struct head {
    struct options *o;
    const struct head_tokens *tokens;
    const char *cwd; /* asked for before signals are read: its file system may not answer */
    struct reach reach;
    struct dial dial;   /* connections to daemons; not open: every host is reached by ssh */
    struct tls_key key; /* of the daemons' token */
    struct spawner *spawner;
    int min, max, spares; /* hosts that the job has at least, at most, and beyond */
    double timeout_s;
    struct head_rules *rules;

    struct peer *peers;
    struct source *sources; /* three for each peer */
    size_t npeers;
    struct peer_piece program; /* to be copied; n is 0: not */
    struct copies copies;      /* likewise */

    int epfd, signals;
    struct source signal_source, input_source, dial_source;
    struct head_output *output;
    struct input input;
    int events; /* the file of --events; -1: none */

    uint64_t limit_ns; /* when the hosts stop the job by --timeout; 0: not known, or no limit */
    uint64_t now_ns;
};

/* ---------------------------------------------------------------------------------------- epoll */

static void head_watch(struct head *h, struct peer *p, enum peer_end end, int fd, bool want)
{
    uint32_t bit = 1u << end;
    struct source *s = &h->sources[3 * (size_t)(p - h->peers) + end];
    struct epoll_event ev = {.events = end == PEER_IN ? EPOLLOUT : EPOLLIN, .data.ptr = s};
    if (want == !!(p->watched & bit) || fd < 0)
        return;
    *s = (struct source){p, end};
    epoll_ctl(h->epfd, want ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &ev);
    p->watched ^= bit;
}

/* Asks for what can be done now. A closed descriptor has left epoll by itself. */
static void update_watches(struct head *h)
{
    bool room = head_output_takes(h->output);
    for (size_t i = 0; i < h->npeers; i++) {
        struct peer *p = &h->peers[i];
        if (p->in < 0)
            p->watched &= ~(1u << PEER_IN);
        if (p->out < 0)
            p->watched &= ~(1u << PEER_OUT);
        if (p->err < 0)
            p->watched &= ~(1u << PEER_ERR);
        head_watch(h, p, PEER_IN, p->in, peer_has_to_write(p));
        head_watch(h, p, PEER_OUT, p->out, room || (p->by_daemon && p->end_requested));
        head_watch(h, p, PEER_ERR, p->err, true);
    }
}

/* ------------------------------------------------------------------------------- ends of a host */

static size_t index_of(const struct head *h, const struct peer *p)
{
    return (size_t)(p - h->peers);
}

static bool is_left(const struct peer *p)
{
    return p->state != PEER_GONE;
}

/* A host is not in the job, for the reason in `why`. */
static void lose_host(struct head *h, struct peer *p, const char *why, int status)
{
    p->state = PEER_GONE;
    head_rules_absent(h->rules, index_of(h, p), why, status);
}

/* A host that is not wanted ends what was begun there. */
static void drop_host(struct head *h, struct peer *p)
{
    if (p->state == PEER_WAITING || p->dialing)
        lose_host(h, p, "", 1);
    else if (p->state == PEER_CONNECTING)
        peer_kill(p);
    else
        peer_drop(p);
    if (!head_rules_is_left(h->rules, index_of(h, p)))
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
    head_rules_ended(h->rules, index_of(h, p), &result, p->report != NULL);
}

/* ------------------------------------------------------------------------------------- starting */

/* The end of an attempt. */
static uint64_t deadline_of(const struct head *h, const struct peer *p)
{
    uint64_t end = p->first_ns + (uint64_t)(h->timeout_s * 1e9);
    uint64_t of_daemon = p->first_ns + DAEMON_MS * 1000000ull;
    bool known = !p->by_daemon || peer_is_known(p) || h->reach.way == REACH_DAEMON;
    return known || end < of_daemon ? end : of_daemon;
}

/* No daemon can start the job on this host. again: one may do so soon. */
static void lose_daemon(struct head *h, struct peer *p, const char *why, bool again)
{
    char text[ERR_MSG_MAX];
    peer_hang_up(p);
    if (head_rules_ends(h->rules)) {
        lose_host(h, p, why, 1);
    } else if (h->reach.way == REACH_BOTH) {
        log_verbose("%s: not by its daemon: %s", p->host->name, why);
        p->no_daemon = true;
        p->state = PEER_WAITING;
        p->next_ns = h->now_ns;
    } else if (again && peer_again(p, deadline_of(h, p), h->now_ns)) {
        log_verbose("%s: its daemon: %s; trying again", p->host->name, why);
    } else {
        snprintf(text, sizeof(text), "its daemon, at port %s, cannot be used: %s",
                 opt_text(h->o, OPT_serve_port), why);
        lose_host(h, p, text, 1);
    }
}

static void try_daemon(struct head *h, struct peer *p)
{
    struct err e = ERR_INIT;
    peer_dial(p);
    uint64_t end = deadline_of(h, p);
    int ms = end > h->now_ns ? (int)((end - h->now_ns) / 1000000) : 0;
    if (dial_start(&h->dial, (unsigned)index_of(h, p), p->attempts, p->host->name,
                   (int)opt_number(h->o, OPT_serve_port), ms, &e) < 0)
        lose_daemon(h, p, e.msg, false);
}

static void read_dialled(struct head *h)
{
    struct dial_result r;
    struct err e = ERR_INIT;
    while (dial_next(&h->dial, &r)) {
        struct peer *p = &h->peers[r.peer];
        if (!p->dialing || p->attempts != r.attempt || p->state != PEER_CONNECTING) {
            close_fd(&r.fd); /* its time was over */
        } else if (r.error == ETIMEDOUT) {
            continue; /* check_deadlines() says so */
        } else if (r.fd < 0) {
            lose_daemon(h, p, r.why, r.error == ECONNREFUSED || r.error == ECONNRESET);
        } else if (peer_connected(p, r.fd, &h->key, &e) < 0) {
            lose_daemon(h, p, e.msg, false);
        } else {
            peer_write(p);
        }
    }
}

static int try_command(struct head *h, struct peer *p, struct err *e)
{
    char *own[] = {(char *)"dlaunch", (char *)"--from_head", NULL};
    if (p->via) {
        peer_start_through(p, reach_argv(&h->reach, h->o, p->host), h->copies.n > 0);
        return 0;
    }
    int rc = peer_start(p, h->spawner, p->is_local ? "/proc/self/exe" : h->reach.path,
                        p->is_local ? own : reach_argv(&h->reach, h->o, p->host), e);
    if (rc == 0 && !p->is_local)
        p->piece[0] = (struct peer_piece){h->copies.p, h->copies.n};
    return rc;
}

/* Whether the host that is to reach this one has come. A host above takes the place of one that is
 * lost. */
static bool way_is_ready(struct peer *p)
{
    while (p->via && !is_left(p->via))
        p->via = p->via->via;
    return !p->via || p->via->state == PEER_READY;
}

static void start_waiting(struct head *h)
{
    size_t connecting = 0;
    for (size_t i = 0; i < h->npeers; i++)
        connecting += h->peers[i].state == PEER_CONNECTING && !h->peers[i].through;
    for (size_t i = 0; i < h->npeers && connecting < CONNECTING_MAX; i++) {
        struct peer *p = &h->peers[i];
        struct err e = ERR_INIT;
        if (p->state != PEER_WAITING || p->next_ns > h->now_ns || !way_is_ready(p))
            continue;
        if (!p->first_ns)
            p->first_ns = h->now_ns;
        if (h->dial.results >= 0 && !p->is_local && !p->no_daemon && !p->host->user)
            try_daemon(h, p);
        else if (try_command(h, p, &e) < 0)
            lose_host(h, p, e.msg, 125);
        connecting += p->state == PEER_CONNECTING && !p->through;
    }
}

static void check_deadlines(struct head *h)
{
    char why[64];
    for (size_t i = 0; i < h->npeers; i++) {
        struct peer *p = &h->peers[i];
        if (p->state != PEER_CONNECTING || h->now_ns < deadline_of(h, p))
            continue;
        if (p->by_daemon && h->reach.way == REACH_BOTH && !peer_is_known(p)) {
            snprintf(why, sizeof(why), "it does not answer within %g s", DAEMON_MS / 1e3);
            lose_daemon(h, p, why, false);
            continue;
        }
        snprintf(why, sizeof(why), "does not answer within %g s (--start_timeout)", h->timeout_s);
        peer_kill(p);
        lose_host(h, p, why, 1);
    }
}

/* Where the hosts meet: at an address of the first one that the others are likely to reach. */
static const char *choose_endpoint(struct head *h, const struct peer *first)
{
    struct options *o = h->o;
    char text[HOST_MAX + 16];
    const char *at = first->hello.host; /* where ssh does not tell of an address */
    struct netaddr a;
    int port =
        opt_given(o, OPT_master_port) ? (int)opt_number(o, OPT_master_port) : first->hello.port;
    if (opt_given(o, OPT_rdzv_endpoint))
        return NULL; /* as the user says */
    for (size_t i = 0; i < h->npeers; i++) {
        const struct peer *p = &h->peers[i];
        const char *ip = first->is_local ? p->hello.head : first->hello.here;
        if (p->through)
            continue; /* to its sshd, another host is the head */
        if (p->state == PEER_READY && netaddr_parse_ip(&a, ip, 0) && !netaddr_is_loopback(&a) &&
            !netaddr_is_link_local(&a)) {
            at = ip;
            break;
        }
    }
    if (opt_given(o, OPT_master_addr))
        at = opt_text(o, OPT_master_addr);
    endpoint_format(text, sizeof(text), at, port);
    return options_printf(o, "%s", text);
}

static const char *run_id(struct options *o)
{
    unsigned char b[8] = {0};
    if (opt_given(o, OPT_rdzv_id) && *opt_text(o, OPT_rdzv_id))
        return opt_text(o, OPT_rdzv_id);
    if (getrandom(b, sizeof(b), 0) != sizeof(b))
        memcpy(b, &(pid_t){getpid()}, sizeof(pid_t));
    return options_printf(o, "%02x%02x%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5],
                          b[6], b[7]);
}

static void send_plan(struct head *h, struct peer *p, const struct job_of_hosts *j, const char *cwd)
{
    struct options *o = h->o;
    int program_at, columns = fd_columns(STDERR_FILENO);
    char **argv = plan_options_argv(o, j, p->host, p->rank, &program_at);
    bool copied = h->program.n && !p->is_local;
    struct plan_of_host plan = {
        .cwd = (char *)cwd,
        .name = (char *)p->host->name,
        .argv = argv,
        .env = plan_options_env(o, environ, p->host),
        .programs = programs_put(o),
        .token = (char *)h->tokens->job,
        .prefix = (char *)(p->is_local ? "" : opt_text(o, OPT_prefix)),
        .columns = (uint8_t)(columns < UINT8_MAX ? columns : UINT8_MAX),
        .json = opt_given(o, OPT_report),
        .events = p->rank == 0 && h->events >= 0, /* every launcher has the same ones */
        .hosts_rendezvous = p->rank == 0 && j->endpoint && !opt_given(o, OPT_master_port),
        .program_at = copied ? program_at : 0,
    };
    if (copied && p->through) {
        peer_forward_program(p);
    } else if (copied) {
        assert(!p->to.len); /* a peer that is READY has been sent nothing */
        frame_begin(&p->to, FRAME_PROGRAM, h->program.n);
        peer_write(p);
        while (p->to.len && p->in >= 0)
            peer_write(p); /* five bytes, which an empty pipe takes */
        p->piece[1] = h->program;
    }
    plan_put(&p->to, &plan);
    p->state = PEER_PLANNED;
    peer_write(p);
}

/* The logical name of the working directory: a home that is mounted on demand has one. */
static const char *working_directory(struct options *o)
{
    struct stat a, b;
    char path[PATH_MAX];
    const char *pwd = getenv("PWD");
    if (pwd && *pwd == '/' && stat(pwd, &a) == 0 && stat(".", &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return pwd;
    return options_printf(o, "%s", getcwd(path, sizeof(path)) ? path : "/");
}

/* Every host has answered or is lost: those of the job get their plans. */
static void plan_all(struct head *h)
{
    struct peer *first = NULL;
    int n = 0;
    struct job_of_hosts j = {
        .min_nodes = h->min, .spares = h->spares, .nodes = head_rules_nodes(h->rules)};
    j.run_id = run_id(h->o);
    for (size_t i = 0; i < h->npeers && !first; i++)
        first = head_rules_rank(h->rules, i) == 0 ? &h->peers[i] : NULL;
    if (j.nodes + j.spares > 1)
        j.endpoint = choose_endpoint(h, first);
    for (size_t i = 0; i < h->npeers; i++) {
        struct peer *p = &h->peers[i];
        p->rank = head_rules_rank(h->rules, i);
        if (p->rank < 0 || p->state != PEER_READY)
            continue;
        send_plan(h, p, &j, h->cwd);
        input_add(&h->input, p, p->rank);
        n++;
    }
    if (opt_seconds(h->o, OPT_timeout) > 0)
        h->limit_ns = h->now_ns + (uint64_t)(opt_seconds(h->o, OPT_timeout) * 1e9);
    head_rules_limit(h->rules, h->limit_ns);
    log_verbose("%d hosts have their plans; they meet at %s", n,
                j.endpoint ? j.endpoint : "no endpoint");
}

static void carry_out(struct head *h, const struct head_action *a)
{
    struct peer *p = a->host == HEAD_NO_HOST ? NULL : &h->peers[a->host];
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
    start_waiting(h);
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
        head_rules_ready(h->rules, index_of(h, p));
        if (p->is_local || p->by_daemon)
            log_verbose("%s: reached %s", p->host->name,
                        p->is_local ? "without ado: it is this host" : "by its daemon");
        else
            log_verbose("%s: reached by %s%s%s", p->host->name, h->reach.words[0],
                        p->through ? " through " : "", p->through ? p->via->host->name : "");
        return;
    }
    snprintf(why, sizeof(why), "%s; --prefix names another, --bcast copies this one", differs);
    if (p->by_daemon && h->reach.way == REACH_BOTH) {
        lose_daemon(h, p, why, false);
        return;
    }
    p->state = PEER_READY;
    peer_drop(p);
    lose_host(h, p, why, 1);
}

static void head_keep(char **to, size_t *len, const struct frame *f)
{
    free(*to);
    *to = xstrndup((const char *)f->body, f->len);
    *len = f->len;
}

static void write_events(struct head *h, const struct frame *f)
{
    int rc = h->events >= 0 ? fd_write_timed(h->events, f->body, f->len, READER_MS, NULL) : 0;
    if (rc == 0)
        return;
    log_warn("--events: %s: %s; no further events are written", opt_text(h->o, OPT_events),
             strerror(-rc));
    close_fd(&h->events);
}

static void on_forwarded(struct head *h, struct peer *via, const struct frame *f);

static void on_frame(struct head *h, struct peer *p, const struct frame *f)
{
    struct rd r = rd_init(f->body, f->len);
    size_t index = index_of(h, p);
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
        write_events(h, f);
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
    close_fd(&p->out);
    input_forget(&h->input, p);
    peer_explain(p, status, &e);
    p->state = PEER_GONE;
    head_rules_closed(h->rules, index_of(h, p), e.msg);
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
        lose_daemon(h, p, p->said, !p->refused);
        return;
    }
    peer_hang_up(p);
    head_lose_peer(h, p, 0);
}

/* A process has ended. What it has written is in the pipe. */
static void on_ended(struct head *h, struct peer *p, int status)
{
    if (peer_ended(p, status) && peer_again(p, deadline_of(h, p), h->now_ns)) {
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
    if (frame_forward_get(f, &w) < 0 || w.host >= h->npeers || h->peers[w.host].via != via ||
        !h->peers[w.host].through) {
        peer_kill(via);
        return;
    }
    struct peer *p = &h->peers[w.host];
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
    for (size_t i = 0; i < h->npeers; i++) {
        struct peer *p = &h->peers[i];
        if (p->via != via || !p->through)
            continue;
        bool early = p->state == PEER_CONNECTING && !head_rules_ends(h->rules);
        peer_lose_via(p);
        if (early) {
            p->state = PEER_WAITING;
            p->next_ns = h->now_ns;
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
        for (size_t i = 0; i < h->npeers; i++) {
            if (h->peers[i].pid == pid)
                on_ended(h, &h->peers[i], status);
        }
    }
}

/* -------------------------------------------------------------------------------------- signals */

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

static void read_signals(struct head *h)
{
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
            head_rules_signal(h->rules, signo, h->now_ns);
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
    int ms = head_output_timeout(h->output, h->now_ns);
    for (size_t i = 0; i < h->npeers; i++) {
        const struct peer *p = &h->peers[i];
        if (p->state == PEER_CONNECTING)
            ms = earlier(ms, deadline_of(h, p), h->now_ns);
        else if (p->state == PEER_WAITING && p->next_ns)
            ms = earlier(ms, p->next_ns, h->now_ns);
    }
    uint64_t due = head_rules_deadline(h->rules, head_output_takes(h->output));
    if (due != UINT64_MAX)
        ms = earlier(ms, due, h->now_ns);
    return input_timeout(&h->input) ? earlier(ms, h->now_ns + INPUT_RETRY_NS, h->now_ns) : ms;
}

static void head_turn(struct head *h)
{
    struct epoll_event ev[EVENTS];
    update_watches(h);
    int n = epoll_wait(h->epfd, ev, EVENTS, next_timeout(h));
    h->now_ns = mono_ns();
    for (int i = 0; i < n; i++) {
        struct source *s = ev[i].data.ptr;
        if (head_output_event(h->output, s, h->now_ns))
            continue;
        if (s->end == SIGNALS)
            read_signals(h);
        else if (s->end == INPUT)
            input_read(&h->input);
        else if (s->end == DIAL)
            read_dialled(h);
        else if (s->end == PEER_IN && s->peer->in >= 0)
            peer_write(s->peer);
        else if ((s->end == PEER_OUT && s->peer->out >= 0) ||
                 (s->end == PEER_ERR && s->peer->err >= 0))
            read_peer(h, s->peer, (enum peer_end)s->end);
    }
    input_go_on(&h->input, h->now_ns);
    head_output_turn(h->output, h->now_ns);
    for (int i = 1; i <= 2; i++) {
        if (!head_output_lost_reader(h->output, i))
            continue;
        for (size_t k = 0; k < h->npeers; k++) {
            if (h->peers[k].state == PEER_PLANNED)
                peer_send_byte(&h->peers[k], FRAME_UNREAD, i);
        }
    }
    check_deadlines(h);
    head_rules_tick(h->rules, head_output_takes(h->output), h->now_ns);
    go_on(h);
}

static bool head_is_over(const struct head *h)
{
    for (size_t i = 0; i < h->npeers; i++) {
        if (is_left(&h->peers[i]) || h->peers[i].pid > 0 || h->peers[i].through)
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------ the start */

/* Maps a file that is to be copied to the hosts. */
static int map_file(const char *path, struct peer_piece *out, struct err *e)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "--bcast: %s", path);
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size > FRAME_BODY_MAX)
        return err_set(e, -EINVAL, "--bcast: %s is not a file of 1 byte to 1 GB", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "--bcast: %s", path);
    *out = (struct peer_piece){p, (size_t)st.st_size};
    return 0;
}

/* The program is copied if it is a file here; one that is found by PATH is another host's own. */
static int map_copies(struct head *h, struct err *e)
{
    const char *program = h->o->command[0];
    struct stat st;
    if (!opt_flag(h->o, OPT_bcast))
        return 0;
    int rc = copies_map(&h->copies, NULL, e);
    if (rc < 0)
        return err_wrap(e, "--bcast");
    if (!opt_flag(h->o, OPT_module) && stat(program, &st) == 0 && S_ISREG(st.st_mode))
        rc = map_file(program, &h->program, e);
    return rc;
}

/* Three descriptors for each host that is connected. */
static void raise_descriptor_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* Where --launch_agent demands the daemon: there must be a token, and no host with another user. */
static int check_daemons(const struct head *h, const struct host_list *hosts, struct err *e)
{
    struct options *o = h->o;
    if (h->reach.way != REACH_DAEMON)
        return 0;
    if (!*h->tokens->daemon)
        return err_set(e, -EINVAL,
                       "%s daemon needs the token of the daemons (--token_file, or dlaunch "
                       "--new_token): %.300s",
                       opt_where(o, OPT_launch_agent), h->tokens->why.msg);
    for (size_t i = 0; i < hosts->n; i++) {
        if (hosts->host[i].user)
            return err_set(e, -EINVAL,
                           "%s daemon: %s@%s: a daemon starts jobs of its own user; leave the "
                           "user out, or use ssh",
                           opt_where(o, OPT_launch_agent), hosts->host[i].user,
                           hosts->host[i].name);
    }
    return 0;
}

/* Daemons are tried if there is a token for them. */
static int open_dial(struct head *h, struct err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &h->dial_source};
    h->dial_source.end = DIAL;
    if (h->reach.way == REACH_COMMAND || !*h->tokens->daemon)
        return 0;
    int rc = host_stream_key(&h->key, h->tokens->daemon, e);
    if (rc < 0 && h->reach.way == REACH_BOTH) {
        log_verbose("daemons are not tried: %s", e->msg);
        *e = (struct err)ERR_INIT;
        return 0;
    }
    if (rc == 0)
        rc = dial_open(&h->dial, e);
    if (rc == 0 && epoll_ctl(h->epfd, EPOLL_CTL_ADD, h->dial.results, &ev) < 0)
        rc = err_sys(e, errno, "epoll");
    return rc;
}

static void make_peers(struct head *h, const struct host_list *hosts)
{
    int width = (int)opt_number(h->o, OPT_ssh_tree), nremote = 0;
    h->npeers = hosts->n;
    if (h->min == h->max && h->npeers > (size_t)(h->max + h->spares))
        h->npeers = (size_t)(h->max + h->spares); /* all must come, so no other is needed */
    h->peers = xcalloc(h->npeers, sizeof(*h->peers));
    struct peer **remote = xcalloc(h->npeers, sizeof(struct peer *));
    for (size_t i = 0; i < h->npeers; i++) {
        struct peer *p = &h->peers[i];
        bool is_local = h->reach.way != REACH_DAEMON && reach_is_here(&hosts->host[i]);
        peer_init(p, &hosts->host[i], (uint32_t)i, is_local, h->reach.srun && !is_local);
        if (!width || is_local)
            continue;
        int via = tree_parent(nremote, -1, width);
        p->via = via < 0 ? NULL : remote[via];
        remote[nremote++] = p;
    }
    free(remote);
}

static int open_head(struct head *h, const struct host_list *hosts, struct err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &h->signal_source};
    h->signal_source.end = SIGNALS;
    h->input_source.end = INPUT;
    if (plan_options_check(h->o, hosts, e) < 0 ||
        plan_options_nodes(h->o, hosts->n, &h->min, &h->max, &h->spares, e) < 0 ||
        map_copies(h, e) < 0 || reach_init(&h->reach, h->o, &h->copies, e) < 0 ||
        check_daemons(h, hosts, e) < 0)
        return 2;
    if (opt_given(h->o, OPT_events) &&
        (h->events = named_file_open(opt_text(h->o, OPT_events), O_WRONLY | O_CREAT | O_APPEND,
                                     0666, e)) < 0) {
        err_wrap(e, "%s", opt_where(h->o, OPT_events));
        return 2;
    }
    spawn_remember();
    raise_descriptor_limit();
    if (spawner_new(&h->spawner, e) < 0 || open_signals(h, e) < 0)
        return 125;
    h->epfd = epoll_create1(EPOLL_CLOEXEC);
    if (h->epfd < 0 || epoll_ctl(h->epfd, EPOLL_CTL_ADD, h->signals, &ev) < 0) {
        err_sys(e, errno, "epoll");
        return 125;
    }
    if (open_dial(h, e) < 0)
        return 125;
    make_peers(h, hosts);
    h->rules = head_rules_new(h->npeers, h->min, h->max, h->spares);
    h->sources = xcalloc(3 * h->npeers, sizeof(*h->sources));
    h->output = head_output_new(h->epfd, hosts->host, h->npeers, opt_flag(h->o, OPT_verbose));
    input_init(&h->input, h->epfd, &h->input_source,
               opt_is(h->o, OPT_stdin, "none")    ? INPUT_NONE
               : opt_is(h->o, OPT_stdin, "rank0") ? INPUT_RANK0
                                                  : INPUT_ALL);
    return 0;
}

static void write_json(struct head *h, const struct peer *teller)
{
    struct err e = ERR_INIT;
    const char *path = opt_text(h->o, OPT_report);
    if (!opt_given(h->o, OPT_report) || !teller->json)
        return;
    _cleanup_fd_ int fd = named_file_open(path, O_WRONLY | O_CREAT, 0666, &e);
    if (fd < 0) {
        log_error("--report: %s", e.msg);
        return;
    }
    int rc = ftruncate(fd, 0) < 0 && errno != EINVAL ? -errno : 0;
    if (rc == 0)
        rc = fd_write_timed(fd, teller->json, teller->json_len, READER_MS, NULL);
    if (rc < 0)
        log_error("--report: %s: %s", path, strerror(-rc));
}

int head_run(struct options *o, const struct host_list *hosts, const struct head_tokens *tokens)
{
    struct head h = {
        .o = o, .tokens = tokens, .dial = DIAL_INIT, .epfd = -1, .signals = -1, .events = -1};
    struct err e = ERR_INIT;
    h.timeout_s = opt_seconds(o, OPT_start_timeout);
    h.cwd = working_directory(o);
    int rc = open_head(&h, hosts, &e);
    if (rc) {
        log_error("%s", e.msg);
        return rc;
    }
    h.now_ns = mono_ns();
    go_on(&h);
    while (!head_is_over(&h))
        head_turn(&h);
    input_fini(&h.input);
    head_rules_check(h.rules);
    int status = head_rules_status(h.rules);
    size_t teller = head_rules_teller(h.rules);
    const struct peer *t = teller == HEAD_NO_HOST ? NULL : &h.peers[teller];
    if (t && t->report && !head_rules_ends(h.rules))
        head_output_report(h.output, t->report, t->report_len);
    if (t)
        write_json(&h, t);
    if (!head_rules_was_stopped(h.rules))
        let_signals_end(&h);
    uint64_t soon = mono_ns() + UNREAD_S * 1000000000ull;
    head_output_finish(h.output, head_rules_was_stopped(h.rules) ? UNREAD_S : -1,
                       h.limit_ns && h.limit_ns < soon ? soon : h.limit_ns);
    for (size_t i = 0; i < h.npeers; i++)
        peer_fini(&h.peers[i]);
    head_rules_free(h.rules);
    free(h.peers);
    free(h.sources);
    dial_close(&h.dial);
    tls_wipe(&h.key, sizeof(h.key));
    spawner_free(h.spawner);
    close_fd(&h.events);
    close_fd(&h.epfd);
    close_fd(&h.signals);
    return status;
}

/* ------------------------------------------------------------------------------------ --dry_run */

static void print_words(char *const *words)
{
    for (; *words; words++) {
        size_t cap = 4 * strlen(*words) + 3;
        char *text = xmalloc(cap);
        shell_quote(*words, text, cap);
        printf(" %s", text);
        free(text);
    }
    printf("\n");
}

static void print_reach(const struct head *h, const struct peer *p)
{
    const struct reach *r = &h->reach;
    const struct host *host = p->host;
    if (p->is_local) {
        printf(" (this host)\n");
        return;
    }
    if (p->via)
        printf(" through %s:", p->via->host->name);
    bool daemon = r->way != REACH_COMMAND && *h->tokens->daemon && !host->user;
    if (daemon)
        printf(" daemon at port %s%s", opt_text(h->o, OPT_serve_port),
               r->way == REACH_DAEMON ? "\n" : ", else");
    if (r->way != REACH_DAEMON)
        print_words(reach_argv(r, h->o, host));
}

int head_print(struct options *o, const struct host_list *hosts, const struct head_tokens *tokens,
               struct err *e)
{
    struct head h = {.o = o, .tokens = tokens};
    int program_at;
    if (plan_options_check(o, hosts, e) < 0 ||
        plan_options_nodes(o, hosts->n, &h.min, &h.max, &h.spares, e) < 0 ||
        map_copies(&h, e) < 0 || reach_init(&h.reach, o, &h.copies, e) < 0 ||
        check_daemons(&h, hosts, e) < 0)
        return -EINVAL;
    struct job_of_hosts j = {h.max, h.min, h.spares, NULL, "ID"};
    if (h.max + h.spares > 1 && !opt_given(o, OPT_rdzv_endpoint))
        j.endpoint = "ADDRESS:PORT";
    printf("%d host%s", h.max, h.max == 1 ? "" : "s");
    printf(h.spares ? ", %d more to spare\n" : "\n", h.spares);
    make_peers(&h, hosts);
    for (size_t i = 0; i < h.npeers && (int)i < h.max + h.spares; i++) {
        const struct host *host = h.peers[i].host;
        char number[16];
        snprintf(number, sizeof(number), "%d", host->nproc);
        const char *workers = host->nproc ? number : opt_text(o, OPT_nproc_per_node);
        printf("  node %zu  %s%s%s  %s worker%s%s%s%s ", i, host->user ? host->user : "",
               host->user ? "@" : "", host->name, workers, strcmp(workers, "1") == 0 ? "" : "s",
               host->ids ? " (GPUs " : "", host->ids ? host->ids : "", host->ids ? ")" : "");
        print_reach(&h, &h.peers[i]);
    }
    free(h.peers);
    printf("The first one then runs");
    print_words(plan_options_argv(o, &j, &hosts->host[0], 0, &program_at));
    return fflush(stdout) != 0 ? err_sys(e, errno, "standard output") : 0;
}
