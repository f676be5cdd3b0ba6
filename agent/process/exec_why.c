/* execve() returns an errno; a person needs to know which file is at fault, and the remedy. One
 * function examines a file as the kernel does and names the fault. exec_check() uses it before
 * anything is started; after a failed execve() its result is used if it has the same errno. */
#include <dirent.h>
#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "agent/process/exec_why.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/timed_call.h"

#define BINFMT           "/proc/sys/fs/binfmt_misc"
#define HEAD_MAX         256 /* bytes of a file that the kernel reads (BINPRM_BUF_SIZE) */
#define SCRIPT_DEPTH_MAX 5   /* interpreters that are scripts themselves */
#define DETAIL_MAX       384
#define LOOK_MS          1000

/* The fault of a file: errno's text with `detail` in brackets, or `detail` alone if `whole`. */
struct diagnosis {
    bool whole;
    bool foreign; /* a complete program, for another machine or system */
    char detail[DETAIL_MAX];
};

static int found(struct diagnosis *f, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int found(struct diagnosis *f, int errnum, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->detail, sizeof(f->detail), fmt, ap);
    va_end(ap);
    return errnum;
}

/* -------------------------------------------------------------------------------- the way there */

/* Whether the kernel would let this process execute a file, or search a directory. The C library
 * calls faccessat2(), which old seccomp profiles of containers refuse with EPERM; the older call
 * uses the real user id, which is the effective one unless dlaunch was installed set-user-ID.
 */
static bool may_execute(const char *path)
{
    return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) == 0 ||
           (errno == EPERM && access(path, X_OK) == 0);
}

/* The longest leading directory of `path` that exists and may not be searched. */
static int find_closed_directory(const char *path, struct diagnosis *f)
{
    char dir[PATH_MAX];
    struct stat st;
    for (const char *p = path; (p = strchr(p, '/')); p++) {
        size_t len = (size_t)(p - path) + (p == path);
        if (len >= sizeof(dir))
            break;
        memcpy(dir, path, len);
        dir[len] = '\0';
        if (stat(dir, &st) == 0 && !may_execute(dir))
            return found(f, EACCES, "the directory %s may not be searched", dir);
    }
    return EACCES;
}

static int explain_stat(const char *path, int errnum, struct diagnosis *f)
{
    struct stat st;
    char target[PATH_MAX];
    ssize_t n;
    if (errnum == EACCES)
        return find_closed_directory(path, f);
    if (errnum == ENOENT && lstat(path, &st) == 0 && S_ISLNK(st.st_mode) &&
        (n = readlink(path, target, sizeof(target) - 1)) > 0) {
        target[n] = '\0';
        return found(f, errnum, "it is a symbolic link to %s", target);
    }
    return errnum;
}

/* The mount point above `path`; `path` itself if it cannot be found. out holds PATH_MAX bytes. */
static void find_mount_point(const char *path, char *out)
{
    char at[PATH_MAX];
    struct statx st;
    snprintf(out, PATH_MAX, "%s", path);
    if (!realpath(path, at))
        return;
    while (statx(AT_FDCWD, at, 0, 0, &st) == 0 && st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) {
        if (st.stx_attributes & STATX_ATTR_MOUNT_ROOT) {
            strcpy(out, at);
            return;
        }
        char *slash = strrchr(at, '/');
        slash[slash == at] = '\0';
    }
}

static int check_permissions(const char *path, struct diagnosis *f)
{
    struct stat st;
    struct statvfs vfs;
    if (stat(path, &st) < 0)
        return explain_stat(path, errno, f);
    if (S_ISDIR(st.st_mode))
        return found(f, EACCES, "it is a directory");
    if (!S_ISREG(st.st_mode))
        return found(f, EACCES, "it is not a regular file");
    if (statvfs(path, &vfs) == 0 && vfs.f_flag & ST_NOEXEC) {
        char mount[PATH_MAX];
        find_mount_point(path, mount);
        return found(f, EACCES, "the file system %.300s is mounted noexec", mount);
    }
    if (!may_execute(path))
        return found(f, EACCES, "it is not executable; try: chmod +x %.300s", path);
    return 0;
}

