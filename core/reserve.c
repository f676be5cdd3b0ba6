#include "core/reserve.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

/* A mapping without access gives the kernel nothing to populate while mlockall() is still in
 * force. */
void *reserve_map(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        return p;
    if (munlock(p, bytes) == 0 && mprotect(p, bytes, PROT_READ | PROT_WRITE) == 0) {
        (void)!madvise(p, bytes, MADV_DONTDUMP); /* else core files are larger */
        return p;
    }
    int errnum = errno;
    munmap(p, bytes);
    errno = errnum;
    return MAP_FAILED;
}

/* A stack lies near the upper end of the address space: 47 bits on x86-64, 39 or 48 on arm64. */
size_t reserve_limit(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    unsigned bits = (unsigned)(sizeof(unsigned long long) * 8) -
                    (unsigned)__builtin_clzll((unsigned long long)here);
    return (size_t)1 << (bits - 2);
}
