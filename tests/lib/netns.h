/* netns.h: network namespaces as hosts. Each host has an interface eth0 on one
 * bridge, 10.77.0.(i+1)/24 and fd77::(i+1)/64, a host name and an /etc/hosts of its own. Needs
 * root, ip(8) and unshare(1). */
#ifndef TESTS_LIB_NETNS_H
#define TESTS_LIB_NETNS_H

#include <stdbool.h>

#include "tests/lib/proc.h"

#define NETNS_MAX 8

/* Whether this process may make namespaces; says why not as a skip line. */
bool netns_available(void);

/* Makes n hosts named host0, host1, ...; in each, every host's name resolves to its address, but
 * with bad_name (a host's index, or -1) that host's own name resolves to 127.0.1.1 there, as
 * Debian's installer sets it up. Call from an unchecked fixture, as netns_teardown(). */
void netns_setup(int n, int bad_name);
void netns_teardown(void);

/* "10.77.0.1" ...; static. */
const char *netns_addr(int host);

/* Cuts a host off the bridge silently, both ways, its interface staying up; or lets it back. */
void netns_cut(int host);
void netns_heal(int host);

/* Runs argv on a host, in its network, UTS and mount namespace. env as proc_start() takes it. */
void netns_start(struct proc *p, int host, char *const argv[], char *const env[]);
/* Runs a shell command on a host to its end; returns its exit status. */
int netns_sh(int host, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
