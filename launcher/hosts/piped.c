#include "launcher/hosts/piped.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "agent/process/spawn.h"
#include "core/fd.h"

extern char **environ;

int piped_start(struct spawner *s, const char *path, char **argv, bool outlives, struct piped *out,
                struct err *e)
{
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, pidfd = -1, rc = 0;
    *out = (struct piped){.pid = -1, .in = -1, .out = -1, .err = -1};
    for (int i = 0; i < 3 && rc == 0; i++) {
        if (pipe2(pipes[i], O_CLOEXEC) < 0)
            rc = err_sys(e, errno, "pipe");
    }
    struct spawn_request req = {.path = path,
                                .argv = argv,
                                .envp = environ,
                                .stdio = {pipes[0][0], pipes[1][1], pipes[2][1]},
                                .outlives = outlives,
                                .cgroup_fd = -1,
                                .vital = true};
    if (rc == 0)
        rc = spawn(s, &req, &out->pid, &pidfd, e);
    close_fd(&pidfd);
    close_fd(&pipes[0][0]);
    close_fd(&pipes[1][1]);
    close_fd(&pipes[2][1]);
    if (rc < 0) {
        out->pid = -1;
        close_fd(&pipes[0][1]);
        close_fd(&pipes[1][0]);
        close_fd(&pipes[2][0]);
        return rc;
    }
    out->in = pipes[0][1];
    out->out = pipes[1][0];
    out->err = pipes[2][0];
    fd_set_nonblock(out->in, true);
    fd_set_nonblock(out->out, true);
    fd_set_nonblock(out->err, true);
    return 0;
}
