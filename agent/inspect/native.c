#include "agent/inspect/native.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/inspect/libdw_api.h"
#include "agent/inspect/remote.h"
#include "core/clock.h"
#include "core/fd.h"

#define STACK_BYTES (128u << 10) /* of a stack that are copied at once */
#define PAGE        4096u
#define STOP_MS     20 /* for a thread to stop; one that hangs in the kernel does not */

/* DWARF's numbers. */
#if defined(__x86_64__)
enum { REGS = 17, REG_FP = 6, REG_SP = 7, REG_PC = 16 };
#elif defined(__aarch64__)
enum { REGS = 32, REG_FP = 29, REG_SP = 31, REG_PC = -1 };
#else
enum { REGS = 1, REG_FP = -1, REG_SP = -1, REG_PC = -1 };
#endif

struct registers {
    uint64_t r[REGS], sp, pc, fp; /* fp: 0 when not known */
    bool all;                     /* else only sp and pc are known */
};

/* A process that is being unwound. */
struct native {
    const struct libdw_api *api;
    pid_t pid;
    Dwfl *dwfl;
    struct registers regs; /* of the present thread */
    size_t stack_len;      /* of the thread's copied stack, which begins at regs.sp */
    uint64_t page_at;      /* memory that was read beside the stack; 0: none */
    uint8_t stack[STACK_BYTES], page[PAGE];
    struct sample_thread *thread;
    bool whole; /* the thread's outermost frame was reached */
};

/* ------------------------------------------------------------------------------------ registers */

#if defined(__x86_64__)
static void take_registers(struct registers *to, const struct user_regs_struct *u)
{
    const uint64_t r[REGS] = {u->rax, u->rdx, u->rcx, u->rbx, u->rsi, u->rdi, u->rbp, u->rsp, u->r8,
                              u->r9,  u->r10, u->r11, u->r12, u->r13, u->r14, u->r15, u->rip};
    memcpy(to->r, r, sizeof(r));
    to->sp = u->rsp;
    to->pc = u->rip;
    to->all = true;
}
#elif defined(__aarch64__)
static void take_registers(struct registers *to, const struct user_regs_struct *u)
{
    memcpy(to->r, u->regs, 31 * sizeof(uint64_t));
    to->r[31] = to->sp = u->sp;
    to->pc = u->pc;
    to->all = true;
}
#endif

static void copy_stack(struct native *n)
{
    ssize_t got = remote_read(n->pid, n->regs.sp, n->stack, sizeof(n->stack));
    n->stack_len = got > 0 ? (size_t)got : 0;
    n->page_at = 0;
}

/* /proc/.../syscall has the two registers of a thread that sleeps: "NR args... SP PC" or "-1 SP
 * PC". */
static bool read_sleeping(struct native *n, int tid)
{
    char path[64], text[256];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", (int)n->pid, tid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0 || strncmp(text, "running", 7) == 0)
        return false;
    char *pc = strrchr(text, ' '), *sp;
    if (!pc)
        return false;
    *pc = '\0';
    sp = strrchr(text, ' ');
    if (!sp)
        return false;
    n->regs = (struct registers){.sp = strtoull(sp + 1, NULL, 0), .pc = strtoull(pc + 1, NULL, 0)};
    copy_stack(n);
    return n->regs.pc && n->stack_len;
}

/* 0: the thread is stopped; *signo is a signal that has to be given back, or 0. Else an errno. */
static int await_stop(int tid, int *signo)
{
    uint64_t until = mono_ns() + STOP_MS * 1000000ull;
    int status;
    for (pid_t got; (got = waitpid(tid, &status, __WALL | WNOHANG)) != tid;) {
        if (got < 0)
            return errno;
        if (mono_ns() > until)
            return ETIMEDOUT;
        usleep(5);
    }
    if (!WIFSTOPPED(status))
        return ESRCH;
    *signo = status >> 16 ? 0 : WSTOPSIG(status);
    return 0;
}

