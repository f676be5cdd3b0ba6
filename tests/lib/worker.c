/* worker.c: a worker for tests: does what its arguments say, one after the other.
 *
 *   print TEXT            a line on stdout             err TEXT       a line on stderr
 *   env NAME              "NAME=value" or "NAME unset" environ        all of it, one a line
 *   args                  ends the list: prints every argument behind it, one a line
 *   append FILE           one line "rank local_rank attempt pid monotonic_ns", O_APPEND
 *   ignore SIG            SIG_IGN                      trap SIG FILE  appends to FILE on each SIG
 *   exit-on SIG CODE      _exit(CODE) on SIG
 *   exit CODE             raise SIG                    abort
 *   pause                 sleeps for ever              sleep SECONDS
 *   wait FILE             until FILE exists            wait-lines N FILE   until it has N lines
 *   wait-text TEXT FILE   until a line of it has TEXT
 *   child                 a child that pauses, ignoring SIGTERM
 *   setsid-child          the same in a session of its own
 *   daemon                a double-forked daemon that pauses, its stdio still open
 *   spew COUNT TEXT       COUNT lines TEXT on stdout
 *   stdin                 copies one line of stdin to stdout
 *   fds                   the open descriptors, one line
 *   cwd   cpus   sigs     working directory; usable CPUs; ignored and blocked signal masks
 *   if-rank R   if-local R   if-attempt N   if-node N     the next command only when it is so
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static const char *trap_file[65];
static int exit_code_on[65];

static int env_int(const char *name)
{
    const char *v = getenv(name);
    return v ? atoi(v) : -1;
}

static int signo(const char *s)
{
    static const struct {
        const char *name;
        int no;
    } names[] = {{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"KILL", SIGKILL},
                 {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"SEGV", SIGSEGV},
                 {"ABRT", SIGABRT}, {"CONT", SIGCONT}, {"TSTP", SIGTSTP}, {"STOP", SIGSTOP},
                 {"PIPE", SIGPIPE}, {"BUS", SIGBUS}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i].name, s) == 0)
            return names[i].no;
    return atoi(s);
}

static void append(const char *file, const char *text)
{
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) {
        fprintf(stderr, "%s: %s\n", file, strerror(errno));
        _exit(3);
    }
    close(fd);
}

static void append_line(const char *file)
{
    char line[200];
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    snprintf(line, sizeof(line), "%d %d %d %d %lld\n", env_int("RANK"), env_int("LOCAL_RANK"),
             env_int("TORCHELASTIC_RESTART_COUNT"), (int)getpid(),
             (long long)t.tv_sec * 1000000000 + t.tv_nsec);
    append(file, line);
}

static void on_trap(int sig)
{
    if (trap_file[sig])
        append_line(trap_file[sig]);
}

static void on_exit_signal(int sig)
{
    _exit(exit_code_on[sig]);
}

static void pause_for_ever(void)
{
    for (;;)
        pause();
}

static void nap(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

static int lines_in(const char *file)
{
    int n = 0, c;
    FILE *f = fopen(file, "r");
    while (f && (c = getc(f)) != EOF)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

static int has_text(const char *file, const char *text)
{
    int found = 0;
    char *line = NULL;
    size_t cap = 0;
    FILE *f = fopen(file, "r");
    while (f && !found && getline(&line, &cap, f) > 0)
        found = strstr(line, text) != NULL;
    if (f)
        fclose(f);
    free(line);
    return found;
}

static void list_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    printf("fds");
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d))
            printf(" %s", e->d_name);
    }
    printf("\n");
    closedir(d);
}

static void print_masks(void)
{
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, "SigBlk", 6) == 0 || strncmp(line, "SigIgn", 6) == 0)
            fputs(line, stdout);
    fclose(f);
}

int main(int argc, char **argv)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
        signal(crashes[i], SIG_DFL); /* a sanitizer's handler would make an exit of it */
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        const char *c = argv[i];
        int left = argc - i - 1, skip = 0;
