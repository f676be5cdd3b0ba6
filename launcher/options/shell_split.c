#include "launcher/options/shell_split.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "core/mem.h"

/* Reads one word at *p into *w and moves both behind it. */
static int read_word(const char **p, char **w, struct err *e)
{
    const char *s = *p;
    char quote = 0, *to = *w;
    for (; *s && (quote || !isspace((unsigned char)*s)); s++) {
        if (quote ? *s == quote : (*s == '\'' || *s == '"')) {
            quote = quote ? 0 : *s;
        } else if (*s == '\\' && quote != '\'' && s[1] && (!quote || s[1] == '"' || s[1] == '\\')) {
            *to++ = *++s;
        } else {
            *to++ = *s;
        }
    }
    if (quote)
        return err_set(e, -EINVAL, "missing closing %c", quote);
    *to++ = '\0';
    *p = s;
    *w = to;
    return 0;
}

/* Refuses words that have a meaning only in a shell. */
static int check_unquoted(const char *s, struct err *e)
{
    static const char *const signs[] = {";", "&", "&&", "|", "||", ">", ">>", "<"};
    size_t n = strcspn(s, " \t\n\v\f\r");
    if (*s == '#')
        return err_set(e, -EINVAL, "'%.40s': a comment must be a line of its own (or quote it)", s);
    for (size_t i = 0; i < ARRAY_LEN(signs); i++) {
        if (strlen(signs[i]) == n && memcmp(s, signs[i], n) == 0)
            return err_set(e, -EINVAL,
                           "'%s' has no meaning, because the command is not run by a shell (use sh "
                           "-c '...', or quote it)",
                           signs[i]);
    }
    return 0;
}

int shell_split(struct options *o, const char *text, char ***out, struct err *e)
{
    size_t len = strlen(text), n = 0;
    /* A word has at least one byte, and at least one blank separates it from the next. */
    char *w = options_alloc(o, len + 1);
    char **list = options_alloc(o, (len / 2 + 2) * sizeof(*list));
    for (;;) {
        while (isspace((unsigned char)*text))
            text++;
        if (!*text)
            break;
        if (check_unquoted(text, e) < 0)
            return -EINVAL;
        list[n++] = w;
        if (read_word(&text, &w, e) < 0)
            return -EINVAL;
    }
    if (n == 0)
        return err_set(e, -EINVAL, "the command is empty");
    *out = list;
    return 0;
}

size_t shell_quote(const char *word, char *out, size_t cap)
{
    size_t n = 0;
    bool plain = *word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789_-+=./,:@%^")];
#define PUT(c)                  \
    do {                        \
        if (n + 1 < cap)        \
            out[n] = (char)(c); \
        n++;                    \
    } while (0)
    if (!plain)
        PUT('\'');
    for (; *word; word++) {
        if (*word == '\'') {
            PUT('\'');
            PUT('\\');
            PUT('\'');
        }
        PUT(*word);
    }
    if (!plain)
        PUT('\'');
#undef PUT
    if (cap)
        out[n < cap ? n : cap - 1] = '\0';
    return n;
}
