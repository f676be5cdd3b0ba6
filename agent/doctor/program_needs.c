#include "agent/doctor/program_needs.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define HEAD_MAX    256 /* of a first line, as the kernel reads it */
#define LIST_MS     1500
#define CHAIN_MAX   4 /* scripts that are each other's interpreters */
#define BLANKS      " \t"
#define ENV_PROGRAM "env"

static const char *value_of(char *const envp[], const char *name)
{
    size_t len = strlen(name);
    for (; *envp; envp++) {
        if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=')
            return *envp + len + 1;
    }
    return NULL;
}

/* Looks a name up as execvp() does; false: it is in no folder of PATH. */
static bool find_in_path(const char *name, char *const envp[], char out[PATH_MAX])
{
    const char *path = value_of(envp, "PATH");
    if (strchr(name, '/')) {
        snprintf(out, PATH_MAX, "%s", name);
        return access(out, X_OK) == 0;
    }
    for (const char *p = path ? path : "/bin:/usr/bin"; *p; p += *p == ':') {
        int len = (int)strcspn(p, ":");
        snprintf(out, PATH_MAX, "%.*s/%s", len ? len : 1, len ? p : ".", name);
        if (access(out, X_OK) == 0)
            return true;
        p += len;
    }
    return false;
}

/* ------------------------------------------------------------------------------------- scripts */

/* The program that env(1) is asked for: the first word that is neither an option nor a variable;
 * NULL: an option that takes a word of its own may be in front of it. */
static char *asked_of_env(char *args)
{
    for (char *save = NULL, *w = strtok_r(args, BLANKS, &save); w;
         w = strtok_r(NULL, BLANKS, &save)) {
        bool split = strcmp(w, "-S") == 0 || strcmp(w, "-i") == 0 || strcmp(w, "-") == 0;
        if (*w == '-' && !split)
            return NULL;
        if (!split && !strchr(w, '='))
            return w;
    }
    return NULL;
}

/* The interpreter of a script in `next`; "": it is no script. False: it lacks one, `out` says so.
 */
static bool interpreter_of(const char *path, char *const envp[], char next[PATH_MAX], char *out,
                           size_t cap)
{
    char head[HEAD_MAX];
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof(head) - 1);
    *next = '\0';
    if (n < 2 || memcmp(head, "#!", 2) != 0)
        return true;
    head[n] = '\0';
    head[strcspn(head, "\n")] = '\0';
    char *interp = head + 2 + strspn(head + 2, BLANKS), *args = interp + strcspn(interp, BLANKS);
    args += *args ? (*args = '\0', 1) : 0;
    const char *slash = strrchr(interp, '/');
    char *asked = strcmp(slash ? slash + 1 : interp, ENV_PROGRAM) == 0 ? asked_of_env(args) : NULL;
    if (asked && find_in_path(asked, envp, next))
        return true;
    if (!asked) {
        snprintf(next, PATH_MAX, "%s", interp);
        return true;
    }
    size_t len = strlen(asked);
    bool dos = len > 0 && asked[len - 1] == '\r';
    asked[len - dos] = '\0';
    snprintf(out, cap, "%s", "");
    if (dos)
        snprintf(out, cap,
                 "the first line of %.100s ends in a carriage return (DOS line ends), so that env "
                 "does not find '%.60s'",
                 path, asked);
    else
        snprintf(out, cap,
                 "env does not find '%.60s', which the first line of %.100s names, in PATH", asked,
                 path);
    return false;
}

/* ----------------------------------------------------------------------------------- libraries */

/* The dynamic loader of a program of this host's own layout; false: it has none. */
static bool loader_of(const char *path, char out[PATH_MAX])
{
    Elf64_Ehdr h;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || pread(fd, &h, sizeof(h), 0) != sizeof(h) ||
        memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
        h.e_phentsize != sizeof(Elf64_Phdr))
        return false;
    for (unsigned i = 0; i < h.e_phnum; i++) {
        Elf64_Phdr ph;
        if (pread(fd, &ph, sizeof(ph), (off_t)(h.e_phoff + i * sizeof(ph))) != sizeof(ph))
            return false;
        if (ph.p_type != PT_INTERP || ph.p_filesz == 0 || ph.p_filesz > PATH_MAX ||
            pread(fd, out, ph.p_filesz, (off_t)ph.p_offset) != (ssize_t)ph.p_filesz)
            continue;
        out[ph.p_filesz - 1] = '\0';
        return true;
    }
    return false;
}

/* Returns the library that a line of the loader (glibc's or musl's) reports as missing; NULL:
 * none. */
static const char *missing_in(char *line)
{
    static const char *const errors[] = {"error while loading shared libraries: ",
                                         "Error loading shared library "};
    char *arrow = strstr(line, " => not found");
    if (arrow) {
        *arrow = '\0';
        return line + strspn(line, BLANKS);
    }
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        char *at = strstr(line, errors[i]);
        if (at)
            return at + strlen(errors[i]);
    }
    return strstr(line, "version `") && strstr(line, "not found") ? line : NULL;
}

/* Lets the loader list what it would load. glibc's --list stops at the first one that is missing;
 * with the variable, which other loaders do not know, it goes on, as ldd(1) does. */
static void list_libraries(const char *path, char *const envp[], program_run_fn *run, char *out,
                           size_t cap)
{
    char loader[PATH_MAX];
    size_t n = 0;
    *out = '\0';
    if (!loader_of(path, loader))
        return;
    const char *slash = strrchr(loader, '/');
    bool glibc = slash && strncmp(slash, "/ld-linux", 9) == 0;
    while (envp[n])
        n++;
    char **env = xcalloc(n + 2, sizeof(*env));
    memcpy(env, envp, n * sizeof(*env));
    if (glibc)
        env[n] = (char *)"LD_TRACE_LOADED_OBJECTS=1";
    char *const argv[] = {loader, glibc ? (char *)path : (char *)"--list",
                          glibc ? NULL : (char *)path, NULL};
    run(argv, env, LIST_MS, out, cap);
    free(env);
}

static bool lacks_library(const char *path, char *const envp[], program_run_fn *run, char *out,
                          size_t cap)
{
    char list[16384];
    list_libraries(path, envp, run, list, sizeof(list));
    int n = 0;
    size_t len = 0;
    for (char *save = NULL, *line = strtok_r(list, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        const char *what = missing_in(line);
        if (what && n++ < 4 && len < cap)
            len += (size_t)snprintf(out + len, cap - len, "%s%.120s", n > 1 ? ", " : "", what);
    }
    if (n > 4 && len < cap)
        len += (size_t)snprintf(out + len, cap - len, " and %d more", n - 4);
    if (n && len < cap)
        snprintf(out + len, cap - len, " (shared libraries of %.100s)", path);
    return n > 0;
}

bool program_lacks(const char *path, char *const envp[], program_run_fn *run, char *out, size_t cap)
{
    char at[PATH_MAX], next[PATH_MAX];
    snprintf(at, sizeof(at), "%s", path);
    *out = '\0';
    for (int i = 0; i < CHAIN_MAX; i++) {
        if (!interpreter_of(at, envp, next, out, cap))
            return true;
        if (!*next)
            break;
        memcpy(at, next, sizeof(at));
    }
    return lacks_library(at, envp, run, out, cap);
}
