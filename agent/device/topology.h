/* topology.h: this host's CPUs, memory nodes, GPUs and network cards as plain values. hwloc is
 * loaded on demand. HWLOC_XMLFILE and HWLOC_SYNTHETIC describe another machine, for planning and
 * tests. */
#ifndef AGENT_DEVICE_TOPOLOGY_H
#define AGENT_DEVICE_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum topo_kind { TOPO_CORE, TOPO_CACHE, TOPO_NUMA, TOPO_SOCKET, TOPO_KINDS };

/* CPUs that belong together, without those that this process may not use; at least one. */
struct topo_unit {
    int index; /* hwloc's logical index */
    cpu_set_t *cpus;
};

#define TOPO_PATH_MAX 12

/* A device on a PCI bus, and the bridges above it. */
struct topo_pci {
    char bus[16];                 /* "0000:5e:00.0" */
    uint64_t path[TOPO_PATH_MAX]; /* from the root downwards; equal numbers are the same bridge */
    int npath;
    int numa; /* index in unit[TOPO_NUMA]; -1: not known */
};

struct topo_nic {
    struct topo_pci pci;
    char ib[24];  /* the verbs device of a network card (mlx5_0), or "" */
    char net[24]; /* the network interface of a card (ens3), or "" */
};

struct topology {
    bool this_system;
    size_t set_size;                    /* size of every CPU set, bytes */
    struct topo_unit *unit[TOPO_KINDS]; /* in the order of the machine; no CPU in two of a kind */
    int n[TOPO_KINDS];                  /* never 0: the whole machine if nothing is known */
    struct topo_pci *gpus;              /* NVIDIA's, in the order of their addresses */
    int ngpus;
    struct topo_nic *nics;
    int nnics;
};

/* `devices`: also reads GPUs and network cards, which takes longer. `what` is the option that needs
 * hwloc, for messages. -ENOENT if hwloc is not installed. */
int topology_open(struct topology *t, bool devices, const char *what, struct err *e);
void topology_close(struct topology *t); /* a zeroed one is allowed */

/* Counts the bridges that two devices have in common; more means closer. */
int topology_common(const struct topo_pci *a, const struct topo_pci *b);

/* Returns this process's affinity mask, malloc'ed, to be freed by CPU_FREE(). NULL: not known. */
cpu_set_t *topology_own_cpus(size_t *size);

#endif
