/* rdzv_nodes.h: whole rendezvous objects under test, with agents that do what they are asked:
 * several in one loop, or in processes of their own where one has to be stopped or killed. */
#ifndef TESTS_LIB_RDZV_NODES_H
#define TESTS_LIB_RDZV_NODES_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/rdzv.h"
#include "tests/lib/loop.h"
#include "tests/lib/test.h"

#define NODES_MAX 40

/* An agent that does what it is asked, and records it. */
struct node {
    struct rdzv_config config;
    char name[16];
    struct rdzv *r;
    int prepares, runs, stops, respawns;
    struct generation gen;
    int group_rank, nnodes, world_size, base_rank, restart_count, master_port;
    bool agent_store;
    char master_addr[HOST_MAX], addr[ADDR_STRLEN], addrs[8][ADDR_STRLEN];
    uint16_t port0;
    struct rdzv_stop why;
    bool finished, closed;
    bool slow_stop; /* does not report that it has stopped */
    struct rdzv_result result;
    struct failure first;
    uint64_t run_at, stop_at;
    int gathers;           /* results of rdzv_gather() */
    char gathered[256];    /* the newest: values with "," behind each */
    int requests, answers; /* received */
    uint32_t answered;     /* the sum of the answers; each node's own is 1 << its number */
    bool mute;             /* does not answer */
};

extern merge_fn *nodes_merge; /* of all nodes; NULL: answers are not merged */
extern uv_loop_t loop;
extern struct node nodes[NODES_MAX];
extern char logs[1 << 16]; /* all log lines */

void on_closed(void *arg);

/* A port on which nothing listens: another program of this host may take it before we do, as may
 * happen to any port that is not bound yet; the kernel hands the same one out again last. */
int unused_port(void);

/* Fills the configuration of node i. */
struct rdzv_config *config_of(int i, enum rdzv_backend backend, int port, int min, int max);
int try_open(int i, struct err *e);
void open_node(int i);
void setup(void);
void teardown(void);

/* Run the loop until the nodes first to last have run or stopped `count` times, or have finished.
 */
void wait_runs(int first, int last, int count);
void wait_stops(int first, int last, int count);
void wait_finished(int first, int last);

#define HAS(text, part) ck_assert_msg(strstr(text, part), "'%s' is not in: %s", part, text)

void wait_logged(const char *part);
void worker_fails(int i, int code);

/* Starts node i in a process of its own, which writes 'r' at each run and 's' at each stop, and
 * exits with the job's status. expect_child() waits for the next of these letters. */
pid_t fork_node(int i);
void expect_child(char c);

/* Runs the loop until the nodes first to last have received so many requests. */
void wait_requests(int first, int last, int count);

/* Connects to a port of 127.0.0.1. */
int call(int port);

/* Runs the loop and receives until there are `enough` bytes or the other side closes. Returns the
 * number of bytes. */
size_t hear(int fd, void *out, size_t cap, size_t enough);

TCase *net_case(Suite *s, const char *name, double timeout);

/* Moves the process to a network namespace with n addresses beside loopback: 10.0.0.1 and up.
 * False: not permitted. */
bool enter_network_of(int n);

#endif
