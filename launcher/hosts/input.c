#include "launcher/hosts/input.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "launcher/hosts/peer.h"

void input_init(struct input *in, int epfd, enum input_mode mode)
{
    *in = (struct input){.mode = mode, .epfd = epfd};
}

void input_fini(struct input *in)
{
    free(in->peers);
    in->peers = NULL;
    in->n = 0;
}

void input_add(struct input *in, struct peer *p, int rank)
{
    if (in->mode == INPUT_NONE || (in->mode == INPUT_RANK0 && rank != 0) || in->ended) {
        peer_send(p, FRAME_INPUT_END, NULL, 0);
        return;
    }
    in->peers = xrealloc(in->peers, (in->n + 1) * sizeof(*in->peers));
    in->peers[in->n++] = p;
}

void input_forget(struct input *in, struct peer *p)
{
    for (size_t i = 0; i < in->n; i++) {
        if (in->peers[i] == p)
            in->peers[i--] = in->peers[--in->n];
    }
}

void input_taken(struct input *in, struct peer *p, uint32_t n)
{
    (void)in;
    p->input_out -= n < p->input_out ? n : p->input_out;
}

static size_t room(const struct input *in)
{
    size_t least = in->n && !in->ended ? FRAME_DATA_MAX : 0;
    for (size_t i = 0; i < in->n; i++) {
        size_t left = FRAME_WINDOW - in->peers[i]->input_out;
        least = left < least ? left : least;
    }
    return least;
}

static void watch(struct input *in, bool want)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = in};
    if (want == in->watched || in->ready)
        return;
    if (epoll_ctl(in->epfd, want ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, STDIN_FILENO, &ev) == 0)
        in->watched = want;
    else if (want)
        in->ready = true; /* a regular file or /dev/null: read(2) does not wait */
}

static void at_end(struct input *in)
{
    in->ended = true;
    watch(in, false);
    for (size_t i = 0; i < in->n; i++)
        peer_send(in->peers[i], FRAME_INPUT_END, NULL, 0);
}

/* Reading a terminal from the background would stop this process, or fail. */
static bool in_background(void)
{
    pid_t front = tcgetpgrp(STDIN_FILENO);
    return front > 0 && front != getpgrp();
}

void input_read(struct input *in)
{
    char data[FRAME_DATA_MAX];
    size_t n = room(in);
    if (n == 0)
        return;
    if (in_background()) {
        in->retry_ns = mono_ns() + INPUT_RETRY_NS;
        watch(in, false);
        return;
    }
    ssize_t got = read(STDIN_FILENO, data, n);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got <= 0) {
        at_end(in);
        return;
    }
    for (size_t i = 0; i < in->n; i++) {
        in->peers[i]->input_out += (uint32_t)got;
        peer_send(in->peers[i], FRAME_INPUT, data, (size_t)got);
    }
}

void input_go_on(struct input *in, uint64_t now_ns)
{
    if (in->ended || in->mode == INPUT_NONE)
        return;
    if (in->retry_ns && now_ns < in->retry_ns)
        return;
    in->retry_ns = 0;
    watch(in, room(in) > 0);
    while (in->ready && room(in) > 0)
        input_read(in);
}

void input_retry(struct input *in)
{
    in->retry_ns = 0;
}

bool input_timeout(const struct input *in)
{
    return in->retry_ns != 0 && in->n > 0;
}
