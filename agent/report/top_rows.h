/* top_rows.h: what the nodes of a job and their ranks do and use at one moment, as dlaunchctl top
 * shows it: totals of all, and so many of the nodes and ranks as have a place on the screen. Rows
 * of several nodes are added to each other on their way; those that deserve a look stay. */
#ifndef AGENT_REPORT_TOP_ROWS_H
#define AGENT_REPORT_TOP_ROWS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "core/netaddr.h"

struct top_node {
    int node, nworkers, nrunning;
    double cpu_s;     /* of the workers that run, since they started, */
    double elapsed_s; /* age of the oldest of these workers */
    uint64_t memory;
    char host[HOST_MAX];
    char state[16];
};

struct top_rank {
    int rank, node, local_rank, pid;
    char state[16];
    double elapsed_s;
    double cpu_s; /* below 0: not known, as the following */
    double output_age_s;
    uint64_t memory;
    bool has_gpu;
    int gpu_percent; /* below 0: not known */
    uint64_t gpu_memory, gpu_memory_total;
    double relative, own; /* scores of --slow_ranks, 0 to 1; 0: not known */
    bool has_op, op_open; /* the last collective operation */
    uint64_t op_number;
    double op_age_s; /* since the beginning of an open operation, else since its end */
    char op_name[96];
    char program[96]; /* the program that the rank runs; "": the job has one only */
};

struct top_rows {
    uint32_t nnodes, nranks, nrunning; /* of all that has been added */
    struct top_node *nodes;            /* owned */
    size_t nnode_rows;
    struct top_rank *ranks; /* owned */
    size_t nrank_rows;
};

/* The next row, all zero, counted in the totals; a rank counts as running by itself. */
struct top_node *top_rows_add_node(struct top_rows *t);
struct top_rank *top_rows_add_rank(struct top_rows *t);

/* Leaves at most so many rows of nodes and of ranks, by number; 0: all. The first to stay are the
 * nodes of which not all workers run and the ranks that do not, then the ranks whose last operation
 * is of a second ago or more, that with the lowest number first, then the lowest ranks. */
void top_rows_cut(struct top_rows *t, size_t most);

void top_rows_encode(struct buf *b, const struct top_rows *t);
/* Adds to *t. False: malformed; some may have been added. */
bool top_rows_decode(struct rd *r, struct top_rows *t);

/* Adds "nodes", "ranks" and the totals to an object. */
void top_rows_json(const struct top_rows *t, json_t *into);

void top_rows_fini(struct top_rows *t);

#endif
