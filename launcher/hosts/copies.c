#include "launcher/hosts/copies.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/own_file.h"
#include "agent/inspect/lines.h"
#include "core/fd.h"
#include "launcher/hosts/frame.h"

/* Opens a file that is to be mapped. */
static int open_file(const char *path, size_t *size, struct err *e)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "%s", path);
    *size = (size_t)st.st_size;
    return take_fd(&fd);
}

static bool map_at(const uint8_t *at, int fd, size_t size)
{
    return !size || mmap((void *)at, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) != MAP_FAILED;
}

int copies_map(struct copies *c, const char *inspect, struct err *e)
{
    char path[PATH_MAX];
    struct err none = ERR_INIT;
    size_t own;
    *c = (struct copies){0};
    _cleanup_fd_ int dlaunch_fd = open_file("/proc/self/exe", &own, e);
    if (dlaunch_fd < 0)
        return e->code;
    if (!inspect)
        inspect = own_file_find(INSPECT_NAME, path, sizeof(path));
    _cleanup_fd_ int inspect_fd = inspect ? open_file(inspect, &c->inspect, &none) : -1;
    c->dlaunch = (own + COPIES_ALIGN - 1) / COPIES_ALIGN * COPIES_ALIGN;
    c->n = c->dlaunch + c->inspect;
    /* Between the files are zeros of this mapping. Where pages are small it is not aligned as
     * COPIES_ALIGN says, which does not matter: each file begins with a page. */
    void *p = mmap(NULL, c->n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "a copy of dlaunch");
    c->p = p;
    if (map_at(c->p, dlaunch_fd, own) && map_at(c->p + c->dlaunch, inspect_fd, c->inspect))
        return 0;
    int rc = err_sys(e, errno, "a copy of dlaunch");
    copies_unmap(c);
    return rc;
}

static int map_program(struct copies *c, const char *path, struct err *e)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "--bcast: %s", path);
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size > FRAME_BODY_MAX)
        return err_set(e, -EINVAL, "--bcast: %s is not a file of 1 byte to 1 GB", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "--bcast: %s", path);
    c->program = p;
    c->program_len = (size_t)st.st_size;
    return 0;
}

int copies_of_job(struct copies *c, const struct options *o, struct err *e)
{
    struct stat st;
    if (!opt_flag(o, OPT_bcast))
        return 0;
    int rc = copies_map(c, NULL, e);
    if (rc < 0)
        return err_wrap(e, "--bcast");
    if (!opt_flag(o, OPT_module) && stat(o->command[0], &st) == 0 && S_ISREG(st.st_mode))
        rc = map_program(c, o->command[0], e);
    return rc;
}

void copies_unmap(struct copies *c)
{
    if (c->p)
        munmap((void *)c->p, c->n);
    if (c->program_len)
        munmap((void *)c->program, c->program_len);
    *c = (struct copies){0};
}
