#include "agent/output/fold_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define NUMBER_MAX 40 /* bytes of a number that may differ from others */

struct fold_number {
    uint32_t at, len; /* in the first text */
    double low, high;
    char text[2][NUMBER_MAX + 1]; /* as the texts had them */
};

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

/* The length of the number at p, which begins with a digit, or with a sign if `before`, the byte in
 * front of it, is not a part of a word; 0: there is none. */
static size_t number_at(const uint8_t *p, const uint8_t *end, uint8_t before)
{
    const uint8_t *q = p;
    if (*q == '-' && q + 1 < end && !isalnum(before) && before != '-')
        q++;
    if (!is_digit(*q))
        return 0;
    if (*q == '0' && end - q > 2 && (q[1] | 0x20) == 'x' && isxdigit(q[2])) {
        for (q += 2; q < end && isxdigit(*q);)
            q++;
        return (size_t)(q - p);
    }
    while (q < end && is_digit(*q))
        q++;
    while (end - q > 1 && *q == '.' && is_digit(q[1])) { /* more than once in an address */
        for (q++; q < end && is_digit(*q);)
            q++;
    }
    if (end - q > 2 && (*q | 0x20) == 'e' && (q[1] == '-' || q[1] == '+') && is_digit(q[2])) {
        for (q += 2; q < end && is_digit(*q);)
            q++;
    }
    return (size_t)(q - p);
}

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

/* The hash of the text with one and the same sign in the place of each number, eight bytes at a
 * time. */
uint64_t fold_text_hash(const uint8_t *p, size_t len, uint64_t h)
{
    uint8_t before = '\n';
    uint64_t word = 0;
    unsigned bytes = 0;
    for (const uint8_t *end = p + len; p < end;) {
        size_t n = is_digit(*p) || *p == '-' ? number_at(p, end, before) : 0;
        word = word << 8 | (n ? '0' : *p);
        if (++bytes % 8 == 0)
            h = mix(h, word);
        p += n ? n : 1;
        before = p[-1];
    }
    return mix(h, word);
}

static double number_value(const uint8_t *p, size_t n, char text[NUMBER_MAX + 1])
{
    memcpy(text, p, n);
    text[n] = '\0';
    char *dot = strchr(text, '.');
    if (!dot || !strchr(dot + 1, '.'))
        return strtod(text, NULL);
    double v = 0; /* 10.0.0.9 is less than 10.0.0.11 */
    for (char *part = text; *part; part += strspn(part, "."))
        v = 1000 * v + (double)strtol(part, &part, 10);
    return v;
}

/* The greater of two numbers has the greater double or, where doubles are equal, more digits, or
 * greater ones. */
static int compare_numbers(double a, const char *ta, double b, const char *tb)
{
    size_t na = strlen(ta), nb = strlen(tb);
    if (a != b)
        return a < b ? -1 : 1;
    return na != nb ? (na < nb ? -1 : 1) : strcmp(ta, tb);
}

/* *from: of the numbers that differ, the first that may be at `at`; they are noted in their order.
 */
static void note_number(struct fold_text *t, size_t *from, size_t at, size_t first_len,
                        const uint8_t *p, size_t n)
{
    struct fold_number *x = t->numbers;
    char text[NUMBER_MAX + 1];
    size_t i = *from;
    while (i < t->nnumbers && x[i].at < at)
        i++;
    *from = i;
    if (i == t->nnumbers || x[i].at != at) {
        x = t->numbers = xrealloc(x, (t->nnumbers + 1) * sizeof(*x));
        memmove(&x[i + 1], &x[i], (t->nnumbers++ - i) * sizeof(*x));
        x[i] = (struct fold_number){.at = (uint32_t)at, .len = (uint32_t)first_len};
        x[i].low = x[i].high = number_value(t->text + at, first_len, x[i].text[0]);
        memcpy(x[i].text[1], x[i].text[0], sizeof(text));
    }
    double v = number_value(p, n, text);
    bool high = compare_numbers(v, text, x[i].high, x[i].text[1]) > 0;
    if (high || compare_numbers(v, text, x[i].low, x[i].text[0]) < 0) {
        *(high ? &x[i].high : &x[i].low) = v;
        memcpy(x[i].text[high], text, sizeof(text));
    }
}

bool fold_text_alike(struct fold_text *t, const uint8_t *q, size_t len, bool note)
{
    const uint8_t *p = t->text, *pend = p + t->len, *qend = q + len;
    size_t noted = 0, differ = 0;
    uint8_t before = '\n';
    if (len == t->len && memcmp(p, q, len) == 0 && !t->nnumbers)
        return true;
    while (p < pend && q < qend) {
        bool maybe = (is_digit(*p) || *p == '-') && (is_digit(*q) || *q == '-');
        size_t n = maybe ? number_at(p, pend, before) : 0, m = n ? number_at(q, qend, before) : 0;
        if (m == 0 && *p != *q)
            return false;
        if (m && (n != m || memcmp(p, q, n) != 0)) {
            if (n > NUMBER_MAX || m > NUMBER_MAX || ++differ > FOLD_NUMBERS_MAX)
                return false;
            if (note)
                note_number(t, &noted, (size_t)(p - t->text), n, q, m);
        }
        p += m ? n : 1;
        q += m ? m : 1;
        before = p[-1];
    }
    return p == pend && q == qend;
}

void fold_text_init(struct fold_text *t, const uint8_t *p, size_t len)
{
    *t = (struct fold_text){.text = xmalloc(len), .len = len};
    memcpy(t->text, p, len);
}

void fold_text_fini(struct fold_text *t)
{
    free(t->text);
    free(t->numbers);
    *t = (struct fold_text){0};
}

size_t fold_text_bytes(const struct fold_text *t)
{
    return t->len + t->nnumbers * sizeof(*t->numbers);
}

void fold_text_put(const struct fold_text *t, enum fold_side side, struct buf *b)
{
    size_t at = 0;
    for (size_t i = 0; i < t->nnumbers; i++) {
        const struct fold_number *x = &t->numbers[i];
        bool differ = strcmp(x->text[0], x->text[1]) != 0;
        buf_put(b, t->text + at, x->at - at);
        if (side != FOLD_HIGH)
            buf_put(b, x->text[0], strlen(x->text[0]));
        if (side == FOLD_BOTH && differ)
            buf_put(b, "..", 2);
        if (side == FOLD_HIGH || (side == FOLD_BOTH && differ))
            buf_put(b, x->text[1], strlen(x->text[1]));
        at = x->at + x->len;
    }
    buf_put(b, t->text + at, t->len - at);
}
