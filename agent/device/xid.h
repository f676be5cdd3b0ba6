/* xid.h: what NVIDIA's driver has written to the kernel log about a GPU. */
#ifndef AGENT_DEVICE_XID_H
#define AGENT_DEVICE_XID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct xid {
    char bus[16]; /* "0000:5e:00.0" */
    int code;
    int pid;        /* 0: not said */
    char text[128]; /* what the driver says, or "" */
};

/* A record of /dev/kmsg ("4,1234,567890,-;NVRM: Xid (PCI:0000:5e:00): 79, pid=1, name=x, text").
 * False: it is none of these. */
bool xid_parse(const char *record, struct xid *out);

/* "GPU has fallen off the bus"; NULL for a code that says little. */
const char *xid_meaning(int code);

struct xid_log {
    int fd; /* /dev/kmsg, or -1: it may not be read */
};

/* From here on what is written later is read. */
void xid_log_open(struct xid_log *l, const char *path);
/* Reads on to the last line: true as long as there is another Xid. Never blocks. */
bool xid_log_next(struct xid_log *l, struct xid *out);
void xid_log_close(struct xid_log *l);

#endif
