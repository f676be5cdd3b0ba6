/* rdzv_admission.h: which launchers the coordinator lets in, whom it has turned away, and the lines
 * for people while nodes are waited for. Pure. */
#ifndef RENDEZVOUS_RULES_RDZV_ADMISSION_H
#define RENDEZVOUS_RULES_RDZV_ADMISSION_H

#include "rendezvous/rules/rdzv_nodes.h"
#include "rendezvous/rules/rdzv_output.h"
#include "rendezvous/rules/rdzv_settings.h"

/* Nodes that may be here at once. */
static inline int rdzv_rules_places(const struct rdzv_rules *r)
{
    return r->max_nodes + r->spares;
}

static inline bool rdzv_rules_dynamic(const struct rdzv_rules *r)
{
    return r->backend != RDZV_STATIC;
}

/* Why a new launcher is turned away, or false. *retry: it may be otherwise soon. began: some round
 * was prepared. From then on, who asks for a node_rank that is taken is the successor of a launcher
 * that was killed, and whose end is not known here yet; before, two were started with one
 * node_rank. */
bool rdzv_admission_objection(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                              const struct rdzv_hello *h, bool began, uint64_t now, char *text,
                              size_t cap, bool *retry);
/* Logs settings of a node that are not those of the coordinator, which count. */
void rdzv_admission_warn(const struct rdzv_rules *r, const struct rdzv_hello *h,
                         struct rdzv_output *out);

/* Launchers that were turned away, for the log and the text of the join timeout. */
#define RDZV_ATTEMPTS_MAX 8
struct rdzv_attempt {
    char who[HOST_MAX + ADDR_STRLEN + 4];
    char text[RDZV_TEXT_MAX];
    int count;
    uint64_t logged_ns;
};
struct rdzv_attempts {
    struct rdzv_attempt e[RDZV_ATTEMPTS_MAX];
    int n;
};
void rdzv_attempts_add(struct rdzv_attempts *a, struct rdzv_output *out, const char *host,
                       const char *addr, const char *text, uint64_t now);

/* "waiting for nodes, 5 s: 3 of 4 here: a, b, c; missing: node_rank 3". starts_ns: the time until
 * the job starts with the nodes that are here; 0: more nodes are needed. first: the round is the
 * job's first one. */
void rdzv_admission_notice(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                           uint64_t waited_ns, bool first, uint64_t starts_ns, char *out,
                           size_t cap);
/* "only 3 of 4 nodes joined within 60 s; ..." */
void rdzv_admission_timeout(const struct rdzv_rules *r, const struct rdzv_nodes *nodes,
                            const struct rdzv_attempts *turned_away, uint64_t waited_ns, char *out,
                            size_t cap);

#endif
