/* reserve.h: address space over a file in memory, of which only what is touched becomes memory. */
#ifndef CORE_RESERVE_H
#define CORE_RESERVE_H

#include <stddef.h>

/* Maps `bytes` of the file, shared, to read and write; MAP_FAILED with errno. A core dump leaves
 * the mapping out, since dumping would read, and so allocate, every page of it; and it is not
 * locked in memory, even after mlockall(MCL_FUTURE), which would allocate every page, too. */
void *reserve_map(int fd, size_t bytes);

/* The most address space that a process may reserve in all: a quarter of the address space of its
 * processor. */
size_t reserve_limit(void);

#endif
