#include "agent/device/gpu.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
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

static bool is_instance(const char *text)
{
    return strncmp(text, "MIG-", 4) == 0;
}

static bool is_uuid(const char *text)
{
    return strncmp(text, "GPU-", 4) == 0 || is_instance(text);
}

int gpu_count_visible(const char *text, int present)
{
    bool uuids = is_uuid(text);
    int n = 0;
    for (const char *s = text; n < LIST_MAX; s++) {
        while (isspace((unsigned char)*s))
            s++;
        size_t len = strcspn(s, ", ");
        bool ok = uuids ? len > 4 && is_uuid(s) : isdigit((unsigned char)*s);
        if (!ok)
            break;
        if (!uuids && present && strtol(s, NULL, 10) >= present)
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

/* ------------------------------------------------------------------------------- which they are */

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
    if (!minor)
        return -1;
    g->minor = atoi(minor + sizeof(label) - 1);
    if (snprintf(path, sizeof(path), "%s/nvidia%d", dev_dir, g->minor) >= (int)sizeof(path))
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
        *g = (struct gpu){.minor = -1};
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

static int list_nvml(const struct nvml *nvml, struct gpu **out)
{
    unsigned n = 0;
    if (nvml->DeviceGetCount_v2(&n) != NVML_SUCCESS)
        n = 0;
    n = n > LIST_MAX ? LIST_MAX : n;
    *out = n ? xcalloc(n, sizeof(**out)) : NULL;
    for (unsigned i = 0; i < n; i++) {
        nvmlDevice_t dev;
        struct gpu *g = &(*out)[i];
        unsigned minor;
        g->minor = -1;
        if (nvml->DeviceGetHandleByIndex_v2(i, &dev) == NVML_SUCCESS) {
            nvml_bus(nvml, dev, g->bus);
            if (nvml->DeviceGetUUID(dev, g->uuid, sizeof(g->uuid)) != NVML_SUCCESS)
                g->uuid[0] = '\0';
            if (nvml->DeviceGetMinorNumber &&
                nvml->DeviceGetMinorNumber(dev, &minor) == NVML_SUCCESS)
                g->minor = (int)minor;
        }
    }
    return (int)n;
}

/* ------------------------------------------------------------------------------------------ MIG */

/* Whether the driver's files show an instance of any GPU: NVML takes time to load. */
static bool has_instances(const char *proc_dir)
{
    char pattern[512];
    glob_t found = {0};
    snprintf(pattern, sizeof(pattern), "%s/../capabilities/gpu*/mig/gi*", proc_dir);
    bool any = glob(pattern, GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/* Returns how many instances the GPU may have; -1: MIG does not divide the GPU. */
static int most_instances(const struct nvml *nvml, const char *bus, nvmlDevice_t *dev)
{
    unsigned now = 0, later, most = 0;
    if (!nvml->DeviceGetMigMode || !nvml->DeviceGetMaxMigDeviceCount ||
        !nvml->DeviceGetMigDeviceHandleByIndex ||
        nvml->DeviceGetHandleByPciBusId_v2(bus, dev) != NVML_SUCCESS ||
        nvml->DeviceGetMigMode(*dev, &now, &later) != NVML_SUCCESS || now != NVML_MIG_ENABLED)
        return -1;
    return nvml->DeviceGetMaxMigDeviceCount(*dev, &most) == NVML_SUCCESS ? (int)most : 0;
}

/* Puts the instances into the place of each GPU that is divided. Returns how many there are then.
 */
static int list_instances(const struct nvml *nvml, struct gpu **list, int n)
{
    struct gpu *old = *list, *all = NULL;
    int count = 0;
    for (int i = 0; i < n; i++) {
        nvmlDevice_t dev, instance;
        int most = most_instances(nvml, old[i].bus, &dev);
        for (int k = 0; k < (most < 0 ? 1 : most) && count < LIST_MAX; k++) {
            struct gpu g = old[i];
            if (most >= 0 && (nvml->DeviceGetMigDeviceHandleByIndex(dev, (unsigned)k, &instance) !=
                                  NVML_SUCCESS ||
                              nvml->DeviceGetUUID(instance, g.mig, sizeof(g.mig)) != NVML_SUCCESS))
                continue;
            all = xrealloc(all, (size_t)(count + 1) * sizeof(*all));
            all[count++] = g;
        }
    }
    free(old);
    *list = all;
    return count;
}

/* ------------------------------------------------------------------------------------- the list */

/* *by_nvml: NVML has listed the GPUs. */
static int list_gpus(struct gpu **out, const char *proc_dir, const char *dev_dir, bool may_load,
                     bool *by_nvml)
{
    struct nvml nvml = {.lib = NULL};
    *out = NULL;
    int n = list_proc(out, proc_dir, dev_dir);
    bool loaded = may_load && (n == 0 || has_instances(proc_dir)) && nvml_open(&nvml, NULL) == 0;
    *by_nvml = loaded && n == 0;
    if (*by_nvml)
        n = list_nvml(&nvml, out);
    if (n)
        qsort(*out, (size_t)n, sizeof(**out), by_bus);
    for (int i = 0; i < n; i++)
        (*out)[i].card = i;
    if (loaded && n)
        n = list_instances(&nvml, out, n);
    nvml_close(&nvml);
    return n;
}

int gpu_list(struct gpu **out, const char *proc_dir, const char *dev_dir, bool nvml)
{
    bool by_nvml;
    return list_gpus(out, proc_dir, dev_dir, nvml, &by_nvml);
}

/* The number of the GPU that has the UUID; -1: none, or several. */
static int find_card(const struct gpu *all, int n, const char *text, size_t len)
{
    int card = -1;
    for (int i = 0; i < n; i++) { /* CUDA accepts a unique prefix */
        if (strncmp(all[i].uuid, text, len) != 0 || card == all[i].card)
            continue;
        if (card >= 0)
            return -1;
        card = all[i].card;
    }
    return card;
}

static int find_instance(const struct gpu *all, int n, const char *text, size_t len)
{
    int found = -1;
    for (int i = 0; i < n; i++) {
        if (strncmp(all[i].mig, text, len) == 0) {
            if (found >= 0)
                return -1;
            found = i;
        }
    }
    return found;
}

/* The devices of one entry: order[count] and the next ones. Returns the new count. */
static int add_devices(const char *entry, const struct gpu *all, int n, int *order, int count,
                       int max)
{
    size_t len = strcspn(entry, ", ");
    int before = count, card = -1;
    if (is_instance(entry)) {
        order[count++] = find_instance(all, n, entry, len);
        return count;
    }
    card = isdigit((unsigned char)*entry) ? atoi(entry) : find_card(all, n, entry, len);
    for (int i = 0; i < n && count < max; i++) {
        if (all[i].card == card)
            order[count++] = i;
    }
    if (count == before)
        order[count++] = -1;
    return count;
}

int gpu_visible(const char *visible, const struct gpu *all, int n, int *order, int max)
{
    int count = 0;
    for (int i = 0; !visible && i < n && i < max; i++)
        order[count++] = i;
    int entries = visible ? gpu_count_visible(visible, n ? all[n - 1].card + 1 : 0) : 0;
    for (const char *s = visible; entries > 0 && count < max; entries--) {
        while (isspace((unsigned char)*s))
            s++;
        count = add_devices(s, all, n, order, count, max);
        s += strcspn(s, ",");
        s += *s == ',';
    }
    return count;
}

/* The names of those devices as CUDA_VISIBLE_DEVICES has them; malloc'ed. NULL: none is an
 * instance.
 */
static char *name_instances(const struct gpu *all, const int *order, int *count)
{
    char *names = xcalloc((size_t)*count + 1, sizeof(all->mig) + 1), *end = names;
    bool any = false;
    int named = 0;
    for (int i = 0; i < *count; i++) {
        if (order[i] < 0)
            continue;
        const struct gpu *g = &all[order[i]];
        any = any || *g->mig;
        end += sprintf(end, "%s%s", named++ ? "," : "", *g->mig ? g->mig : g->uuid);
    }
    if (any) {
        *count = named;
        return names;
    }
    free(names);
    return NULL;
}

int gpu_count(const char *visible, const char *proc_dir, bool nvml, char **instances,
              const char **how)
{
    struct gpu *all;
    int order[LIST_MAX];
    bool by_nvml;
    int n = list_gpus(&all, proc_dir, GPU_DEV, nvml, &by_nvml);
    int count = gpu_visible(visible, all, n, order, LIST_MAX);
    bool named = visible && is_instance(visible); /* NVML need not be there */
    *instances = named ? strdup(visible) : name_instances(all, order, &count);
    *how = visible ? "CUDA_VISIBLE_DEVICES" : by_nvml || *instances ? "NVML" : "the driver's list";
    free(all);
    return count;
}
