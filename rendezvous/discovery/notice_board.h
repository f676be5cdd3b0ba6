/* notice_board.h: the line by which a coordinator's address is published, in a file or in etcd.
 *
 *     dlaunch-rendezvous 1 <run id> <nonce> <port> <addr,addr,...> <host> <pid> <machine>
 *
 * with a newline behind it; blanks, '%' and control characters in a word are written %XX. */
#ifndef RENDEZVOUS_DISCOVERY_NOTICE_BOARD_H
#define RENDEZVOUS_DISCOVERY_NOTICE_BOARD_H

#include "rendezvous/discovery/rdzv_backend.h"

#define NOTICE_BOARD_MAX     4096 /* of a line, terminated */
#define NOTICE_BOARD_MACHINE 96

struct notice_board {
    char run_id[RDZV_RUN_ID_MAX];
    char host[HOST_MAX];
    char machine[NOTICE_BOARD_MACHINE]; /* notice_board_machine() */
    int port, pid;
    struct netaddr addrs[CONNECTOR_ADDRS_MAX];
    int naddrs;
};

/* Identifies this boot of this host, and this network namespace. */
void notice_board_machine(char out[NOTICE_BOARD_MACHINE]);

/* Writes the line of this node, which listens on f->listen_port. Draws f->nonce. */
void notice_board_format(struct rdzv_discovery *f, char *out, size_t cap);

/* Parses the text, and changes the text while it does so. False: the text is not such a line. */
bool notice_board_parse(char *line, struct notice_board *b);

/* Makes f->addrs of it. */
void notice_board_join(struct rdzv_discovery *f, const struct notice_board *b);

#endif
