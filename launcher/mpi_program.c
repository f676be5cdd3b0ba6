#include "launcher/mpi_program.h"

#include <elf.h>
#include <endian.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define HEADERS_MAX 64
#define DYNAMIC_MAX 65536
#define STRINGS_MAX (1 << 20)

/* The first row that fits counts. A "*" stands for any rest. */
static const struct {
    const char *soname;
    enum mpi_kind kind;
    const char *name;
} libraries[] = {
    {"libpmix.so.2", MPI_PMIX, "PMIx"},
    {"libmpich.so.12", MPI_PMI, "MPICH"},
    {"libmpichcxx.so.12", MPI_PMI, "MPICH"},
    {"libmpichfort.so.12", MPI_PMI, "MPICH"},
    {"libmpi.so.12", MPI_PMI, "MPICH's ABI"},
    {"libmpicxx.so.12", MPI_PMI, "MPICH's ABI"},
    {"libmpifort.so.12", MPI_PMI, "MPICH's ABI"},
    {"libmpi.so.40", MPI_PMIX, "Open MPI"},
    {"libmpi_cxx.so.40", MPI_PMIX, "Open MPI"},
    {"libmpi_mpifh.so.40", MPI_PMIX, "Open MPI"},
    {"libmpi_usempif08.so.40", MPI_PMIX, "Open MPI"},
    {"libmpi.so*", MPI_NONE, "an unknown MPI"},
    {"libmpi_*", MPI_NONE, "an unknown MPI"},
    {"libmpich*.so*", MPI_NONE, "an unknown MPICH"},
};

static bool soname_fits(const char *soname, const char *pattern)
{
    const char *star = strchr(pattern, '*');
    size_t n = star ? (size_t)(star - pattern) : strlen(pattern) + 1;
    return strncmp(soname, pattern, n) == 0;
}

bool mpi_library(const char *soname, struct mpi_program *out)
{
    for (size_t i = 0; i < ARRAY_LEN(libraries); i++) {
        if (!soname_fits(soname, libraries[i].soname))
            continue;
        out->kind = libraries[i].kind;
        out->name = libraries[i].name;
        out->foreign = libraries[i].kind == MPI_NONE;
        snprintf(out->library, sizeof(out->library), "%s", soname);
        return true;
    }
    return false;
}

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

/* PMIx counts most: a distribution may build any MPI for it. */
static void take_library(const char *soname, struct mpi_program *out)
{
    struct mpi_program found;
    if (mpi_library(soname, &found) &&
        (!out->name || (out->foreign && !found.foreign) || strncmp(soname, "libpmix", 7) == 0))
        *out = found;
}

static void look_at_dynamic(int fd, const ElfW(Phdr) * ph, int n, const ElfW(Dyn) * dyn,
                            size_t ndyn, struct mpi_program *out)
{
    uint64_t at = 0, size = 0;
    for (size_t i = 0; i < ndyn && dyn[i].d_tag != DT_NULL; i++) {
        if (dyn[i].d_tag == DT_STRTAB && !offset_of(ph, n, dyn[i].d_un.d_ptr, &at))
            return;
        if (dyn[i].d_tag == DT_STRSZ)
            size = dyn[i].d_un.d_val;
    }
    if (size == 0 || size > STRINGS_MAX)
        return;
    char *strings = xmalloc(size + 1);
    strings[size] = '\0';
    bool good = read_at(fd, strings, size, at);
    for (size_t i = 0; good && i < ndyn && dyn[i].d_tag != DT_NULL; i++) {
        if (dyn[i].d_tag == DT_NEEDED && dyn[i].d_un.d_val < size)
            take_library(strings + dyn[i].d_un.d_val, out);
    }
    free(strings);
}

void mpi_program_look(const char *path, struct mpi_program *out)
{
    struct {
        ElfW(Ehdr) header;
        ElfW(Phdr) rest[HEADERS_MAX]; /* the program headers follow in nearly every file */
    } file = {0};
    *out = (struct mpi_program){0};
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? -1 : pread(fd, &file, sizeof(file), 0);
    const ElfW(Ehdr) *h = &file.header;
    if (got < (ssize_t)sizeof(*h) || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 ||
        h->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        h->e_ident[EI_DATA] != (BYTE_ORDER == LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB) ||
        h->e_phentsize != sizeof(ElfW(Phdr)) || h->e_phnum > HEADERS_MAX)
        return;
    if (h->e_phoff != sizeof(*h) || got < (ssize_t)(sizeof(*h) + h->e_phnum * sizeof(ElfW(Phdr)))) {
        if (!read_at(fd, file.rest, h->e_phnum * sizeof(ElfW(Phdr)), h->e_phoff))
            return;
    }
    for (int i = 0; i < h->e_phnum; i++) {
        const ElfW(Phdr) *p = &file.rest[i];
        if (p->p_type != PT_DYNAMIC || p->p_filesz > DYNAMIC_MAX)
            continue;
        ElfW(Dyn) *dyn = xmalloc(p->p_filesz + 1);
        if (read_at(fd, dyn, p->p_filesz, p->p_offset))
            look_at_dynamic(fd, file.rest, h->e_phnum, dyn, p->p_filesz / sizeof(*dyn), out);
        free(dyn);
    }
}
