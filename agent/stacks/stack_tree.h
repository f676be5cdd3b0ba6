/* stack_tree.h: the stacks of many ranks as one prefix tree. Each frame is there once, with the set
 * of ranks that are in it: what most ranks do stands beside what few do. */
#ifndef AGENT_STACKS_STACK_TREE_H
#define AGENT_STACKS_STACK_TREE_H

#include <jansson.h>

#include "agent/inspect/sample.h"

struct stack_tree {
    struct stack_node {
        char *text; /* owned; of the root NULL */
        uint32_t hash;
        int first, last, next; /* children, the next sibling; -1: none */
        struct {
            int from, to;
        } * ranks; /* owned, in order */
        int nranks;
    } * nodes; /* nodes[0] is the root */
    int n;
};

/* Adds the samples, which are in the order of their ranks; into an empty tree first. The main
 * thread's frames begin at the root, another thread's below "thread NAME". */
void stack_tree_add(struct stack_tree *t, const struct samples *all);
void stack_tree_fini(struct stack_tree *t);

/* "0-3,7"; malloc'ed. */
char *stack_tree_ranks(const struct stack_node *node);

/* The innermost line of a thread: "[sleeps in futex]", "[runs]". */
void stack_tree_leaf(const struct sample_thread *t, char out[SAMPLE_TEXT_MAX]);

/* Lines for people, indented where ranks part; then what is missing. malloc'ed. */
char *stack_tree_text(const struct stack_tree *t, const struct samples *all);
/* {"tree": [{"frame", "ranks", "children"}], "ranks": [{"rank", "pid", "threads"...}]}. */
json_t *stack_tree_json(const struct stack_tree *t, const struct samples *all);

#endif
