/* xid.h: Xid errors, which NVIDIA's driver writes to the kernel log about a GPU. */
#ifndef AGENT_DEVICE_XID_H
#define AGENT_DEVICE_XID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct xid {
    char bus[16]; /* "0000:5e:00.0" */
    int code;
    int pid;        /* 0: not known */
    char text[128]; /* text of the driver, or "" */
};

/* Parses a record of /dev/kmsg ("4,1234,567890,-;NVRM: Xid (PCI:0000:5e:00): 79, pid=1, name=x,
 * text"). False: the record is not an Xid. */
bool xid_parse(const char *record, struct xid *out);

/* Returns the meaning of a code ("GPU has fallen off the bus"); NULL for codes without a useful
 * one. */
const char *xid_meaning(int code);

/* Whether the code says that the GPU or a link of it is broken: not what a program does. */
bool xid_is_fault(int code);

struct xid_log {
    int fd; /* /dev/kmsg; -1: the file cannot be read */
};

/* Starts at the end of the log: only later records are read. */
void xid_log_open(struct xid_log *l, const char *path);
/* Reads up to the last record; true if there is another Xid. Never blocks. */
bool xid_log_next(struct xid_log *l, struct xid *out);
void xid_log_close(struct xid_log *l);

#endif
