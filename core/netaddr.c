#include "core/netaddr.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/parse.h"

#define NO_IPV6 "'%.*s' is not host:port (an IPv6 address is written [addr]:port)"

static bool host_chars_ok(const char *s)
{
    for (; *s; s++) {
        if (!isalnum((unsigned char)*s) && !strchr("._-:%", *s))
            return false;
    }
    return true;
}

/* As inet_pton() has it, but for a %scope. */
static bool is_ipv6(const char *s)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr a;
    size_t n = strcspn(s, "%");
    if (n >= sizeof(text))
        return false;
    memcpy(text, s, n);
    text[n] = '\0';
    return inet_pton(AF_INET6, text, &a) == 1;
}

int endpoint_parse(const char *s, int default_port, char host[HOST_MAX], int *port, struct err *e)
{
    char text[HOST_MAX + 16], *h = text, *p = NULL;
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1]))
        n--;
    if (n >= sizeof(text))
        return err_set(e, -EINVAL, "'%.40s...' is too long for host:port", s);
    memcpy(text, s, n);
    text[n] = '\0';

    if (text[0] == '[') {
        char *close = strchr(text, ']');
        if (!close || (close[1] && close[1] != ':'))
            return err_set(e, -EINVAL, NO_IPV6, (int)n, s);
        p = close[1] == ':' ? close + 2 : NULL;
        *close = '\0';
        h = text + 1;
    } else {
        char *colon = strchr(text, ':');
        if (colon && !strchr(colon + 1, ':')) { /* two colons or more: a bare IPv6 address */
            *colon = '\0';
            p = colon + 1;
        }
    }
    long v = default_port;
    if (p && (parse_int(p, 0, 65535, &v, NULL) < 0 || !isdigit((unsigned char)*p)))
        return err_set(e, -EINVAL, "'%.*s': port '%s' is not a number from 0 to 65535", (int)n, s,
                       p);
    if (strlen(h) >= HOST_MAX || !host_chars_ok(h) || (p && !*h))
        return err_set(e, -EINVAL, "'%.*s' is not host:port", (int)n, s);
    if (strchr(h, ':') && !is_ipv6(h))
        return err_set(e, -EINVAL, NO_IPV6, (int)n, s);
    strcpy(host, *h ? h : "localhost");
    *port = (int)v;
    return 0;
}

const char *endpoint_format(char *out, size_t cap, const char *host, int port)
{
    snprintf(out, cap, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
    return out;
}

bool netaddr_parse_ip(struct netaddr *a, const char *ip, int port)
{
    memset(a, 0, sizeof(*a));
    if (inet_pton(AF_INET, ip, &a->in.sin_addr) == 1) {
        a->in.sin_family = AF_INET;
        a->in.sin_port = htons((uint16_t)port);
        a->len = sizeof(a->in);
        return true;
    }
    char text[ADDR_STRLEN];
    if (strlen(ip) >= sizeof(text))
        return false;
    strcpy(text, ip);
    char *scope = strchr(text, '%');
    if (scope)
        *scope++ = '\0';
    if (inet_pton(AF_INET6, text, &a->in6.sin6_addr) != 1)
        return false;
    a->in6.sin6_family = AF_INET6;
    a->in6.sin6_port = htons((uint16_t)port);
    a->len = sizeof(a->in6);
    if (scope) {
        unsigned index = if_nametoindex(scope);
        a->in6.sin6_scope_id = index ? index : (unsigned)strtoul(scope, NULL, 10);
        if (!a->in6.sin6_scope_id)
            return false;
    }
    return true;
}

void netaddr_from_sockaddr(struct netaddr *a, const struct sockaddr *sa)
{
    memset(a, 0, sizeof(*a));
    a->len = sa->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
             : sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                         : 0;
    memcpy(&a->ss, sa, a->len);
    if (!a->len)
        a->sa.sa_family = sa->sa_family;
}

/* The IPv4 address in a mapped or plain one; NULL for another. */
static const struct in_addr *as_ipv4(const struct netaddr *a)
{
    if (a->sa.sa_family == AF_INET)
        return &a->in.sin_addr;
    if (a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
        return (const struct in_addr *)&a->in6.sin6_addr.s6_addr[12];
    return NULL;
}

const char *netaddr_ip(const struct netaddr *a, char out[ADDR_STRLEN])
{
    const struct in_addr *v4 = as_ipv4(a);
    if (v4) {
        inet_ntop(AF_INET, v4, out, ADDR_STRLEN);
    } else if (a->sa.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a->in6.sin6_addr, out, ADDR_STRLEN);
        if (a->in6.sin6_scope_id) {
            char name[IF_NAMESIZE];
            size_t n = strlen(out);
            if (if_indextoname(a->in6.sin6_scope_id, name))
                snprintf(out + n, ADDR_STRLEN - n, "%%%s", name);
            else
                snprintf(out + n, ADDR_STRLEN - n, "%%%u", a->in6.sin6_scope_id);
        }
    } else {
        strcpy(out, "local");
    }
    return out;
}

const char *netaddr_format(const struct netaddr *a, char *out, size_t cap)
{
    char ip[ADDR_STRLEN];
    return endpoint_format(out, cap, netaddr_ip(a, ip), netaddr_port(a));
}

int netaddr_port(const struct netaddr *a)
{
    if (a->sa.sa_family == AF_INET)
        return ntohs(a->in.sin_port);
    if (a->sa.sa_family == AF_INET6)
        return ntohs(a->in6.sin6_port);
    return 0;
}

void netaddr_set_port(struct netaddr *a, int port)
{
    if (a->sa.sa_family == AF_INET)
        a->in.sin_port = htons((uint16_t)port);
    else if (a->sa.sa_family == AF_INET6)
        a->in6.sin6_port = htons((uint16_t)port);
}

bool netaddr_is_loopback(const struct netaddr *a)
{
    const struct in_addr *v4 = as_ipv4(a);
    if (v4)
        return (ntohl(v4->s_addr) >> 24) == 127;
    return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
}

bool netaddr_names_loopback(const char *host)
{
    struct netaddr a;
    if (netaddr_parse_ip(&a, host, 0))
        return netaddr_is_loopback(&a);
    return strcasecmp(host, "localhost") == 0 || strcasecmp(host, "localhost.localdomain") == 0 ||
           strcasecmp(host, "ip6-localhost") == 0;
}

bool netaddr_is_link_local(const struct netaddr *a)
{
    const struct in_addr *v4 = as_ipv4(a);
    if (v4)
        return (ntohl(v4->s_addr) >> 16) == 0xa9fe;
    return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr);
}

