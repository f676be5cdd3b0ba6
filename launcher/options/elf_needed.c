#include "launcher/options/elf_needed.h"

#include <elf.h>
#include <endian.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define HEADERS_MAX 64
#define DYNAMIC_MAX 65536
#define STRINGS_MAX (16 << 20)

/* Reads exactly n bytes of the file. */
static bool read_at(int fd, void *out, size_t n, uint64_t at)
{
    return pread(fd, out, n, (off_t)at) == (ssize_t)n;
}

/* The offset in the file of what the program has at this address. */
static bool offset_of(const ElfW(Phdr) * ph, int n, uint64_t addr, uint64_t *out)
{
    for (int i = 0; i < n; i++) {
        if (ph[i].p_type == PT_LOAD && addr >= ph[i].p_vaddr &&
            addr - ph[i].p_vaddr < ph[i].p_filesz) {
            *out = addr - ph[i].p_vaddr + ph[i].p_offset;
            return true;
        }
    }
    return false;
}

static bool read_strings(int fd, const ElfW(Phdr) * ph, int n, const ElfW(Dyn) * dyn, size_t ndyn,
                         struct elf_needed *out)
{
    uint64_t at = 0, size = 0;
    for (size_t i = 0; i < ndyn && dyn[i].d_tag != DT_NULL; i++) {
        if (dyn[i].d_tag == DT_STRTAB && !offset_of(ph, n, dyn[i].d_un.d_ptr, &at))
            return false;
        if (dyn[i].d_tag == DT_STRSZ)
            size = dyn[i].d_un.d_val;
    }
    if (size == 0 || size > STRINGS_MAX)
        return false;
    out->strings = xmalloc(size + 1);
    out->strings[size] = '\0';
    if (!read_at(fd, out->strings, size, at))
        return false;
    for (size_t i = 0; i < ndyn && dyn[i].d_tag != DT_NULL; i++) {
        const char *text = dyn[i].d_un.d_val < size ? out->strings + dyn[i].d_un.d_val : "";
        if (dyn[i].d_tag == DT_NEEDED && out->n < ELF_NEEDED_MAX)
            out->names[out->n++] = text;
        else if (dyn[i].d_tag == DT_RPATH)
            out->rpath = text;
        else if (dyn[i].d_tag == DT_RUNPATH)
            out->runpath = text;
    }
    return out->n > 0;
}

bool elf_needed_read(const char *path, struct elf_needed *out)
{
    struct {
        ElfW(Ehdr) header;
        ElfW(Phdr) rest[HEADERS_MAX]; /* the program headers follow in nearly every file */
    } file = {0};
    *out = (struct elf_needed){0};
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? -1 : pread(fd, &file, sizeof(file), 0);
    const ElfW(Ehdr) *h = &file.header;
    bool found = false;
    if (got < (ssize_t)sizeof(*h) || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 ||
        h->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        h->e_ident[EI_DATA] != (BYTE_ORDER == LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB) ||
        h->e_phentsize != sizeof(ElfW(Phdr)) || h->e_phnum > HEADERS_MAX)
        return false;
    if (h->e_phoff != sizeof(*h) || got < (ssize_t)(sizeof(*h) + h->e_phnum * sizeof(ElfW(Phdr)))) {
        if (!read_at(fd, file.rest, h->e_phnum * sizeof(ElfW(Phdr)), h->e_phoff))
            return false;
    }
    for (int i = 0; i < h->e_phnum && !found; i++) {
        const ElfW(Phdr) *p = &file.rest[i];
        if (p->p_type != PT_DYNAMIC || p->p_filesz > DYNAMIC_MAX)
            continue;
        ElfW(Dyn) *dyn = xmalloc(p->p_filesz + 1);
        found = read_at(fd, dyn, p->p_filesz, p->p_offset) &&
                read_strings(fd, file.rest, h->e_phnum, dyn, p->p_filesz / sizeof(*dyn), out);
        free(dyn);
        if (!found)
            elf_needed_fini(out);
    }
    return found;
}

void elf_needed_fini(struct elf_needed *n)
{
    free(n->strings);
    *n = (struct elf_needed){0};
}
