/* program.c: by which path and which words a worker is started.
 *
 *   dlaunch                              under the name torchrun
 *   ./train a b     ./train a b          python -u ./train a b
 *   train.py a      python -u train.py a, unless it is executable and begins with #!
 *   -m mod a        python -u -m mod a   the same
 *   --no_python x   x                    x
 *   --run_path x    runpy in Python      the same, before --no_python
 */
#include "launcher/options/program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/job_env.h"
#include "agent/process/exec_why.h"
#include "agent/worker_env.h"
#include "core/fd.h"
#include "core/mem.h"

#define NAMES 3 /* of programs, in the name of a job of several */

#define RUNPY \
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"

/* Calls exec_find(), and keeps the result with the options. */
static const char *program_lookup(struct options *o, const char *name, int *exit_status,
                                  struct err *e)
{
    struct err found = ERR_INIT;
    char *path = exec_find(name, &found), *kept = NULL;
    if (path) {
        kept = options_printf(o, "%s", path);
        free(path);
    } else {
        *exit_status = found.code == -EACCES ? 126 : 127;
        err_set(e, found.code, "%s", found.msg);
    }
    return kept;
}

static const char *find_python(struct options *o, int *exit_status, struct err *e)
{
    const char *chosen = getenv("PYTHON_EXEC");
    bool given = chosen && *chosen;
    const char *path = program_lookup(o, given ? chosen : "python3", exit_status, e);
    if (!path && !given)
        path = program_lookup(o, "python", exit_status, NULL);
    if (!path) {
        err_wrap(e, "no interpreter for %s%s", o->command[0],
                 given ? ": PYTHON_EXEC" : " (PYTHON_EXEC can name one)");
        return NULL;
    }
    return exec_check(path, exit_status, e) < 0 ? NULL : path;
}

static bool begins_with_shebang(const char *path)
{
    char two[2];
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return fd >= 0 && read(fd, two, 2) == 2 && two[0] == '#' && two[1] == '!';
}

/* Whether this is a Python file that cannot be executed itself. On some mounts every file is
 * executable, so a file without "#!" also needs Python. */
static bool needs_python(const char *name)
{
    size_t n = strlen(name);
    struct stat st;
    if (n < 4 || strcmp(name + n - 3, ".py") != 0 || stat(name, &st) < 0)
        return false;
    return access(name, X_OK) < 0 || !begins_with_shebang(name);
}

/* Checks that the script exists; a folder or archive may hold a __main__.py. A script with a macro
 * in its name is a different file for each worker, and is not checked. */
static int check_script(const char *script, int *exit_status, struct err *e)
{
    if (strcmp(script, "-") == 0 || strchr(script, '$') || access(script, R_OK) == 0)
        return 0;
    *exit_status = errno == ENOENT || errno == ENOTDIR ? 127 : 126;
    return err_sys(e, errno, "%s", script);
}