/* ----------------------------------------------------------------------------------- what it is */

static int check_file(const char *path, int depth, struct diagnosis *f);

/* The kernel's rules for the first line: "#!", blanks, the interpreter, perhaps one argument. */
static int check_script(const char *head, size_t len, int depth, struct diagnosis *f)
{
    char interp[HEAD_MAX];
    size_t at = 2, n;
    while (at < len && (head[at] == ' ' || head[at] == '\t'))
        at++;
    n = strcspn(head + at, " \t\n");
    if (at + n >= len && len == HEAD_MAX)
        return found(f, ENOEXEC, "the interpreter's name in its first line is too long");
    if (n == 0)
        return found(f, ENOEXEC, "its first line names no interpreter");
    memcpy(interp, head + at, n);
    interp[n] = '\0';
    if (depth >= SCRIPT_DEPTH_MAX)
        return ELOOP;
    struct diagnosis inner = {.whole = false};
    int errnum = check_file(interp, depth + 1, &inner);
    if (errnum == 0)
        return 0;
    f->whole = true;
    f->foreign = inner.foreign;
    if (errnum == ENOENT && interp[n - 1] == '\r') {
        interp[n - 1] = '\0';
        return found(f, errnum,
                     "its first line ends in a carriage return (DOS line ends), so that "
                     "interpreter '%s' is not found",
                     interp);
    }
    if (errnum == ENOENT && !inner.whole)
        return found(f, errnum, "interpreter '%s' in its first line not found", interp);
    return found(f, errnum, "interpreter '%s' in its first line: %s%s%.200s%s", interp,
                 inner.whole ? "" : strerror(errnum), inner.whole || !*inner.detail ? "" : " (",
                 inner.detail, inner.whole || !*inner.detail ? "" : ")");
}

static const char *machine_name(unsigned machine, bool little, bool wide)
{
    static const struct {
        unsigned machine;
        const char *name;
    } names[] = {
        {EM_386, "i386"},
        {EM_ARM, "arm"},
        {EM_AARCH64, "aarch64"},
        {EM_S390, "s390x"},
        {EM_SPARC, "sparc"},
        {EM_SPARCV9, "sparc64"},
        {EM_PPC, "ppc"},
        {EM_IA_64, "ia64"},
        {EM_68K, "m68k"},
        {EM_PARISC, "parisc"},
        {EM_SH, "sh4"},
        {EM_ALPHA, "alpha"},
        {EM_LOONGARCH, "loongarch64"},
    };
    switch (machine) {
    case EM_X86_64:
        return wide ? "x86_64" : "x86_64 (x32)";
    case EM_PPC64:
        return little ? "ppc64le" : "ppc64";
    case EM_RISCV:
        return wide ? "riscv64" : "riscv32";
    case EM_MIPS:
        return wide ? "mips64" : "mips";
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (names[i].machine == machine)
            return names[i].name;
    }
    return NULL;
}

/* A 64-bit kernel may run 32-bit programs of the same family; only an attempt shows whether this
 * kernel does. */
static bool may_run(const char *host, const char *file)
{
    return strcmp(host, file) == 0 ||
           (strcmp(host, "x86_64") == 0 &&
            (strcmp(file, "i386") == 0 || strcmp(file, "x86_64 (x32)") == 0)) ||
           (strcmp(host, "aarch64") == 0 && strcmp(file, "arm") == 0) ||
           (host[0] == 'i' && strcmp(host + 2, "86") == 0 && strcmp(file, "i386") == 0) ||
           (strncmp(host, "arm", 3) == 0 && strcmp(file, "arm") == 0);
}

