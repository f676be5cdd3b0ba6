/* template.h: texts with ${name} in them. */
#ifndef AGENT_BASE_TEMPLATE_H
#define AGENT_BASE_TEMPLATE_H

#include <stddef.h>

struct template_var {
    const char *name, *value;
};

enum template_syntax {
    TEMPLATE_BRACED, /* ${name} only; every other '$' is text */
    TEMPLATE_PYTHON, /* as Python's string.Template.safe_substitute(): $name too, and $$ is a '$' */
};

/* A malloc'ed copy of `text` with each of the n variables filled in; unknown names stay as they
 * are. */
char *template_expand(const char *text, const struct template_var *vars, size_t n,
                      enum template_syntax syntax);

#endif
