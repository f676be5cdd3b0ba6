#include "launcher/options/mpi_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "launcher/options/library_search.h"

#define FILES_MAX 256 /* libraries that are looked into */

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

/* PMIx counts most: a distribution may build any MPI for it. */
static void take_library(const char *soname, struct mpi_program *out)
{
    struct mpi_program found;
    if (mpi_library(soname, &found) &&
        (!out->name || (out->foreign && !found.foreign) || strncmp(soname, "libpmix", 7) == 0))
        *out = found;
}

static void take_libraries(const struct elf_needed *n, struct mpi_program *out)
{
    for (size_t i = 0; i < n->n; i++)
        take_library(n->names[i], out);
}

/* Libraries that nearly every program needs, and that need none of MPI. */
static bool is_common(const char *soname)
{
    static const char *const common[] = {
        "libc.so.*",      "libm.so.*",     "libpthread.so.*", "libdl.so.*", "librt.so.*",
        "libstdc++.so.*", "libgcc_s.so.*", "ld-linux*",       "libz.so.*",  "libdlcoll.so.*",
    };
    for (size_t i = 0; i < ARRAY_LEN(common); i++) {
        if (soname_fits(soname, common[i]))
            return true;
    }
    return false;
}

/* The files to be read, each once, in the order in which they were found. */
struct walk {
    struct library_search search;
    struct elf_needed file[FILES_MAX];
    char *path[FILES_MAX];
    char name[FILES_MAX][64];
    size_t n;
};

static bool is_seen(const struct walk *w, const char *name)
{
    for (size_t i = 0; i < w->n; i++) {
        if (strcmp(w->name[i], name) == 0)
            return true;
    }
    return false;
}

/* Reads the libraries that this file needs. */
static void read_needed(struct walk *w, const struct elf_needed *by, const char *by_path)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < by->n && w->n < FILES_MAX; i++) {
        const char *name = by->names[i];
        if (is_common(name) || strlen(name) >= sizeof(w->name[0]) || is_seen(w, name) ||
            !library_search_read(&w->search, name, by, by_path, path, &w->file[w->n]))
            continue;
        w->path[w->n] = xstrdup(path);
        strcpy(w->name[w->n++], name);
    }
}

/* A library may need the MPI: the nearest one that does counts. */
static void look_behind(const char *path, const struct elf_needed *program, struct mpi_program *out)
{
    struct walk *w = xcalloc(1, sizeof(*w));
    w->search = (struct library_search)LIBRARY_SEARCH_INIT(program, path);
    read_needed(w, program, path);
    for (size_t i = 0; i < w->n && !out->name; i++) {
        take_libraries(&w->file[i], out);
        if (out->name)
            snprintf(out->through, sizeof(out->through), "%s", w->name[i]);
        else
            read_needed(w, &w->file[i], w->path[i]);
    }
    for (size_t i = 0; i < w->n; i++) {
        elf_needed_fini(&w->file[i]);
        free(w->path[i]);
    }
    library_search_fini(&w->search);
    free(w);
}

void mpi_program_look(const char *path, struct mpi_program *out)
{
    struct elf_needed needed;
    *out = (struct mpi_program){0};
    if (!elf_needed_read(path, &needed))
        return;
    take_libraries(&needed, out);
    bool more = false;
    for (size_t i = 0; i < needed.n; i++)
        more |= !is_common(needed.names[i]);
    if (!out->name && more)
        look_behind(path, &needed, out);
    elf_needed_fini(&needed);
}
