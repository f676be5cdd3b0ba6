#include "tests/lib/coll_job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

struct coll_job *coll_job_open(const char *path)
{
    void *p = MAP_FAILED;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    if (ftruncate(fd, sizeof(struct coll_job)) == 0)
        p = mmap(NULL, sizeof(struct coll_job), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}
