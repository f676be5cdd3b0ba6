/* stdio_label.h: whose output a piece of text is, for prefixes and for the lines that declare gaps.
 * Counted references, all taken and dropped by the pump's thread, except the first. */
#ifndef AGENT_OUTPUT_STDIO_LABEL_H
#define AGENT_OUTPUT_STDIO_LABEL_H

#include <stdbool.h>
#include <stddef.h>

struct stdio_label {
    unsigned refs;
    int rank, local_rank;
    bool is_err; /* of a worker's standard error */
    size_t prefix_len;
    char *prefix; /* "" none */
    char *file;   /* the file that keeps all of the output, or "" */
    char text[];
};

/* Copies the strings; one reference, the caller's. */
struct stdio_label *stdio_label_new(int rank, int local_rank, const char *prefix, const char *file);
struct stdio_label *stdio_label_ref(struct stdio_label *l);
void stdio_label_unref(struct stdio_label *l); /* NULL is allowed */

/* "[default3]", or "local rank 3" when there is no prefix to know it by. Returns out. */
const char *stdio_label_name(const struct stdio_label *l, char *out, size_t cap);

#endif