static const char *find_direct(struct options *o, int *exit_status, struct err *e)
{
    const char *name = o->command[0];
    struct stat st;
    bool local = !strchr(name, '/') && stat(name, &st) == 0 && S_ISREG(st.st_mode);
    /* A script in this folder, as python would find it. */
    size_t n = strlen(name);
    bool script = n > 3 && strcmp(name + n - 3, ".py") == 0 && !opt_flag(o, OPT_no_python);
    if (local && script)
        return name;
    const char *path = program_lookup(o, name, exit_status, e);
    if (!path && local)
        err_set(e, -ENOENT, "%s: not in PATH (for the file in this folder, say ./%s)", name, name);
    else if (!path && script && *exit_status == 127)
        err_set(e, -ENOENT, "%s: neither in this folder nor in PATH", name);
    return path && exec_check(path, exit_status, e) < 0 ? NULL : path;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_python_file(const char *name)
{
    size_t n = strlen(name);
    struct stat st;
    return n > 3 && strcmp(name + n - 3, ".py") == 0 && stat(name, &st) == 0 && S_ISREG(st.st_mode);
}

/* The interpreter that a script's first line names, "#!/usr/bin/env python3" or
 * "#!/usr/bin/python3", without options: how a warm interpreter takes the script's place. */
static void find_warm_script(struct job_spec *spec, struct options *o)
{
    char line[128] = "", *word = line + 2;
    _cleanup_fd_ int fd = open(spec->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
    if (n < 2 || line[0] != '#' || line[1] != '!' || !strchr(line, '\n'))
        return;
    *strchr(line, '\n') = '\0';
    word += strspn(word, " ");
    bool env = strncmp(word, "/usr/bin/env ", 13) == 0;
    word += env ? 13 : 0;
    if (strncmp(base_name(word), "python", 6) != 0 || strpbrk(word, " \t") ||
        (env && strchr(word, '/')))
        return;
    const char *path = job_env(spec, "PATH"), *own = getenv("PATH");
    int ignored;
    if (env && (!path || !own || strcmp(path, own) != 0)) /* the workers would search elsewhere */
        return;
    char **argv = options_alloc(o, 2 * sizeof(*argv));
    argv[0] = (char *)options_printf(o, "%s", word);
    spec->warm.python = env ? program_lookup(o, word, &ignored, NULL) : argv[0];
    spec->warm.argv = argv;
    spec->warm.program = 1;
    spec->warm.comm = options_printf(o, "%s", base_name(env ? word : spec->path));
}

/* The file in this folder that `python -m name` runs, or one that does not exist. */
static const char *module_file(struct options *o, const char *name)
{
    char *file = options_printf(o, "%s.py", name), *end = file + strlen(name);
    for (char *p = file; p < end; p++)
        *p = *p == '.' ? '/' : *p;
    return access(file, F_OK) == 0 ? file
                                   : options_printf(o, "%.*s/__main__.py", (int)(end - file), file);
}

/* Whether the file has the word "torch" in its first megabyte. */
static bool names_torch(const char *path)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = xmalloc(1 << 20);
    ssize_t n = fd < 0 ? 0 : read(fd, text, 1 << 20);
    bool found = n > 0 && memmem(text, (size_t)n, "torch", 5);
    free(text);
    return found;
}

/* Finds the command for warm interpreters, if the program is a Python script or module. */
static void find_warm(struct job_spec *spec, struct options *o, bool direct)
{
    bool module = opt_flag(o, OPT_module);
    if (opt_flag(o, OPT_run_path) || *o->command[0] == '-' || /* an option of the interpreter */
        (!module && !is_python_file(direct ? spec->path : o->command[0])))
        return;
    if (direct) {
        find_warm_script(spec, o);
    } else {
        char **argv = options_alloc(o, 3 * sizeof(*argv));
        argv[0] = (char *)spec->path;
        argv[1] = "-u";
        spec->warm.python = spec->path;
        spec->warm.argv = argv;
        spec->warm.program = module ? 3 : 2;
        spec->warm.comm = "";
    }
    spec->warm.first_round = names_torch(direct   ? spec->path
                                         : module ? module_file(o, o->command[0])
                                                  : o->command[0]);
    /* A script in front of the interpreter may change the environment. */
    if (spec->warm.python && begins_with_shebang(spec->warm.python))
        spec->warm.python = NULL;
}

static int find_one(struct job_spec *spec, struct options *o, int *exit_status, struct err *e)
{
    bool module = opt_flag(o, OPT_module), no_python = opt_flag(o, OPT_no_python);
    bool run_path = opt_flag(o, OPT_run_path), launch = !opt_flag(o, OPT_use_env);
    if (!*o->command[0]) {
        *exit_status = 127;
        return err_set(e, -ENOENT, "the name of the program is empty");
    }
    if (module && no_python && !run_path)
        return err_set(e, -EINVAL, "%s and %s exclude each other", opt_where(o, OPT_module),
                       opt_where(o, OPT_no_python));
    if (launch && o->torchrun && no_python)
        return err_set(e, -EINVAL, "%s needs --use_env", opt_where(o, OPT_no_python));

    size_t n = 0, at = 0;
    while (o->command[n])
        n++;
    char **argv = options_alloc(o, (4 + n + 1) * sizeof(*argv));
    bool direct =
        !module && !run_path && (no_python || (!o->torchrun && !needs_python(o->command[0])));
    if (direct) {
        spec->path = find_direct(o, exit_status, e);
    } else {
        spec->path = find_python(o, exit_status, e);
        argv[at++] = (char *)spec->path;
        argv[at++] = "-u";
        if (run_path) {
            argv[at++] = "-c";
            argv[at++] = RUNPY;
        } else if (module) {
            argv[at++] = "-m";
        }
        if (spec->path && !(module && !run_path) && check_script(o->command[0], exit_status, e) < 0)
            return -EINVAL;
    }
    if (!spec->path)
        return -EINVAL;
    memcpy(argv + at, o->command, n * sizeof(*argv));
    spec->argv = argv;
    spec->name = o->command[0];
    spec->launch_local_rank_arg = launch;
    spec->local_rank_arg_at = (int)at + 1;
    find_warm(spec, o, direct);
    spec->doctor.python = direct ? spec->warm.python : spec->path;
    spec->doctor.program = module && !direct ? NULL : direct ? spec->path : o->command[0];
    return 0;
}

/* Finds the program as seen from the folder in which its workers begin. */
static int find_in(struct job_spec *spec, struct options *o, const char *wdir, int *exit_status,
                   struct err *e)
{
    char cwd[PATH_MAX];
    if (!wdir)
        return find_one(spec, o, exit_status, e);
    _cleanup_fd_ int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (here < 0)
        return err_sys(e, errno, "the folder in which dlaunch was started");
    if (chdir(wdir) < 0 || !getcwd(cwd, sizeof(cwd))) {
        *exit_status = 2;
        return err_sys(e, errno, "--wdir %s", wdir);
    }
    spec->cwd = options_printf(o, "%s", cwd);
    int rc = find_one(spec, o, exit_status, e);
    if (rc == 0 && *spec->path != '/')
        spec->path = options_printf(o, "%s/%s", cwd, spec->path);
    spec->warm.python = NULL; /* a warm interpreter stays in its folder */
    if (fchdir(here) < 0 && rc == 0)
        rc = err_sys(e, errno, "the folder in which dlaunch was started");
    return rc;
}

/* "./ps : ./worker": what reports call the job. */
static const char *name_all(struct options *o, const struct programs *p)
{
    const char *name = p->list[0].name;
    for (int i = 1; i < p->n && i < NAMES; i++)
        name = options_printf(o, "%s : %s", name, p->list[i].name);
    return p->n > NAMES ? options_printf(o, "%s : ...", name) : name;
}

/* The last program is found first, so that what is true of the job is that of the first one. */
static int find_all(struct job_spec *spec, struct options *o, int *exit_status, struct err *e)
{
    const struct opt_programs *from = o->programs;
    struct programs *p = options_alloc(o, sizeof(*p));
    char **command = o->command;
    *p = (struct programs){.n = from->n,
                           .spans = from->spans,
                           .nspans = from->nspans,
                           .rest = from->rest,
                           .list = options_alloc(o, (size_t)from->n * sizeof(*p->list))};
    int rc = 0;
    for (int i = p->n - 1; i >= 0 && rc == 0; i--) {
        o->command = from->list[i].command;
        spec->cwd = NULL;
        rc = find_in(spec, o, from->list[i].wdir, exit_status, e);
        p->list[i] = (struct program){.path = spec->path,
                                      .argv = spec->argv,
                                      .name = spec->name,
                                      .cwd = spec->cwd,
                                      .env = from->list[i].env,
                                      .numbered = from->list[i].numbered};
        spec->warm.python = NULL; /* the interpreter is started before its rank is known */
    }
    o->command = command;
    spec->programs = p;
    if (rc == 0)
        spec->name = name_all(o, p);
    return rc;
}

int program_find(struct job_spec *spec, struct options *o, int *exit_status, struct err *e)
{
    if (!o->command) {
        *exit_status = 2;
        return err_set(e, -EINVAL, "no program is given; see %s -h", o->prog);
    }
    return o->programs ? find_all(spec, o, exit_status, e)
                       : find_in(spec, o, o->value[OPT_wdir].text, exit_status, e);
}
