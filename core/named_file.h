/* named_file.h: opening the files that users name in options, for writing.
 *
 * Other users can put files, FIFOs and symbolic links into folders such as /tmp, under the name
 * that somebody is about to use. The rule against that is the kernel's (fs.protected_symlinks,
 * _regular, _fifos and _hardlinks in proc(5)), which not every system has switched on: in a folder
 * that everybody can write to, a file or link is used only if it belongs to this user, to root or
 * to the folder's owner. Below a folder that another user made in such a place only this user's own
 * files and links, and root's, are used. Links in /proc, where /dev/stdout leads, are the kernel's.
 */
#ifndef CORE_NAMED_FILE_H
#define CORE_NAMED_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "core/err.h"

/* The place to which a path leads when its symbolic links have been followed: a name in an open
 * folder. */
struct named_file {
    int folder;              /* owned, O_PATH */
    char name[NAME_MAX + 1]; /* not a symbolic link, unless in_proc */
    bool exists, in_proc;
    struct stat st; /* if the file exists; in_proc: of the file that the link leads to */
    uid_t own;      /* the owner of this user's files there */
    bool foreign;   /* below a folder that another user made in a shared one */
};

/* The owner of the files that this user makes in the folder of `path`: not this user where a file
 * server maps users (root squash). Makes a file beside `path` and removes the new file; -errno: no
 * file can be made. */
int named_file_owner(const char *path, uid_t *own);

/* Follows the links of the path. follow: a link at the end of the path, too; else such a link is
 * -ELOOP. The name may be free (exists is false), its folder must be there. -EPERM: the rule
 * forbids it. Closes nothing on success: named_file_fini(). */
int named_file_find(struct named_file *f, const char *path, bool follow, struct err *e);
/* named_file_find() where this user's files belong to `own`. */
int named_file_find_as(struct named_file *f, const char *path, bool follow, uid_t own,
                       struct err *e);
void named_file_fini(struct named_file *f);

/* open(2) under the rule, and never waits: a FIFO without a reader is an error. Returns a
 * descriptor that blocks and is closed on exec. `flags`: as for open(), without O_TRUNC; O_NOFOLLOW
 * refuses a link at the end of the path. */
int named_file_open(const char *path, int flags, mode_t mode, struct err *e);
/* named_file_open() where this user's files belong to `own`. */
int named_file_open_as(const char *path, int flags, mode_t mode, uid_t own, struct err *e);
/* named_file_open() for a path that was found. `path` is for messages. -EEXIST: with O_CREAT,
 * another process has made the file since. */
int named_file_open_found(const struct named_file *f, const char *path, int flags, mode_t mode,
                          struct err *e);

#endif
