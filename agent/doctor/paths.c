#include "agent/doctor/paths.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/doctor/path_test.h"
#include "core/mem.h"

#define RTT_TIMES       4
#define RTT_MORE_US     500
#define RTT_MOST_US     10000
#define BANDWIDTH_SHARE 0.5
#define BANDWIDTH_SURE  1.25e9 /* above it, one connection measures the CPUs and their load */
#define BANDWIDTH_LEAST (10e6) /* bytes per second */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool has_failed(const struct pair_facts *pair)
{
    return !isnan(pair->error.at);
}

bool paths_figures(const struct pair_list *pairs, struct path_figures *out)
{
    size_t k = 0;
    double *rtt = xcalloc(pairs->n + 1, sizeof(*rtt)), *bps = xcalloc(pairs->n + 1, sizeof(*bps));
    for (size_t i = 0; i < pairs->n; i++) {
        const struct pair_facts *p = &pairs->v[i];
        if (has_failed(p) || isnan(p->rtt_us) || isnan(p->bps))
            continue;
        rtt[k] = p->rtt_us;
        bps[k++] = p->bps;
    }
    qsort(rtt, k, sizeof(*rtt), compare_doubles);
    qsort(bps, k, sizeof(*bps), compare_doubles);
    *out = (struct path_figures){.n = (int)k};
    if (k) {
        out->rtt_us = rtt[k / 4];
        out->bps = bps[k - 1 - k / 4];
    }
    free(rtt);
    free(bps);
    return k > 0;
}

static bool is_late(const struct pair_facts *pair, const struct path_figures *f)
{
    double rtt = pair->rtt_us;
    bool beside = f->n > 2 && rtt > RTT_TIMES * f->rtt_us && rtt > f->rtt_us + RTT_MORE_US;
    return !has_failed(pair) && (beside || rtt > RTT_MOST_US);
}

static bool is_narrow(const struct pair_facts *pair, const struct path_figures *f)
{
    double bps = pair->bps;
    double usual = f->bps < BANDWIDTH_SURE ? f->bps : BANDWIDTH_SURE;
    bool beside = f->n > 2 && pair->local <= 0; /* not the CPUs */
    return !has_failed(pair) &&
           ((beside && bps < BANDWIDTH_SHARE * usual) || bps < BANDWIDTH_LEAST);
}

static bool is_bad(const struct pair_facts *pair, const struct path_figures *f)
{
    return has_failed(pair) || is_late(pair, f) || is_narrow(pair, f);
}

/* The factor by which a path is worse than usual. */
static double badness(const struct pair_facts *pair, const struct path_figures *f)
{
    double late = f->rtt_us > 0 ? pair->rtt_us / f->rtt_us : 1;
    double narrow = pair->bps > 0 ? f->bps / pair->bps : 1e9;
    return has_failed(pair) ? 1e12 : late > narrow ? late : narrow;
}

static struct pair_facts *find_pair(const struct pair_list *pairs, double a, double b)
{
    for (size_t i = 0; i < pairs->n; i++) {
        struct pair_facts *p = &pairs->v[i];
        if ((p->a == a && p->b == b) || (p->a == b && p->b == a))
            return p;
    }
    return NULL;
}

/* Unknown ones are NAN; fmin() and fmax() would need libm, which makes each start slower. */
static double better(double old, double next, bool is_better)
{
    return isnan(old) || is_better ? next : old;
}

void paths_take(struct pair_list *pairs, const struct pair_facts *pair)
{
    struct pair_facts *old = find_pair(pairs, pair->a, pair->b);
    double times = old ? old->measured + 1 : 1;
    if (!old) {
        pairs->v = xrealloc(pairs->v, (pairs->n + 1) * sizeof(*pairs->v));
        old = &pairs->v[pairs->n++];
        *old = *pair;
    } else if (has_failed(old) && !has_failed(pair)) {
        *old = *pair;
    } else if (!has_failed(pair)) {
        old->rtt_us = better(old->rtt_us, pair->rtt_us, pair->rtt_us < old->rtt_us);
        old->bps = better(old->bps, pair->bps, pair->bps > old->bps);
    }
    old->measured = times;
}

