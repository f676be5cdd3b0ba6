/* choice.h: who carries out an operation, and by which algorithm: a table of rules that a person
 * can read, write and override.
 *
 *     # operation  ranks, nodes and bytes it holds for       provider or provider/algorithm
 *     all_reduce   ranks=2 bytes=0-256k                      net/pair
 *     all_reduce   ranks=8- nodes=2- bytes=64k-              hier
 *     *            nodes=1                                   net
 *
 * Rules stand one a line or between semicolons; their words between blanks or colons. Ranges hold
 * at both ends; without an upper end there is none. Sizes take k, m, g; a range without a name is
 * one of bytes. Bytes are those of one rank's `count` (dlcoll.h). "_v" operations go by the plain
 * ones.
 *
 * The first rule that holds and can be kept is taken: those of DLCOLL_ALGO, then those of the file
 * DLCOLL_TUNE_FILE, then what is built in. All ranks must have the same rules. */
#ifndef COLLECTIVES_API_CHOICE_H
#define COLLECTIVES_API_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/api/coll_call.h"
#include "core/err.h"

enum { CHOICE_NAME_MAX = 16 };

/* Who may carry out an operation, in the order of preference (provider.c). */
enum choice_provider { CHOICE_SHM, CHOICE_HIER, CHOICE_NET, CHOICE_PROVIDERS };
extern const char *const choice_provider_names[CHOICE_PROVIDERS];

struct choice_rule {
    int kind; /* enum call_kind; CALL_NONE: any */
    int ranks_from, ranks_to;
    int nodes_from, nodes_to;
    size_t bytes_from, bytes_to;
    char provider[CHOICE_NAME_MAX];
    char algo[CHOICE_NAME_MAX]; /* "": the provider's own choice */
};

struct choice {
    struct choice_rule *rules; /* owned */
    size_t n;
};

/* Reads the environment and the file that it names. -EINVAL with a text that names the word and
 * where it stands, or what opening the file gave. */
int choice_init(struct choice *t, struct err *e);
void choice_fini(struct choice *t);

/* Appends the rules of a text; `where` is its name in messages. */
int choice_parse(struct choice *t, const char *text, const char *where, struct err *e);

/* What a call is chosen by: the same on every rank. */
struct choice_key {
    int kind, ranks, nodes;
    size_t bytes;
};
enum call_kind choice_plain_kind(int kind); /* without _v */

/* The next rule that holds, from *at on, which is 0 at first; NULL: no more. The built-in ones are
 * those of `provider` only, and not asked when it is NULL. */
const struct choice_rule *choice_next(const struct choice *t, const struct choice_key *key,
                                      const char *provider, size_t *at);

/* A rule as a line, for DLCOLL_DEBUG and dlcoll_describe(). */
void choice_format(const struct choice_rule *r, char *out, size_t size);

/* All built-in rules. */
const struct choice_rule *choice_builtin(size_t *n);

#endif
