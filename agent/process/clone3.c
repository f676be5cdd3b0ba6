#include "agent/process/clone3.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log.h"
#include "core/mem.h"

void clone3_make_absent_if_refused(void)
{
    /* If several filters answer with an error, the one installed last decides which.
     * The call has the same number on every architecture. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {ARRAY_LEN(code), code};
    if (syscall(SYS_clone3, NULL, 0) == 0 || errno != EPERM) /* EINVAL: permitted */
        return;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0)
        log_warn("this container's seccomp profile refuses clone3(), and a remedy was refused too "
                 "(%s): threads cannot be started",
                 strerror(errno));
    else
        log_verbose(
            "this container's seccomp profile refuses clone3(); workers are told that there "
            "is none, so that threads can be started");
}
