#include "launcher/gpu.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 1024 /* devices in a list that are looked at */

/* Whether an entry (len bytes) is in the list before it, of `n` entries. */
static bool seen_before(const char *list, int n, const char *entry, size_t len)
{
    for (; n--; list += strcspn(list, ",") + 1) {
        while (*list == ' ')
            list++;
        size_t l = strcspn(list, ", ");
        if (l == len && memcmp(list, entry, len) == 0)
            return true;
    }
    return false;
}

int gpu_count_visible(const char *text, int present)
{
    const char *prefix = strncmp(text, "GPU-", 4) == 0   ? "GPU-"
                         : strncmp(text, "MIG-", 4) == 0 ? "MIG-"
                                                         : "";
    int n = 0;
    for (const char *s = text; n < LIST_MAX; s++) {
        while (isspace((unsigned char)*s))
            s++;
        size_t len = strcspn(s, ", ");
        bool ok = *prefix ? len > 4 && strncmp(s, prefix, 4) == 0 : isdigit((unsigned char)*s);
        if (!ok)
            break;
        if (!*prefix && present && strtol(s, NULL, 10) >= present)
            break;
        if (seen_before(text, n, s, len))
            return 0;
        n++;
        s += strcspn(s, ",");
        if (!*s)
            break;
    }
    return n;
}

static int count_proc(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (struct dirent *de; (de = readdir(d));)
        n += de->d_name[0] != '.';
    closedir(d);
    return n;
}

static int count_nvml(void)
{
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!lib)
        return 0;
    unsigned n = 0;
    int (*init)(void), (*shutdown)(void), (*count)(unsigned *);
    *(void **)&init = dlsym(lib, "nvmlInit_v2");
    *(void **)&shutdown = dlsym(lib, "nvmlShutdown");
    *(void **)&count = dlsym(lib, "nvmlDeviceGetCount_v2");
    if (init && shutdown && count && init() == 0) {
        if (count(&n) != 0)
            n = 0;
        shutdown();
    }
    dlclose(lib);
    return (int)n;
}

int gpu_count(const char *visible, const char *proc_dir, bool nvml, const char **how)
{
    int present = count_proc(proc_dir);
    if (visible) {
        *how = "CUDA_VISIBLE_DEVICES";
        return gpu_count_visible(visible, present);
    }
    *how = "the driver's list";
    if (present == 0 && nvml) {
        *how = "NVML";
        present = count_nvml();
    }
    return present;
}