/* The program's loader (PT_INTERP), for programs of this host's own layout. */
static int check_loader(int fd, const Elf64_Ehdr *h, struct diagnosis *f)
{
    if (h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phnum == 0)
        return found(f, ENOEXEC, "it is a damaged ELF file");
    for (unsigned i = 0; i < h->e_phnum; i++) {
        Elf64_Phdr ph;
        char loader[256];
        if (pread(fd, &ph, sizeof(ph), (off_t)(h->e_phoff + i * sizeof(ph))) != sizeof(ph))
            return found(f, ENOEXEC, "it is a damaged or truncated ELF file");
        if (ph.p_type != PT_INTERP || ph.p_filesz < 2 || ph.p_filesz > sizeof(loader))
            continue;
        if (pread(fd, loader, ph.p_filesz, (off_t)ph.p_offset) != (ssize_t)ph.p_filesz)
            return found(f, ENOEXEC, "it is a damaged or truncated ELF file");
        loader[ph.p_filesz - 1] = '\0';
        if (access(loader, F_OK) < 0 && errno == ENOENT) {
            f->whole = true;
            return found(f, ENOENT, "its loader %s is not installed on this host", loader);
        }
    }
    return 0;
}

static int check_elf(int fd, const char *head, size_t len, struct diagnosis *f)
{
    struct utsname host;
    Elf64_Ehdr h;
    if (len < sizeof(Elf32_Ehdr))
        return found(f, ENOEXEC, "it is a damaged or truncated ELF file");
    memcpy(&h, head, len < sizeof(h) ? len : sizeof(h));
    bool little = h.e_ident[EI_DATA] != ELFDATA2MSB, wide = h.e_ident[EI_CLASS] == ELFCLASS64;
    unsigned machine = little ? le16toh(h.e_machine) : be16toh(h.e_machine);
    unsigned type = little ? le16toh(h.e_type) : be16toh(h.e_type);
    const char *name = machine_name(machine, little, wide);
    if (uname(&host) == 0 && !(name && may_run(host.machine, name))) {
        f->foreign = true;
        if (!name)
            return found(f, ENOEXEC, "file is for machine number %u, this host is %s", machine,
                         host.machine);
        return found(f, ENOEXEC, "file is %s, this host is %s", name, host.machine);
    }
    if (type != ET_EXEC && type != ET_DYN)
        return found(f, ENOEXEC, "it is an ELF %s, not a program",
                     type == ET_REL    ? "object file"
                     : type == ET_CORE ? "core dump"
                                       : "file of an unknown kind");
    bool native = wide && little == (__BYTE_ORDER == __LITTLE_ENDIAN);
    if (native && len < sizeof(h))
        return found(f, ENOEXEC, "it is a damaged or truncated ELF file");
    return native ? check_loader(fd, &h, f) : 0;
}

static bool looks_like_text(const char *head, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)head[i];
        if (c < 0x20 && !strchr("\t\n\r\f", c))
            return false;
    }
    return true;
}

/* Returns 0, or the errno that execve() would give, with the details for a person. */
static int check_file(const char *path, int depth, struct diagnosis *f)
{
    char head[HEAD_MAX + 1];
    int errnum = check_permissions(path, f);
    if (errnum)
        return errnum;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0; /* may be executed, may not be read */
    ssize_t len = pread(fd, head, HEAD_MAX, 0);
    if (len < 0)
        return errno;
    head[len] = '\0';
    if (len == 0)
        return found(f, ENOEXEC, "it is empty");
    if (strncmp(head, "#!", 2) == 0)
        return check_script(head, (size_t)len, depth, f);
    if (len >= 4 && memcmp(head, ELFMAG, 4) == 0)
        return check_elf(fd, head, (size_t)len, f);
    f->foreign = !looks_like_text(head, (size_t)len);
    return found(f, ENOEXEC, "%s",
                 f->foreign ? "it is no program that this host knows"
                            : "it is a text without a '#!' line that names its interpreter");
}

static int why_say(const char *path, int errnum, const struct diagnosis *f, struct err *e)
{
    if (f->whole)
        return err_set(e, -errnum, "exec %s: %s", path, f->detail);
    if (f->detail[0])
        return err_set(e, -errnum, "exec %s: %s (%s)", path, strerror(errnum), f->detail);
    return err_sys(e, errnum, "exec %s", path);
}

