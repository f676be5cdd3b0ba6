#include "tests/lib/folded.h"

#include <stdlib.h>
#include <string.h>

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