#define IS(name, n) (strcmp(c, name) == 0 && left >= (n))
        if (IS("print", 1)) {
            puts(argv[++i]);
        } else if (IS("err", 1)) {
            fprintf(stderr, "%s\n", argv[++i]);
        } else if (IS("env", 1)) {
            const char *v = getenv(argv[++i]);
            printf(v ? "%s=%s\n" : "%s unset\n", argv[i], v);
        } else if (IS("environ", 0)) {
            for (char **e = environ; *e; e++)
                puts(*e);
        } else if (IS("args", 0)) {
            while (++i < argc)
                puts(argv[i]);
        } else if (IS("append", 1)) {
            append_line(argv[++i]);
        } else if (IS("ignore", 1)) {
            signal(signo(argv[++i]), SIG_IGN);
        } else if (IS("trap", 2)) {
            trap_file[signo(argv[i + 1])] = argv[i + 2];
            signal(signo(argv[i + 1]), on_trap);
            i += 2;
        } else if (IS("exit-on", 2)) {
            exit_code_on[signo(argv[i + 1])] = atoi(argv[i + 2]);
            signal(signo(argv[i + 1]), on_exit_signal);
            i += 2;
        } else if (IS("exit", 1)) {
            exit(atoi(argv[i + 1]));
        } else if (IS("raise", 1)) {
            raise(signo(argv[++i]));
        } else if (IS("abort", 0)) {
            abort();
        } else if (IS("pause", 0)) {
            pause_for_ever();
        } else if (IS("sleep", 1)) {
            nap(atof(argv[++i]));
        } else if (IS("wait", 1)) {
            for (i++; access(argv[i], F_OK) != 0;)
                nap(0.002);
        } else if (IS("wait-lines", 2)) {
            while (lines_in(argv[i + 2]) < atoi(argv[i + 1]))
                nap(0.002);
            i += 2;
        } else if (IS("wait-text", 2)) {
            while (!has_text(argv[i + 2], argv[i + 1]))
                nap(0.002);
            i += 2;
        } else if (IS("child", 0) || IS("setsid-child", 0) || IS("daemon", 0)) {
            if (fork() == 0) {
                signal(SIGTERM, SIG_IGN);
                if (strcmp(c, "child") != 0)
                    setsid();
                if (strcmp(c, "daemon") == 0 && fork() != 0)
                    _exit(0);
                pause_for_ever();
            }
        } else if (IS("spew", 2)) {
            static char buf[1 << 16];
            setvbuf(stdout, buf, _IOFBF, sizeof(buf));
            for (long n = atol(argv[i + 1]); n > 0; n--) {
                fputs(argv[i + 2], stdout);
                putchar('\n');
            }
            fflush(stdout);
            i += 2;
        } else if (IS("stdin", 0)) {
            char line[1024];
            fputs(fgets(line, sizeof(line), stdin) ? line : "EOF\n", stdout);
        } else if (IS("fds", 0)) {
            list_fds();
        } else if (IS("cwd", 0)) {
            char dir[4096];
            puts(getcwd(dir, sizeof(dir)) ? dir : strerror(errno));
        } else if (IS("cpus", 0)) {
            cpu_set_t set;
            sched_getaffinity(0, sizeof(set), &set);
            printf("cpus");
            for (int k = 0; k < CPU_SETSIZE; k++)
                if (CPU_ISSET(k, &set))
                    printf(" %d", k);
            printf("\n");
        } else if (IS("sigs", 0)) {
            print_masks();
        } else if (IS("if-rank", 1)) {
            skip = env_int("RANK") != atoi(argv[++i]);
        } else if (IS("if-local", 1)) {
            skip = env_int("LOCAL_RANK") != atoi(argv[++i]);
        } else if (IS("if-node", 1)) {
            skip = env_int("GROUP_RANK") != atoi(argv[++i]);
        } else if (IS("if-attempt", 1)) {
            skip = env_int("TORCHELASTIC_RESTART_COUNT") != atoi(argv[++i]);
        } else {
            fprintf(stderr, "worker: what is '%s'?\n", c);
            return 2;
        }
        if (skip) { /* passes over the next command and its arguments */
            static const char *const one[] = {"print", "err",   "env",   "append", "ignore",
                                              "exit",  "raise", "sleep", "wait"};
            static const char *const two[] = {"trap", "exit-on", "spew", "wait-lines", "wait-text"};
            while (++i < argc && strncmp(argv[i], "if-", 3) == 0)
                i++;
            int args = 0;
            for (size_t k = 0; i < argc && k < sizeof(one) / sizeof(one[0]); k++)
                args = strcmp(argv[i], one[k]) == 0 ? 1 : args;
            for (size_t k = 0; i < argc && k < sizeof(two) / sizeof(two[0]); k++)
                args = strcmp(argv[i], two[k]) == 0 ? 2 : args;
            i += args;
        }
    }
    return 0;
}
