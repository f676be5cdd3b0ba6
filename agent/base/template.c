#include "agent/base/template.h"

#include <ctype.h>
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"

static size_t name_len(const char *s)
{
    size_t n = 0;
    if (isalpha((unsigned char)s[0]) || s[0] == '_')
        while (isalnum((unsigned char)s[n]) || s[n] == '_')
            n++;
    return n;
}

/* The value of the variable whose '$' is at p, and in *len how much text it replaces. NULL: plain
 * text. */
static const char *value_at(const char *p, const struct template_var *vars, size_t n,
                            enum template_syntax syntax, size_t *len)
{
    bool braced = p[1] == '{';
    if (syntax == TEMPLATE_PYTHON && p[1] == '$') {
        *len = 2;
        return "$";
    }
    if (!braced && syntax == TEMPLATE_BRACED)
        return NULL;
    const char *name = p + 1 + braced;
    size_t nlen = name_len(name);
    if (nlen == 0 || (braced && name[nlen] != '}'))
        return NULL;
    *len = 1 + nlen + 2 * (size_t)braced;
    for (size_t i = 0; i < n; i++) {
        if (strlen(vars[i].name) == nlen && memcmp(vars[i].name, name, nlen) == 0)
            return vars[i].value;
    }
    return NULL;
}

char *template_expand(const char *text, const struct template_var *vars, size_t n,
                      enum template_syntax syntax)
{
    if (!strchr(text, '$'))
        return xstrdup(text);
    struct buf b = BUF_INIT;
    for (const char *p = text, *dollar; *p;) {
        dollar = strchr(p, '$');
        if (!dollar) {
            buf_put(&b, p, strlen(p));
            break;
        }
        buf_put(&b, p, (size_t)(dollar - p));
        size_t len = 1;
        const char *value = value_at(dollar, vars, n, syntax, &len);
        if (value) {
            buf_put(&b, value, strlen(value));
        } else {
            len = 1;
            buf_put(&b, "$", 1);
        }
        p = dollar + len;
    }
    xbuf_reserve(&b, 0);
    char *out = xstrndup(b.data ? (char *)b.data : "", b.len);
    buf_fini(&b);
    return out;
}
