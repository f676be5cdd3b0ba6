#include "core/parse.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/mem.h"

static bool only_blanks(const char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    return *s == '\0';
}

int parse_int(const char *s, long min, long max, long *out, struct err *e)
{
    char *end;
    errno = 0;
    long v = strtol(s, &end, 10);
    if (end == s || !only_blanks(end))
        return err_set(e, -EINVAL, "'%.100s' is not a whole number", s);
    if (errno == ERANGE || v < min || v > max) {
        if (max == LONG_MAX)
            return err_set(e, -EINVAL, "%.100s is out of range (%ld or more)", s, min);
        return err_set(e, -EINVAL, "%.100s is out of range (%ld to %ld)", s, min, max);
    }
    *out = v;
    return 0;
}

int parse_seconds(const char *s, double *out, struct err *e)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1},   {"s", 1},    {"sec", 1},  {"ms", 1e-3},   {"us", 1e-6},
                 {"m", 60}, {"min", 60}, {"h", 3600}, {"hour", 3600}, {"d", 86400}};
    char *end;
    double v = strtod(s, &end);
    bool number = end != s && (isdigit((unsigned char)end[-1]) || end[-1] == '.');
    if (number && isfinite(v) && v >= 0) {
        char unit[8];
        size_t n = 0;
        while (isspace((unsigned char)*end))
            end++;
        while (isalpha((unsigned char)*end) && n < sizeof(unit) - 1)
            unit[n++] = *end++;
        unit[n] = '\0';
        for (size_t i = 0; i < ARRAY_LEN(units) && only_blanks(end); i++) {
            if (strcmp(unit, units[i].name) == 0) {
                v *= units[i].seconds;
                *out = v < PARSE_SECONDS_MAX ? v : PARSE_SECONDS_MAX;
                return 0;
            }
        }
    }
    return err_set(e, -EINVAL, "'%.100s' is not a time (seconds, or a number with ms, s, min or h)",
                   s);
}

int parse_bool(const char *s, bool *out, struct err *e)
{
    static const char *const yes[] = {"1", "true", "t", "yes", "y", "on"};
    static const char *const no[] = {"0", "false", "f", "no", "n", "off"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (strcasecmp(s, yes[i]) == 0 || strcasecmp(s, no[i]) == 0) {
            *out = strcasecmp(s, yes[i]) == 0;
            return 0;
        }
    }
    return err_set(e, -EINVAL, "'%.100s' is neither yes nor no", s);
}

int parse_range(const char *s, int *min, int *max, struct err *e)
{
    char first[24];
    const char *colon = strchr(s, ':');
    size_t n = colon ? (size_t)(colon - s) : strlen(s);
    long lo, hi;
    if (n == 0 || n >= sizeof(first) || (colon && strchr(colon + 1, ':')))
        return err_set(e, -EINVAL, "'%.100s' is neither N nor MIN:MAX", s);
    memcpy(first, s, n);
    first[n] = '\0';
    if (parse_int(first, LONG_MIN, LONG_MAX, &lo, NULL) < 0 ||
        (colon && parse_int(colon + 1, LONG_MIN, LONG_MAX, &hi, NULL) < 0))
        return err_set(e, -EINVAL, "'%.100s' is neither N nor MIN:MAX", s);
    if (!colon)
        hi = lo;
    if (lo < 1 || hi > 1000000)
        return err_set(e, -EINVAL, "%.100s is out of range (1 to 1000000)", s);
    if (lo > hi)
        return err_set(e, -EINVAL, "%.100s: MIN is greater than MAX", s);
    *min = (int)lo;
    *max = (int)hi;
    return 0;
}

static char fold(char c)
{
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

/* Damerau-Levenshtein (neighbours swapped count one), for words of up to 63 letters; of longer ones
 * none is near to another. */
static size_t distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t d[MAX][MAX], la = strlen(a), lb = strlen(b);
    if (la >= MAX || lb >= MAX)
        return SIZE_MAX;
    for (size_t i = 0; i <= la; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= lb; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        for (size_t j = 1; j <= lb; j++) {
            size_t same = fold(a[i - 1]) == fold(b[j - 1]) ? 0 : 1;
            size_t best = d[i - 1][j - 1] + same;
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]) && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[la][lb];
}

const char *parse_nearest(const char *word, const char *const *candidates)
{
    const char *best = NULL;
    size_t limit = strlen(word) / 3 + 1;
    for (; *candidates; candidates++) {
        size_t d = distance(word, *candidates);
        if (d < limit) {
            limit = d;
            best = *candidates;
        }
    }
    return best;
}

/* Reads one range at p. Returns the end of the range; NULL: there is none. */
static const char *range_at(const char *p, long *from, long *to)
{
    char *end;
    if (!isdigit((unsigned char)*p))
        return NULL;
    *from = *to = strtol(p, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1]))
        *to = strtol(end + 1, &end, 10);
    return *to < *from || (*end && *end != ',') ? NULL : end;
}

int parse_ranges(const char *s, struct err *e)
{
    long from, to;
    for (const char *p = s; (p = range_at(p, &from, &to)); p++) {
        if (!*p)
            return 0;
    }
    return err_set(e, -EINVAL, "'%.100s' is not a list of numbers such as 0,8-15", s);
}

bool parse_has(const char *ranges, long n)
{
    long from, to;
    for (const char *p = ranges; (p = range_at(p, &from, &to)); p++) {
        if (n >= from && n <= to)
            return true;
        if (!*p)
            break;
    }
    return false;
}

bool parse_is_variable(const char *s, size_t len)
{
    bool ok = len > 0 && !isdigit((unsigned char)*s);
    for (size_t i = 0; ok && i < len; i++)
        ok = isalnum((unsigned char)s[i]) || s[i] == '_' || s[i] == '.';
    return ok;
}

bool parse_is_export(const char *s)
{
    size_t len = strcspn(s, "=");
    bool all = !s[len] && len > 0 && s[len - 1] == '*';
    return parse_is_variable(s, len - all) || (all && len == 1);
}

int parse_signal(const char *name, size_t len)
{
    if (len > 3 && strncmp(name, "SIG", 3) == 0) {
        name += 3;
        len -= 3;
    }
    for (int s = 1; s < SIGRTMIN; s++) {
        const char *abbrev = sigabbrev_np(s);
        if (abbrev && strlen(abbrev) == len && memcmp(abbrev, name, len) == 0)
            return s;
    }
    return 0;
}
