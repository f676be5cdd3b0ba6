#include "agent/doctor/problems.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/json_text.h"
#include "core/mem.h"

struct problem *problems_vadd(struct problems *all, const char *check, bool stops,
                              const struct node_facts *node, const char *remedy, const char *fmt,
                              va_list ap)
{
    all->p = xrealloc(all->p, (all->n + 1) * sizeof(*all->p));
    struct problem *p = &all->p[all->n++];
    *p = (struct problem){.check = check,
                          .stops = stops,
                          .node = isnan(node->node) ? 0 : (int)node->node,
                          .other = -1};
    snprintf(p->host, sizeof(p->host), "%s", node->host ? node->host : "");
    snprintf(p->remedy, sizeof(p->remedy), "%s", remedy);
    vsnprintf(p->text, sizeof(p->text), fmt, ap);
    return p;
}

struct problem *problems_add(struct problems *all, const char *check, bool stops,
                             const struct node_facts *node, const char *remedy, const char *fmt,
                             ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct problem *p = problems_vadd(all, check, stops, node, remedy, fmt, ap);
    va_end(ap);
    return p;
}

static bool is_same(const struct problem *a, const struct problem *b)
{
    return a->check == b->check && a->other == b->other && strcmp(a->text, b->text) == 0 &&
           strcmp(a->remedy, b->remedy) == 0;
}

#define HOSTS_NAMED 3

/* "n0, n1, n2 and 5 more (nodes 0-7): " of the problem with this index, and of all that are like
 * it.
 */
static void print_nodes(FILE *f, const struct problems *all, size_t first)
{
    int n = 0, from = -1, to = -2;
    for (size_t i = first; i < all->n; i++) {
        if (is_same(&all->p[i], &all->p[first]) && n++ < HOSTS_NAMED)
            fprintf(f, "%s%s", n > 1 ? ", " : "", all->p[i].host);
    }
    if (n > HOSTS_NAMED)
        fprintf(f, " and %d more", n - HOSTS_NAMED);
    fprintf(f, n > 1 ? " (nodes " : " (node ");
    for (size_t i = first; i <= all->n; i++) {
        bool one = i < all->n && is_same(&all->p[i], &all->p[first]);
        if (one && all->p[i].node == to + 1) {
            to++;
        } else if (one || i == all->n) {
            if (from >= 0)
                fprintf(f, to > from ? "%d-%d" : "%d", from, to);
            if (from >= 0 && one)
                fprintf(f, ",");
            from = to = one ? all->p[i].node : to;
        }
    }
    fprintf(f, "): ");
}

char *problems_text(const struct problems *all)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    for (size_t i = 0; i < all->n; i++) {
        const struct problem *p = &all->p[i];
        size_t k = 0;
        while (!is_same(&all->p[k], p))
            k++;
        if (k < i)
            continue; /* an earlier line has this problem */
        print_nodes(f, all, i);
        fprintf(f, "%s: %s; %s\n", p->check, p->text, p->remedy);
    }
    fclose(f);
    return text;
}

json_t *problem_json(const struct problem *p)
{
    json_t *j = json_pack("{s:s,s:i,s:o,s:o,s:o,s:b}", "check", p->check, "node", p->node, "host",
                          json_of_text(p->host), "text", json_of_text(p->text), "remedy",
                          json_of_text(p->remedy), "stops", (int)p->stops);
    if (p->other >= 0)
        json_object_set_new(j, "other", json_integer(p->other));
    return j;
}

void problems_fini(struct problems *p)
{
    free(p->p);
    *p = (struct problems){0};
}
