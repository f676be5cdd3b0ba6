/* Whatever a worker or a peer wrote, what is shown moves no terminal: no C0 or C1 control is left
 * except newline and tab where they are kept, it is UTF-8, it fits, and showing it twice changes
 * nothing more. The first two bytes choose the buffer's size and the mode; fuzz_terminal.c has what
 * passes on its way to a terminal. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "agent/base/text.h"
#include "core/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_shown(const char *out, size_t n, int keep_ws)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)out[i];
        assert(c >= 0x20 || (keep_ws && (c == '\n' || c == '\t')));
        assert(c != 0x7f);
        if (c == 0xc2)
            assert(i + 1 < n && (unsigned char)out[i + 1] >= 0xa0);
    }
    json_t *utf8 = json_stringn(out, n); /* NULL when it is not UTF-8 */
    assert(utf8);
    json_decref(utf8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    int keep_ws = data[0] & 1;
    size_t len = size - 2, cap = data[0] & 2 ? (size_t)data[1] + 1 : 4 * len + 8;
    const char *text = (const char *)data + 2;
    char *out = malloc(cap);
    size_t n = log_escape(out, cap, text, len, keep_ws);
    assert(n < cap && out[n] == '\0' && strlen(out) == n);
    check_shown(out, n, keep_ws);
    char *again = malloc(n + 8);
    assert(log_escape(again, n + 8, out, n, keep_ws) == n && memcmp(again, out, n) == 0);
    free(again);
    if (cap >= 64) { /* excerpts of it stay what they are */
        size_t kept = text_keep_end(out, cap, text, len);
        assert(kept < cap && out[kept] == '\0');
    }
    free(out);
    return 0;
}
