/* netaddr.h: endpoints as people write them, addresses as the kernel wants them. */
#ifndef CORE_NETADDR_H
#define CORE_NETADDR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/err.h"

#define HOST_MAX    256 /* a host name as given, with its NUL (RFC 1035: 253) */
#define ADDR_STRLEN 64  /* a textual address with scope id: INET6_ADDRSTRLEN + '%' + IFNAMSIZ */

struct netaddr {
    union {
        struct sockaddr sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_storage ss;
    };
    socklen_t len;
};

/* "host", "host:port", "[v6]", "[v6]:port", "v6"; blanks around are dropped; empty: "localhost".
 * Without a port *port is default_port. host receives at most HOST_MAX bytes, brackets taken off.
 * -EINVAL with a text otherwise. */
int endpoint_parse(const char *s, int default_port, char host[HOST_MAX], int *port, struct err *e);

/* "host:port", brackets put round an IPv6 address. Returns out. */
const char *endpoint_format(char *out, size_t cap, const char *host, int port);

/* A textual IP address (an IPv6 one may carry %scope). False when it is not one. */
bool netaddr_parse_ip(struct netaddr *a, const char *ip, int port);
void netaddr_from_sockaddr(struct netaddr *a, const struct sockaddr *sa);
/* The address without the port; an IPv4-mapped IPv6 address is written as IPv4. Returns out. */
const char *netaddr_ip(const struct netaddr *a, char out[ADDR_STRLEN]);
/* "ip:port". Returns out. */
const char *netaddr_format(const struct netaddr *a, char *out, size_t cap);
int netaddr_port(const struct netaddr *a);
void netaddr_set_port(struct netaddr *a, int port);

bool netaddr_is_loopback(const struct netaddr *a); /* 127/8, ::1, mapped */
/* "localhost", by its usual names, or the text of an address of loopback. */
bool netaddr_names_loopback(const char *host);
bool netaddr_is_link_local(const struct netaddr *a);
/* ip is a link-local address in another host's words: its scope becomes one of this host's, an
 * interface's name. What has no scope, or is no address, stays as it is. */
void netaddr_rescope(char *ip, size_t cap, const char *scope);
/* Does what the function above does if `from` is a link-local address, else nothing. */
void netaddr_rescope_like(char *ip, size_t cap, const struct netaddr *from);
bool netaddr_same_ip(const struct netaddr *a, const struct netaddr *b);

/* Whether an interface of this host (this network namespace) has the address. Loopback always. */
bool netaddr_is_local(const struct netaddr *a);

/* The interface that has the address, in name (IF_NAMESIZE bytes). False: none has it. */
bool netaddr_interface(const struct netaddr *a, char *name);

/* The first address of the named interface, IPv4 before IPv6, link-local last. -ENODEV with a text
 * that lists the interfaces there are. */
int netaddr_of_interface(const char *name, struct netaddr *a, struct err *e);

/* The addresses of this host that another host could use: no loopback, link-local last. Returns how
 * many were stored, at most max. */
int netaddr_list_local(struct netaddr *out, int max);

#endif
