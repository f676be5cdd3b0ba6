/* tree.h: the tree of the launchers of a round that has more nodes than the tree is wide.
 *
 * The coordinator is the root, and the other nodes follow in the order of their group ranks: the
 * first `width` of them are its children, and each has up to `width` children itself. So the parent
 * of group rank g is (g - 1) / width, if the coordinator's own node has rank 0. */
#ifndef RENDEZVOUS_RULES_TREE_H
#define RENDEZVOUS_RULES_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "rendezvous/rules/request.h"

#define TREE_WIDTH 32

/* The group rank of the parent; -1: it is the coordinator. host: the group rank of the
 * coordinator's own node, which is in the tree as the root only; -1: it is not in the round. */
int tree_parent(int rank, int host, int width);

/* Returns how many nodes are between the coordinator and this node. */
int tree_depth(int rank, int host, int width);

struct rdzv_answers;
/* Makes one answer of several to a request. False: they cannot be merged, and stay as they are. */
typedef bool merge_fn(void *arg, const struct rdzv_answers *answers, struct buf *out);

/* The answers of a node and of those below it to a request, until they go up in one message: when
 * all have come, or some time after the first. Late answers go up later. All zero but for the
 * request and `wanted`: nothing has come. */
struct tree_answers {
    struct node_id to; /* the request */
    enum request_kind kind;
    uint64_t id;
    int wanted, have; /* own answer, and one message of each child */
    int n;            /* answers in `items` */
    struct buf items; /* each u32 length and bytes */
};

/* Answers that are longer together go up at once. */
#define TREE_ANSWERS_MAX (1u << 20)

void tree_answers_add(struct tree_answers *a, const uint8_t *p, size_t len);
bool tree_answers_complete(const struct tree_answers *a);
/* Takes what has come as an ANSWERS; false: nothing has. merge: NULL for none. */
bool tree_answers_take(struct tree_answers *a, merge_fn *merge, void *arg, struct buf *frame);
void tree_answers_fini(struct tree_answers *a);

#endif
