#include "agent/base/signals.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>

#include "core/mem.h"

static const struct {
    const char *name, *meaning;
} signals[] = {
    [SIGHUP] = {"SIGHUP", "hangup"},
    [SIGINT] = {"SIGINT", "interrupt"},
    [SIGQUIT] = {"SIGQUIT", "quit"},
    [SIGILL] = {"SIGILL", "illegal instruction"},
    [SIGTRAP] = {"SIGTRAP", "trace trap"},
    [SIGABRT] = {"SIGABRT", "abort"},
    [SIGBUS] = {"SIGBUS", "bus error"},
    [SIGFPE] = {"SIGFPE", "arithmetic exception"},
    [SIGKILL] = {"SIGKILL", NULL},
    [SIGUSR1] = {"SIGUSR1", NULL},
    [SIGSEGV] = {"SIGSEGV", "segmentation fault"},
    [SIGUSR2] = {"SIGUSR2", NULL},
    [SIGPIPE] = {"SIGPIPE", "broken pipe"},
    [SIGALRM] = {"SIGALRM", "alarm clock"},
    [SIGTERM] = {"SIGTERM", NULL},
    [SIGSTKFLT] = {"SIGSTKFLT", "stack fault"},
    [SIGCHLD] = {"SIGCHLD", NULL},
    [SIGCONT] = {"SIGCONT", NULL},
    [SIGSTOP] = {"SIGSTOP", NULL},
    [SIGTSTP] = {"SIGTSTP", NULL},
    [SIGTTIN] = {"SIGTTIN", "terminal input"},
    [SIGTTOU] = {"SIGTTOU", "terminal output"},
    [SIGURG] = {"SIGURG", NULL},
    [SIGXCPU] = {"SIGXCPU", "CPU time limit"},
    [SIGXFSZ] = {"SIGXFSZ", "file size limit"},
    [SIGVTALRM] = {"SIGVTALRM", "virtual alarm clock"},
    [SIGPROF] = {"SIGPROF", "profiling alarm clock"},
    [SIGWINCH] = {"SIGWINCH", NULL},
    [SIGIO] = {"SIGIO", NULL},
    [SIGPWR] = {"SIGPWR", "power failure"},
    [SIGSYS] = {"SIGSYS", "bad system call"},
};

const char *signal_name(int signo, char out[24])
{
    if (signo > 0 && signo < (int)ARRAY_LEN(signals) && signals[signo].name)
        return signals[signo].name;
    if (signo == SIGRTMIN)
        return "SIGRTMIN";
    if (signo == SIGRTMAX)
        return "SIGRTMAX";
    if (signo > SIGRTMIN && signo < SIGRTMAX)
        snprintf(out, 24, "SIGRTMIN+%d", signo - SIGRTMIN);
    else
        snprintf(out, 24, "signal %d", signo);
    return out;
}

const char *signal_meaning(int signo)
{
    return signo > 0 && signo < (int)ARRAY_LEN(signals) ? signals[signo].meaning : NULL;
}
