#include "tests/lib/folded.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fd.h"
#include "tests/lib/test.h"

int ranks_that_say(const char *out, const char *word)
{
    const char *end = test_text("]: %s\n", word), *alone = test_text("%s\n", word);
    int n = strncmp(out, alone, strlen(alone)) == 0 || strstr(out, test_text("\n%s", alone));
    for (const char *line = out, *nl; (nl = strchr(line, '\n')); line = nl + 1) {
        const char *stop = strchr(line, ']');
        if (*line != '[' || !stop || strncmp(stop, end, strlen(end)) != 0)
            continue;
        for (char *p = (char *)line; p < stop;) {
            long from = strtol(p + 1, &p, 10);
            n += 1 + (int)(*p == '-' ? strtol(p + 1, &p, 10) - from : 0);
        }
    }
    return n;
}

uint64_t folded_mix(uint64_t h, const char *p, size_t n)
{
    while (n--)
        h = (h ^ (uint8_t)*p++) * UINT64_C(0x100000001b3);
    return h;
}

/* Whether the set at p, "[0-2,7]: ", has the rank; *end: behind it. A line without one is rank 0's.
 */
static bool set_has(const char *p, int rank, const char **end)
{
    *end = p;
    if (*p != '[')
        return rank == 0;
    bool has = false;
    const char *stop = strchr(p, ']'); /* strstr() under a sanitizer reads all that follows */
    if (!stop ||
        strncmp(stop, "]: ", 3) != 0) /* an assertion that holds costs more than all of this */
        ck_abort_msg("no set of ranks: %.60s", p);
    *end = stop + 3;
    for (p++; p < stop; p++) {
        char *q;
        long from = strtol(p, &q, 10), to = *q == '-' ? strtol(q + 1, &q, 10) : from;
        has |= rank >= from && rank <= to;
        p = q;
    }
    return has;
}

void folded_lines(const char *shown, int ranks, uint64_t *got, unsigned *lines)
{
    for (const char *p = shown, *nl; (nl = strchr(p, '\n')); p = nl + 1, ++*lines) {
        for (int i = 0; i < ranks; i++) {
            const char *line;
            if (set_has(p, i, &line))
                got[i] = folded_mix(got[i], line, (size_t)(nl + 1 - line));
        }
    }
}

bool folded_write(int fd, int n, bool floods, unsigned *seed, uint64_t *hash)
{
    static const char *const words[] = {"alpha", "beta", "gamma", "delta", "in all"};
    char line[80];
    bool flood = floods && n > 500;
    int pick = rand_r(seed) % 16, len, cut = 0;
    if (pick < 4 && !flood)
        return false;
    len = flood ? snprintf(line, sizeof(line), "flood %c%c%c\n", 'a' + n % 26, 'a' + n / 26 % 26,
                           'a' + n / 676)
                : snprintf(line, sizeof(line), "%s\n", words[pick % 5]);
    *hash = folded_mix(*hash, line, (size_t)len);
    if (rand_r(seed) % 3 == 0) {
        cut = rand_r(seed) % len;
        ck_assert_int_eq(fd_write_all(fd, line, (size_t)cut), 0);
    }
    ck_assert_int_eq(fd_write_all(fd, line + cut, (size_t)(len - cut)), 0);
    return true;
}