int paths_suspects(const struct pair_list *pairs, int nnodes, int (*out)[2], int max)
{
    struct path_figures f;
    int n = 0;
    double *worst = xcalloc((size_t)max + 1, sizeof(*worst));
    bool *suspect = xcalloc((size_t)nnodes, sizeof(*suspect));
    paths_figures(pairs, &f);
    for (size_t i = 0; i < pairs->n; i++) {
        const struct pair_facts *p = &pairs->v[i];
        int a = (int)p->a, b = (int)p->b, k;
        double bad = badness(p, &f);
        if (!is_bad(p, &f) || p->measured > (has_failed(p) ? 1 : 3))
            continue;
        suspect[a] = suspect[b] = true;
        for (k = n < max ? n++ : max; k > 0 && worst[k - 1] < bad; k--) {
            if (k == max)
                continue;
            worst[k] = worst[k - 1];
            memcpy(out[k], out[k - 1], sizeof(out[k]));
        }
        if (k == max)
            continue;
        worst[k] = bad;
        out[k][0] = a;
        out[k][1] = b;
    }
    int good = 0, bad_pairs = n;
    while (good < nnodes && suspect[good])
        good++;
    for (int k = 0; k < bad_pairs && good < nnodes; k++) {
        for (int side = 0; side < 2; side++) {
            int node = out[k][side];
            if (!suspect[node] || find_pair(pairs, node, good) || n >= max)
                continue;
            suspect[node] = false; /* once is enough */
            out[n][0] = node;
            out[n++][1] = good;
        }
    }
    free(worst);
    free(suspect);
    return n;
}

/* Describes the fault of a path. */
static void describe_path(const struct pair_facts *pair, const struct path_figures *f,
                          char out[256])
{
    double rtt = pair->rtt_us, bps = pair->bps;
    if (is_late(pair, f) && f->n > 2)
        snprintf(out, 256, "latency is %.0f us (usual: %.0f us)", rtt, f->rtt_us);
    else if (is_late(pair, f))
        snprintf(out, 256, "latency is %.1f ms", rtt / 1e3);
    else if (f->n > 2)
        snprintf(out, 256, "bandwidth is %.3g MB/s (usual: %.3g MB/s)", bps / 1e6, f->bps / 1e6);
    else
        snprintf(out, 256, "bandwidth is %.3g MB/s", bps / 1e6);
}

/* Whether the node is what is wrong with its paths, and not the other ends: most of them are bad
 * in this way, and there is more than one. */
static bool is_guilty(const struct pair_list *pairs, const struct path_figures *f, int node,
                      bool (*bad)(const struct pair_facts *pair, const struct path_figures *f))
{
    int all = 0, of_it = 0;
    for (size_t i = 0; i < pairs->n; i++) {
        const struct pair_facts *p = &pairs->v[i];
        if (p->a != node && p->b != node)
            continue;
        all++;
        of_it += bad(p, f);
    }
    return of_it > 1 && of_it * 2 > all;
}

static const struct node_facts *node_of(const struct paths *x, int node)
{
    for (size_t i = 0; i < x->nnodes; i++) {
        if (x->nodes[i].node == node)
            return &x->nodes[i];
    }
    return NULL;
}

