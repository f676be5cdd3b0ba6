#include "rendezvous/wire/broadcast.h"

#include <string.h>

#include "rendezvous/rules/text.h"

static void broadcast_forget(struct shared_buf **message)
{
    shared_buf_unref(*message);
    *message = NULL;
}

void broadcast_new_round(struct broadcast *b)
{
    broadcast_forget(&b->table);
    broadcast_forget(&b->peers);
}

void broadcast_fini(struct broadcast *b)
{
    broadcast_new_round(b);
    broadcast_forget(&b->report);
    broadcast_forget(&b->notice);
}

void broadcast_table(struct broadcast *b, struct link *l, const struct rank_table *t)
{
    struct buf bytes = BUF_INIT;
    if (!b->table) {
        rdzv_put_table(&bytes, t);
        b->table = shared_buf_new(&bytes);
    }
    link_send(l, b->table);
}

void broadcast_peers(struct broadcast *b, struct link *l, const struct rdzv_peers *ran,
                     const struct rdzv_peers *peers)
{
    struct buf bytes = BUF_INIT;
    if (b->npeers != peers->n)
        broadcast_forget(&b->peers);
    if (!b->peers) {
        if (ran)
            rdzv_put_peers(&bytes, ran);
        rdzv_put_peers(&bytes, peers);
        b->peers = shared_buf_new(&bytes);
        b->npeers = peers->n;
    }
    link_send(l, b->peers);
}

void broadcast_report(struct broadcast *b, struct link *l, const struct rdzv_result *result)
{
    struct buf bytes = BUF_INIT;
    if (!b->report) {
        rdzv_put_report(&bytes, result);
        b->report = shared_buf_new(&bytes);
    }
    link_send(l, b->report);
}

void broadcast_notice(struct broadcast *b, struct link *l, const char *text)
{
    struct buf bytes = BUF_INIT;
    if (strcmp(b->notice_text, text) != 0)
        broadcast_forget(&b->notice);
    if (!b->notice) {
        rdzv_put_notice(&bytes, text);
        b->notice = shared_buf_new(&bytes);
        text_set(b->notice_text, sizeof(b->notice_text), "%s", text);
    }
    link_send(l, b->notice);
}