/* Stops the thread for as long as it takes to copy what is needed. 0 or an errno. */
static int read_stopped(struct native *n, int tid, uint32_t *stopped_us)
{
#if defined(__x86_64__) || defined(__aarch64__)
    struct user_regs_struct u;
    struct iovec iov = {&u, sizeof(u)};
    int signo = 0;
    if (ptrace(PTRACE_SEIZE, tid, 0, 0) < 0)
        return errno;
    uint64_t from = mono_ns();
    int rc = ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0 ? errno : await_stop(tid, &signo);
    if (rc) /* the thread runs on when this process ends */
        return rc;
    if (ptrace(PTRACE_GETREGSET, tid, (void *)1, &iov) < 0) { /* NT_PRSTATUS */
        rc = errno;
    } else {
        take_registers(&n->regs, &u);
        copy_stack(n);
    }
    ptrace(PTRACE_DETACH, tid, 0, (void *)(intptr_t)signo);
    uint64_t us = (mono_ns() - from + 999) / 1000;
    if (us > *stopped_us)
        *stopped_us = (uint32_t)us;
    return rc;
#else
    (void)n, (void)tid, (void)stopped_us;
    return ENOSYS;
#endif
}

/* ---------------------------------------------------------------------------- libdw's callbacks */

static pid_t next_thread(Dwfl *d, void *arg, void **thread_arg)
{
    struct native *n = arg;
    (void)d;
    if (*thread_arg)
        return 0;
    *thread_arg = n;
    return n->thread->tid;
}

static bool get_thread(Dwfl *d, pid_t tid, void *arg, void **thread_arg)
{
    (void)d, (void)tid;
    *thread_arg = arg;
    return true;
}

static bool set_registers(Dwfl_Thread *t, void *arg)
{
    struct native *n = arg;
    const struct libdw_api *api = n->api;
    const struct registers *r = &n->regs;
    if (r->all && !api->dwfl_thread_state_registers(t, 0, REGS, r->r))
        return false;
    if (!r->all && !api->dwfl_thread_state_registers(t, REG_SP, 1, &r->sp))
        return false;
    if (!r->all && r->fp && !api->dwfl_thread_state_registers(t, REG_FP, 1, &r->fp))
        return false;
    if (REG_PC >= 0)
        return r->all || api->dwfl_thread_state_registers(t, REG_PC, 1, &r->pc);
    api->dwfl_thread_state_register_pc(t, r->pc);
    return true;
}

static bool read_memory(Dwfl *d, uint64_t addr, uint64_t *result, void *arg)
{
    struct native *n = arg;
    (void)d;
    if (addr >= n->regs.sp && addr - n->regs.sp + sizeof(*result) <= n->stack_len) {
        memcpy(result, n->stack + (addr - n->regs.sp), sizeof(*result));
        return true;
    }
    uint64_t page = addr & ~(uint64_t)(PAGE - 1);
    if (addr - page + sizeof(*result) > PAGE)
        return remote_get(n->pid, addr, result, sizeof(*result));
    if (page != n->page_at && !remote_get(n->pid, page, n->page, PAGE))
        return false;
    n->page_at = page;
    memcpy(result, n->page + (addr - page), sizeof(*result));
    return true;
}

static const struct libdw_thread_callbacks thread_callbacks = {
    .next_thread = next_thread,
    .get_thread = get_thread,
    .memory_read = read_memory,
    .set_initial_registers = set_registers,
};

/* --------------------------------------------------------------------------------------- frames */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The name without the parameters that a C++ function has, and without a version. */
static void put_name(const char *name, char out[160])
{
    char *cxx = strncmp(name, "_Z", 2) == 0 ? libdw_demangle(name) : NULL;
    snprintf(out, 160, "%s", cxx ? cxx : name);
    char *end = strchr(out, cxx ? '(' : '@');
    free(cxx);
    if (end && end > out)
        *end = '\0';
}

