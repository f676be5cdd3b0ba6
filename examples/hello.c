/* hello.c: every worker prints its rank.
 *
 *     dlaunch --nproc_per_node 4 build/examples/hello
 */
#include <dlcoll.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    dlcoll_comm *comm;
    dlcoll_error error = DLCOLL_ERROR_INIT;
    char host[256] = "?";

    if (dlcoll_init(&comm, NULL) < 0) {
        dlcoll_last_error(NULL, &error);
        fprintf(stderr, "hello: %s\n", error.text);
        return 1;
    }
    gethostname(host, sizeof(host) - 1);
    printf("hello from rank %d of %d, local rank %d, pid %d on %s\n", dlcoll_rank(comm),
           dlcoll_size(comm), dlcoll_local_rank(comm), (int)getpid(), host);

    /* Returns when every rank has called it. */
    if (dlcoll_finalize(comm) < 0) {
        dlcoll_last_error(comm, &error);
        fprintf(stderr, "hello: %s\n", error.text);
        return 1;
    }
    dlcoll_destroy(comm);
    return 0;
}
