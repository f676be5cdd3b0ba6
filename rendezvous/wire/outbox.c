#include "rendezvous/wire/outbox.h"

#include <stdlib.h>

#include "core/mem.h"

struct outbox_frame {
    struct list_node node;
    uint64_t number;
    size_t len; /* of the output */
    struct shared_buf *frame;
};

void outbox_init(struct outbox *o)
{
    *o = (struct outbox){.sent = &o->frames, .window = OUTBOX_WINDOW_MIN};
    list_init(&o->frames);
}

static struct outbox_frame *outbox_first(const struct outbox *o)
{
    return list_alone(&o->frames) ? NULL : container_of(o->frames.next, struct outbox_frame, node);
}

static void outbox_drop(struct outbox *o, struct outbox_frame *f)
{
    if (o->sent == &f->node)
        o->sent = f->node.prev;
    list_remove(&f->node);
    shared_buf_unref(f->frame);
    free(f);
}

void outbox_fini(struct outbox *o)
{
    for (struct outbox_frame *f; (f = outbox_first(o));)
        outbox_drop(o, f);
}

void outbox_set_nodes(struct outbox *o, int nnodes)
{
    size_t each = OUTBOX_ALL / (size_t)nnodes;
    o->window = each < OUTBOX_WINDOW_MIN   ? OUTBOX_WINDOW_MIN
                : each > OUTBOX_WINDOW_MAX ? OUTBOX_WINDOW_MAX
                                           : each;
}

void outbox_add(struct outbox *o, struct buf *output)
{
    struct outbox_frame *f = xcalloc(1, sizeof(*f));
    struct buf frame = BUF_INIT;
    f->number = ++o->last;
    f->len = output->len;
    rdzv_put_output(&frame, f->number, output->data, output->len);
    f->frame = shared_buf_new(&frame);
    list_append(&o->frames, &f->node);
    buf_fini(output);
}

void outbox_send(struct outbox *o, struct link *l, bool all)
{
    for (struct list_node *n; (n = o->sent->next) != &o->frames; o->sent = n) {
        struct outbox_frame *f = container_of(n, struct outbox_frame, node);
        if (!all && o->under_way && o->under_way + f->len > o->window)
            break;
        link_send(l, f->frame);
        o->under_way += f->len;
    }
}

size_t outbox_taken(struct outbox *o, uint64_t number)
{
    size_t len = 0;
    for (struct outbox_frame *f;
         o->sent != &o->frames && (f = outbox_first(o))->number <= number;) {
        len += f->len;
        outbox_drop(o, f);
    }
    o->under_way -= len;
    return len;
}

void outbox_again(struct outbox *o)
{
    o->sent = &o->frames;
    o->under_way = 0;
}

struct buf outbox_take(struct outbox *o)
{
    struct buf output = BUF_INIT;
    struct list_node *n = o->sent->next;
    if (n == &o->frames)
        return output;
    struct outbox_frame *f = container_of(n, struct outbox_frame, node);
    const struct buf *b = &f->frame->b;
    xbuf_reserve(&output, f->len);
    buf_put(&output, b->data + b->len - f->len, f->len);
    outbox_drop(o, f);
    return output;
}
