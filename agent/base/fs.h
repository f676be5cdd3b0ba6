/* fs.h: file system work that several files of this folder share. */
#ifndef AGENT_BASE_FS_H
#define AGENT_BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"

/* Eight random letters, digits and '_', terminated: the end of a name that nobody can guess. */
#define FS_SUFFIX_LEN 8
void fs_random_suffix(char out[FS_SUFFIX_LEN + 1]);

/* Temporary files and directories are named <prefix><suffix>, and their owner holds a lock on each
 * of them until it ends. */

/* Locks a temporary file that the caller has just made. False: a sweep removed it meanwhile, so the
 * caller makes another one. A file system without locks is not an error. */
bool fs_lock_temporary(int fd);

/* Removes temporary files of this user whose owners have ended: those of `type` (S_IFIFO, or
 * S_IFDIR, which must be empty unless `whole`) with this prefix, in the directory of `path`. Looks
 * at FS_SWEEP_MAX directory entries at most, because the loop waits for it. */
#define FS_SWEEP_MAX 1000
void fs_sweep_temporary(const char *path, const char *prefix, mode_t type, bool whole);

/* Removes a directory and all that is in it, and follows no link. */
void fs_remove_tree(const char *path);

/* Makes `len` bytes the whole content of `path`, under the rule of core/named_file.h. A reader sees
 * the old content or the new, never a part. A new file gets mode 0666 less the umask, an old one
 * keeps its mode; the target of a symbolic link is replaced, not the link. What is not a regular
 * file (a FIFO that a process reads), and standard output by its name, is written to instead, and
 * -ETIMEDOUT is returned if the reader takes nothing for 5 s. An old file that is a mount point, or
 * whose folder takes no other file, is overwritten in place; a reader may then see a part. */
int fs_replace_file(const char *path, const void *data, size_t len, struct err *e);

/* Does what fs_replace_file() does on a thread of its own, for a caller that cannot wait for good:
 * -ETIMEDOUT when the file server has not answered within FS_TIMEOUT_MS; the file may then be
 * written later. */
#define FS_TIMEOUT_MS 6000
int fs_replace_file_timed(const char *path, const void *data, size_t len, struct err *e);

#endif
