#include "rendezvous/wire/told.h"

void told_add(struct told *t, uint32_t number, struct shared_buf *frame)
{
    struct shared_buf **place = &t->frame[number % TOLD_MAX];
    if (number - t->last > TOLD_MAX) {
        told_clear(t);
        t->last = number - 1;
    }
    while (++t->last < number) { /* numbers that this launcher has missed */
        shared_buf_unref(t->frame[t->last % TOLD_MAX]);
        t->frame[t->last % TOLD_MAX] = NULL;
    }
    shared_buf_unref(*place);
    *place = frame;
    frame->refs++;
}

void told_send(const struct told *t, struct link *l, uint32_t number)
{
    uint32_t oldest = t->last > TOLD_MAX ? t->last - TOLD_MAX : 0;
    for (uint32_t i = number > oldest ? number : oldest; i < t->last; i++) {
        if (t->frame[(i + 1) % TOLD_MAX])
            link_send(l, t->frame[(i + 1) % TOLD_MAX]);
    }
}

void told_clear(struct told *t)
{
    for (int i = 0; i < TOLD_MAX; i++)
        shared_buf_unref(t->frame[i]);
    *t = (struct told){0};
}
