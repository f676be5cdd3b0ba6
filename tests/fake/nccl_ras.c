#include "tests/fake/nccl_ras.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"

static void say(FILE *f, const char *text)
{
    fputs(text, f);
    fflush(f);
}

/* In two pieces, as a long one arrives. */
static void say_status(FILE *f, const char *json)
{
    size_t half = strlen(json) / 2;
    fwrite(json, 1, half, f);
    fflush(f);
    say(f, json + half);
}

/* Until the connection is over. */
static void serve(int fd, enum fake_ras_kind kind, const char *json)
{
    char line[256];
    int as_json = 0;
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    while (fgets(line, sizeof(line), in)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (kind == FAKE_RAS_OTHER) {
            say(out, "HTTP/1.1 400 Bad Request\r\n\r\n{\"communicators\": []}");
            break;
        } else if (strncasecmp(line, "client protocol ", 16) == 0) {
            say(out, "SERVER PROTOCOL 2\n");
        } else if (strcasecmp(line, "set format json") == 0 && kind != FAKE_RAS_OLD) {
            as_json = 1;
            say(out, "OK\n");
        } else if (strcasecmp(line, "status") == 0) {
            if (kind == FAKE_RAS_SILENT)
                pause();
            say_status(out, as_json ? json : "Job summary\n===========\n");
            break;
        } else {
            say(out, "ERROR: Unknown command\n");
        }
    }
    fclose(in);
    fclose(out);
}

void fake_ras_start(struct fake_ras *f, enum fake_ras_kind kind, int port, const char *json)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)port)};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 16) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) < 0)
        abort();
    f->port = ntohs(a.sin_port);
    f->pid = fork();
    if (f->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGPIPE, SIG_IGN);
        for (;;)
            serve(accept(listener, NULL, NULL), kind, json);
    }
    close(listener);
}

void fake_ras_end(struct fake_ras *f)
{
    kill(f->pid, SIGKILL);
    waitpid(f->pid, NULL, 0);
}

char *fake_ras_rank(int rank, const char *host, int pid, int broadcasts, int all_reduces)
{
    return test_text("{\"rank\": %d, \"host\": \"%s\", \"pid\": %d, \"cuda_dev\": %d, "
                     "\"nvml_dev\": 0, \"status\": {\"init_state\": 0, \"async_error\": 0, "
                     "\"finalize_called\": false, \"destroy_flag\": false, \"abort_flag\": false}, "
                     "\"collective_counts\": {\"Broadcast\": %d, \"Reduce\": 0, \"AllGather\": 0, "
                     "\"ReduceScatter\": 0, \"AllReduce\": %d}}",
                     rank, host, pid, rank, broadcasts, all_reduces);
}

char *fake_ras_communicator(const char *hash, const char *ranks)
{
    return test_text("{\"hash\": \"%s\", \"secondary_hash\": \"0x1:0x2\", \"size\": 3, "
                     "\"ranks_count\": 3, \"missing_ranks_count\": 0, \"ranks\": [%s], "
                     "\"missing_ranks\": []}",
                     hash, ranks);
}

char *fake_ras_job(const char *communicators)
{
    return test_text("{\"nccl_version\": \"2.29.1\", \"cuda_runtime_version\": 13000, "
                     "\"cuda_driver_version\": 13000, \"timestamp\": \"2026-01-01 00:00:00\", "
                     "\"communicators_count\": 1, \"communicators\": [%s], \"ras\": "
                     "{\"collection_time_sec\": 0.001, \"timeouts_count\": 0}}\n",
                     communicators);
}