static int exit_code_of(int errnum)
{
    return errnum == ENOENT || errnum == ENOTDIR ? 127 : 126;
}

/* ---------------------------------------------------------------------------------------- E2BIG */

#define STRING_MAX (32 * 4096) /* bytes of one string (MAX_ARG_STRLEN, pages of 4 KiB) */
#define TOTAL_MIN  (128u << 10)
#define TOTAL_MAX                                                                             \
    (6u << 20) /* bytes of all strings; the actual limit is a quarter of the stack's, between \
                  these two */
#define NLARGEST 5

static const char *human(size_t bytes, char out[24])
{
    if (bytes < 10240)
        snprintf(out, 24, "%zu bytes", bytes);
    else if (bytes < 10u << 20)
        snprintf(out, 24, "%zu KiB", bytes >> 10);
    else
        snprintf(out, 24, "%zu MiB", bytes >> 20);
    return out;
}

/* Adds the size of the strings for the kernel, which counts the pointers too, to *total. Returns
 * the index of a string that is too long by itself, else -1. */
static int exec_measure(char *const *v, size_t *total)
{
    int too_long = -1;
    for (int i = 0; v && v[i]; i++) {
        size_t len = strlen(v[i]) + 1;
        *total += len + sizeof(char *);
        if (len > STRING_MAX)
            too_long = i;
    }
    return too_long;
}

/* The length of a variable's name, at most max. */
static int name_len(const char *var, int max)
{
    size_t len = strcspn(var, "=");
    return len > (size_t)max ? max : (int)len;
}

/* "DATA 300 KiB, PATH 2 KiB, ...": names only, for values may be secrets. */
static void name_largest(char *const *envp, char *out, size_t cap)
{
    int done[NLARGEST];
    size_t at = 0;
    for (int k = 0; k < NLARGEST; k++) {
        int best = -1;
        size_t best_len = 0;
        for (int i = 0; envp[i]; i++) {
            size_t len = strlen(envp[i]);
            bool taken = false;
            for (int j = 0; j < k; j++)
                taken |= done[j] == i;
            if (!taken && len > best_len) {
                best = i;
                best_len = len;
            }
        }
        if (best < 0 || at >= cap)
            return;
        done[k] = best;
        char size[24];
        at += (size_t)snprintf(out + at, cap - at, "%s%.*s %s", k ? ", " : "",
                               name_len(envp[best], 32), envp[best], human(best_len, size));
    }
}

static void explain_too_big(char *const *argv, char *const *envp, struct diagnosis *f)
{
    size_t args = 0, env = 0;
    char a[24], b[24], c[24], largest[300] = "";
    int arg = exec_measure(argv, &args), var = exec_measure(envp, &env);
    if (arg >= 0) {
        found(f, E2BIG, "argument %d has %s, it may have at most %s", arg,
              human(strlen(argv[arg]), a), human(STRING_MAX - 1, b));
        return;
    }
    if (var >= 0) {
        found(f, E2BIG, "the variable %.*s has %s, it may have at most %s", name_len(envp[var], 80),
              envp[var], human(strlen(envp[var]), a), human(STRING_MAX - 1, b));
        return;
    }
    struct rlimit stack;
    size_t limit = TOTAL_MAX;
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur / 4 < limit)
        limit = stack.rlim_cur / 4 > TOTAL_MIN ? stack.rlim_cur / 4 : TOTAL_MIN;
    if (envp)
        name_largest(envp, largest, sizeof(largest));
    found(f, E2BIG, "arguments %s, environment %s, together at most %s; largest: %s",
          human(args, a), human(env, b), human(limit, c), largest);
}

/* --------------------------------------------------------------------------------------- public */

/* The file's server may not answer any more. */
struct look {
    char *path;
    int errnum;
    struct diagnosis f;
};

static void take_look(void *arg)
{
    struct look *l = arg;
    l->errnum = check_file(l->path, 0, &l->f);
}

