/* store_serve: the workers' store by itself, for benches and for tests with real PyTorch clients.
 *
 *     store_serve [--legacy-113] [--thread] [--port N] [--addr IP]
 *
 * Prints the port it listens on (a free one by default, on 127.0.0.1) and serves until SIGTERM or
 * until its parent dies. SIGUSR1 prints its counters. --thread: the server that programs host
 * without dlaunch, instead of the one on libuv. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "core/netaddr.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/store/store_thread.h"

static struct store_server *server;

static void on_listener(uv_poll_t *poll, int status, int events)
{
    int listener = (int)(intptr_t)poll->data, fd;
    (void)status, (void)events;
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        store_server_adopt(server, fd);
}

static void on_usr1(uv_signal_t *h, int signo)
{
    (void)h, (void)signo;
    struct store_server_stats s;
    store_server_get_stats(server, &s);
    printf("connections %zu keys %zu bytes %zu requests %llu rejected %llu\n", s.connections,
           s.keys, s.bytes, (unsigned long long)s.requests, (unsigned long long)s.rejected);
    for (int i = 1; i < STORE_REASONS; i++)
        if (s.rejected_for[i])
            printf("  %llu: %s\n", (unsigned long long)s.rejected_for[i], store_reason_text(i));
    fflush(stdout);
}

static void on_closed(void *arg)
{
    (void)arg;
}

static void on_term(uv_signal_t *h, int signo)
{
    (void)signo;
    uv_stop(h->loop);
}

static void fail(const char *what)
{
    fprintf(stderr, "store_serve: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int serve_on_loop(struct netaddr *a, bool legacy_113)
{
    int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (fd < 0 || bind(fd, &a->sa, a->len) < 0 || listen(fd, 4096) < 0)
        fail("listen");
    if (getsockname(fd, &a->sa, &a->len) < 0)
        fail("getsockname");
    uv_loop_t loop;
    uv_poll_t poll;
    uv_signal_t term, usr1;
    uv_loop_init(&loop);
    server = store_server_new(&loop, &(struct store_server_opts){.legacy_113 = legacy_113});
    uv_poll_init(&loop, &poll, fd);
    poll.data = (void *)(intptr_t)fd;
    uv_poll_start(&poll, UV_READABLE, on_listener);
    uv_signal_init(&loop, &term);
    uv_signal_start(&term, on_term, SIGTERM);
    uv_signal_init(&loop, &usr1);
    uv_signal_start(&usr1, on_usr1, SIGUSR1);
    printf("%d\n", netaddr_port(a));
    fflush(stdout);
    uv_run(&loop, UV_RUN_DEFAULT);
    store_server_close(server, on_closed, NULL);
    uv_close((uv_handle_t *)&poll, NULL);
    uv_close((uv_handle_t *)&term, NULL);
    uv_close((uv_handle_t *)&usr1, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    close(fd);
    return uv_loop_close(&loop) == 0 ? 0 : 1;
}

static int serve_on_thread(const char *addr, int port, bool legacy_113)
{
    struct store_thread *t;
    struct err e = ERR_INIT;
    sigset_t set;
    int signo;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct store_thread_opts opts = {.addr = addr, .port = port, .legacy_113 = legacy_113};
    if (store_thread_new(&t, &opts, &e) < 0) {
        fprintf(stderr, "store_serve: %s\n", e.msg);
        return 1;
    }
    printf("%d\n", store_thread_port(t));
    fflush(stdout);
    sigwait(&set, &signo);
    store_thread_free(t);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"legacy-113", no_argument, NULL, 'l'},
                                            {"thread", no_argument, NULL, 't'},
                                            {"port", required_argument, NULL, 'p'},
                                            {"addr", required_argument, NULL, 'a'},
                                            {NULL, 0, NULL, 0}};
    bool legacy_113 = false, thread = false;
    const char *addr = "127.0.0.1";
    int port = 0, o;
    while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (o == 'l')
            legacy_113 = true;
        else if (o == 't')
            thread = true;
        else if (o == 'p')
            port = atoi(optarg);
        else if (o == 'a')
            addr = optarg;
        else
            return 2;
    }
    struct netaddr a;
    if (!netaddr_parse_ip(&a, addr, port)) {
        fprintf(stderr, "store_serve: '%s' is not an IP address\n", addr);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    return thread ? serve_on_thread(addr, port, legacy_113) : serve_on_loop(&a, legacy_113);
}
