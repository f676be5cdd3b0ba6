/* program_needs.h: what a program lacks that execve() does not ask for: the interpreter that env(1)
 * looks up for a script, and the shared libraries of a program or of its interpreter. */
#ifndef AGENT_DOCTOR_PROGRAM_NEEDS_H
#define AGENT_DOCTOR_PROGRAM_NEEDS_H

#include <stdbool.h>
#include <stddef.h>

/* Runs a command with a deadline and returns its wait status (negative: none) and output. */
typedef int program_run_fn(char *const argv[], char *const envp[], int ms, char *out, size_t cap);

/* Whether something is missing for `path` in this environment; `out` says what, in one line. The
 * program is not executed: its dynamic loader lists what it would load, which includes what
 * RUNPATH, LD_LIBRARY_PATH and ld.so.cache find, and symbol versions. */
bool program_lacks(const char *path, char *const envp[], program_run_fn *run, char *out,
                   size_t cap);

#endif
