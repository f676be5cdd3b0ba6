/* peer_uid.h: whose process is at the other end of a TCP connection on this very host. */
#ifndef CORE_PEER_UID_H
#define CORE_PEER_UID_H

#include <sys/types.h>

/* fd: a connected TCP socket. 0 and *uid, the owner of the other end; -ENOENT: there is no such
 * socket in this network namespace (another host, another container, or gone already); another
 * negative errno: the kernel does not tell. The owner of the other end is the process that
 * connected or that accepted the connection; a connection that no process has accepted has no
 * owner. */
int peer_uid(int fd, uid_t *uid);

#endif
