#include "launcher/options/token.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/wire/auth.h"

#define RANDOM_BYTES 32
#define TOKEN_ENV    "DLAUNCH_TOKEN"
#define OWN_PATH_MAX 480 /* of the user's own token, terminated */

/* -------------------------------------------------------------------------------------- reading */

/* Sets the secret, without the newline that editors add. */
static int set_secret(struct auth *g, const char *text, size_t len, const char *source,
                      struct err *e)
{
    while (len && strchr(" \t\r\n", text[len - 1]))
        len--;
    if (len < AUTH_SECRET_MIN)
        return err_set(e, -EINVAL, "%s: the token has only %zu bytes; at least %d are needed",
                       source, len, AUTH_SECRET_MIN);
    if (len > AUTH_SECRET_MAX)
        return err_set(e, -EINVAL, "%s: the token is longer than %d bytes", source,
                       AUTH_SECRET_MAX);
    memcpy(g->secret, text, len);
    g->secret_len = len;
    snprintf(g->source, sizeof(g->source), "%s", source);
    return 0;
}

static int read_secret(struct auth *g, int fd, const char *source, struct err *e)
{
    char text[AUTH_SECRET_MAX + 64];
    size_t len = 0;
    ssize_t n;
    while ((n = read(fd, text + len, sizeof(text) - len)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, errno, "%s", source);
        len += (size_t)n;
        if (len == sizeof(text))
            return err_set(e, -EINVAL, "%s: the token is longer than %d bytes", source,
                           AUTH_SECRET_MAX);
    }
    int rc = set_secret(g, text, len, source, e);
    explicit_bzero(text, sizeof(text));
    return rc;
}

/* Reads the token from a file. The checks are on the open descriptor, so the file cannot be
 * replaced in between. */
static int read_file(struct auth *g, const char *path, struct err *e)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (!*path)
        return err_set(e, -EINVAL, "the value is empty");
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, -EINVAL, "%s is not a regular file", path);
    if (st.st_uid != geteuid())
        return err_set(e, -EINVAL, "%s belongs to user %u, not to the current user %u", path,
                       (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 077)
        return err_set(e, -EINVAL,
                       "%s is accessible to other users (mode %04o); run chmod 600, and make a new "
                       "token if others may have read this one",
                       path, (unsigned)st.st_mode & 07777);
    return read_secret(g, fd, path, e);
}

/* --------------------------------------------------------------------------------------- making */

/* Writes <configuration folder>/dlaunch/token, the place of the user's own token. */
static int own_path(char *out, size_t cap, struct err *e)
{
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    bool has_base = base && base[0] == '/';
    if (!has_base && (!home || home[0] != '/')) {
        const struct passwd *pw = getpwuid(geteuid());
        home = pw ? pw->pw_dir : NULL;
    }
    if (!has_base && !home)
        return err_set(e, -ENOENT, "HOME is not set");
    int n = has_base ? snprintf(out, cap, "%s/dlaunch/token", base)
                     : snprintf(out, cap, "%s/.config/dlaunch/token", home);
    return n < (int)cap ? 0 : err_set(e, -ENAMETOOLONG, "the path of HOME is too long");
}

/* Makes the two folders above the user's own token. */
static int make_folders(const char *path, struct err *e)
{
    char dir[OWN_PATH_MAX];
    snprintf(dir, sizeof(dir), "%s", path);
    char *name = strrchr(dir, '/');
    *name = '\0'; /* .../dlaunch */
    char *base = strrchr(dir, '/');
    *base = '\0';
    int rc = mkdir(dir, 0700) < 0 && errno != EEXIST ? -errno : 0;
    *base = '/';
    if (rc == 0 && mkdir(dir, 0700) < 0 && errno != EEXIST)
        rc = -errno;
    return rc < 0 ? err_sys(e, -rc, "cannot create %s", dir) : 0;
}

/* Writes a new token in hexadecimal digits, terminated. */
static int random_token(char text[2 * RANDOM_BYTES + 1])
{
    unsigned char b[RANDOM_BYTES];
    if (getrandom(b, sizeof(b), 0) != sizeof(b))
        return -EIO;
    for (size_t i = 0; i < sizeof(b); i++)
        sprintf(text + 2 * i, "%02x", b[i]);
    explicit_bzero(b, sizeof(b));
    return 0;
}

static int write_token(int fd)
{
    char text[2 * RANDOM_BYTES + 1];
    int rc = random_token(text);
    if (rc < 0)
        return rc;
    text[2 * RANDOM_BYTES] = '\n';
    rc = fd_write_all(fd, text, sizeof(text));
    explicit_bzero(text, sizeof(text));
    return rc == 0 && fsync(fd) < 0 ? -errno : rc;
}

/* Writes the file under another name and then renames it, so that no process reads a part. replace:
 * replaces an existing file; else -EEXIST. */
