/* mem.h: allocation for the launcher's own processes.
 *
 * A launcher that cannot get a few kilobytes cannot run a job: the launcher says so and exits with
 * 125, and its guardian ends every worker. So these functions never return NULL. Sizes that a peer,
 * a worker or a file chooses are checked against a limit first and never reach them unbounded.
 * libdlcoll does not use this header: it returns DLCOLL_ENOMEM to the program. */
#ifndef CORE_MEM_H
#define CORE_MEM_H

#include <stddef.h>

void *xmalloc(size_t size) __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull));
void *xrealloc(void *p, size_t size) __attribute__((returns_nonnull));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
char *xstrndup(const char *s, size_t n) __attribute__((malloc, returns_nonnull));
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2), returns_nonnull));

struct buf;
/* Room for `extra` more bytes in b (core/bytes.h), all that was appended before being there. */
void xbuf_reserve(struct buf *b, size_t extra);

#define ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#endif
