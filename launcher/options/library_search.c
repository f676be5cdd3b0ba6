#include "launcher/options/library_search.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define CACHE_FILE "/etc/ld.so.cache"
#define CACHE_MAX  (64 << 20)

/* The form that glibc writes since 2.32: a header, entries, strings. Numbers are of the machine. */
static const char magic[] = "glibc-ld.so.cache1.1";
struct cache_header {
    char magic[20];
    uint32_t n, strings_len;
    uint32_t unused[5];
};
struct cache_entry {
    int32_t flags;
    uint32_t name, path; /* offsets in the file */
    uint32_t osversion;
    uint64_t hwcap;
};

/* "$ORIGIN/../lib" for the file at `by_path`. */
static bool expand(const char *folder, size_t len, const char *by_path, const char *name,
                   char out[PATH_MAX])
{
    static const char *const origins[] = {"$ORIGIN", "${ORIGIN}"};
    const char *slash = strrchr(by_path, '/');
    for (size_t i = 0; i < ARRAY_LEN(origins); i++) {
        size_t n = strlen(origins[i]);
        if (len >= n && memcmp(folder, origins[i], n) == 0)
            return snprintf(out, PATH_MAX, "%.*s%.*s/%s", slash ? (int)(slash - by_path) : 1,
                            slash ? by_path : ".", (int)(len - n), folder + n, name) < PATH_MAX;
    }
    return snprintf(out, PATH_MAX, "%.*s/%s", len ? (int)len : 1, len ? folder : ".", name) <
           PATH_MAX;
}

/* Tries the folders of a list. */
static bool read_in(const char *folders, const char *by_path, const char *name, char path[PATH_MAX],
                    struct elf_needed *out)
{
    for (const char *s = folders; s && *s;) {
        size_t len = strcspn(s, ":;");
        if (expand(s, len, by_path, name, path) && elf_needed_read(path, out))
            return true;
        s += len + (s[len] != '\0');
    }
    return false;
}

static void read_cache(struct library_search *s)
{
    struct stat st;
    _cleanup_fd_ int fd = open(CACHE_FILE, O_RDONLY | O_CLOEXEC);
    s->cache_read = true;
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size <= (off_t)sizeof(struct cache_header) ||
        st.st_size > CACHE_MAX)
        return;
    size_t len = (size_t)st.st_size;
    s->cache = xmalloc(len + 1);
    s->cache[len] = '\0'; /* every text in it has an end */
    if (pread(fd, s->cache, len, 0) == (ssize_t)len && memcmp(s->cache, magic, 20) == 0)
        s->cache_len = len;
}

static bool read_in_cache(struct library_search *s, const char *name, char path[PATH_MAX],
                          struct elf_needed *out)
{
    struct cache_header h;
    struct cache_entry e;
    if (!s->cache_read)
        read_cache(s);
    if (!s->cache_len)
        return false;
    memcpy(&h, s->cache, sizeof(h));
    for (size_t i = 0; i < h.n; i++) {
        size_t at = sizeof(h) + i * sizeof(e);
        if (at + sizeof(e) > s->cache_len)
            return false;
        memcpy(&e, s->cache + at, sizeof(e));
        if (e.name >= s->cache_len || e.path >= s->cache_len ||
            strcmp(s->cache + e.name, name) != 0)
            continue;
        if (snprintf(path, PATH_MAX, "%s", s->cache + e.path) < PATH_MAX &&
            elf_needed_read(path, out)) /* of several, those of another architecture cannot be */
            return true;
    }
    return false;
}

bool library_search_read(struct library_search *s, const char *name, const struct elf_needed *by,
                         const char *by_path, char path[PATH_MAX], struct elf_needed *out)
{
    if (strchr(name, '/'))
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX && elf_needed_read(path, out);
    if (!by->runpath && (read_in(by->rpath, by_path, name, path, out) ||
                         read_in(s->program->rpath, s->program_path, name, path, out)))
        return true;
    return read_in(getenv("LD_LIBRARY_PATH"), by_path, name, path, out) ||
           read_in(by->runpath, by_path, name, path, out) || read_in_cache(s, name, path, out) ||
           read_in("/lib64:/usr/lib64:/lib:/usr/lib", by_path, name, path, out);
}

void library_search_fini(struct library_search *s)
{
    free(s->cache);
    s->cache = NULL;
}
