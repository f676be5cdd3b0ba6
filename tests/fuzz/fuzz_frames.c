/* A connection between launchers delivers bytes in pieces of any size. The first byte of the input
 * is the size of the pieces, and its highest bit whether long frames are allowed; the rest are the
 * bytes received. The link must deliver exactly the frames that a reader of the whole finds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/wire/link.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uv_loop_t loop;
static struct link_hub hub;
static struct link *L;
static uint8_t *got, *want; /* all frames handed on: type and body, one after the other */
static size_t got_len, want_len;
static bool preamble;

static bool on_preamble(struct link *l, uint32_t version)
{
    (void)l, (void)version;
    if (preamble)
        abort();
    return preamble = true;
}

static void on_frame(struct link *l, uint8_t type, struct rd body)
{
    size_t n = (size_t)(body.end - body.p);
    (void)l;
    if (!preamble || got_len + 1 + n > want_len)
        abort();
    got[got_len++] = type;
    memcpy(got + got_len, body.p, n);
    got_len += n;
}

static void on_end(struct link *l, enum rdzv_end how, const char *why)
{
    (void)how;
    if (!why[0])
        abort();
    link_close(l);
    L = NULL;
}

static void read_whole(const uint8_t *p, size_t n, uint32_t max)
{
    want_len = 0;
    for (size_t at = RDZV_PREAMBLE_LEN; at + RDZV_FRAME_HEADER <= n;) {
        struct rd r = rd_init(p + at, n - at);
        uint32_t len = rd_u32(&r);
        if (len < 1 || len > max || n - at - 4 < len)
            return;
        memcpy(want + want_len, p + at + 4, len);
        want_len += len;
        at += 4 + (size_t)len;
    }
}

static void turn(void)
{
    for (int i = 0; i < 3; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct link_events events = {on_preamble, on_frame, on_end};
    int pair[2];
    if (size < 2 || size > 65536)
        return 0;
    if (!hub.loop) {
        uv_loop_init(&loop);
        link_hub_init(&hub, &loop, NULL, NULL);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    bool big = data[0] & 128;
    size_t piece = 1 + (data[0] & 127) * (big ? 16 : 1), n = size - 1;
    got = malloc(size);
    want = malloc(size);
    got_len = 0;
    preamble = false;
    read_whole(data + 1, n, big ? RDZV_FRAME_MAX : RDZV_FRAME_MAX_FIRST);
    L = link_new(&hub, pair[0], true, &events, NULL);
    if (big)
        link_set_frame_max(L, RDZV_FRAME_MAX);
    for (size_t at = 0; at < n && L; at += piece) {
        size_t part = n - at < piece ? n - at : piece;
        if (send(pair[1], data + 1 + at, part, MSG_NOSIGNAL) != (ssize_t)part)
            break; /* it has closed */
        turn();
    }
    close(pair[1]);
    turn();
    if (L || got_len != want_len || memcmp(got, want, want_len) != 0)
        abort(); /* it must have seen the end, and all before it */
    free(got);
    free(want);
    return 0;
}
