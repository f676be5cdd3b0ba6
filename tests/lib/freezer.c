#include "tests/lib/freezer.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "tests/lib/test.h"

bool freezer_init(struct freezer *f)
{
    char own[512];
    if (!cgroup_own("freezer", own, sizeof(own), NULL))
        return false;
    snprintf(f->dir, sizeof(f->dir), "%s/dlaunch-test.%d", own, (int)getpid());
    return mkdir(f->dir, 0755) == 0;
}

static void put(const struct freezer *f, const char *file, const char *text)
{
    char path[700];
    snprintf(path, sizeof(path), "%s/%s", f->dir, file);
    write_file(path, text);
}

static bool is_frozen(void *arg)
{
    char path[700];
    snprintf(path, sizeof(path), "%s/freezer.state", ((struct freezer *)arg)->dir);
    char *state = read_file(path);
    bool frozen = strcmp(state, "FROZEN\n") == 0;
    free(state);
    return frozen;
}

void freezer_freeze(struct freezer *f, pid_t pid)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", (int)pid);
    put(f, "cgroup.procs", text);
    put(f, "freezer.state", "FROZEN");
    wait_until(is_frozen, f, 10, "frozen");
}

void freezer_thaw(struct freezer *f)
{
    put(f, "freezer.state", "THAWED");
}

static bool is_removed(void *arg)
{
    return rmdir(((struct freezer *)arg)->dir) == 0;
}

void freezer_fini(struct freezer *f)
{
    wait_until(is_removed, f, 10, "the freezer is empty");
}
