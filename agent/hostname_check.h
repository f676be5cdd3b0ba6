/* hostname_check.h: detects that this host's own name leads other hosts to a wrong address.
 *
 * Gloo and TensorPipe tell their peers the address to which the host's own name resolves. If that
 * is 127.0.1.1 (as Debian's installer sets it), or if the name does not resolve, workers on several
 * hosts cannot connect. Such workers get the interface to use by GLOO_SOCKET_IFNAME and similar
 * variables, unless the user has set these.
 *
 * A thread looks the name up while the nodes meet, because a name server may be slow; dlaunch does
 * not wait for this thread when it exits. */
#ifndef AGENT_HOSTNAME_CHECK_H
#define AGENT_HOSTNAME_CHECK_H

#include "agent/base/feature.h"

extern const struct feature hostname_feature;

#endif
