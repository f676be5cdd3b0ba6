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

const char *xid_meaning(int code)
{
    /* docs.nvidia.com/deploy/xid-errors */
    static const struct {
        int code;
        const char *text;
    } table[] = {
        {13, "graphics engine exception, mostly a fault of the program"},
        {31, "memory page fault, mostly a fault of the program"},
        {32, "corrupted push buffer"},
        {43, "GPU stopped processing, mostly a fault of the program"},
        {45, "work of the process was cleaned up, after another error or its end"},
        {48, "double bit ECC error"},
        {61, "internal micro-controller breakpoint"},
        {62, "internal micro-controller halt"},
        {63, "ECC page retirement or row remapping was recorded"},
        {64, "ECC page retirement or row remapping failed"},
        {69, "graphics engine class error"},
        {74, "NVLink error"},
        {79, "GPU has fallen off the bus"},
        {92, "high single-bit ECC error rate"},
        {94, "contained ECC error"},
        {95, "uncontained ECC error"},
        {109, "context switch timeout"},
        {119, "GPU system processor (GSP) does not answer"},
        {120, "GPU system processor (GSP) error"},
        {140, "unrecovered ECC error"},
        {144, "NVLink: SAW error"},
        {149, "NVLink: NETIR error"},
        {154, "GPU recovery action has changed: reset or reboot"},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (table[i].code == code)
            return table[i].text;
    }
    return NULL;
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
