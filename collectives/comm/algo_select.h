/* algo_select.h: which provider carries out an operation, and by which algorithm: a table of rules
 * that a person can read, write and override.
 *
 *     # operation  ranks, nodes and bytes it holds for       provider or provider/algorithm
 *     all_reduce   ranks=2 bytes=0-256k                      net/pair
 *     all_reduce   ranks=8- nodes=2- bytes=64k-              hier
 *     *            nodes=1                                   net
 *
 * Rules are separated by line ends or semicolons, their words by blanks or colons. Ranges include
 * both ends; the upper end may be missing. Sizes take k, m, g; a range without a name is one of
 * bytes. Bytes are those of one rank's `count` (dlcoll.h). "_v" operations use the rules of the
 * plain ones.
 *
 * The first rule that applies and whose provider can carry out the call is used: those of
 * DLCOLL_ALGO, then those of the file DLCOLL_TUNE_FILE, then the built-in ones. All ranks must have
 * the same rules. */
#ifndef COLLECTIVES_COMM_ALGO_SELECT_H
#define COLLECTIVES_COMM_ALGO_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/base/op_signature.h"
#include "core/err.h"

struct coll_provider;

enum { ALGO_NAME_MAX = 16 };

struct algo_rule {
    int kind; /* enum call_kind; CALL_NONE: any */
    int ranks_from, ranks_to;
    int nodes_from, nodes_to;
    size_t bytes_from, bytes_to;
    char provider[ALGO_NAME_MAX];
    char algo[ALGO_NAME_MAX]; /* "": the provider's own choice */
};

struct algo_select {
    struct algo_rule *rules; /* owned */
    size_t n;
};

/* Reads the environment and the file that it names. Rules name `providers`, a list that ends with
 * NULL, and their algorithms. -EINVAL with a text that names the word and its place, or the error
 * of opening the file. */
int algo_select_init(struct algo_select *t, const struct coll_provider *const *providers,
                     struct err *e);
void algo_select_fini(struct algo_select *t);

/* The facts by which an algorithm is chosen: equal on every rank. */
struct algo_key {
    int kind, ranks, nodes;
    size_t bytes;
};
enum call_kind algo_select_plain_kind(int kind); /* without _v */

/* The next rule that applies, starting at *at, which is 0 at first; NULL: there is none. Built-in
 * rules are only those of `provider`, and none if it is NULL. */
const struct algo_rule *algo_select_next(const struct algo_select *t, const struct algo_key *key,
                                         const char *provider, size_t *at);

/* Formats a rule as a line, for DLCOLL_DEBUG and dlcoll_describe(). */
void algo_select_format(const struct algo_rule *r, char *out, size_t size);

/* All built-in rules. */
const struct algo_rule *algo_select_builtin(size_t *n);

#endif