static int make_file(const char *path, bool replace, struct err *e)
{
    char *temp = xasprintf("%s.XXXXXX", path);
    _cleanup_fd_ int fd = mkostemp(temp, O_CLOEXEC); /* mode 0600 */
    int rc = fd < 0 ? -errno : write_token(fd);
    if (rc == 0 && (replace ? rename(temp, path) : link(temp, path)) < 0)
        rc = -errno;
    if (fd >= 0 && (rc < 0 || !replace))
        unlink(temp);
    free(temp);
    return rc < 0 ? err_sys(e, -rc, "cannot create %s", path) : 0;
}

int token_new(struct options *o, struct err *e)
{
    const char *path = o->value[OPT_token_file].text;
    char own[OWN_PATH_MAX];
    if (!path && (own_path(own, sizeof(own), e) < 0 || make_folders(own, e) < 0))
        return e->code;
    if (!path)
        path = own;
    int rc = make_file(path, true, e);
    if (rc == 0)
        printf("new job token in %s; copy the file with mode 600 to the other nodes, unless they "
               "share this folder\n",
               path);
    return rc;
}

/* ------------------------------------------------------------------------------------- choosing */

/* Reads the user's own token. make: makes it when there is none; of two launchers that do so at
 * once, both get the one that was there first. 1: there is none. */
static int read_own(struct auth *g, bool make, struct err *e)
{
    char path[OWN_PATH_MAX];
    struct err why = ERR_INIT;
    int rc = own_path(path, sizeof(path), &why);
    if (rc == 0 && make && access(path, F_OK) < 0) {
        rc = make_folders(path, &why);
        rc = rc == 0 ? make_file(path, false, &why) : rc;
        g->made = rc == 0;
    }
    if ((rc == 0 || rc == -EEXIST) && access(path, F_OK) == 0)
        return read_file(g, path, e);
    if (rc == 0)
        err_set(&why, -ENOENT, "%s does not exist", path);
    snprintf(g->source, sizeof(g->source), "%s", why.msg);
    return 1;
}

/* auth.find_own. */
static int find_own(struct auth *g, bool make)
{
    struct err e = ERR_INIT;
    int rc = read_own(g, make, &e);
    if (rc < 0)
        snprintf(g->source, sizeof(g->source), "%s", e.msg);
    return rc > 0 ? -ENOENT : rc;
}

/* Uses the user's own token, for jobs that name none. When there is none, the launcher that becomes
 * the coordinator makes it; the others need that one, and wait for it: the home folder may be
 * shared. */
static int use_own(struct auth *g, struct options *o, struct err *e)
{
    int rc = read_own(g, false, e);
    if (rc > 0 && !opt_flag(o, OPT_dry_run) && !opt_flag(o, OPT_print_binding))
        g->find_own = find_own;
    return rc < 0 ? rc : 0;
}

/* Closes the descriptor, which workers must not inherit; the next descriptor that is opened must
 * not become a standard stream. */
static void drop_fd(int fd)
{
    close(fd);
    fd_open_std();
}

/* Uses the token that the command line, the environment or a file names. 1: none is named. */
static int use_named(struct auth *g, struct options *o, struct err *e)
{
    const struct opt_value *file = &o->value[OPT_token_file], *fd = &o->value[OPT_token_fd];
    const char *env = getenv(TOKEN_ENV);
    int rc = 1;
    bool has_file = opt_given(o, OPT_token_file), has_fd = opt_given(o, OPT_token_fd);
    if (has_file && has_fd && file->from == fd->from) {
        rc = err_set(e, -EINVAL, "%s cannot be combined with --token_file",
                     opt_where(o, OPT_token_fd));
    } else if (has_file && (!has_fd || file->from > fd->from) &&
               (!env || file->from == FROM_ARGV)) {
        rc = read_file(g, file->text, e);
        if (rc < 0)
            err_wrap(e, "%s", opt_where(o, OPT_token_file));
    } else if (has_fd && (!env || fd->from == FROM_ARGV)) {
        int n = (int)opt_number(o, OPT_token_fd);
        rc = read_secret(g, n, options_printf(o, "descriptor %d", n), e);
        if (rc < 0)
            err_wrap(e, "%s", opt_where(o, OPT_token_fd));
        else
            drop_fd(n);
    } else if (env && (file->from == FROM_DLAUNCH || fd->from == FROM_DLAUNCH)) {
        rc = err_set(e, -EINVAL, "%s cannot be combined with DLAUNCH_TOKEN",
                     opt_where(o, file->from == FROM_DLAUNCH ? OPT_token_file : OPT_token_fd));
    } else if (env) {
        rc = set_secret(g, env, strlen(env), TOKEN_ENV, e);
    }
    return rc < 0 ? -EINVAL : rc;
}

/* Whether the coordinator listens on loopback. A file, or the endpoint of etcd, says nothing about
 * where the nodes meet; nor does loopback when a job on one node advertises another address. */
static bool meets_on_loopback(const struct rdzv_config *c)
{
    bool one = c->max_nodes + c->spares == 1;
    bool published = c->backend == RDZV_FILE || c->backend == RDZV_ETCD;
    if (one && c->local_addr && c->backend != RDZV_STATIC && !netaddr_names_loopback(c->local_addr))
        return false;
    bool all = published ? one : netaddr_names_loopback(c->endpoint_host);
    for (int i = 0; i < c->nmore && !published; i++)
        all = all && netaddr_names_loopback(c->more[i].host);
    return all;
}

