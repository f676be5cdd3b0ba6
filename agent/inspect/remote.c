#include "agent/inspect/remote.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/fd.h"
#include "core/mem.h"

#define PAGE 4096u

/* One piece for each page, because a transfer ends at a piece that cannot be read. */
ssize_t remote_read(pid_t pid, uint64_t addr, void *out, size_t n)
{
    enum { PIECES = 64 };
    size_t done = 0;
    while (done < n) {
        struct iovec local = {(char *)out + done, 0}, far[PIECES];
        unsigned long k = 0;
        for (uint64_t at = addr + done; k < PIECES && done + local.iov_len < n; k++) {
            size_t piece = PAGE - at % PAGE, left = n - done - local.iov_len;
            piece = piece < left ? piece : left;
            far[k] = (struct iovec){(void *)(uintptr_t)at, piece};
            local.iov_len += piece;
            at += piece;
        }
        ssize_t got = process_vm_readv(pid, &local, 1, far, k, 0);
        if (got < 0)
            return done ? (ssize_t)done : -errno;
        done += (size_t)got;
        if ((size_t)got < local.iov_len)
            break;
    }
    return (ssize_t)done;
}

bool remote_get(pid_t pid, uint64_t addr, void *out, size_t n)
{
    return remote_read(pid, addr, out, n) == (ssize_t)n;
}

int remote_maps(pid_t pid, bool (*each)(void *arg, const struct remote_map *m), void *arg)
{
    char path[64], line[1024];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    while (fgets(line, sizeof(line), f)) {
        struct remote_map m = {.path = ""};
        int at = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &m.start, &m.end, &m.offset, &at) != 3)
            continue;
        if (line[at] == '/')
            snprintf(m.path, sizeof(m.path), "%.*s", (int)strcspn(line + at, "\n"), line + at);
        if (!each(arg, &m))
            break;
    }
    fclose(f);
    return 0;
}

char *remote_environ(pid_t pid)
{
    enum { ENVIRONMENT_MAX = 4 << 20 };
    char path[64];
    struct buf b = BUF_INIT;
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && b.len < ENVIRONMENT_MAX) {
        xbuf_reserve(&b, 65536);
        n = read(fd, b.data + b.len, 65536);
        b.len += n > 0 ? (size_t)n : 0;
    }
    if (n < 0) {
        buf_fini(&b);
        return NULL;
    }
    buf_put(&b, "\0", 2); /* the last string may lack its own */
    return (char *)b.data;
}

const char *remote_env(const char *environment, const char *name)
{
    size_t len = strlen(name);
    for (const char *s = environment; s && *s; s += strlen(s) + 1) {
        if (strncmp(s, name, len) == 0 && s[len] == '=')
            return s + len + 1;
    }
    return NULL;
}

static bool read_at(int fd, void *out, size_t n, uint64_t at)
{
    return pread(fd, out, n, (off_t)at) == (ssize_t)n;
}

/* The address of the section in the file's own numbering; 0: it has none. Its first loadable
 * segment begins at *base. */
static uint64_t section_of(int fd, const char *section, uint64_t *base)
{
    Elf64_Ehdr h;
    uint64_t found = 0;
    if (!read_at(fd, &h, sizeof(h), 0) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 ||
        h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_shentsize != sizeof(Elf64_Shdr) ||
        h.e_phentsize != sizeof(Elf64_Phdr) || h.e_shstrndx >= h.e_shnum)
        return 0;
    Elf64_Shdr *s = xcalloc(h.e_shnum, sizeof(*s));
    Elf64_Phdr *p = xcalloc(h.e_phnum, sizeof(*p));
    if (read_at(fd, s, h.e_shnum * sizeof(*s), h.e_shoff) &&
        read_at(fd, p, h.e_phnum * sizeof(*p), h.e_phoff)) {
        for (int i = 0; i < h.e_shnum && !found; i++) {
            char name[32] = "";
            size_t len = strlen(section) + 1;
            if (len <= sizeof(name) &&
                read_at(fd, name, len, s[h.e_shstrndx].sh_offset + s[i].sh_name) &&
                memcmp(name, section, len) == 0)
                found = s[i].sh_addr;
        }
        for (int i = 0; i < h.e_phnum; i++) {
            if (p[i].p_type == PT_LOAD && p[i].p_offset == 0) {
                *base = p[i].p_vaddr;
                break;
            }
        }
    }
    free(s);
    free(p);
    return found;
}

uint64_t remote_section(pid_t pid, const struct remote_map *m, const char *section)
{
    char path[600];
    uint64_t base = 0;
    snprintf(path, sizeof(path), "/proc/%d/root%s", (int)pid, m->path);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || m->offset != 0)
        return 0;
    uint64_t at = section_of(fd, section, &base);
    return at ? at - base + m->start : 0;
}
