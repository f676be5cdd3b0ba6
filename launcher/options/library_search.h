/* library_search.h: where the dynamic linker would find a library, without running it: the folders
 * that the files name, LD_LIBRARY_PATH, the linker's cache, /lib and /usr/lib. */
#ifndef LAUNCHER_OPTIONS_LIBRARY_SEARCH_H
#define LAUNCHER_OPTIONS_LIBRARY_SEARCH_H

#include <limits.h>

#include "launcher/options/elf_needed.h"

struct library_search {
    const struct elf_needed *program; /* the program: it needs all other files, directly or not */
    const char *program_path;
    char *cache; /* /etc/ld.so.cache, when the file has been read */
    size_t cache_len;
    bool cache_read;
};
#define LIBRARY_SEARCH_INIT(program, path) \
    {                                      \
        (program), (path), NULL, 0, false  \
    }
void library_search_fini(struct library_search *s);

/* Finds what `by`, the file at `by_path`, needs under this name, and reads it. */
bool library_search_read(struct library_search *s, const char *name, const struct elf_needed *by,
                         const char *by_path, char path[PATH_MAX], struct elf_needed *out);

#endif
