/* libdw_api.h: the functions of elfutils' libdw.so.1 that unwind stacks and name addresses, loaded
 * when a stack is first asked for. Their declarations are elfutils' (libdwfl.h, 0.158 and later):
 * the library keeps its binary interface, so its headers are not needed. */
#ifndef AGENT_INSPECT_LIBDW_API_H
#define AGENT_INSPECT_LIBDW_API_H

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct Dwfl Dwfl;
typedef struct Dwfl_Module Dwfl_Module;
typedef struct Dwfl_Thread Dwfl_Thread;
typedef struct Dwfl_Frame Dwfl_Frame;
typedef struct Dwfl_Line Dwfl_Line;

struct libdw_callbacks {
    void *find_elf, *find_debuginfo, *section_address;
    char **debuginfo_path;
};

struct libdw_thread_callbacks {
    pid_t (*next_thread)(Dwfl *d, void *arg, void **thread_arg);
    bool (*get_thread)(Dwfl *d, pid_t tid, void *arg, void **thread_arg);
    bool (*memory_read)(Dwfl *d, uint64_t addr, uint64_t *result, void *arg);
    bool (*set_initial_registers)(Dwfl_Thread *t, void *thread_arg);
    void (*detach)(Dwfl *d, void *arg);
    void (*thread_detach)(Dwfl_Thread *t, void *thread_arg);
};

/* Return type, name, parameters. */
#define LIBDW_FUNCTIONS(F)                                                                 \
    F(Dwfl *, dwfl_begin, (const struct libdw_callbacks *))                                \
    F(void, dwfl_end, (Dwfl *))                                                            \
    F(void, dwfl_report_begin, (Dwfl *))                                                   \
    F(int, dwfl_report_end, (Dwfl *, void *removed, void *arg))                            \
    F(int, dwfl_linux_proc_report, (Dwfl *, pid_t))                                        \
    F(int, dwfl_linux_proc_find_elf, (void))     /* passed on, never called from here */   \
    F(int, dwfl_standard_find_debuginfo, (void)) /* the same */                            \
    F(bool, dwfl_attach_state,                                                             \
      (Dwfl *, void *elf, pid_t, const struct libdw_thread_callbacks *, void *arg))        \
    F(int, dwfl_getthread_frames,                                                          \
      (Dwfl *, pid_t, int (*each)(Dwfl_Frame *, void *arg), void *arg))                    \
    F(bool, dwfl_thread_state_registers, (Dwfl_Thread *, int, unsigned, const uint64_t *)) \
    F(void, dwfl_thread_state_register_pc, (Dwfl_Thread *, uint64_t))                      \
    F(bool, dwfl_frame_pc, (Dwfl_Frame *, uint64_t * pc, bool *is_activation))             \
    F(Dwfl_Module *, dwfl_addrmodule, (Dwfl *, uint64_t))                                  \
    F(const char *, dwfl_module_info,                                                      \
      (Dwfl_Module *, void ***, uint64_t *, uint64_t *, uint64_t *, uint64_t *,            \
       const char **main_file, const char **debug_file))                                   \
    F(const char *, dwfl_module_addrinfo,                                                  \
      (Dwfl_Module *, uint64_t, uint64_t * offset, Elf64_Sym *, Elf64_Word *, void **elf,  \
       uint64_t *bias))                                                                    \
    F(Dwfl_Line *, dwfl_module_getsrc, (Dwfl_Module *, uint64_t))                          \
    F(const char *, dwfl_lineinfo, (Dwfl_Line *, uint64_t *, int *, int *, uint64_t *, uint64_t *))

struct libdw_api {
#define LIBDW_POINTER(type, name, params) type(*name) params;
    LIBDW_FUNCTIONS(LIBDW_POINTER)
#undef LIBDW_POINTER
};

/* NULL: libdw.so.1 is not installed. */
const struct libdw_api *libdw_api(void);

/* A C++ name as in the source, malloc'ed. NULL: it is none, or libstdc++ is not installed; loading
 * that takes as long as reading a stack, so only the first such name does. */
char *libdw_demangle(const char *name);

#endif