/* Names guilty nodes once, with the worst of their paths; of other bad paths, both ends. */
static void check_paths(const struct paths *x,
                        bool (*bad)(const struct pair_facts *pair, const struct path_figures *f),
                        const char *remedy)
{
    struct path_figures f;
    char words[256];
    if (!paths_figures(x->pairs, &f))
        return;
    for (size_t i = 0; i < x->nnodes; i++) {
        const struct pair_facts *worst = NULL;
        int me = (int)x->nodes[i].node;
        if (!is_guilty(x->pairs, &f, me, bad))
            continue;
        for (size_t k = 0; k < x->pairs->n; k++) {
            const struct pair_facts *p = &x->pairs->v[k];
            if ((p->a == me || p->b == me) && bad(p, &f) &&
                (!worst || badness(p, &f) > badness(worst, &f)))
                worst = p;
        }
        describe_path(worst, &f, words);
        problems_add(x->out, x->check, x->stops, &x->nodes[i], remedy, "its %s", words);
    }
    for (size_t i = 0; i < x->pairs->n; i++) {
        const struct pair_facts *p = &x->pairs->v[i];
        int a = (int)p->a, b = (int)p->b;
        if (!bad(p, &f) || is_guilty(x->pairs, &f, a, bad) || is_guilty(x->pairs, &f, b, bad))
            continue;
        const struct node_facts *one = node_of(x, a), *other = node_of(x, b);
        describe_path(p, &f, words);
        problems_add(x->out, x->check, x->stops, one, remedy, "the path to %s (node %d): its %s",
                     other->host, b, words)
            ->other = b;
    }
}

void paths_check_latency(const struct paths *x)
{
    check_paths(x, is_late, "look at its link and switch (ethtool -S, tc qdisc, traceroute)");
}

void paths_check_bandwidth(const struct paths *x)
{
    check_paths(x, is_narrow, "look at its link: speed, errors, limits (ethtool, tc qdisc)");
}

/* Why a connection did not come about, and what helps. */
static const char *explain(const struct pair_facts *p, char out[128])
{
    int stage = (int)p->error.stage, code = (int)p->error.code;
    if (stage == PATH_TEST_BULK && code == ETIMEDOUT) {
        snprintf(out, 128, "small packets arrive and large ones do not");
        return "set the same MTU on all nodes and switches (ip link set NAME mtu N)";
    }
    if (code == ETIMEDOUT) {
        snprintf(out, 128, "%s", stage == PATH_TEST_CONNECT ? "nothing answers" : "it is cut off");
        return "let the firewall pass all TCP ports between the nodes (nft list ruleset)";
    }
    snprintf(out, 128, "%s", strerror(code));
    if (code == ENETUNREACH || code == EHOSTUNREACH)
        return "look at its routes and addresses (ip route get ADDRESS), or name the network: "
               "--interface";
    if (code == ECONNREFUSED)
        return "let the firewall pass all TCP ports between the nodes, or give the right address: "
               "--local_addr";
    return "look at the network between the two nodes";
}

static bool does_not_reach(const struct pair_facts *pair, const struct path_figures *f)
{
    (void)f;
    return has_failed(pair);
}

/* "to" is the node that is not reached, "at" the one that has tried. */
void paths_check_reach(const struct paths *x)
{
    struct path_figures f;
    char why[128];
    bool *named = xcalloc(x->nnodes + 1, sizeof(*named));
    paths_figures(x->pairs, &f);
    for (size_t i = 0; i < x->pairs->n; i++) {
        const struct pair_facts *p = &x->pairs->v[i];
        if (!has_failed(p))
            continue;
        int from = (int)p->error.at, to = (int)p->error.to;
        const struct node_facts *one = node_of(x, to), *other = node_of(x, from);
        const char *remedy = explain(p, why);
        bool it = is_guilty(x->pairs, &f, to, does_not_reach);
        bool they = is_guilty(x->pairs, &f, from, does_not_reach);
        if (they && !it) { /* a node that reaches no other node is at fault itself */
            if (!named[from])
                problems_add(x->out, x->check, x->stops, other, remedy,
                             "it does not reach %s at %s: %s", one->host, one->addr, why);
            named[from] = true;
            continue;
        }
        if (it && named[to])
            continue;
        named[to] |= it;
        problems_add(x->out, x->check, x->stops, one, remedy,
                     "%s (node %d) does not reach its port at %s: %s", other->host, from, one->addr,
                     why);
        x->out->p[x->out->n - 1].other = it ? -1 : from;
    }
    free(named);
}
