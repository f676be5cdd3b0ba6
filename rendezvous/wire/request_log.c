#include "rendezvous/wire/request_log.h"

void request_log_add(struct request_log *t, uint32_t number, struct shared_buf *frame)
{
    struct shared_buf **place = &t->frame[number % REQUEST_LOG_MAX];
    if (number - t->last > REQUEST_LOG_MAX) {
        request_log_clear(t);
        t->last = number - 1;
    }
    while (++t->last < number) { /* numbers that this launcher has missed */
        shared_buf_unref(t->frame[t->last % REQUEST_LOG_MAX]);
        t->frame[t->last % REQUEST_LOG_MAX] = NULL;
    }
    shared_buf_unref(*place);
    *place = frame;
    frame->refs++;
}

void request_log_send(const struct request_log *t, struct link *l, uint32_t number)
{
    uint32_t oldest = t->last > REQUEST_LOG_MAX ? t->last - REQUEST_LOG_MAX : 0;
    for (uint32_t i = number > oldest ? number : oldest; i < t->last; i++) {
        if (t->frame[(i + 1) % REQUEST_LOG_MAX])
            link_send(l, t->frame[(i + 1) % REQUEST_LOG_MAX]);
    }
}

void request_log_clear(struct request_log *t)
{
    for (int i = 0; i < REQUEST_LOG_MAX; i++)
        shared_buf_unref(t->frame[i]);
    *t = (struct request_log){0};
}
