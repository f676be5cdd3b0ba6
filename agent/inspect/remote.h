/* remote.h: another process's memory and its mapped files, read from outside while it runs. */
#ifndef AGENT_INSPECT_REMOTE_H
#define AGENT_INSPECT_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Copies memory of the process; no other thread of it notices. Returns how many bytes could be
 * read, from the beginning; -errno if none could. */
ssize_t remote_read(pid_t pid, uint64_t addr, void *out, size_t n);
/* Copies all bytes, or returns false. */
bool remote_get(pid_t pid, uint64_t addr, void *out, size_t n);

struct remote_map {
    uint64_t start, end, offset;
    char path[512]; /* the file's name in the process's mappings; "": no file */
};
/* Calls each() for its mappings until it returns false. 0 or -errno. */
int remote_maps(pid_t pid, bool (*each)(void *arg, const struct remote_map *m), void *arg);

/* The environment with which the process was started: strings, each with its NUL, then one more
 * NUL. To be freed; NULL: it cannot be read. */
char *remote_environ(pid_t pid);
/* The value of a variable in such an environment, or NULL. */
const char *remote_env(const char *environment, const char *name);

/* The address, in the process, of a section of the ELF file that begins in this mapping; 0: the
 * file has no such section. */
uint64_t remote_section(pid_t pid, const struct remote_map *m, const char *section);

#endif
