#include "agent/output/stdio_label.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"

struct stdio_label *stdio_label_new(int rank, int local_rank, const char *prefix, const char *file)
{
    size_t prefix_len = prefix ? strlen(prefix) : 0, file_len = file ? strlen(file) : 0;
    struct stdio_label *l = xmalloc(sizeof(*l) + prefix_len + file_len + 2);
    *l = (struct stdio_label){.refs = 1,
                              .rank = rank,
                              .local_rank = local_rank,
                              .prefix_len = prefix_len,
                              .prefix = l->text,
                              .file = l->text + prefix_len + 1};
    memcpy(l->prefix, prefix ? prefix : "", prefix_len + 1);
    memcpy(l->file, file ? file : "", file_len + 1);
    return l;
}

struct stdio_label *stdio_label_ref(struct stdio_label *l)
{
    l->refs++;
    return l;
}

void stdio_label_unref(struct stdio_label *l)
{
    if (l && --l->refs == 0)
        free(l);
}

const char *stdio_label_name(const struct stdio_label *l, char *out, size_t cap)
{
    size_t len = l->prefix_len;
    while (len && (l->prefix[len - 1] == ':' || isspace((unsigned char)l->prefix[len - 1])))
        len--;
    if (len)
        log_escape(out, cap, l->prefix, len, 0);
    else
        snprintf(out, cap, "local rank %d", l->local_rank);
    return out;
}
