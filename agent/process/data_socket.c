#include "agent/process/data_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/netaddr.h"

int data_socket_listen(int local_rank, bool loopback, uint16_t *port, struct err *e)
{
    struct netaddr a;
    netaddr_parse_ip(&a, loopback ? "127.0.0.1" : "::", 0);
    int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 && !loopback && errno == EAFNOSUPPORT) { /* a host without IPv6 */
        netaddr_parse_ip(&a, "0.0.0.0", 0);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (fd < 0)
        return err_sys(e, errno, "data socket of local rank %d", local_rank);
    if (a.sa.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    if (bind(fd, &a.sa, a.len) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, &a.sa, &(socklen_t){sizeof(a.ss)}) < 0) {
        int r = err_sys(e, errno, "data socket of local rank %d", local_rank);
        close(fd);
        return r;
    }
    *port = (uint16_t)netaddr_port(&a);
    return fd;
}
