#include "agent/output/stdio_std.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/template.h"
#include "core/mem.h"
#include "rendezvous/rules/rank_table.h"

static const char *skip_blanks(const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

/* Reads a local rank at p. Returns the end of the number; NULL: there is none. */
static const char *local_rank_at(const char *p, long *rank)
{
    p = skip_blanks(p);
    if (!isdigit((unsigned char)*p))
        return NULL;
    char *end;
    errno = 0;
    *rank = strtol(p, &end, 10);
    return errno || *rank >= NPROC_MAX ? NULL : skip_blanks(end);
}

/* Reads a STD_* digit at p. Returns the end of the digit; NULL: there is none. */
static const char *std_at(const char *p, uint8_t *std)
{
    p = skip_blanks(p);
    if (*p < '0' || *p > '3')
        return NULL;
    *std = (uint8_t)(*p - '0');
    return skip_blanks(p + 1);
}

int stdio_std_parse(const char *text, int nproc, uint8_t *out, struct err *e)
{
    uint8_t std;
    const char *p = std_at(text, &std);
    if (p && !*p) {
        memset(out, std, (size_t)nproc);
        return 0;
    }
    uint8_t *map = xcalloc((size_t)nproc, 1);
    for (p = text; p;) {
        long rank;
        if (!(p = local_rank_at(p, &rank)) || *p++ != ':' || !(p = std_at(p, &std)))
            break;
        if (rank < nproc)
            map[rank] = std;
        if (!*p) {
            memcpy(out, map, (size_t)nproc);
            free(map);
            return 0;
        }
        p = *p == ',' ? p + 1 : NULL;
    }
    free(map);
    return err_set(e, -EINVAL,
                   "'%s' is not 0, 1, 2 or 3 (none, stdout, stderr, both), nor a list of "
                   "LOCAL_RANK:VALUE such as 0:3,1:1",
                   text);
}

int stdio_ranks_parse(const char *text, int nproc, bool *show, struct err *e)
{
    const char *p = skip_blanks(text);
    bool all = *p == '\0';
    bool *listed = xcalloc((size_t)nproc, sizeof(*listed));
    while (!all) {
        long rank;
        bool nobody = *(p = skip_blanks(p)) == '-'; /* -1 is no worker's rank, as 99 may be */
        if (!(p = local_rank_at(p + nobody, &rank)) || (*p && *p != ',')) {
            free(listed);
            return err_set(e, -EINVAL, "'%s' is not a list of local ranks such as 0,2", text);
        }
        if (!nobody && rank < nproc)
            listed[rank] = true;
        if (!*p)
            break;
        p++;
    }
    for (int i = 0; i < nproc; i++)
        show[i] = all || listed[i];
    free(listed);
    return 0;
}

char **stdio_list_parse(const char *text)
{
    /* The pointers, then the items: no more of them than commas + 1, no longer than the text. */
    size_t commas = 0, n = 0;
    for (const char *p = text; *p; p++)
        commas += *p == ',';
    char **items = xmalloc((commas + 2) * sizeof(*items) + strlen(text) + 1);
    char *to = (char *)(items + commas + 2);
    items[0] = to;
    for (const char *p = text;; p++) {
        if (*p == ',' && p[1] == ',') {
            *to++ = ',';
            p++;
        } else if (*p && *p != ',') {
            *to++ = *p;
        } else if (to > items[n]) { /* an item ends */
            *to++ = '\0';
            items[++n] = to;
        }
        if (!*p)
            break;
    }
    items[n] = NULL;
    if (n == 0) {
        free(items);
        return NULL;
    }
    return items;
}

char *stdio_prefix_new(const char *template, const char *role, int local_rank, int rank,
                       const char *hostname)
{
    char local[16], global[16];
    snprintf(local, sizeof(local), "%d", local_rank);
    snprintf(global, sizeof(global), "%d", rank);
    struct template_var vars[] = {
        {"role_name", role}, {"local_rank", local}, {"rank", global}, {"hostname", hostname}};
    return template_expand(template ? template : STDIO_PREFIX_DEFAULT, vars, ARRAY_LEN(vars),
                           TEMPLATE_PYTHON);
}
