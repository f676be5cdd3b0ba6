#include "core/hostlist.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/netaddr.h"

#define DIGITS_MAX 9 /* of a number in a bracket */

/* Reads one "a", "a-b" or "a-b/step" between brackets, and moves *p behind the range. */
struct range {
    unsigned long lo, hi, step;
    int width; /* with the zeros that the first number was written with */
};

static bool read_number(const char **p, unsigned long *v, int *width)
{
    const char *s = *p;
    size_t n = strspn(s, "0123456789");
    if (n == 0 || n > DIGITS_MAX)
        return false;
    *v = strtoul(s, NULL, 10);
    *width = (int)n;
    *p = s + n;
    return true;
}

static int read_range(const char **p, struct range *r, struct err *e)
{
    const char *start = *p;
    int width;
    bool ok = read_number(p, &r->lo, &r->width);
    r->hi = r->lo;
    r->step = 1;
    if (ok && **p == '-') {
        ++*p;
        ok = read_number(p, &r->hi, &width);
        if (ok && **p == '/') {
            ++*p;
            ok = read_number(p, &r->step, &width) && r->step > 0;
        }
    }
    if (!ok || (**p != ',' && **p != ']'))
        return err_set(e, -EINVAL,
                       "'%.40s': brackets must contain numbers and ranges, such as [1-3,7]", start);
    if (r->hi < r->lo)
        return err_set(e, -EINVAL,
                       "'%.40s': the first number of the range is greater than the last", start);
    return 0;
}

static bool ends_item(char c)
{
    return c == '\0' || c == ',' || isspace((unsigned char)c);
}

/* Checks the item at *p, moves *p behind the item and counts the names that the item stands for. */
static int count_item(const char **p, size_t *count, struct err *e)
{
    const char *s = *p;
    size_t names = 1, length = 0;
    while (!ends_item(*s)) {
        if (*s == ']')
            return err_set(e, -EINVAL, "']' without '[' in '%.40s'", *p);
        length++;
        if (*s++ != '[')
            continue;
        size_t in_bracket = 0;
        for (;;) {
            struct range r;
            if (read_range(&s, &r, e) < 0)
                return -EINVAL;
            in_bracket += (r.hi - r.lo) / r.step + 1;
            if (in_bracket > HOSTLIST_MAX)
                return err_set(e, -EINVAL, "more than %d names", HOSTLIST_MAX);
            if (*s++ == ']')
                break;
        }
        names *= in_bracket; /* at most 1e12 */
        if (names > HOSTLIST_MAX)
            return err_set(e, -EINVAL, "more than %d names", HOSTLIST_MAX);
        length += DIGITS_MAX;
    }
    if (length >= HOST_MAX)
        return err_set(e, -EINVAL, "'%.40s...' is too long for a host name", *p);
    *count += names;
    *p = s;
    return *count > HOSTLIST_MAX ? err_set(e, -EINVAL, "more than %d names", HOSTLIST_MAX) : 0;
}

struct walk {
    char name[HOST_MAX];
    bool (*each)(void *arg, const char *name);
    void *arg;
};

/* Calls each() for all names of the item from `s` on, the first n bytes of the name being there
 * already. The depth is the number of brackets, which HOST_MAX bounds. */
static bool walk_item(struct walk *w, size_t n, const char *s)
{
    for (; !ends_item(*s) && *s != '['; s++)
        w->name[n++] = *s;
    if (*s != '[') {
        w->name[n] = '\0';
        return w->each(w->arg, w->name);
    }
    const char *close = strchr(s, ']');
    for (s++; s < close; s++) {
        struct range r;
        read_range(&s, &r, NULL);
        for (unsigned long v = r.lo; v <= r.hi; v += r.step) {
            int d = snprintf(w->name + n, sizeof(w->name) - n, "%0*lu", r.width, v);
            if (!walk_item(w, n + (size_t)d, close + 1))
                return false;
        }
    }
    return true;
}

static const char *next_item(const char *s)
{
    while (*s && ends_item(*s))
        s++;
    return s;
}

int hostlist_walk(const char *list, bool (*each)(void *arg, const char *name), void *arg,
                  size_t *count, struct err *e)
{
    *count = 0;
    for (const char *s = next_item(list); *s; s = next_item(s)) {
        if (count_item(&s, count, e) < 0)
            return -EINVAL;
    }
    if (*count == 0)
        return err_set(e, -EINVAL, "it contains no host name");
    struct walk w = {.each = each, .arg = arg};
    for (const char *s = next_item(list); each && *s; s = next_item(s)) {
        if (!walk_item(&w, 0, s))
            break;
        while (!ends_item(*s)) { /* a bracket has commas of its own */
            if (*s == '[')
                s = strchr(s, ']');
            s++;
        }
    }
    return 0;
}
