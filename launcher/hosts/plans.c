#include "launcher/hosts/plans.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/netaddr.h"
#include "launcher/hosts/plan_options.h"
#include "launcher/options/programs.h"

extern char **environ;

const char *plans_cwd(struct options *o)
{
    struct stat a, b;
    char path[PATH_MAX];
    const char *pwd = getenv("PWD");
    if (pwd && *pwd == '/' && stat(pwd, &a) == 0 && stat(".", &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return pwd;
    return options_printf(o, "%s", getcwd(path, sizeof(path)) ? path : "/");
}

/* Where the hosts meet: at an address of the first one that the others are likely to reach. */
static const char *choose_endpoint(const struct plans *in, const struct peer *first)
{
    struct options *o = in->a->o;
    char text[HOST_MAX + 16];
    const char *at = first->hello.host; /* where ssh does not tell of an address */
    struct netaddr a;
    int port =
        opt_given(o, OPT_master_port) ? (int)opt_number(o, OPT_master_port) : first->hello.port;
    if (opt_given(o, OPT_rdzv_endpoint))
        return NULL; /* as the user says */
    for (size_t i = 0; i < in->a->npeers; i++) {
        const struct peer *p = &in->a->peers[i];
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

static void send_plan(const struct plans *in, struct peer *p, const struct job_of_hosts *j)
{
    struct options *o = in->a->o;
    int program_at, columns = fd_columns(STDERR_FILENO);
    char **argv = plan_options_argv(o, j, p->host, p->rank, &program_at);
    bool copied = in->a->copies.program_len && !p->is_local;
    struct plan_of_host plan = {
        .cwd = (char *)in->cwd,
        .name = (char *)p->host->name,
        .argv = argv,
        .env = plan_options_env(o, environ, p->host),
        .programs = programs_put(o),
        .token = (char *)in->a->tokens->job,
        .prefix = (char *)(p->is_local ? "" : opt_text(o, OPT_prefix)),
        .columns = (uint8_t)(columns < UINT8_MAX ? columns : UINT8_MAX),
        .json = opt_given(o, OPT_report),
        .events = p->rank == 0 && in->events, /* every launcher has the same ones */
        .hosts_rendezvous = p->rank == 0 && j->endpoint && !opt_given(o, OPT_master_port),
        .program_at = copied ? program_at : 0,
    };
    if (copied && p->through) {
        peer_forward_program(p);
    } else if (copied) {
        assert(!p->to.len); /* a peer that is READY has been sent nothing */
        frame_begin(&p->to, FRAME_PROGRAM, in->a->copies.program_len);
        peer_write(p);
        while (p->to.len && p->in >= 0)
            peer_write(p); /* five bytes, which an empty pipe takes */
        p->piece[1] = (struct peer_piece){in->a->copies.program, in->a->copies.program_len};
    }
    plan_put(&p->to, &plan);
    p->state = PEER_PLANNED;
    peer_write(p);
}

void plans_send(const struct plans *in)
{
    struct contacts *a = in->a;
    struct peer *first = NULL;
    int n = 0;
    struct job_of_hosts j = {.min_nodes = a->min,
                             .spares = a->spares,
                             .nodes = head_rules_nodes(a->rules),
                             .run_id = run_id(a->o)};
    for (size_t i = 0; i < a->npeers && !first; i++)
        first = head_rules_rank(a->rules, i) == 0 ? &a->peers[i] : NULL;
    if (j.nodes + j.spares > 1)
        j.endpoint = choose_endpoint(in, first);
    for (size_t i = 0; i < a->npeers; i++) {
        struct peer *p = &a->peers[i];
        p->rank = head_rules_rank(a->rules, i);
        if (p->rank < 0 || p->state != PEER_READY)
            continue;
        send_plan(in, p, &j);
        in->on_sent(in->arg, p);
        n++;
    }
    log_verbose("%d hosts have their plans; they meet at %s", n,
                j.endpoint ? j.endpoint : "no endpoint");
}
