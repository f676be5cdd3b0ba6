/* exec_why.h: describes why a program cannot be executed; finds programs. */
#ifndef AGENT_PROCESS_EXEC_WHY_H
#define AGENT_PROCESS_EXEC_WHY_H

#include "core/err.h"

/* Describes why execve(path, argv, envp) failed with `errnum`: a missing interpreter is not a
 * missing file, a foreign architecture is named, a directory, a missing x bit, a noexec mount, an
 * argument list that is too long (with the largest variables by name). A relative path is looked at
 * from `cwd` (NULL: ours). Returns the exit code: 127 or 126. */
int exec_why(const char *path, char *const *argv, char *const *envp, const char *cwd, int errnum,
             struct err *e);

/* The checks of exec_why() before anything is started: 0 when `path` can be executed as far as one
 * can tell, else -errno with the text, and *exit_code 126 or 127. */
int exec_check(const char *path, int *exit_code, struct err *e);

/* Searches PATH (of this process) for `name` as execvp() would; a name with a slash is taken as it
 * is. Returns a malloc'ed path, or NULL with the error (-ENOENT or -EACCES). */
char *exec_find(const char *name, struct err *e);

#endif
