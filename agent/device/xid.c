#include "agent/device/xid.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define RECORD_MAX 8192 /* above the kernel's own limit */

/* docs.nvidia.com/deploy/xid-errors. fault: the GPU's memory, its bus or its NVLink is at fault. */
static const struct meaning {
    int code;
    bool fault;
    const char *text;
} meanings[] = {
    {13, false, "graphics engine exception, mostly a fault of the program"},
    {31, false, "memory page fault, mostly a fault of the program"},
    {32, false, "corrupted push buffer"},
    {43, false, "GPU stopped processing, mostly a fault of the program"},
    {45, false, "work of the process was cleaned up, after another error or its end"},
    {48, true, "double bit ECC error"},
    {61, false, "internal micro-controller breakpoint"},
    {62, false, "internal micro-controller halt"},
    {63, true, "ECC page retirement or row remapping was recorded"},
    {64, true, "ECC page retirement or row remapping failed"},
    {69, false, "graphics engine class error"},
    {74, true, "NVLink error"},
    {79, true, "GPU has fallen off the bus"},
    {92, false, "high single-bit ECC error rate"},
    {94, true, "contained ECC error"},
    {95, true, "uncontained ECC error"},
    {109, false, "context switch timeout"},
    {119, false, "GPU system processor (GSP) does not answer"},
    {120, false, "GPU system processor (GSP) error"},
    {140, false, "unrecovered ECC error"},
    {144, false, "NVLink: SAW error"},
    {149, false, "NVLink: NETIR error"},
    {154, false, "GPU recovery action has changed: reset or reboot"},
};

static const struct meaning *find_meaning(int code)
{
    for (size_t i = 0; i < ARRAY_LEN(meanings); i++) {
        if (meanings[i].code == code)
            return &meanings[i];
    }
    return NULL;
}

const char *xid_meaning(int code)
{
    const struct meaning *m = find_meaning(code);
    return m ? m->text : NULL;
}

bool xid_is_fault(int code)
{
    const struct meaning *m = find_meaning(code);
    return m && m->fault;
}

/* "pid=1234", "pid='1234'", or "pid='<unknown>'". */
static int parse_pid(const char *s)
{
    const char *at = strstr(s, "pid=");
    if (!at)
        return 0;
    at += 4;
    at += *at == '\'';
    long pid = strtol(at, NULL, 10);
    return pid > 0 && pid < 1 << 30 ? (int)pid : 0;
}

/* Keeps the text after the number, the pid and the name. */
static void parse_text(const char *s, struct xid *out)
{
    for (;;) {
        while (*s == ',' || *s == ' ')
            s++;
        if (strncmp(s, "pid=", 4) != 0 && strncmp(s, "name=", 5) != 0)
            break;
        s += strcspn(s, ",");
    }
    size_t n = 0;
    for (; s[n] && s[n] != '\n' && n < sizeof(out->text) - 1; n++)
        out->text[n] = isprint((unsigned char)s[n]) ? s[n] : '?';
    out->text[n] = '\0';
}

bool xid_parse(const char *record, struct xid *out)
{
    unsigned domain, bus, device;
    int n = 0;
    const char *s = strstr(record, "NVRM: Xid (");
    *out = (struct xid){0};
    /* A user who may read /dev/kmsg may also write to it, but not with the kernel's facility (0).
     */
    if (!s || strtoul(record, NULL, 10) >> 3 != 0)
        return false;
    s += strlen("NVRM: Xid (");
    s += strncmp(s, "PCI:", 4) == 0 ? 4 : 0;
    if (sscanf(s, "%x:%x:%x%n", &domain, &bus, &device, &n) != 3)
        return false;
    s += n;
    s += strcspn(s, ")");
    if (sscanf(s, "): %d%n", &out->code, &n) != 1 || out->code < 0)
        return false;
    s += n;
    snprintf(out->bus, sizeof(out->bus), "%04x:%02x:%02x.0", domain & 0xffffff, bus & 0xff,
             device & 0xff);
    out->pid = parse_pid(s);
    parse_text(s, out);
    return true;
}

void xid_log_open(struct xid_log *l, const char *path)
{
    l->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (l->fd >= 0 && lseek(l->fd, 0, SEEK_END) < 0)
        close_fd(&l->fd);
}

bool xid_log_next(struct xid_log *l, struct xid *out)
{
    char record[RECORD_MAX];
    while (l->fd >= 0) {
        ssize_t n = read(l->fd, record, sizeof(record) - 1);
        if (n < 0 && (errno == EINTR || errno == EPIPE)) /* EPIPE: some records were overwritten */
            continue;
        if (n <= 0)
            break;
        record[n] = '\0';
        if (xid_parse(record, out))
            return true;
    }
    return false;
}

void xid_log_close(struct xid_log *l)
{
    close_fd(&l->fd);
}
