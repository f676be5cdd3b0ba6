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

/* Opens /dev/null in place of those of standard input, output and error that are closed, so that a
 * file that is opened later does not get one of their numbers. */
void fd_open_std(void);

/* For a library: the program may have closed one of the three, and what is opened in its place
 * would be written to, or replaced. Takes fd; returns owned the same thing at a number that is none
 * of them, to be closed on exec. -1 with errno: fd was that, or there is no other number. */
int fd_above_std(int fd);

/* Writes all of it to a blocking descriptor, through EINTR and short writes. 0 or -errno. */
int fd_write_all(int fd, const void *p, size_t n);

/* The same, for a reader that may take nothing: -ETIMEDOUT when it has not for `ms`, if give_up is
 * NULL or set. */
int fd_write_patiently(int fd, const void *p, size_t n, int ms, const atomic_bool *give_up);

/* Reads the whole of a small file, at most cap-1 bytes, terminated. Returns the length or -errno;
 * -EFBIG when it is longer. dirfd may be AT_FDCWD. */
ssize_t fd_read_file(int dirfd, const char *path, char *out, size_t cap);

/* The width of the terminal that fd is, 80 if it has none; 0: it is not a terminal. */
int fd_columns(int fd);

#endif
