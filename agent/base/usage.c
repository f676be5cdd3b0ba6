#include "agent/base/usage.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"

bool usage_read(int pid, double *cpu_s, double *rss_bytes)
{
    char path[40], text[1024];
    unsigned long user, system;
    long rss;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
        return false;
    const char *end_of_name = strrchr(text, ')');
    if (!end_of_name || sscanf(end_of_name,
                               ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d "
                               "%*d %*d %*d %*u %*u %ld",
                               &user, &system, &rss) != 3)
        return false;
    *cpu_s = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    *rss_bytes = (double)rss * (double)sysconf(_SC_PAGESIZE);
    return true;
}
