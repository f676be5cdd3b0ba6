#include "tests/lib/proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "tests/lib/test.h"

/* One connection; two threads carry its bytes, the last one frees it. */
struct carried {
    struct proxy_rules *rules;
    int client, server;
    bool is_reset; /* the connection is to be reset, after reset_after bytes */
    atomic_int users;
};

static void nap_ms(int ms)
{
    if (ms > 0)
        test_elapse(ms / 1e3);
}

/* An end that both sides see as a reset. */
static void reset(struct carried *c)
{
    struct linger now = {.l_onoff = 1};
    setsockopt(c->client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    setsockopt(c->server, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    shutdown(c->client, SHUT_RD); /* wakes the other thread; the reset goes out with the close */
    shutdown(c->server, SHUT_RD);
}

static void carry(struct carried *c, int from, int to, bool from_client)
{
    uint8_t piece[65536];
    size_t passed = 0;
    unsigned seed = (unsigned)(from * 7919 + to);
    for (;;) {
        ssize_t n = recv(from, piece, sizeof(piece), 0);
        int jitter = atomic_load(&c->rules->jitter_ms), flip = atomic_load(&c->rules->flip_at);
        if (n <= 0)
            break;
        nap_ms(atomic_load(&c->rules->delay_ms) +
               (jitter ? (int)(rand_r(&seed) % (2u * (unsigned)jitter)) - jitter : 0));
        if (!from_client && flip >= 0 && passed <= (size_t)flip &&
            (size_t)flip < passed + (size_t)n)
            piece[(size_t)flip - passed] ^= 0x40;
        passed += (size_t)n;
        if (from_client && c->is_reset && passed >= (size_t)atomic_load(&c->rules->reset_after)) {
            reset(c);
            return;
        }
        for (ssize_t at = 0, w; at < n; at += w) {
            if ((w = send(to, piece + at, (size_t)(n - at), MSG_NOSIGNAL)) <= 0)
                return;
        }
    }
    shutdown(to, SHUT_WR);
}

static void leave(struct carried *c)
{
    if (atomic_fetch_sub(&c->users, 1) > 1)
        return;
    close(c->client);
    close(c->server);
    free(c);
}

static void *upwards(void *arg)
{
    struct carried *c = arg;
    carry(c, c->client, c->server, true);
    leave(c);
    return NULL;
}

static void *downwards(void *arg)
{
    struct carried *c = arg;
    carry(c, c->server, c->client, false);
    leave(c);
    return NULL;
}

static void serve(struct proxy_rules *rules, int listener, int to_port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)to_port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
        int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (client < 0 || connect(server, (struct sockaddr *)&to, sizeof(to)) < 0) {
            close(client); /* as the port behind it: nobody is there */
            close(server);
            continue;
        }
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        struct carried *c = xcalloc(1, sizeof(*c));
        *c = (struct carried){.rules = rules, .client = client, .server = server, .users = 2};
        if (atomic_load(&rules->resets) > 0) {
            atomic_fetch_sub(&rules->resets, 1);
            c->is_reset = true;
        }
        atomic_fetch_add(&rules->connections, 1);
        pthread_t t[2];
        if (pthread_create(&t[0], NULL, upwards, c) || pthread_create(&t[1], NULL, downwards, c))
            _exit(1);
        pthread_detach(t[0]);
        pthread_detach(t[1]);
    }
}

void proxy_start(struct proxy *p, int to_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(listener, 64), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    p->port = ntohs(a.sin_port);
    p->rules =
        mmap(NULL, sizeof(*p->rules), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(p->rules, MAP_FAILED);
    p->rules->flip_at = -1;
    p->pid = fork();
    ck_assert_int_ge(p->pid, 0);
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(p->rules, listener, to_port);
    }
    close(listener);
}

void proxy_stop(struct proxy *p)
{
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    munmap(p->rules, sizeof(*p->rules));
}
