#include "launcher/options/job_build.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/own_file.h"
#include "agent/device/gpu.h"
#include "agent/device/placement.h"
#include "agent/output/stdio_std.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/named_file.h"
#include "core/netaddr.h"
#include "core/parse.h"
#include "launcher/options/mpi_program.h"
#include "launcher/options/program.h"
#include "launcher/options/rdzv_conf.h"
#include "launcher/options/time_limit.h"

#define STATIC_PORT 29500
#define ETCD_PORT   2379
#define END_S       5.0 /* between SIGKILL to workers and the end of the job's time */
/* torchrun's for the static backend */
#define STATIC_JOIN_TIMEOUT 900.0

/* The words of the options that stand for enumerators. Each enumerator has one. */
static const char *const backend_words[] = {
    [RDZV_STATIC] = "static", [RDZV_C10D] = "c10d", [RDZV_FILE] = "file", [RDZV_ETCD] = "etcd"};
static const char *const restart_words[] = {[RESTART_GROUP] = "group", [RESTART_WORKER] = "worker"};
static const char *const fold_words[] = {
    [FOLD_AUTO] = "auto", [FOLD_ON] = "on", [FOLD_OFF] = "off"};
static const char *const stdin_words[] = {
    [STDIN_NONE] = "none", [STDIN_RANK0] = "rank0", [STDIN_ALL] = "all"};
static const char *const isolate_words[] = {
    [ISOLATE_AUTO] = "auto", [ISOLATE_NONE] = "none", [ISOLATE_PIDNS] = "pidns"};
static const char *const gpu_check_words[] = {
    [GPU_CHECK_AUTO] = "auto", [GPU_CHECK_OFF] = "off", [GPU_CHECK_FREE] = "free"};
/* --bind has the first four, --numa_binding the others; both have a socket. */
static const char *const bind_words[] = {
    [BIND_NONE] = "none",
    [BIND_CORE] = "core",
    [BIND_NUMA] = "numa",
    [BIND_SOCKET] = "socket",
    [BIND_GPU_NODE] = "node",
    [BIND_GPU_SOCKET] = "socket",
    [BIND_GPU_EXCLUSIVE] = "exclusive",
    [BIND_GPU_COMPLEX] = "core-complex",
};
_Static_assert(ARRAY_LEN(backend_words) == RDZV_BACKENDS, "a word for each enum rdzv_backend");
_Static_assert(ARRAY_LEN(restart_words) == RESTART_WORKER + 1, "a word for each restart_policy");
_Static_assert(ARRAY_LEN(fold_words) == FOLD_OFF + 1, "a word for each enum fold_mode");
_Static_assert(ARRAY_LEN(stdin_words) == STDIN_ALL + 1, "a word for each enum stdin_mode");
_Static_assert(ARRAY_LEN(isolate_words) == ISOLATE_PIDNS + 1, "a word for each enum isolation");
_Static_assert(ARRAY_LEN(gpu_check_words) == GPU_CHECK_FREE + 1, "a word for each enum gpu_check");
_Static_assert(ARRAY_LEN(bind_words) == BIND_GPU_COMPLEX + 1, "a word for each enum bind_mode");

/* The enumerator for an option's value, whose form has been checked. */
static int enum_of(const struct options *o, enum opt_id id, const char *const *words, size_t n)
{
    size_t i = 0;
    while (i < n && strcmp(words[i], opt_text(o, id)) != 0)
        i++;
    assert(i < n); /* options.def has a word that the table lacks */
    return (int)i;
}

