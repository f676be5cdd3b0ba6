/* fact.h: the facts about a node and about a path between two, as the doctor judges them
 * (checks.h), and their form as JSON. One table (fact.c) has every field of a struct; its name in
 * JSON is that of the member. A fact that is not known is NULL, NAN or -1, and has no place in the
 * JSON. */
#ifndef AGENT_DOCTOR_FACT_H
#define AGENT_DOCTOR_FACT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct fact_list {
    void *v; /* owned; of which struct, the member says */
    size_t n;
};

/* A variable with its value, a program with its version, a port of InfiniBand with its state. */
struct word_facts {
    char *name, *value;
};

struct folder_facts {
    char *path, *error;
    double bytes, free_bytes, free_files;
};

/* A name that is resolved. */
struct name_facts {
    char *name, *error;
    double seconds;
    signed char loopback;       /* all its addresses are */
    struct fact_list addresses; /* char * */
};

struct interface_facts {
    char *name, *duplex;
    signed char up;
    double mtu, speed_mbit;
    struct fact_list addresses; /* char * */
};

struct gpu_facts {
    char *bus, *name;
    signed char mig, lost, mig_mode, remap_pending, remap_failed;
    double used_bytes, bytes, processes, pid, ecc_uncorrected, compute_mode, pcie_width,
        pcie_width_max;
};

struct node_facts {
    /* What the node is asked, and what the leader adds: the group rank, where the others reach the
     * node, by how much its clock is ahead of node 0's. */
    double node, nproc, nodes, clock_s, clock_error_s;
    char *host, *addr, *missing; /* missing: why there are no facts */
    signed char gpus;

    struct {
        double nofile, memlock_bytes, nproc, file_bytes, address_space_bytes;
    } limits; /* unknown: there is none */
    struct {
        struct {
            double limit, free;
        } pids, memory;
    } cgroup;
    struct {
        double bytes, available_bytes;
    } memory;
    double own_threads, threads_left, ports, cpus;
    struct folder_facts shm, tmp, log_dir;

    struct name_facts hostname, meet;
    struct fact_list interfaces;                /* struct interface_facts */
    struct fact_list rdma, variables, versions; /* struct word_facts */

    struct {
        char *path, *content, *lacks;
        double bytes;
    } program;
    char *program_error;
    struct {
        char *path, *error;
    } python_error;
    struct {
        char *command, *error, *output;
        double signal, status;
        json_t *answer;
    } node_check;
    struct {
        char *error;
        double present, visible;
        struct fact_list list; /* struct gpu_facts */
    } gpu;
};

/* rtt_us and bps (the worse direction), or an error. */
struct pair_facts {
    double a, b, rtt_us, bps;
    double measured;   /* so often */
    signed char local; /* both are on one host */
    struct {
        double at, to, stage, code; /* at unknown: there was none */
    } error;
};

/* Sets all facts to what is not known. */
void node_facts_init(struct node_facts *f);
void node_facts_fini(struct node_facts *f);

/* What the JSON lacks, or has in another type, is not known. */
void node_facts_get(struct node_facts *f, const json_t *j);
json_t *node_facts_json(const struct node_facts *f);

struct pair_list {
    struct pair_facts *v; /* owned */
    size_t n;
};

void pair_facts_init(struct pair_facts *f);
json_t *pair_facts_json(const struct pair_facts *f);

/* Adds one, of which nothing is known yet. Valid until the next one is added. */
struct word_facts *fact_add_word(struct fact_list *l, const char *name, const char *value);
void fact_add_text(struct fact_list *l, const char *text);
struct interface_facts *fact_add_interface(struct fact_list *l, const char *name);
struct gpu_facts *fact_add_gpu(struct fact_list *l);

/* The value behind the name; NULL: there is none. */
const char *fact_word(const struct fact_list *l, const char *name);

#endif
