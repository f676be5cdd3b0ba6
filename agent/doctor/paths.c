#include "agent/doctor/paths.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/doctor/fact.h"
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

bool paths_figures(const json_t *pairs, struct path_figures *out)
{
    size_t n = json_array_size(pairs), k = 0, i;
    double *rtt = xcalloc(n + 1, sizeof(*rtt)), *bps = xcalloc(n + 1, sizeof(*bps));
    json_t *p;
    json_array_foreach(pairs, i, p)
    {
        if (fact_at(p, "error"))
            continue;
        rtt[k] = fact_number(p, "rtt_us");
        bps[k++] = fact_number(p, "bps");
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

static bool has_failed(const json_t *pair)
{
    return fact_at(pair, "error") != NULL;
}

static bool is_late(const json_t *pair, const struct path_figures *f)
{
    double rtt = fact_number(pair, "rtt_us");
    bool beside = f->n > 2 && rtt > RTT_TIMES * f->rtt_us && rtt > f->rtt_us + RTT_MORE_US;
    return !has_failed(pair) && (beside || rtt > RTT_MOST_US);
}

static bool is_narrow(const json_t *pair, const struct path_figures *f)
{
    double bps = fact_number(pair, "bps");
    double usual = f->bps < BANDWIDTH_SURE ? f->bps : BANDWIDTH_SURE;
    bool beside = f->n > 2 && !json_is_true(fact_at(pair, "local")); /* not the CPUs */
    return !has_failed(pair) &&
           ((beside && bps < BANDWIDTH_SHARE * usual) || bps < BANDWIDTH_LEAST);
}

static bool is_bad(const json_t *pair, const struct path_figures *f)
{
    return has_failed(pair) || is_late(pair, f) || is_narrow(pair, f);
}

/* The factor by which a path is worse than usual. */
static double badness(const json_t *pair, const struct path_figures *f)
{
    double late = f->rtt_us > 0 ? fact_number(pair, "rtt_us") / f->rtt_us : 1;
    double narrow = fact_number(pair, "bps") > 0 ? f->bps / fact_number(pair, "bps") : 1e9;
    return has_failed(pair) ? 1e12 : late > narrow ? late : narrow;
}

static json_t *find_pair(const json_t *pairs, int a, int b)
{
    json_t *p;
    size_t i;
    json_array_foreach(pairs, i, p)
    {
        if ((fact_number(p, "a") == a && fact_number(p, "b") == b) ||
            (fact_number(p, "a") == b && fact_number(p, "b") == a))
            return p;
    }
    return NULL;
}

void paths_take(json_t *pairs, json_t *pair)
{
    json_t *old = find_pair(pairs, (int)fact_number(pair, "a"), (int)fact_number(pair, "b"));
    double times = fact_number(old, "measured") + 1;
    if (!old) {
        json_array_append(pairs, pair);
        old = pair;
    } else if (has_failed(old) && !has_failed(pair)) {
        json_object_clear(old);
        json_object_update(old, pair);
    } else if (!has_failed(pair)) {
        if (fact_number(pair, "rtt_us") < fact_number(old, "rtt_us"))
            json_object_set(old, "rtt_us", json_object_get(pair, "rtt_us"));
        if (fact_number(pair, "bps") > fact_number(old, "bps"))
            json_object_set(old, "bps", json_object_get(pair, "bps"));
    }
    json_object_set_new(old, "measured", json_real(times));
}

int paths_suspects(const json_t *pairs, int nnodes, int (*out)[2], int max)
{
    struct path_figures f;
    json_t *p;
    size_t i;
    int n = 0;
    double *worst = xcalloc((size_t)max + 1, sizeof(*worst));
    bool *suspect = xcalloc((size_t)nnodes, sizeof(*suspect));
    paths_figures(pairs, &f);
    json_array_foreach(pairs, i, p)
    {
        int a = (int)fact_number(p, "a"), b = (int)fact_number(p, "b"), k;
        double bad = badness(p, &f);
        if (!is_bad(p, &f) || fact_number(p, "measured") > (has_failed(p) ? 1 : 3))
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
static void describe_path(const json_t *pair, const struct path_figures *f, char out[256])
{
    double rtt = fact_number(pair, "rtt_us"), bps = fact_number(pair, "bps");
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
static bool is_guilty(const json_t *pairs, const struct path_figures *f, int node,
                      bool (*bad)(const json_t *pair, const struct path_figures *f))
{
    int all = 0, of_it = 0;
    json_t *p;
    size_t i;
    json_array_foreach(pairs, i, p)
    {
        if (fact_number(p, "a") != node && fact_number(p, "b") != node)
            continue;
        all++;
        of_it += bad(p, f);
    }
    return of_it > 1 && of_it * 2 > all;
}

static const json_t *node_of(const json_t *nodes, int node)
{
    json_t *j;
    size_t i;
    json_array_foreach(nodes, i, j)
    {
        if (fact_number(j, "node") == node)
            return j;
    }
    return NULL;
}

/* Names guilty nodes once, with the worst of their paths; of other bad paths, both ends. */
static void check_paths(const struct paths *x,
                        bool (*bad)(const json_t *pair, const struct path_figures *f),
                        const char *remedy)
{
    struct path_figures f;
    json_t *p, *node;
    size_t i;
    char words[256];
    if (!paths_figures(x->pairs, &f))
        return;
    json_array_foreach(x->nodes, i, node)
    {
        const json_t *worst = NULL;
        int me = (int)fact_number(node, "node");
        size_t k;
        if (!is_guilty(x->pairs, &f, me, bad))
            continue;
        json_array_foreach(x->pairs, k, p)
        {
            if ((fact_number(p, "a") == me || fact_number(p, "b") == me) && bad(p, &f) &&
                (!worst || badness(p, &f) > badness(worst, &f)))
                worst = p;
        }
        describe_path(worst, &f, words);
        problems_add(x->out, x->check, x->stops, node, remedy, "its %s", words);
    }
    json_array_foreach(x->pairs, i, p)
    {
        int a = (int)fact_number(p, "a"), b = (int)fact_number(p, "b");
        if (!bad(p, &f) || is_guilty(x->pairs, &f, a, bad) || is_guilty(x->pairs, &f, b, bad))
            continue;
        const json_t *one = node_of(x->nodes, a), *other = node_of(x->nodes, b);
        describe_path(p, &f, words);
        problems_add(x->out, x->check, x->stops, one, remedy, "the path to %s (node %d): its %s",
                     fact_text(other, "host"), b, words)
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
static const char *explain(const json_t *error, char out[128])
{
    int stage = (int)fact_number(error, "stage"), code = (int)fact_number(error, "errno");
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

static bool does_not_reach(const json_t *pair, const struct path_figures *f)
{
    (void)f;
    return has_failed(pair);
}

/* "to" is the node that is not reached, "at" the one that has tried. */
void paths_check_reach(const struct paths *x)
{
    struct path_figures f;
    json_t *p;
    size_t i;
    char why[128];
    bool *named = xcalloc(json_array_size(x->nodes) + 1, sizeof(*named));
    paths_figures(x->pairs, &f);
    json_array_foreach(x->pairs, i, p)
    {
        const json_t *error = fact_at(p, "error");
        int from = (int)fact_number(error, "at"), to = (int)fact_number(error, "to");
        const json_t *one = node_of(x->nodes, to), *other = node_of(x->nodes, from);
        if (!error)
            continue;
        const char *remedy = explain(error, why);
        bool it = is_guilty(x->pairs, &f, to, does_not_reach);
        bool they = is_guilty(x->pairs, &f, from, does_not_reach);
        if (they && !it) { /* a node that reaches no other node is at fault itself */
            if (!named[from])
                problems_add(x->out, x->check, x->stops, other, remedy,
                             "it does not reach %s at %s: %s", fact_text(one, "host"),
                             fact_text(one, "addr"), why);
            named[from] = true;
            continue;
        }
        if (it && named[to])
            continue;
        named[to] |= it;
        problems_add(x->out, x->check, x->stops, one, remedy,
                     "%s (node %d) does not reach its port at %s: %s", fact_text(other, "host"),
                     from, fact_text(one, "addr"), why);
        x->out->p[x->out->n - 1].other = it ? -1 : from;
    }
    free(named);
}