/* "<where>: <what is wrong>". */
__attribute__((format(printf, 4, 5))) static int fail(struct options *o, enum opt_id id,
                                                      struct err *e, const char *fmt, ...)
{
    char text[ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(e, -EINVAL, "%s: %s", opt_where(o, id), text);
}

/* The text of a value whose parser has failed already. */
static int wrap(struct options *o, enum opt_id id, struct err *e)
{
    err_wrap(e, "%s", opt_where(o, id));
    return -EINVAL;
}

/* Under the name torchrun an empty text is none. */
static const char *text_or_null(const struct options *o, enum opt_id id)
{
    const char *text = o->value[id].text;
    return text && !*text && o->torchrun ? NULL : text;
}

/* ------------------------------------------------------------------------------ names and nodes */

static int check_name(struct options *o, enum opt_id id, size_t max, struct err *e)
{
    const char *s = opt_text(o, id);
    if (!*s && !(o->torchrun && id == OPT_role))
        return fail(o, id, e, "the value is empty");
    if (strlen(s) >= max)
        return fail(o, id, e, "the value is longer than %zu bytes", max - 1);
    for (; *s; s++) {
        if (iscntrl((unsigned char)*s))
            return fail(o, id, e, "the value has a control character");
    }
    return 0;
}

static const char *random_uuid(struct options *o)
{
    unsigned char b[16];
    if (getrandom(b, sizeof(b), 0) != sizeof(b))
        memset(b, (int)getpid(), sizeof(b)); /* cannot fail for 16 bytes on Linux */
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    return options_printf(o, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                          b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
                          b[12], b[13], b[14], b[15]);
}

static int build_backend(struct rdzv_config *c, struct options *o, struct err *e)
{
    const char *names[ARRAY_LEN(backend_words) + 1] = {NULL};
    const char *text = opt_text(o, OPT_rdzv_backend), *near;
    if (!opt_workers(o) && !opt_given(o, OPT_rdzv_backend))
        text = "c10d";
    for (size_t i = 0; i < ARRAY_LEN(backend_words); i++) {
        names[i] = backend_words[i];
        if (strcmp(text, names[i]) == 0) {
            c->backend = (enum rdzv_backend)i;
            return 0;
        }
    }
    if (strcmp(text, "etcd-v2") == 0) { /* torchrun's other client of the same server */
        c->backend = RDZV_ETCD;
        return 0;
    }
    near = parse_nearest(text, names);
    return fail(o, OPT_rdzv_backend, e, "'%.60s' is not one of static, c10d, file, etcd%s%s%s",
                text, near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
}

static int build_nnodes(struct rdzv_config *c, struct options *o, struct err *e)
{
    const struct opt_value *nnodes = &o->value[OPT_nnodes];
    if (parse_range(nnodes->text, &c->min_nodes, &c->max_nodes, e) < 0)
        return wrap(o, OPT_nnodes, e);
    if (opt_flag(o, OPT_standalone) && c->max_nodes > 1) {
        if (nnodes->from >= o->value[OPT_standalone].from)
            return fail(o, OPT_nnodes, e, "%s nodes, but --standalone runs a job on one node",
                        nnodes->text);
        c->min_nodes = c->max_nodes = 1;
    }
    if (c->backend == RDZV_STATIC && c->min_nodes != c->max_nodes) {
        options_warn(o,
                     "%s %s: the static backend waits for all %d nodes; use --rdzv_backend c10d to "
                     "start when %d have joined",
                     opt_where(o, OPT_nnodes), nnodes->text, c->max_nodes, c->min_nodes);
        c->min_nodes = c->max_nodes;
    }
    return 0;
}

static int build_spares(struct rdzv_config *c, struct options *o, struct err *e)
{
    long n = opt_number(o, OPT_spares);
    if (n > NNODES_MAX - c->max_nodes)
        return fail(o, OPT_spares, e, "%ld spare nodes are too many (at most %d nodes in all)", n,
                    NNODES_MAX);
    if (n > 0 && opt_flag(o, OPT_standalone))
        return fail(o, OPT_spares, e, "%ld spare nodes, but --standalone runs a job on one node",
                    n);
    c->spares = (int)n;
    return 0;
}

static int build_node_rank(struct rdzv_config *c, struct options *o, struct err *e)
{
    const struct opt_value *rank = &o->value[OPT_node_rank];
    bool given = opt_given(o, OPT_node_rank);
    c->node_rank = -1;
    /* A source with less precedence describes the job of many nodes, as in build_nnodes(). */
    if (!opt_workers(o) ||
        (opt_flag(o, OPT_standalone) && rank->from < o->value[OPT_standalone].from))
        return 0;
    if (given && strcmp(opt_text(o, OPT_node_rank), "any") != 0)
        c->node_rank = (int)opt_number(o, OPT_node_rank);
    if (o->torchrun && c->backend != RDZV_STATIC) {
        if (c->node_rank > 0)
            options_warn(o,
                         "%s %d has no effect with this rendezvous backend under the name torchrun",
                         opt_where(o, OPT_node_rank), c->node_rank);
        c->node_rank = -1;
    } else if (o->torchrun && !given) {
        c->node_rank = 0;
    }
    if (c->node_rank >= c->max_nodes && c->node_rank < c->max_nodes + c->spares)
        c->node_rank = -1; /* one of the spares */
    if (c->node_rank >= c->max_nodes)
        return fail(o, OPT_node_rank, e, "%d is out of range: with %d node%s, ranks are 0 to %d",
                    c->node_rank, c->max_nodes, c->max_nodes == 1 ? "" : "s", c->max_nodes - 1);
    return 0;
}

/* ----------------------------------------------------------------------------------- rendezvous */

static int parse_place(struct options *o, enum opt_id id, const char *text, int default_port,
                       struct rdzv_place_to_ask *out, struct err *e)
{
    char host[HOST_MAX];
    if (endpoint_parse(text, default_port, host, &out->port, e) < 0)
        return wrap(o, id, e);
    out->host = options_printf(o, "%s", host);
    return 0;
}

/* One place, or for c10d a list. */
static int parse_endpoint(struct rdzv_config *c, struct options *o, enum opt_id id,
                          int default_port, struct err *e)
{
    struct rdzv_place_to_ask *all = options_alloc(o, RDZV_PLACES_MAX * sizeof(*all));
    int n = 0;
    for (const char *s = opt_text(o, id);; s++) {
        size_t len = strcspn(s, ",");
        const char *text = options_printf(o, "%.*s", (int)len, s);
        bool list = n > 0 || s[len];
        if (list && !text[strspn(text, " \t")])
            return fail(o, id, e, "'%.100s' has an empty entry", opt_text(o, id));
        if (n == RDZV_PLACES_MAX)
            return fail(o, id, e, "more than %d endpoints", RDZV_PLACES_MAX);
        if (parse_place(o, id, text, default_port, &all[n], e) < 0)
            return -EINVAL;
        for (int i = 0; i < n; i++) {
            if (strcmp(all[i].host, all[n].host) == 0 && all[i].port == all[n].port)
                return fail(o, id, e, "%.100s is listed twice", text);
        }
        if (list && all[n].port == 0)
            return fail(o, id, e, "port 0 (any free port) is not possible in a list");
        n++;
        s += len;
        if (!*s)
            break;
    }
    if (n > 1 && c->backend != RDZV_C10D && c->backend != RDZV_ETCD)
        return fail(o, id, e, "a list of endpoints needs --rdzv_backend c10d or etcd");
    c->endpoint_host = all[0].host;
    c->endpoint_port = all[0].port;
    c->more = all + 1;
    c->nmore = n - 1;
    return 0;
}

/* An address by itself: no port. */
static int parse_host(struct options *o, enum opt_id id, const char **out, struct err *e)
{
    char host[HOST_MAX];
    int port;
    if (!*opt_text(o, id))
        return fail(o, id, e, "the value is empty");
    if (endpoint_parse(opt_text(o, id), -1, host, &port, e) < 0)
        return fail(o, id, e, "'%.100s' is not a host name or an IP address", opt_text(o, id));
    if (port >= 0)
        return fail(o, id, e, "'%.100s' must not have a port", opt_text(o, id));
    *out = options_printf(o, "%s", host);
    return 0;
}

static int build_endpoint_file(struct rdzv_config *c, struct options *o, struct err *e)
{
    const char *path = opt_text(o, OPT_rdzv_endpoint), *slash = strrchr(path, '/');
    struct stat st;
    if (!*path)
        return fail(o, OPT_rdzv_backend, e, "file needs --rdzv_endpoint PATH");
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return fail(o, OPT_rdzv_endpoint, e, "'%.200s' is a folder, not a file", path);
    const char *dir = !slash          ? "."
                      : slash == path ? "/"
                                      : options_printf(o, "%.*s", (int)(slash - path), path);
    if (access(dir, W_OK | X_OK) < 0)
        return fail(o, OPT_rdzv_endpoint, e, "cannot create a file in %.200s: %s", dir,
                    strerror(errno));
    c->endpoint_path = path;
    return 0;
}

/* A launcher without workers. */
static int build_apart(struct rdzv_config *c, struct options *o, struct err *e)
{
    bool only = opt_flag(o, OPT_rdzv_only);
    enum opt_id id = only ? OPT_rdzv_only : OPT_witness;
    if (only && opt_given(o, OPT_witness))
        return fail(o, OPT_witness, e, "cannot be combined with --rdzv_only");
    if (opt_flag(o, OPT_standalone))
        return fail(o, id, e, "cannot be combined with --standalone");
    if (o->command && o->command_from == FROM_ARGV)
        return fail(o, id, e, "takes no program, but one is given: %.100s", o->command[0]);
    if (only && c->backend != RDZV_C10D)
        return fail(o, id, e, "needs --rdzv_backend c10d");
    if (c->backend == RDZV_ETCD)
        return fail(o, id, e, "not with --rdzv_backend etcd: etcd votes itself");
    if (c->backend == RDZV_FILE) {
        bool named = strcmp(opt_text(o, OPT_rdzv_backend), "file") == 0; /* else store_type=file */
        return fail(o, named ? OPT_rdzv_backend : OPT_rdzv_conf, e,
                    "a witness (--witness) needs the backend c10d or static, not file");
    }
    if (only && c->max_nodes + c->spares == 1)
        return fail(o, id, e, "needs --nnodes of 2 or more");
    if (!only && c->max_nodes == 1)
        c->min_nodes = c->max_nodes = 2; /* the coordinator says how many there are */
    c->is_host = only;
    const char *at = opt_text(o, only ? OPT_rdzv_endpoint : OPT_witness);
    if (!*at)
        return fail(o, id, e,
                    only ? "needs --rdzv_endpoint, the address where the nodes meet"
                         : "the value is empty");
    if (only && strchr(at, ','))
        return fail(o, OPT_rdzv_endpoint, e, "only one endpoint is possible with --rdzv_only");
    if (!only || *at != ':')
        return parse_endpoint(c, o, only ? OPT_rdzv_endpoint : OPT_witness,
                              c->backend == RDZV_STATIC ? STATIC_PORT : C10D_PORT, e);
    long port;
    if (parse_int(at + 1, 1, 65535, &port, e) < 0)
        return wrap(o, OPT_rdzv_endpoint, e);
    c->endpoint_host = ""; /* all addresses */
    c->endpoint_port = (int)port;
    return 0;
}

/* etcdctl's variables: a password does not belong into a command line. */
static int build_etcd(struct rdzv_config *c, struct options *o, struct err *e)
{
    const char *user = options_env(o, "ETCDCTL_USER"),
               *password = options_env(o, "ETCDCTL_PASSWORD"),
               *colon = user ? strchr(user, ':') : NULL;
    struct rdzv_etcd_config *d = &c->etcd;
    if (!d->prefix)
        d->prefix = "/dlaunch";
    if (colon && !password)
        password = colon + 1;
    if (user && *user && !password)
        return err_set(e, -EINVAL,
                       "ETCDCTL_USER: '%.60s' has no password: write USER:PASSWORD, or set "
                       "ETCDCTL_PASSWORD",
                       user);
    if (user && *user) {
        d->user =
            options_printf(o, "%.*s", (int)strcspn(user, password == colon + 1 ? ":" : ""), user);
        d->password = password;
    }
    if (!d->tls && (d->ca || d->cert || d->key))
        return fail(o, OPT_rdzv_conf, e, "certificates need protocol=https");
    if (d->key && !d->cert)
        return fail(o, OPT_rdzv_conf, e, "ssl_cert_key needs ssl_cert");
    const char *const files[] = {d->ca, d->cert, d->key};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        if (files[i] && access(files[i], R_OK) < 0)
            return fail(o, OPT_rdzv_conf, e, "%.200s: %s", files[i], strerror(errno));
    }
    if (opt_given(o, OPT_rdzv_endpoint) && *opt_text(o, OPT_rdzv_endpoint))
        return parse_endpoint(c, o, OPT_rdzv_endpoint, ETCD_PORT, e);
    c->endpoint_host = "localhost";
    c->endpoint_port = ETCD_PORT;
    return 0;
}

static int build_endpoint(struct rdzv_config *c, struct options *o, struct err *e)
{
    bool given = opt_given(o, OPT_rdzv_endpoint) && *opt_text(o, OPT_rdzv_endpoint);
    int rc = 0;
    if (c->backend == RDZV_FILE)
        return build_endpoint_file(c, o, e);
    if (c->backend == RDZV_ETCD)
        return build_etcd(c, o, e);
    if (given) {
        rc = parse_endpoint(c, o, OPT_rdzv_endpoint,
                            c->backend == RDZV_STATIC ? STATIC_PORT : C10D_PORT, e);
    } else if (c->backend == RDZV_STATIC || !o->torchrun) {
        rc = parse_host(o, OPT_master_addr, &c->endpoint_host, e);
        c->endpoint_port = c->backend == RDZV_STATIC || opt_given(o, OPT_master_port)
                               ? (int)opt_number(o, OPT_master_port)
                               : C10D_PORT;
    } else {
        if (opt_given(o, OPT_master_addr))
            options_warn(o, "%s has no effect with the c10d backend; use --rdzv_endpoint",
                         opt_where(o, OPT_master_addr));
        c->endpoint_host = "localhost";
        c->endpoint_port = C10D_PORT;
    }
    if (rc < 0)
        return rc;
    if (c->endpoint_port == 0 && c->max_nodes + c->spares > 1)
        return fail(o, given ? OPT_rdzv_endpoint : OPT_master_port, e,
                    "port 0 (any free port) is not possible in a job of %d nodes", c->max_nodes);
    if (c->backend == RDZV_STATIC)
        c->master_addr = c->endpoint_host;
    return 0;
}

static int build_local_addr(struct rdzv_config *c, struct options *o, struct err *e)
{
    const struct opt_value *addr = &o->value[OPT_local_addr], *ifc = &o->value[OPT_interface];
    const char *text = text_or_null(o, OPT_local_addr);
    struct netaddr a;
    char ip[ADDR_STRLEN];
    if (text && ifc->text && addr->from == ifc->from)
        return fail(o, OPT_interface, e, "cannot be combined with --local_addr");
    if (text && (!ifc->text || addr->from > ifc->from))
        return parse_host(o, OPT_local_addr, &c->local_addr, e);
    if (!ifc->text)
        return 0;
    if (netaddr_of_interface(ifc->text, &a, e) < 0)
        return wrap(o, OPT_interface, e);
    c->local_addr = options_printf(o, "%s", netaddr_ip(&a, ip));
    return 0;
}

static void build_store(struct rdzv_config *c, struct options *o)
{
    const char *share = options_env(o, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    c->relay = opt_is(o, OPT_master_store, "relay");
    c->agent_store = !opt_is(o, OPT_master_store, "none");
    if (!opt_given(o, OPT_master_store) && c->backend != RDZV_STATIC && share &&
        strcmp(share, "1") == 0) {
        options_note(o, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: worker 0 serves the store itself "
                        "(--master_store none)");
        c->agent_store = false;
    }
    c->legacy_store_113 = opt_is(o, OPT_store_compat, "1.13");
}

/* torchrun's short cut: one node with nothing said about where to meet needs no fixed port. (There,
 * naming the c10d backend is saying something.) */
static bool is_alone(const struct rdzv_config *c, const struct options *o)
{
    return opt_flag(o, OPT_standalone) ||
           (c->max_nodes + c->spares == 1 && !*opt_text(o, OPT_rdzv_endpoint) &&
            !opt_given(o, OPT_master_port) &&
            (c->backend == RDZV_STATIC || (c->backend == RDZV_C10D && !o->torchrun)));
}

/* A job on one node meets on loopback, or at the address that the user names. --standalone is about
 * none, as in torchrun. */
static int build_alone(struct rdzv_config *c, struct options *o, struct err *e)
{
    bool none = o->torchrun && !*opt_text(o, OPT_master_addr);
    bool named = o->value[OPT_master_addr].from > FROM_DETECTED && !none;
    if (named && parse_host(o, OPT_master_addr, &c->endpoint_host, e) < 0)
        return -EINVAL;
    if (!named || opt_flag(o, OPT_standalone))
        c->endpoint_host = "127.0.0.1";
    c->backend = RDZV_C10D;
    c->endpoint_port = 0;
    c->is_host = 1;
    return 0;
}

/* "exec=restart,oom=evict" */
static int build_on_cause(struct rdzv_config *c, struct options *o, struct err *e)
{
    for (const char *s = opt_text(o, OPT_on_cause); *s;) {
        size_t len = strcspn(s, ","), name = strcspn(s, "=");
        enum cause cause = name < len ? cause_find(s, name) : CAUSE_NONE;
        enum cause_action action;
        if (name >= len)
            return fail(o, OPT_on_cause, e, "'%.*s' is not CLASS=ACTION",
                        (int)(len < 60 ? len : 60), s);
        if (cause == CAUSE_NONE || !cause_row(cause)->settable)
            return fail(o, OPT_on_cause, e,
                        cause == CAUSE_NONE ? "'%.*s' is not a class of causes (dlaunchctl causes)"
                                            : "the action of '%.*s' cannot be changed",
                        (int)(name < 60 ? name : 60), s);
        if (!cause_action_find(s + name + 1, len - name - 1, &action))
            return fail(o, OPT_on_cause, e, "'%.*s' is not an action (restart, end, evict)",
                        (int)(len - name - 1 < 60 ? len - name - 1 : 60), s + name + 1);
        c->actions.of[cause] = (uint8_t)action;
        s += len + (s[len] == ',');
    }
    return 0;
}

/* "2,64-78" */
static int build_no_restart(struct rdzv_config *c, struct options *o, struct err *e)
{
    const char *s = opt_text(o, OPT_no_restart_codes);
    while (*s) {
        const char *item = s;
        char *end;
        long from = strtol(s, &end, 10), to = from;
        if (end != s && *end == '-') {
            s = end + 1;
            to = strtol(s, &end, 10);
        }
        if (end == s || (*end && *end != ',') || (*end == ',' && !end[1]))
            return fail(o, OPT_no_restart_codes, e,
                        "'%.60s' is not a list of exit codes such as 2,64-78",
                        opt_text(o, OPT_no_restart_codes));
        if (from > to)
            return fail(o, OPT_no_restart_codes, e, "%.*s: the first code is greater than the last",
                        (int)(end - item), item);
        if (from < 1 || to > 255)
            return fail(o, OPT_no_restart_codes, e, "%.*s: out of range (1 to 255)",
                        (int)(end - item), item);
        for (long code = from; code <= to; code++)
            exit_codes_add(&c->no_restart, (int)code);
        s = *end ? end + 1 : end;
    }
    return 0;
}

static int build_rdzv(struct job_spec *spec, struct options *o, struct err *e)
{
    struct rdzv_config *c = &spec->rdzv;
    rdzv_config_defaults(c);
    if (build_backend(c, o, e) < 0 || build_nnodes(c, o, e) < 0 || build_spares(c, o, e) < 0)
        return -EINVAL;
    if (c->backend == RDZV_STATIC)
        c->join_timeout = STATIC_JOIN_TIMEOUT;
    bool is_static = c->backend == RDZV_STATIC && !(opt_workers(o) && is_alone(c, o));
    if (rdzv_conf_apply(o, is_static, c, e) < 0)
        return wrap(o, OPT_rdzv_conf, e);
    bool alone = opt_workers(o) && is_alone(c, o);
    if (alone) {
        if (build_alone(c, o, e) < 0)
            return -EINVAL;
    } else if (opt_workers(o) ? build_endpoint(c, o, e) < 0 : build_apart(c, o, e) < 0) {
        return -EINVAL;
    }
    /* torchrun makes one up in place of an empty one, each node its own: of use to one node alone.
     */
    bool empty = o->torchrun && c->max_nodes == 1 && !*opt_text(o, OPT_rdzv_id);
    bool random = empty || (alone && (o->torchrun || !opt_given(o, OPT_rdzv_id)));
    if ((!random && check_name(o, OPT_rdzv_id, RDZV_RUN_ID_MAX, e) < 0) ||
        check_name(o, OPT_role, ROLE_MAX, e) < 0 || build_node_rank(c, o, e) < 0 ||
        build_local_addr(c, o, e) < 0)
        return -EINVAL;
    bool one = c->max_nodes + c->spares == 1 && opt_workers(o);
    if (one && c->backend == RDZV_STATIC && c->local_addr && !opt_given(o, OPT_master_addr) &&
        !*opt_text(o, OPT_rdzv_endpoint)) /* in place of loopback, the default */
        c->endpoint_host = c->master_addr = c->local_addr;
    build_store(c, o);
    c->run_id = random ? random_uuid(o) : opt_text(o, OPT_rdzv_id);
    c->role = spec->role = opt_text(o, OPT_role);
    c->host = spec->host;
    c->nproc = spec->nproc;
    c->max_restarts = (int)opt_number(o, OPT_max_restarts);
    c->restart_policy = (enum restart_policy)enum_of(o, OPT_restart_policy, restart_words,
                                                     ARRAY_LEN(restart_words));
    c->restart_backoff = opt_seconds(o, OPT_restart_backoff);
    c->elect = opt_is(o, OPT_coordinator_loss, "elect") &&
               (!o->torchrun || opt_given(o, OPT_coordinator_loss) || c->backend == RDZV_ETCD);
    if (opt_number(o, OPT_tree_width) < 2 || opt_number(o, OPT_tree_width) > NNODES_MAX)
        return fail(o, OPT_tree_width, e, "%ld is out of range (2 to %d)",
                    opt_number(o, OPT_tree_width), NNODES_MAX);
    c->tree_width = (int)opt_number(o, OPT_tree_width);
    c->elastic = opt_flag(o, OPT_elastic) || o->torchrun;
    if (opt_flag(o, OPT_elastic) && c->min_nodes == c->max_nodes && opt_workers(o))
        options_warn(o, "%s has no effect without --nnodes MIN:MAX", opt_where(o, OPT_elastic));
    bool any = strcmp(opt_text(o, OPT_max_node_restarts), "any") == 0;
    c->max_node_restarts = any ? -1 : (int)opt_number(o, OPT_max_node_restarts);
    bool progress = !o->torchrun || opt_given(o, OPT_progress_time);
    c->progress_time = progress ? opt_seconds(o, OPT_progress_time) : 0;
    if (build_on_cause(c, o, e) < 0)
        return -EINVAL;
    return build_no_restart(c, o, e);
}

/* -------------------------------------------------------------------------------------- workers */

/* Returns the number of GPUs in CUDA_VISIBLE_DEVICES. torchrun counts the texts between commas,
 * empty ones included (an empty list means no GPU). */
static int named_gpus(const struct options *o, const char *visible)
{
    if (!o->torchrun)
        return gpu_count_visible(visible, 0);
    int n = 1;
    for (; *visible; visible++)
        n += *visible == ',';
    return n;
}

/* Counts the devices for workers. CUDA shows a process one instance of MIG only, so that workers
 * which share out instances each see their own as device 0. */
static int count_devices(struct job_spec *spec, struct options *o, const char *visible,
                         const char **how)
{
    char *instances;
    int n = gpu_count(visible, GPU_PROC, true, &instances, how);
    if (instances && n)
        spec->instances = options_printf(o, "%s", instances);
    free(instances);
    return n;
}

static const char *kind_of_devices(const struct job_spec *spec, long n)
{
    if (!spec->instances)
        return n == 1 ? "GPU" : "GPUs";
    if (strstr(spec->instances, "GPU-"))
        return "MIG instances and GPUs";
    return n == 1 ? "MIG instance" : "MIG instances";
}

static int build_nproc(struct job_spec *spec, struct options *o, struct err *e)
{
    const char *text = opt_text(o, OPT_nproc_per_node), *how = NULL;
    const char *visible = options_env(o, "CUDA_VISIBLE_DEVICES");
    char *end;
    long n = opt_workers(o) ? strtol(text, &end, 10) : 0;
    if (opt_workers(o) && end == text) {
        bool gpu = strcmp(text, "gpu") == 0, any = strcmp(text, "auto") == 0;
        n = gpu || any ? count_devices(spec, o, visible, &how) : 0;
        if (gpu && n == 0)
            return fail(o, OPT_nproc_per_node, e, "gpu: no GPU was found (%s)", how);
        if (n > 0) {
            spec->gpus = true;
            options_note(o, "--nproc_per_node %s: %ld %s (%s)", text, n, kind_of_devices(spec, n),
                         how);
        } else {
            n = o->torchrun ? sysconf(_SC_NPROCESSORS_ONLN) : usable_cpus();
            options_note(o, "--nproc_per_node %s: %ld CPU%s", text, n, n == 1 ? "" : "s");
        }
        if (n > NPROC_MAX)
            return fail(o, OPT_nproc_per_node, e, "%ld workers are too many (at most %d)", n,
                        NPROC_MAX);
    }
    spec->nproc = (int)n;
    spec->virtual_local_rank = opt_flag(o, OPT_virtual_local_rank) || spec->instances;
    spec->gpus = spec->gpus || spec->virtual_local_rank;
    spec->gpu_check =
        (enum gpu_check)enum_of(o, OPT_gpu_check, gpu_check_words, ARRAY_LEN(gpu_check_words));
    spec->gpu_wait = opt_seconds(o, OPT_gpu_memory_wait);
    if (spec->virtual_local_rank) {
        int devices = how ? (int)n : count_devices(spec, o, visible, &how);
        if (visible && !spec->instances)
            devices = named_gpus(o, visible);
        if (devices < spec->nproc && (visible || devices)) /* else nobody says how many */
            return fail(o, OPT_virtual_local_rank, e, "%s has %d %s for %d workers", how, devices,
                        spec->instances ? kind_of_devices(spec, devices)
                        : devices == 1  ? "device"
                                        : "devices",
                        spec->nproc);
    }
    return 0;
}

/* torchrun's rule against one thread per CPU in each of many workers. */
static void build_omp(struct job_spec *spec, struct options *o)
{
    if (spec->nproc <= 1 || options_env(o, "OMP_NUM_THREADS"))
        return;
    spec->omp_num_threads = "1";
    options_note(o,
                 "OMP_NUM_THREADS is set to 1 for each of the %d workers (set it to change that)",
                 spec->nproc);
}

static void build_binding(struct job_spec *spec, const struct options *o)
{
    const struct opt_value *numa = &o->value[OPT_numa_binding];
    bool gpu = numa->text && !(opt_given(o, OPT_bind) && o->value[OPT_bind].from >= numa->from);
    int from = gpu ? BIND_GPU_NODE : 0;
    spec->bind = (enum bind_mode)(from + enum_of(o, gpu ? OPT_numa_binding : OPT_bind,
                                                 bind_words + from, ARRAY_LEN(bind_words) - from));
    spec->gpus = spec->gpus || gpu;
}

/* --------------------------------------------------------------------------------------- output */

/* The first part of `path` upwards that exists must be a folder in which one can make things. */
static int check_dir(struct options *o, enum opt_id id, const char *path, struct err *e)
{
    char dir[PATH_MAX];
    struct stat st;
    if (snprintf(dir, sizeof(dir), "%s", path) >= (int)sizeof(dir))
        return fail(o, id, e, "the path is too long");
    while (stat(dir, &st) < 0) {
        if (errno != ENOENT)
            return fail(o, id, e, "%.200s: %s", dir, strerror(errno));
        char *slash = strrchr(dir, '/');
        if (!slash)
            strcpy(dir, ".");
        else if (slash == dir)
            dir[1] = '\0';
        else
            *slash = '\0';
    }
    if (!S_ISDIR(st.st_mode))
        return fail(o, id, e, "%.200s is not a folder", dir);
    if (access(dir, W_OK | X_OK) < 0)
        return fail(o, id, e, "cannot write in %.200s: %s", dir, strerror(errno));
    return 0;
}

int job_check_file(struct options *o, enum opt_id id, struct err *e)
{
    const char *path = opt_text(o, id), *slash = strrchr(path, '/');
    struct named_file f;
    if (!*path)
        return fail(o, id, e, "the value is empty");
    if (named_file_find(&f, path, true, e) < 0)
        return wrap(o, id, e);
    named_file_fini(&f);
    if (!f.exists)
        return check_dir(o, id,
                         !slash          ? "."
                         : slash == path ? "/"
                                         : options_printf(o, "%.*s", (int)(slash - path), path),
                         e);
    if (S_ISDIR(f.st.st_mode))
        return fail(o, id, e, "%.200s is a folder", path);
    if (access(path, W_OK) < 0)
        return fail(o, id, e, "%.200s: %s", path, strerror(errno));
    return 0;
}

/* "9100", "10.0.0.1:9100", "[::]:9100" */
static int build_metrics(struct job_spec *spec, struct options *o, struct err *e)
{
    const char *text = o->value[OPT_metrics].text, *colon = text ? strrchr(text, ':') : NULL;
    spec->metrics_dir = o->value[OPT_metrics_file].text;
    if (spec->metrics_dir && check_dir(o, OPT_metrics_file, spec->metrics_dir, e) < 0)
        return -EINVAL;
    if (spec->metrics_dir && access(spec->metrics_dir, W_OK | X_OK) < 0) /* a collector reads it */
        return fail(o, OPT_metrics_file, e, "%.200s: %s", spec->metrics_dir, strerror(errno));
    if (!text)
        return 0;
    const char *port = colon ? colon + 1 : text, *addr = "127.0.0.1";
    char *end;
    struct netaddr a;
    long n = strtol(port, &end, 10);
    if (colon && *text == '[' && colon > text + 1 && colon[-1] == ']')
        addr = options_printf(o, "%.*s", (int)(colon - text) - 2, text + 1);
    else if (colon)
        addr = options_printf(o, "%.*s", (int)(colon - text), text);
    if (end == port || *end || n < 0 || n > 65535 || *port == '+' || *port == '-')
        return fail(o, OPT_metrics, e, "'%.60s' is not a port (0 to 65535)", port);
    if (!netaddr_parse_ip(&a, addr, (int)n))
        return fail(o, OPT_metrics, e, "'%.60s' is not an IP address", addr);
    spec->metrics_addr = addr;
    spec->metrics_port = (int)n;
    return 0;
}

/* The prefix of teed lines, or NULL. torchrun looks at its older variable when the option is empty,
 * too. */
static const char *build_prefix(const struct options *o)
{
    const char *text = text_or_null(o, OPT_log_line_prefix_template);
    if (!text && o->torchrun)
        text = options_env(o, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    return o->torchrun && text && !*text ? NULL : text;
}

/* Which streams of which workers go where. */
static int build_streams(struct job_spec *spec, struct options *o, struct err *e)
{
    size_t n = (size_t)spec->nproc;
    uint8_t *redirects = options_alloc(o, n), *tee = options_alloc(o, n);
    bool *show = options_alloc(o, n * sizeof(*show));
    if (stdio_std_parse(opt_text(o, OPT_redirects), spec->nproc, redirects, e) < 0)
        return wrap(o, OPT_redirects, e);
    if (stdio_std_parse(opt_text(o, OPT_tee), spec->nproc, tee, e) < 0)
        return wrap(o, OPT_tee, e);
    if (stdio_ranks_parse(opt_text(o, OPT_local_ranks_filter), spec->nproc, show, e) < 0)
        return wrap(o, OPT_local_ranks_filter, e);
    bool silent = strchr(opt_text(o, OPT_local_ranks_filter), '-'); /* -1: show none */
    if (opt_workers(o) && !silent && !memchr(show, true, n))
        options_warn(
            o,
            "%s %s: the local ranks of this node are 0 to %d, so no output of its workers is shown",
            opt_where(o, OPT_local_ranks_filter), opt_text(o, OPT_local_ranks_filter),
            spec->nproc - 1);
    if (o->torchrun && strcmp(opt_text(o, OPT_log_dir), "/dev/null") == 0) {
        /* torchrun prints everything if there are no log files */
        memset(redirects, 0, n);
        memset(tee, 0, n);
        memset(show, true, n);
    }
    spec->redirects = redirects;
    spec->tee = tee;
    spec->show = show;
    spec->ranks = o->value[OPT_ranks].text;
    if (spec->ranks && parse_ranges(spec->ranks, e) < 0)
        return wrap(o, OPT_ranks, e);
    return 0;
}

static void build_console(struct job_spec *spec, const struct options *o)
{
    spec->fold = (enum fold_mode)enum_of(o, OPT_fold, fold_words, ARRAY_LEN(fold_words));
    if (o->torchrun && !opt_given(o, OPT_fold))
        spec->fold = FOLD_OFF;
    if (strcmp(opt_text(o, OPT_console), "job") == 0) {
        spec->job_console = spec->rdzv.max_nodes + spec->rdzv.spares > 1;
        if (spec->fold == FOLD_AUTO || !opt_given(o, OPT_fold))
            spec->fold = FOLD_ON;
    }
    spec->prefix_template = build_prefix(o);
    spec->quiet = opt_flag(o, OPT_quiet);
}

/* The folder of the log files, and the files of dlaunch itself. */
static int build_files(struct job_spec *spec, struct options *o, struct err *e)
{
    const struct {
        enum opt_id id;
        const char **path;
    } written[] = {{OPT_report, &spec->report_path},
                   {OPT_events, &spec->events_path},
                   {OPT_timeline, &spec->timeline_path},
                   {OPT_progress_file, &spec->progress_file},
                   {OPT_pod_message, &spec->pod_message}};
    static const enum opt_id opened[] = {OPT_log_file, OPT_pid_file,
                                         OPT_log_dir}; /* as it begins */
    spec->log_dir = *opt_text(o, OPT_log_dir) ? opt_text(o, OPT_log_dir) : NULL;
    if (spec->log_dir && strcmp(spec->log_dir, "/dev/null") != 0 &&
        check_dir(o, OPT_log_dir, spec->log_dir, e) < 0)
        return -EINVAL;
    for (size_t i = 0; i < ARRAY_LEN(written); i++) {
        *written[i].path = o->value[written[i].id].text;
        if (*written[i].path && job_check_file(o, written[i].id, e) < 0)
            return -EINVAL;
    }
    for (size_t i = 0; i < ARRAY_LEN(opened); i++) {
        if (o->value[opened[i]].text && !*o->value[opened[i]].text &&
            !(o->torchrun && opened[i] == OPT_log_dir))
            return fail(o, opened[i], e, "the value is empty");
    }
    spec->ledger = opt_flag(o, OPT_ledger);
    spec->checkpoint_mark = text_or_null(o, OPT_checkpoint_mark);
    return build_metrics(spec, o, e);
}

/* What torchrun has for plug-ins that are written in Python. */
static int check_plugins(struct options *o, struct err *e)
{
    if (o->value[OPT_logs_specs].text && strcmp(opt_text(o, OPT_logs_specs), "default") != 0)
        return fail(o, OPT_logs_specs, e,
                    "'%.60s' is not supported, because log plug-ins are written in Python (only "
                    "'default' is)",
                    opt_text(o, OPT_logs_specs));
    if (strcmp(opt_text(o, OPT_event_log_handler), "null") != 0)
        options_warn(o, "%s %s has no effect: torchrun's event handlers are written in Python",
                     opt_where(o, OPT_event_log_handler), opt_text(o, OPT_event_log_handler));
    return 0;
}

static int build_output(struct job_spec *spec, struct options *o, struct err *e)
{
    if (build_streams(spec, o, e) < 0 || build_files(spec, o, e) < 0 || check_plugins(o, e) < 0)
        return -EINVAL;
    build_console(spec, o);
    return 0;
}

/* Calls stdio_list_parse(), and keeps the list with the options; NULL without a stream to copy
 * from. */
static char **build_filters(const struct job_spec *spec, struct options *o, enum opt_id id, int std)
{
    bool teed = false;
    for (int i = 0; i < spec->nproc; i++)
        teed = teed || spec->tee[i] & std;
    if (*opt_text(o, id) && !teed)
        options_warn(o, "%s has no effect without --tee %d", opt_where(o, id), std);
    if (!*opt_text(o, id) || !teed)
        return NULL;
    char **list = stdio_list_parse(opt_text(o, id));
    size_t n = 0;
    while (list && list[n])
        n++;
    char **kept = options_alloc(o, (n + 1) * sizeof(*kept));
    for (size_t i = 0; i < n; i++)
        kept[i] = options_printf(o, "%s", list[i]);
    free(list);
    return n ? kept : NULL;
}

/* ------------------------------------------------------------------------------------- stopping */

static int build_signals(struct job_spec *spec, struct options *o, struct err *e)
{
    const char *s = opt_text(o, OPT_signals_to_handle);
    int *list = options_alloc(o, (strlen(s) / 2 + 2) * sizeof(*list)), n = 0;
    spec->stop_signals = list;
    for (;; s++) {
        while (isspace((unsigned char)*s))
            s++;
        size_t item = strcspn(s, ","), len = item;
        while (len && isspace((unsigned char)s[len - 1]))
            len--;
        int signo = parse_signal(s, len);
        if (signo == SIGKILL || signo == SIGSTOP || signo == SIGCHLD)
            return fail(o, OPT_signals_to_handle, e, "%.*s cannot be handled", (int)len, s);
        if (job_is_stopped_by(spec, signo))
            ; /* named twice: two handlers would take one SIGTERM for two */
        else if (signo)
            list[n++] = signo;
        else if (o->torchrun)
            options_warn(o, "%s: unknown signal '%.*s'", opt_where(o, OPT_signals_to_handle),
                         (int)(len > 40 ? 40 : len), s);
        else
            return fail(o, OPT_signals_to_handle, e, "unknown signal '%.*s'",
                        (int)(len > 40 ? 40 : len), s);
        s += item;
        if (!*s)
            break;
    }
    spec->signals_to_handle = opt_text(o, OPT_signals_to_handle);
    return 0;
}

/* Workers have the time of --end_warning but for END_S, or half of a short one. */
static int build_end(struct job_spec *spec, struct options *o, struct err *e)
{
    spec->end.at_s = opt_given(o, OPT_end_time) ? (double)opt_number(o, OPT_end_time) : 0;
    if (!opt_given(o, OPT_end_warning))
        return 0;
    if (time_limit_warning(o, &spec->end.signal, &spec->end.warn_s, e) < 0)
        return -EINVAL;
    double left_s = spec->end.at_s - (double)wall_ns() / 1e9, warn_s = spec->end.warn_s;
    spec->end.grace_s = warn_s > 2 * END_S ? warn_s - END_S : warn_s / 2;
    if (spec->end.at_s > 0 && left_s <= warn_s)
        return fail(
            o, OPT_end_warning, e, "%s before the end is now: the job's time ends in %.0f s (%s)",
            opt_text(o, OPT_end_warning), left_s > 0 ? left_s : 0, opt_where(o, OPT_end_time));
    return 0;
}

/* "auto", "off", or names of modules with commas between them. */
static int check_warm(struct options *o, struct err *e)
{
    const char *text = opt_text(o, OPT_warm);
    for (const char *p = text;; p++) { /* a name, or a part of one in front of a dot */
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (n == 0 || isdigit((unsigned char)*p) || (p[n] && p[n] != ',' && p[n] != '.'))
            return fail(o, OPT_warm, e, "'%.100s' is neither auto, off nor names of Python modules",
                        text);
        p += n;
        if (!*p)
            return 0;
    }
}

/* The library by which an MPI was recognised. */
static const char *library_of(struct options *o, const struct mpi_program *m)
{
    return *m->through ? options_printf(o, "%s, which %s needs", m->library, m->through)
                       : m->library;
}

/* Finds the MPI that a program of the job is linked with. All programs that are linked with an MPI
 * must have the same one; the others may be scripts that start such a program. */
static int look_at_program(struct options *o, const char *path, const char *name,
                           struct mpi_program *all, const char **first, struct err *e)
{
    struct mpi_program found;
    mpi_program_look(path, &found);
    if (found.foreign)
        return err_set(e, -EINVAL,
                       "%s is linked with %s (%s), and its ranks may not find each other: "
                       "each would be rank 0 of 1. Say --mpi pmi or pmix, whichever it asks "
                       "for, or --mpi off for a program that does not call MPI_Init",
                       name, found.name, library_of(o, &found));
    if (!found.name)
        return 0;
    if (all->name && all->kind != found.kind)
        return err_set(e, -EINVAL,
                       "%s is linked with %s (%s), but %s with %s (%s): their ranks cannot find "
                       "each other",
                       *first, all->name, library_of(o, all), name, found.name,
                       library_of(o, &found));
    *first = name;
    *all = found;
    return 0;
}

static int look_at_programs(const struct job_spec *spec, struct options *o,
                            struct mpi_program *found, struct err *e)
{
    const struct programs *p = spec->programs;
    const char *first;
    if (!p)
        return look_at_program(o, spec->path, spec->name, found, &first, e);
    for (int i = 0; i < p->n; i++) {
        if (look_at_program(o, p->list[i].path, p->list[i].name, found, &first, e) < 0)
            return -EINVAL;
    }
    return 0;
}

/* Chooses the interface that the ranks of an MPI program get. Without an interface each rank would
 * be rank 0 of 1. */
static int build_mpi(struct job_spec *spec, struct options *o, struct err *e)
{
    enum { AUTO = MPI_KINDS };
    static const char *const words[] = {
        [MPI_NONE] = "off", [MPI_PMI] = "pmi", [MPI_PMIX] = "pmix", [AUTO] = "auto"};
    int kind = enum_of(o, OPT_mpi, words, ARRAY_LEN(words));
    struct mpi_program found = {0};
    if (!spec->path || kind == MPI_NONE || (o->torchrun && !opt_given(o, OPT_mpi)))
        return 0;
    if (kind == AUTO) {
        if (look_at_programs(spec, o, &found, e) < 0)
            return -EINVAL;
        kind = found.kind;
    }
    spec->rdzv.mpi = (enum mpi_kind)kind;
    if (kind == MPI_NONE)
        return 0;
    spec->mpi_reason = found.name ? options_printf(o, "%s, %s", library_of(o, &found), found.name)
                                  : opt_where(o, OPT_mpi);
    if (spec->rdzv.restart_policy == RESTART_WORKER)
        return fail(o, OPT_restart_policy, e,
                    "one rank of an MPI program (%s) cannot be started again alone: use group",
                    spec->mpi_reason);
    return 0;
}

/* Warm interpreters, for a job that may start its workers again. */
static int build_warm(struct job_spec *spec, struct options *o, struct err *e)
{
    const struct rdzv_config *c = &spec->rdzv;
    const char *text = opt_text(o, OPT_warm);
    bool given = opt_given(o, OPT_warm), named = strcmp(text, "auto") != 0;
    if (strcmp(text, "off") == 0 || (o->torchrun && !given))
        return 0;
    if (named && spec->path && !spec->warm.python)
        return fail(o, OPT_warm, e, "%s is not a Python script or module that can be started warm",
                    spec->name);
    if (spec->warm.python && spec->rdzv.mpi == MPI_NONE &&
        (c->max_restarts > 0 || c->min_nodes < c->max_nodes || c->spares > 0))
        spec->warm.modules = text;
    return 0;
}

/* The table of --print_binding is about this host; the program may be on another one. */
static bool needs_program(const struct options *o)
{
    return opt_workers(o) && (!opt_flag(o, OPT_print_binding) || opt_flag(o, OPT_dry_run));
}

#define DOCTOR_JOIN_S      30 /* for nodes to come: it is for the job that they wait for long */
#define DOCTOR_LAST_CALL_S 5

/* A program that cannot be started is a fact for the doctor, and nothing restarts. */
static void build_doctor(struct job_spec *spec, struct options *o, const struct err *program)
{
    struct rdzv_config *c = &spec->rdzv;
    if (program->code)
        spec->doctor.program_error = options_printf(o, "%s", program->msg);
    c->max_restarts = c->max_node_restarts = 0;
    c->elect = false;
    if (!opt_given(o, OPT_rdzv_conf) || c->join_timeout > DOCTOR_JOIN_S)
        c->join_timeout = DOCTOR_JOIN_S;
    if (c->last_call_timeout > DOCTOR_LAST_CALL_S)
        c->last_call_timeout = DOCTOR_LAST_CALL_S;
}

/* --doctor, --preflight, --check_command. program: what finding the program has come to. */
static int build_checks(struct job_spec *spec, struct options *o, const struct err *program,
                        struct err *e)
{
    spec->doctor.on = opt_flag(o, OPT_doctor);
    spec->doctor.json = opt_is(o, OPT_output, "json");
    spec->doctor.preflight = opt_flag(o, OPT_preflight);
    spec->doctor.node_check = text_or_null(o, OPT_check_command);
    spec->doctor.node_check_timeout = opt_seconds(o, OPT_check_timeout);
    bool checks = spec->doctor.on || spec->doctor.preflight;
    if (!spec->doctor.on && opt_given(o, OPT_output))
        return fail(o, OPT_output, e, "has an effect only with --doctor");
    if (!checks && spec->doctor.node_check)
        return fail(o, OPT_check_command, e, "needs --doctor or --preflight");
    if (spec->doctor.on && !opt_workers(o))
        return fail(o, OPT_doctor, e, "cannot be combined with --rdzv_only and --witness");
    if (spec->doctor.on && opt_flag(o, OPT_daemon))
        return fail(o, OPT_doctor, e, "cannot be combined with --daemon");
    if (spec->doctor.on)
        build_doctor(spec, o, program);
    return 0;
}

/* --doctor can do without a program. */
static int find_program(struct job_spec *spec, struct options *o, int *exit_status,
                        struct err *found, struct err *e)
{
    int status = *exit_status;
    if (!needs_program(o) || (opt_flag(o, OPT_doctor) && !o->command))
        return 0;
    if (program_find(spec, o, exit_status, found) >= 0)
        return 0;
    if (opt_flag(o, OPT_doctor)) {
        *exit_status = status;
        return 0;
    }
    *e = *found;
    return -EINVAL;
}

static const char *find_profiler(struct options *o)
{
    const char *users = getenv("NCCL_PROFILER_PLUGIN");
    char path[PATH_MAX];
    if ((users && strcasecmp(users, "none") == 0) ||
        !own_file_find("libdlaunch_nccl.so", path, sizeof(path)))
        return NULL;
    return options_printf(o, "%s", path);
}

int job_build(struct job_spec *spec, struct options *o, int *exit_status, struct err *e)
{
    char host[HOST_MAX];
    struct err program = ERR_INIT;
    *spec = (struct job_spec){.torchrun = o->torchrun, .env = o->env};
    *exit_status = o->torchrun ? 1 : 2;
    if (gethostname(host, sizeof(host)) < 0)
        strcpy(host, "localhost");
    host[sizeof(host) - 1] = '\0';
    spec->host = options_printf(o, "%s", host);
    if (build_nproc(spec, o, e) < 0 || build_rdzv(spec, o, e) < 0 || build_output(spec, o, e) < 0 ||
        build_signals(spec, o, e) < 0 || build_end(spec, o, e) < 0 || check_warm(o, e) < 0 ||
        find_program(spec, o, exit_status, &program, e) < 0 || build_mpi(spec, o, e) < 0 ||
        build_warm(spec, o, e) < 0 || build_checks(spec, o, &program, e) < 0)
        return -EINVAL;
    if (spec->programs && spec->rdzv.min_nodes < spec->rdzv.max_nodes)
        return fail(o, OPT_nnodes, e,
                    "%s: which program a rank runs is fixed, so the number of workers must be, too",
                    opt_text(o, OPT_nnodes));
    if (spec->doctor.on)
        spec->name = "dlaunch --doctor";
    if (!opt_workers(o))
        spec->name = opt_flag(o, OPT_rdzv_only) ? "dlaunch --rdzv_only" : "dlaunch --witness";
    build_binding(spec, o);
    build_omp(spec, o);
    spec->dup_stdout = build_filters(spec, o, OPT_duplicate_stdout_filters, STD_OUT);
    spec->dup_stderr = build_filters(spec, o, OPT_duplicate_stderr_filters, STD_ERR);
    spec->stdin_mode = (enum stdin_mode)enum_of(o, OPT_stdin, stdin_words, ARRAY_LEN(stdin_words));
    spec->killed_at_once = options_env(o, "SLURM_JOB_ID") != NULL;
    spec->isolation =
        (enum isolation)enum_of(o, OPT_isolate, isolate_words, ARRAY_LEN(isolate_words));
    spec->mpir = opt_flag(o, OPT_mpir);
    spec->timeout = opt_seconds(o, OPT_timeout);
    spec->shutdown_timeout = opt_seconds(o, OPT_shutdown_timeout);
    spec->hang_after = opt_seconds(o, OPT_hang_after);
    spec->on_hang = opt_is(o, OPT_on_hang, "restart") ? ON_HANG_RESTART
                    : opt_is(o, OPT_on_hang, "end")   ? ON_HANG_END
                                                      : ON_HANG_REPORT;
    long percent = opt_number(o, OPT_slow_ranks);
    if (percent > 100)
        return err_set(e, -EINVAL,
                       "%s: %ld is not a part of a rank's time in percent: use 1 to 100",
                       o->value[OPT_slow_ranks].source, percent);
    spec->slow_percent = (int)percent;
    if (spec->hang_after > 0 || percent > 0)
        spec->nccl_profiler = find_profiler(o);
    return 0;
}