/* The functions in which the program proper, and a thread, begin. */
static bool is_outermost(const char *name)
{
    static const char *const names[] = {"main",   "_start",  "start_thread", "clone",
                                        "clone3", "__clone", "__clone3",     "__libc_start_main"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

enum { GO_ON = 0, ENOUGH = 1 }; /* libdw's DWARF_CB_OK, DWARF_CB_ABORT */

static int on_frame(Dwfl_Frame *frame, void *arg)
{
    struct native *n = arg;
    const struct libdw_api *api = n->api;
    uint64_t pc, offset, start = 0;
    bool activation;
    Elf64_Sym sym;
    char text[SAMPLE_TEXT_MAX], name[160];
    if (!api->dwfl_frame_pc(frame, &pc, &activation))
        return ENOUGH;
    if (!activation)
        pc--; /* a return address belongs to the line of the call */
    Dwfl_Module *m = api->dwfl_addrmodule(n->dwfl, pc);
    const char *symbol =
        m ? api->dwfl_module_addrinfo(m, pc, &offset, &sym, NULL, NULL, NULL) : NULL;
    const char *module =
        m ? api->dwfl_module_info(m, NULL, &start, NULL, NULL, NULL, NULL, NULL) : "";
    Dwfl_Line *line = m && !sample_is_libc(module) ? api->dwfl_module_getsrc(m, pc) : NULL;
    int number = 0;
    const char *file = line ? api->dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
    put_name(symbol ? symbol : "", name);
    if (symbol && file)
        snprintf(text, sizeof(text), "%s (%.80s:%d)", name, base_name(file), number);
    else if (symbol)
        snprintf(text, sizeof(text), "%s (%.80s)", name, base_name(module));
    else /* equal in all processes, wherever the kernel has put the module */
        snprintf(text, sizeof(text), "0x%llx (%.80s)", (unsigned long long)(pc - start),
                 base_name(module));
    bool outermost = symbol && is_outermost(name);
    if (!outermost || strcmp(name, "main") == 0)
        sample_add_frame(n->thread, text);
    n->whole |= outermost;
    return n->whole || n->thread->nframes == SAMPLE_FRAMES_MAX ? ENOUGH : GO_ON;
}

static void unwind(struct native *n)
{
    sample_drop_frames(n->thread);
    n->whole = false;
    n->api->dwfl_getthread_frames(n->dwfl, n->thread->tid, on_frame, n);
    sample_reverse(n->thread);
}

/* Code with frame pointers needs one more register than /proc has. It points to a caller's saved
 * frame pointer, which points further up the stack, with a return address above it: the lowest such
 * pair with which the stack can be followed to its end is taken. */
static bool unwind_by_guess(struct native *n)
{
    enum { GUESSES = 32 };
    int guesses = 0;
    for (size_t at = 0; at + 16 <= n->stack_len && guesses < GUESSES; at += 8) {
        uint64_t pair[2], slot = n->regs.sp + at;
        memcpy(pair, n->stack + at, sizeof(pair));
        bool up = pair[0] > slot && pair[0] - n->regs.sp < n->stack_len;
        bool outermost = pair[0] < PAGE;
        if ((!up && !outermost) || !n->api->dwfl_addrmodule(n->dwfl, pair[1]))
            continue;
        n->regs.fp = slot;
        unwind(n);
        if (n->whole)
            return true;
        guesses++;
    }
    return false;
}

static void read_native_thread(struct native *n, struct sample *s)
{
    int tid = n->thread->tid;
    if (n->thread->state != 'R' && read_sleeping(n, tid)) {
        unwind(n);
        if (n->whole || unwind_by_guess(n))
            return;
    }
    int found = n->thread->nframes, rc = read_stopped(n, tid, &s->stopped_us);
    if (rc == 0)
        unwind(n);
    else if (found == 0 && !s->note[0])
        snprintf(s->note, sizeof(s->note), "no stack of thread %d: %s", tid,
                 rc == EPERM       ? "not permitted (seccomp, or kernel.yama.ptrace_scope)"
                 : rc == ETIMEDOUT ? "it does not leave the kernel"
                                   : strerrordesc_np(rc));
}

/* The modules of the process; false: libdw cannot read them. */
static bool open_modules(struct native *n)
{
    const struct libdw_api *api = n->api;
    static struct libdw_callbacks callbacks;
    callbacks =
        (struct libdw_callbacks){.find_elf = *(void **)&api->dwfl_linux_proc_find_elf,
                                 .find_debuginfo = *(void **)&api->dwfl_standard_find_debuginfo};
    n->dwfl = api->dwfl_begin(&callbacks);
    if (!n->dwfl)
        return false;
    api->dwfl_report_begin(n->dwfl);
    return api->dwfl_linux_proc_report(n->dwfl, n->pid) == 0 &&
           api->dwfl_report_end(n->dwfl, NULL, NULL) == 0 &&
           api->dwfl_attach_state(n->dwfl, NULL, n->pid, &thread_callbacks, n);
}

void native_read(struct sample *s)
{
    static struct native n;
    n = (struct native){.api = libdw_api(), .pid = s->pid};
    if (!n.api) {
        if (!s->note[0])
            snprintf(s->note, sizeof(s->note),
                     "no native stacks: libdw.so.1 is not installed (package libdw1)");
        return;
    }
    if (!open_modules(&n) && !s->note[0])
        snprintf(s->note, sizeof(s->note), "libdw cannot read the program's mapped files");
    else
        for (int i = 0; i < s->nthreads; i++) {
            n.thread = &s->threads[i];
            if (!n.thread->nframes)
                read_native_thread(&n, s);
        }
    if (n.dwfl)
        n.api->dwfl_end(n.dwfl);
}
