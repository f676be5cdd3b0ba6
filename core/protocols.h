/* protocols.h: the number of every protocol of dlaunch, in one table. A change of what travels
 * raises its number. Both sides compare before they begin, and say a difference in one line. */
#ifndef CORE_PROTOCOLS_H
#define CORE_PROTOCOLS_H

#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_RENDEZVOUS 3u  /* between launchers: rendezvous/rules/rdzv_msg.h */
#define PROTOCOL_RELAY      1u  /* workers' connections to the store: rendezvous/wire/relay.h */
#define PROTOCOL_DATA       10u /* between ranks over TCP: collectives/wire/wire.h */
#define PROTOCOL_HOSTS      2u  /* between a head and its hosts: launcher/hosts/frame.h */
#define PROTOCOL_SEGMENT    10u /* between a launcher and its workers: core/segment.h */
#define PROTOCOL_SHM        10u /* between the ranks of a node: collectives/shm/memory.c */
#define PROTOCOL_CONTROL    1u  /* between a launcher and dlaunchctl: launcher/control/control.h */
#define PROTOCOL_INSPECT    1u  /* between a launcher and dlaunch-inspect: agent/inspect/lines.h */

/* The numbers of the protocols that two nodes speak with each other, a byte each, at the beginning
 * of every connection between launchers. */
#define PROTOCOLS_OF_NODES (PROTOCOL_RENDEZVOUS | PROTOCOL_RELAY << 8 | PROTOCOL_DATA << 16)

/* "rendezvous 1, not 2; data of libdlcoll 8, not 9": how the numbers of another build differ from
 * the numbers of this one; "" if all are equal. Returns out. */
const char *protocols_differ(uint32_t theirs, char *out, size_t cap);
/* The same of dlaunchctl and a launcher; theirs 0: it has no number. One line. Returns out. */
const char *protocols_control_differs(uint32_t theirs, char *out, size_t cap);
/* Why a launcher of another build is refused by `whom`: one line. Returns out. */
const char *protocols_refusal(uint32_t theirs, const char *whom, char *out, size_t cap);

#endif
