#include "collectives/wait.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>

#include "core/fd.h"

struct wait_policy wait_policy_choose(int ranks, int usable_cpus)
{
    if (ranks <= usable_cpus)
        return (struct wait_policy){.spin_ns = 100 * 1000, .yield_ns = 500 * 1000};
    return (struct wait_policy){.spin_ns = 0, .yield_ns = 500 * 1000};
}

int wait_usable_cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    char text[64];
    long quota, period;
    /* In a container this is its own limit; elsewhere the file is not there. */
    if (fd_read_file(AT_FDCWD, "/sys/fs/cgroup/cpu.max", text, sizeof(text)) > 0 &&
        sscanf(text, "%ld %ld", &quota, &period) == 2 && period > 0 && quota / period < n)
        n = (int)(quota / period);
    return n > 0 ? n : 1;
}
