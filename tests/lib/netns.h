/* netns.h: network namespaces as hosts. Each has a host name, an /etc/hosts and two interfaces of
 * its own: eth0 on one bridge, 10.77.0.(i+1)/24 and fd77::(i+1)/64, and eth1 on another,
 * 10.78.0.(i+1)/24. Needs root, ip(8), nft(8) and nsenter(1).
 *
 * The namespaces have no names and no files: each lives as long as a process in it does, and every
 * such process dies with the test program. Nothing is left behind, however that ends. */
#ifndef TESTS_LIB_NETNS_H
#define TESTS_LIB_NETNS_H

#include <stdbool.h>

#include "tests/lib/proc.h"

#define NETNS_MAX 72

/* True if this process may make namespaces; otherwise prints the reason as a skip line. */
bool netns_available(void);

/* Makes n hosts named host0, host1, ...; in each, every host's name resolves to its address on
 * eth0, but with bad_name (a host's index, or -1) that host's own name resolves to 127.0.1.1 there,
 * as Debian's installer sets it up. Call from a checked fixture, as netns_teardown(): a test that
 * fails leaves no host cut off. */
void netns_setup(int n, int bad_name);
void netns_teardown(void);

/* Addresses on eth0, "10.77.0.1" and "fd77::1" ..., and on eth1, "10.78.0.1" ...; static. */
const char *netns_addr(int host);
const char *netns_addr6(int host);
const char *netns_addr_eth1(int host);

/* Cuts a host off both bridges silently, both ways, its interfaces staying up; or lets it back. */
void netns_cut(int host);
void netns_heal(int host);

/* Runs argv on a host, in its network, UTS and mount namespace. env as proc_start() takes it. */
void netns_start(struct proc *p, int host, char *const argv[], char *const env[]);
/* Runs argv on a host, with the flags of proc_start(). */
void netns_start_with(struct proc *p, int host, char *const argv[], char *const env[],
                      unsigned flags);
/* Runs a shell command on a host to its end; returns its exit status. */
int netns_sh(int host, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The process that holds a host's namespaces. */
pid_t netns_holder(int host);

/* The processes that are running on a host; zombies do not count. */
int netns_count_processes(int host);
/* Counts the processes of each host, in one look. */
void netns_count_each(int counts[NETNS_MAX]);
/* Sends a signal (0: none) to those called `comm` (NULL: all). Returns how many there were. */
int netns_kill(int host, const char *comm, int signo);
/* Cut off, and every process killed: no farewell reaches anybody. */
void netns_power_off(int host);

#endif
