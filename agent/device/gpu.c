#include "agent/device/gpu.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/device/nvml.h"
#include "core/fd.h"
#include "core/mem.h"

#define LIST_MAX 1024 /* entries of a list that are read */

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

int gpu_count(const char *visible, const char *proc_dir, bool nvml, const char **how)
{
    struct gpu *all;
    int present = gpu_list(&all, proc_dir, GPU_DEV, false);
    free(all);
    if (visible) {
        *how = "CUDA_VISIBLE_DEVICES";
        return gpu_count_visible(visible, present);
    }
    *how = "the driver's list";
    if (present == 0 && nvml) {
        *how = "NVML";
        present = gpu_list(&all, "", GPU_DEV, true);
        free(all);
    }
    return present;
}

/* ---------------------------------------------------------------------------- which they are */

static int by_bus(const void *a, const void *b)
{
    return strcmp(((const struct gpu *)a)->bus, ((const struct gpu *)b)->bus);
}

/* Reads "GPU UUID: \t GPU-..." and "Device Minor: \t 0" from the driver's file about the GPU.
 * Returns whether dev_dir has the GPU's device file: 1 or 0; -1: the minor is not known. */
static int read_information(const char *dir, const char *name, const char *dev_dir, struct gpu *g)
{
    static const char label[] = "Device Minor:";
    char path[512], text[2048];
    if (snprintf(path, sizeof(path), "%s/%s/information", dir, name) >= (int)sizeof(path) ||
        fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
        return -1;
    const char *at = strstr(text, "GPU-"), *minor = strstr(text, label);
    size_t len = at ? strcspn(at, " \t\n") : 0;
    if (len && len < sizeof(g->uuid) &&
        !memchr(at, '?', len)) /* question marks: not determined yet */
        snprintf(g->uuid, sizeof(g->uuid), "%.*s", (int)len, at);
    if (!minor || snprintf(path, sizeof(path), "%s/nvidia%d", dev_dir,
                           atoi(minor + sizeof(label) - 1)) >= (int)sizeof(path))
        return -1;
    return access(path, F_OK) == 0;
}

static int list_proc(struct gpu **out, const char *proc_dir, const char *dev_dir)
{
    int n = 0, kept = 0, has_file[LIST_MAX];
    bool any_file = false;
    DIR *d = opendir(proc_dir);
    for (struct dirent *de; d && n < LIST_MAX && (de = readdir(d));) {
        if (de->d_name[0] == '.' || strlen(de->d_name) >= sizeof((*out)->bus))
            continue;
        *out = xrealloc(*out, (size_t)(n + 1) * sizeof(**out));
        struct gpu *g = &(*out)[n++];
        *g = (struct gpu){0};
        for (size_t i = 0; de->d_name[i]; i++)
            g->bus[i] = (char)tolower((unsigned char)de->d_name[i]);
        has_file[n - 1] = read_information(proc_dir, de->d_name, dev_dir, g);
        any_file = any_file || has_file[n - 1] > 0;
    }
    if (d)
        closedir(d);
    for (int i = 0; i < n; i++) {
        if (!any_file || has_file[i] != 0)
            (*out)[kept++] = (*out)[i];
    }
    return kept;
}

static int list_nvml(struct gpu **out)
{
    struct nvml nvml;
    unsigned n = 0;
    if (nvml_open(&nvml, NULL) < 0)
        return 0;
    if (nvml.DeviceGetCount_v2(&n) != NVML_SUCCESS)
        n = 0;
    n = n > LIST_MAX ? LIST_MAX : n;
    *out = n ? xcalloc(n, sizeof(**out)) : NULL;
    for (unsigned i = 0; i < n; i++) {
        nvmlDevice_t dev;
        struct gpu *g = &(*out)[i];
        if (nvml.DeviceGetHandleByIndex_v2(i, &dev) == NVML_SUCCESS) {
            nvml_bus(&nvml, dev, g->bus);
            if (nvml.DeviceGetUUID(dev, g->uuid, sizeof(g->uuid)) != NVML_SUCCESS)
                g->uuid[0] = '\0';
        }
    }
    nvml_close(&nvml);
    return (int)n;
}

int gpu_list(struct gpu **out, const char *proc_dir, const char *dev_dir, bool nvml)
{
    *out = NULL;
    int n = list_proc(out, proc_dir, dev_dir);
    if (n == 0 && nvml)
        n = list_nvml(out);
    if (n)
        qsort(*out, (size_t)n, sizeof(**out), by_bus);
    return n;
}

static int find_uuid(const struct gpu *all, int n, const char *text, size_t len)
{
    int found = -1;
    for (int i = 0; i < n; i++) { /* CUDA accepts a unique prefix */
        if (strncmp(all[i].uuid, text, len) == 0) {
            if (found >= 0)
                return -1;
            found = i;
        }
    }
    return found;
}

int gpu_visible(const char *visible, const struct gpu *all, int n, int *order, int max)
{
    int count = visible ? gpu_count_visible(visible, n) : n;
    count = count > max ? max : count;
    const char *s = visible;
    for (int i = 0; i < count; i++) {
        if (!visible) {
            order[i] = i;
            continue;
        }
        while (isspace((unsigned char)*s))
            s++;
        size_t len = strcspn(s, ", ");
        order[i] = isdigit((unsigned char)*s) ? atoi(s) : find_uuid(all, n, s, len);
        if (order[i] >= n)
            order[i] = -1;
        s += strcspn(s, ",");
        s += *s == ',';
    }
    return count;
}
