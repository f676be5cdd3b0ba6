#include "collectives/bootstrap/host_id.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "core/fd.h"

uint64_t host_id(void)
{
    char boot[64] = "";
    struct stat st = {0};
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    if (fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) < 0)
        boot[0] = '\0';
    if (stat("/proc/self/ns/net", &st) < 0)
        st.st_ino = 0;
    for (const char *p = boot; *p; p++)
        h = (h ^ (uint8_t)*p) * 1099511628211u;
    return (h ^ st.st_ino) * 1099511628211u;
}
