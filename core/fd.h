/* fd.h: file descriptors that close themselves, and the few helpers around them.
 *
 *     _cleanup_fd_ int fd = open(...);      closed when the scope ends
 *     return take_fd(&fd);                  handed on: the scope no longer closes it */
#ifndef CORE_FD_H
#define CORE_FD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

void close_fd(int *fd); /* closes *fd unless negative, keeps errno, sets -1 */
#define _cleanup_fd_ __attribute__((cleanup(close_fd)))

static inline int take_fd(int *fd)
{
    int v = *fd;
    *fd = -1;
    return v;
}

int fd_set_cloexec(int fd, bool on);  /* 0 or -errno */
int fd_set_nonblock(int fd, bool on); /* 0 or -errno */

/* Opens /dev/null in place of standard input, output or error where one is closed, so that no file
 * that is opened later gets the number of a standard stream. */
void fd_open_std(void);

/* For a library: the program may have closed a standard stream, and would write to, or replace, a
 * file that the library opens at the number of that stream. Takes fd; returns, owned, a descriptor
 * of the same file whose number is above the standard streams, closed on exec. -1 with errno: fd
 * was -1, or no number is free. */
int fd_above_std(int fd);

/* Writes all `n` bytes to a blocking descriptor, through EINTR and short writes. 0 or -errno. */
int fd_write_all(int fd, const void *p, size_t n);

/* Writes all `n` bytes to a reader that may take nothing: -ETIMEDOUT when the reader has taken
 * nothing for `ms`, if give_up is NULL or set. */
int fd_write_timed(int fd, const void *p, size_t n, int ms, const atomic_bool *give_up);

/* Reads the whole of a small file, at most cap-1 bytes, terminated. Returns the length or -errno;
 * -EFBIG when it is longer. dirfd may be AT_FDCWD. */
ssize_t fd_read_file(int dirfd, const char *path, char *out, size_t cap);

/* The width of the terminal that fd is, 80 if it has none; 0: it is not a terminal. */
int fd_columns(int fd);

#endif
