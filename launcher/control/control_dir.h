/* control_dir.h: where the control sockets of running launchers are: <folder>/<pid>.sock, or
 * <pid>-<random>.sock where another container's launcher has that pid, in the first of these
 * folders that is ours alone:
 *     $XDG_RUNTIME_DIR/dlaunch    /run/user/<uid>/dlaunch    $TMPDIR/dlaunch-<uid>
 *     /tmp/dlaunch-<uid>
 *
 * Slurm kills a step that is cancelled with SIGKILL, the launcher with its guardian, and nobody is
 * left who could remove a socket. In its jobs the socket has no file but an abstract address,
 * "dlaunch-<uid>/<pid>.sock", which ends with the launcher. Both ends check the user of the other.
 */
#ifndef LAUNCHER_CONTROL_CONTROL_DIR_H
#define LAUNCHER_CONTROL_CONTROL_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "core/err.h"

#define CONTROL_PATH_MAX 256 /* struct guardian_page keeps one of that size */

/* The index-th folder's name; false behind the last. Some may be the same as an earlier one. */
bool control_dir_path(int index, char out[CONTROL_PATH_MAX - 32]);

/* Opens the folder, made with mode 0700 when `create` and absent. -EPERM when it is a link, another
 * user's, or open to others. Returns the descriptor. */
int control_dir_open(const char *path, bool create, struct err *e);

/* The pid in the name of a control socket; 0: it is not one. */
long control_dir_pid(const char *name);

/* Whether nobody listens on the socket: its launcher has been killed, or has not listened yet. */
bool control_dir_is_deaf(int dirfd, const char *name);

/* The end of the name of a file about a job that has ended (control_keep()). */
#define CONTROL_ENDED       ".ended"
#define CONTROL_ENDED_HOURS 24
#define CONTROL_ENDED_MAX   64 /* files in a folder, the newest */
bool control_dir_is_ended(const char *name);

/* Removes the sockets of launchers that were killed, and files about jobs that ended long ago. */
void control_dir_sweep(int dirfd);

/* The address of a socket in an open folder, through /proc: neither a long path nor a folder that
 * is exchanged meanwhile matters. CONTROL_NO_DIR: in the kernel's abstract namespace. Returns the
 * length. */
#define CONTROL_NO_DIR (-1)
socklen_t control_dir_address(struct sockaddr_un *a, int dirfd, const char *name);

/* Calls visit with the name of each abstract socket of this user's that a launcher listens on. */
void control_dir_abstract(void (*visit)(void *arg, const char *name), void *arg);

#endif
