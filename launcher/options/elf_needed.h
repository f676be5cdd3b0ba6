/* elf_needed.h: the libraries that an ELF file needs, read from the file. */
#ifndef LAUNCHER_OPTIONS_ELF_NEEDED_H
#define LAUNCHER_OPTIONS_ELF_NEEDED_H

#include <stdbool.h>
#include <stddef.h>

#define ELF_NEEDED_MAX 256

struct elf_needed {
    char *strings; /* holds all texts below */
    const char *names[ELF_NEEDED_MAX];
    size_t n;
    const char *rpath, *runpath; /* folders with ':' between them; NULL: none */
};

/* False: the file cannot be read, is not of this machine's kind, or needs no library. */
bool elf_needed_read(const char *path, struct elf_needed *out);
void elf_needed_fini(struct elf_needed *n);

#endif
