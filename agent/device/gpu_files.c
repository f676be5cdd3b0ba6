#include "agent/device/gpu_files.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/sweep.h"

#define FAMILY_MAX 32 /* processes of a worker that are looked at */

/* The number of "<dev_dir>/nvidia<n>"; -1: the path is another one. */
static int minor_of(const char *path, const char *dev_dir)
{
    size_t n = strlen(dev_dir);
    if (strncmp(path, dev_dir, n) != 0 || strncmp(path + n, "/nvidia", 7) != 0 ||
        !isdigit((unsigned char)path[n + 7]))
        return -1;
    char *end;
    long minor = strtol(path + n + 7, &end, 10);
    return *end || minor > 63 ? -1 : (int)minor;
}

static uint64_t minors_of(pid_t pid, const char *dev_dir)
{
    char path[64], target[256];
    uint64_t minors = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = '\0';
        int minor = minor_of(target, dev_dir);
        if (minor >= 0)
            minors |= UINT64_C(1) << minor;
    }
    if (d)
        closedir(d);
    return minors;
}

bool gpu_files_of(pid_t pid, const char *dev_dir, struct gpu_files *out)
{
    pid_t family[FAMILY_MAX] = {pid};
    int n = 1;
    *out = (struct gpu_files){0};
    for (int i = 0; i < n && !out->minors; i++) {
        out->minors = minors_of(family[i], dev_dir);
        out->pid = out->minors ? family[i] : 0;
        if (!out->minors && n < FAMILY_MAX) {
            int more = sweep_children_of(family[i], family + n, FAMILY_MAX - n);
            n = n + more < FAMILY_MAX ? n + more : FAMILY_MAX;
        }
    }
    return out->minors != 0;
}
