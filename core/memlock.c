#include "core/memlock.h"

#include <dirent.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LEAST = 64 << 20 }; /* bytes; NCCL registers several MiB for each connection */

static bool is_empty(const char *dir)
{
    bool empty = true;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && empty && (e = readdir(d));)
        empty = e->d_name[0] == '.';
    if (d)
        closedir(d);
    return empty;
}

/* Whether the kernel exempts this process from the limit. */
static bool is_exempt(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
    return syscall(SYS_capget, &header, caps) == 0 && caps[0].effective & 1u << CAP_IPC_LOCK;
}

bool memlock_is_low(const char *cards, char *out, size_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur >= LEAST || is_exempt() ||
        is_empty(cards))
        return false;
    snprintf(out, size,
             "only %llu KiB of memory may be locked, which is too little for NCCL over InfiniBand: "
             "raise the limit (ulimit -l unlimited; systemd: LimitMEMLOCK=infinity)",
             (unsigned long long)limit.rlim_cur / 1024);
    return true;
}
