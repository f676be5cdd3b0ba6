/* For LD_PRELOAD: a wall clock that is FAKE_CLOCK_AHEAD seconds ahead, and a host that has slept
 * for a minute once the file FAKE_CLOCK_SLEPT exists. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
    int r = (int)syscall(SYS_clock_gettime, id, t);
    const char *ahead = getenv("FAKE_CLOCK_AHEAD");
    if (r == 0 && id == CLOCK_REALTIME && ahead)
        t->tv_sec += atoi(ahead);
    const char *slept = getenv("FAKE_CLOCK_SLEPT");
    if (r == 0 && id == CLOCK_BOOTTIME && slept && access(slept, F_OK) == 0)
        t->tv_sec += 60;
    return r;
}