/* Users of torchrun, and pods, which share no home folder, have no token at first. */
static void stay_open(struct auth *g, const struct options *o)
{
    g->open = true;
    log_notice("%s without a job token: anybody who can reach the rendezvous port can join this "
               "job; set DLAUNCH_TOKEN_FILE or DLAUNCH_TOKEN on all nodes to prevent that",
               o->torchrun ? "called as torchrun" : "running in a pod");
}

int token_build(struct job_spec *spec, struct options *o, struct err *e)
{
    struct rdzv_config *c = &spec->rdzv;
    /* A separate page, which is not part of core files. */
    struct auth *g =
        mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        return err_sys(e, errno, "memory for the job token");
    madvise(g, sizeof(*g), MADV_DONTDUMP);
    c->auth = g;
    bool insecure = opt_flag(o, OPT_insecure);
    int rc = use_named(g, o, e);
    unsetenv(TOKEN_ENV);
    unsetenv(TOKEN_ENV "_FD"); /* the token's descriptor is closed */
    if (rc < 0)
        return rc;
    g->everywhere = rc == 0;
    if (insecure && rc == 0)
        return err_set(e, -EINVAL, "%s cannot be combined with a job token (%s)",
                       opt_where(o, OPT_insecure), g->source);
    if (insecure)
        g->open = true;
    else if (rc == 0 || meets_on_loopback(c))
        ; /* on one host, the kernel identifies the user of a connection */
    else if (o->torchrun || getenv("KUBERNETES_SERVICE_HOST"))
        stay_open(g, o);
    else if (c->max_nodes + c->spares > 1 && use_own(g, o, e) < 0)
        return -EINVAL;
    if (g->secret_len == 0 && !g->source[0])
        snprintf(g->source, sizeof(g->source), "none is named");
    return 0;
}

/* The secret as text, which the options' protocols need. */
static int secret_text(const struct auth *g, char out[TOKEN_TEXT_MAX], struct err *e)
{
    if (memchr(g->secret, '\0', g->secret_len))
        return err_set(e, -EINVAL, "%s: there is a NUL byte in the token", g->source);
    snprintf(out, TOKEN_TEXT_MAX, "%.*s", (int)g->secret_len, (const char *)g->secret);
    return 0;
}

/* Calls use_named(), and removes the variables. */
static int take_named(struct auth *g, struct options *o, struct err *e)
{
    int rc = use_named(g, o, e);
    unsetenv(TOKEN_ENV);
    unsetenv(TOKEN_ENV "_FD");
    return rc;
}

/* The user's own token, if there is one; else *why says where it would be. */
static void own_text(char out[TOKEN_TEXT_MAX], struct err *why)
{
    struct auth g = {.open = false};
    char path[OWN_PATH_MAX];
    if (own_path(path, sizeof(path), why) == 0 && read_file(&g, path, why) == 0)
        secret_text(&g, out, why);
    explicit_bzero(&g, sizeof(g));
}

int token_of_head(struct options *o, struct head_tokens *out, struct err *e)
{
    struct auth g = {.open = false};
    int rc = take_named(&g, o, e);
    *out = (struct head_tokens){.why = ERR_INIT};
    if (rc == 0 && opt_flag(o, OPT_insecure))
        rc = err_set(e, -EINVAL, "%s cannot be combined with a job token (%s)",
                     opt_where(o, OPT_insecure), g.source);
    else if (rc == 0)
        rc = secret_text(&g, out->job, e);
    else if (rc > 0 && !opt_flag(o, OPT_insecure) && random_token(out->job) < 0)
        rc = err_set(e, -EIO, "cannot make a job token");
    if (rc == 0)
        memcpy(out->daemon, out->job, sizeof(out->daemon));
    else if (rc > 0)
        own_text(out->daemon, &out->why);
    explicit_bzero(&g, sizeof(g));
    return rc < 0 ? rc : 0;
}

/* Whether a daemon is reached from this host only: heads on other hosts, and their other daemons,
 * need a token that one of them has made. */
static bool meets_here(const struct options *o)
{
    return netaddr_names_loopback(opt_text(o, OPT_serve_addr));
}

int token_of_daemon(struct options *o, char out[TOKEN_TEXT_MAX], const char **source, struct err *e)
{
    struct auth g = {.open = false};
    bool on_host = meets_here(o);
    int rc = take_named(&g, o, e);
    if (rc > 0)
        rc = read_own(&g, on_host, e);
    if (rc > 0)
        rc = err_set(e, -EACCES, "--serve needs a token: %s%s", g.source,
                     on_host ? ""
                             : "; make one with 'dlaunch --new_token' on one host, and copy the "
                               "file with mode 600 to the others");
    if (g.made)
        log_notice("created a job token in %s", g.source);
    if (rc == 0)
        rc = secret_text(&g, out, e);
    *source = options_printf(o, "%s", g.source);
    explicit_bzero(&g, sizeof(g));
    return rc;
}