void netaddr_rescope(char *ip, size_t cap, const char *scope)
{
    struct in6_addr a;
    char *at = strchr(ip, '%');
    if (!at || strlen(scope) >= cap - (size_t)(at + 1 - ip))
        return;
    *at = '\0';
    bool is = inet_pton(AF_INET6, ip, &a) == 1 && IN6_IS_ADDR_LINKLOCAL(&a);
    *at = '%';
    if (is)
        strcpy(at + 1, scope);
}

void netaddr_rescope_like(char *ip, size_t cap, const struct netaddr *from)
{
    char scope[IF_NAMESIZE];
    if (netaddr_is_link_local(from) && from->sa.sa_family == AF_INET6 &&
        if_indextoname(from->in6.sin6_scope_id, scope))
        netaddr_rescope(ip, cap, scope);
}

bool netaddr_same_ip(const struct netaddr *a, const struct netaddr *b)
{
    const struct in_addr *va = as_ipv4(a), *vb = as_ipv4(b);
    if (va && vb)
        return va->s_addr == vb->s_addr;
    return !va && !vb && a->sa.sa_family == AF_INET6 && b->sa.sa_family == AF_INET6 &&
           memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof(struct in6_addr)) == 0;
}

static bool usable(const struct ifaddrs *i)
{
    return i->ifa_addr && (i->ifa_flags & IFF_UP) &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

/* False: no interface has the address, for certain. Much cheaper than the list of interfaces. */
static bool may_be_local(const struct netaddr *a)
{
    struct netaddr any_port = *a;
    netaddr_set_port(&any_port, 0);
    _cleanup_fd_ int fd = socket(a->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 || bind(fd, &any_port.sa, any_port.len) == 0 || errno != EADDRNOTAVAIL;
}

bool netaddr_is_local(const struct netaddr *a)
{
    char name[IF_NAMESIZE];
    return netaddr_is_loopback(a) || (may_be_local(a) && netaddr_interface(a, name));
}

bool netaddr_interface(const struct netaddr *a, char *name)
{
    struct ifaddrs *list;
    bool found = false;
    if (getifaddrs(&list) < 0)
        return false;
    for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        struct netaddr b;
        if (!usable(i))
            continue;
        netaddr_from_sockaddr(&b, i->ifa_addr);
        found = netaddr_same_ip(a, &b);
        if (found)
            snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(list);
    return found;
}

/* Lower is better: IPv4, IPv6, link-local. */
static int preference(const struct netaddr *a)
{
    return (netaddr_is_link_local(a) ? 2 : 0) + (a->sa.sa_family == AF_INET6 ? 1 : 0);
}

int netaddr_of_interface(const char *name, struct netaddr *a, struct err *e)
{
    struct ifaddrs *list;
    char names[256] = "";
    int best = -1;
    if (getifaddrs(&list) < 0)
        return err_sys(e, errno, "getifaddrs");
    for (struct ifaddrs *i = list; i; i = i->ifa_next) {
        struct netaddr b;
        if (!usable(i))
            continue;
        if (strcmp(i->ifa_name, name) != 0) {
            size_t n = strlen(names);
            if (!strstr(names, i->ifa_name))
                snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", i->ifa_name);
            continue;
        }
        netaddr_from_sockaddr(&b, i->ifa_addr);
        if (best < 0 || preference(&b) < best) {
            best = preference(&b);
            *a = b;
        }
    }
    freeifaddrs(list);
    if (best < 0)
        return err_set(e, -ENODEV,
                       "no interface '%.32s' with an address on this host (available: %s)", name,
                       names[0] ? names : "none");
    return 0;
}

int netaddr_list_local(struct netaddr *out, int max)
{
    struct ifaddrs *list;
    int n = 0;
    if (getifaddrs(&list) < 0)
        return 0;
    for (int want = 0; want <= 3; want++) {
        for (struct ifaddrs *i = list; i && n < max; i = i->ifa_next) {
            struct netaddr b;
            if (!usable(i))
                continue;
            netaddr_from_sockaddr(&b, i->ifa_addr);
            if (!netaddr_is_loopback(&b) && preference(&b) == want)
                out[n++] = b;
        }
    }
    freeifaddrs(list);
    return n;
}