static void drop_look(void *arg)
{
    struct look *l = arg;
    free(l->path);
    free(l);
}

/* Calls check_file() with a limit of LOOK_MS; makes no further call after one that has exceeded the
 * limit. */
static int check_file_timed(const char *path, struct diagnosis *f)
{
    static struct timed_calls *server;
    if (!server)
        server = timed_calls_new();
    struct look *l = xcalloc(1, sizeof(*l));
    l->path = xstrdup(path);
    if (!timed_call(server, take_look, l, drop_look, LOOK_MS))
        return 0;
    int errnum = l->errnum;
    *f = l->f;
    drop_look(l);
    return errnum;
}

int exec_why(const char *path, char *const *argv, char *const *envp, const char *cwd, int errnum,
             struct err *e)
{
    struct diagnosis f = {.whole = false}, none = {.whole = false};
    char full[PATH_MAX];
    if (errnum == E2BIG) {
        explain_too_big(argv, envp, &f);
    } else if (errnum == ETXTBSY) {
        found(&f, errnum, "someone has it open for writing");
    } else {
        const char *at = path;
        if (cwd && path[0] != '/' &&
            snprintf(full, sizeof(full), "%s/%s", cwd, path) < (int)sizeof(full))
            at = full;
        if (check_file_timed(at, &f) != errnum)
            f = none;
        if (!f.detail[0] && errnum == EACCES)
            found(&f, errnum, "a security policy of this host may forbid it");
    }
    why_say(path, errnum, &f, e);
    return exit_code_of(errnum);
}

/* Handlers for foreign formats (qemu, wine, Java) may be registered with the kernel. A container
 * usually does not see the host's, which apply to it too: a file that one of them may run is tried.
 */
static bool has_handler(const struct diagnosis *f)
{
    if (access(BINFMT "/status", F_OK) < 0)
        return f->foreign;
    DIR *d = opendir(BINFMT);
    bool any = false;
    for (struct dirent *de; d && (de = readdir(d));)
        any |= de->d_name[0] != '.' && strcmp(de->d_name, "register") != 0 &&
               strcmp(de->d_name, "status") != 0;
    if (d)
        closedir(d);
    return any;
}

int exec_check(const char *path, int *exit_code, struct err *e)
{
    struct diagnosis f = {.whole = false};
    int errnum = check_file(path, 0, &f);
    if (errnum == 0 || (errnum == ENOEXEC && has_handler(&f)))
        return 0;
    *exit_code = exit_code_of(errnum);
    return why_say(path, errnum, &f, e);
}

static bool is_program(const char *path, int *errnum)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        *errnum = errno;
        return false;
    }
    *errnum = S_ISDIR(st.st_mode) ? ENOENT : EACCES; /* an entry that is a folder does not count */
    return S_ISREG(st.st_mode) && may_execute(path);
}

char *exec_find(const char *name, struct err *e)
{
    if (strchr(name, '/'))
        return xstrdup(name);
    const char *path = getenv("PATH");
    if (!path)
        path = "/bin:/usr/bin"; /* execvp()'s default */
    bool denied = false;
    for (const char *dir = path; *name; dir++) {
        size_t len = strcspn(dir, ":");
        char *full = len ? xasprintf("%.*s/%s", (int)len, dir, name) : xasprintf("./%s", name);
        int errnum;
        if (is_program(full, &errnum))
            return full;
        if (errnum == EACCES && !denied) {
            denied = true;
            err_set(e, -EACCES, "exec %s: %s may not be executed", name, full);
        }
        free(full);
        dir += len;
        if (!*dir)
            break;
    }
    if (!denied) {
        int ignored;
        char *here = xasprintf("./%s", name);
        bool is_here = *name && is_program(here, &ignored);
        err_set(e, -ENOENT, "exec %s: not found in PATH%s%s%s", name,
                is_here ? " (it is in this directory: ./" : "", is_here ? name : "",
                is_here ? ")" : "");
        free(here);
    }
    return NULL;
}
