#include "agent/base/own_file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"

const char *own_file_find(const char *name, char *out, size_t cap)
{
    static const char *const places[] = {"", "/../libexec/dlaunch", "/../lib", "/../lib/dlaunch"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    *out = '\0';
    if (!slash)
        return NULL;
    *slash = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        int len = snprintf(out, cap, "%s%s/%s", self, places[i], name);
        if ((size_t)len < cap && access(out, F_OK) == 0)
            return out;
    }
    snprintf(out, cap, "%s", self);
    return NULL;
}
