#include "rendezvous/store/store_session.h"

#include "core/mem.h"

void store_session_init(struct store_session *s, struct store_shared *shared, bool legacy_113)
{
    s->shared = shared;
    s->buffered = 0;
    store_decoder_init(&s->decoder, legacy_113);
    store_peer_init(&s->peer);
}

void store_session_fini(struct store_session *s)
{
    s->shared->buffered -= s->buffered;
    s->buffered = 0;
    store_decoder_fini(&s->decoder);
    store_peer_fini(&s->shared->table, &s->peer);
}

static enum store_reason count_buffers(struct store_session *s)
{
    const struct store_out *o = &s->peer.out;
    size_t now = s->decoder.partial.len + (o->bytes.len - o->bytes_sent);
    s->shared->buffered += now - s->buffered;
    s->buffered = now;
    return s->shared->buffered > STORE_BUFFERS_MAX ? STORE_ERR_FULL_BUFFERS : STORE_OK;
}

static enum store_reason carry_out(struct store_session *s, const struct store_request *r)
{
    switch (r->cmd) {
    case STORE_VALIDATE:
        return r->word == STORE_MAGIC ? STORE_OK : STORE_ERR_MAGIC;
    case STORE_PING:
        store_out_u32(&s->peer.out, r->word);
        return s->peer.out.oom ? STORE_ERR_MEMORY : STORE_OK;
    default:
        /* Clients of these versions cannot cancel a wait: a client that sends another request has
         * given the wait up.
         */
        if (s->decoder.dialect == STORE_113)
            store_table_forget_wait(&s->shared->table, &s->peer);
        return store_table_apply(&s->shared->table, &s->peer, r);
    }
}

enum store_reason store_session_feed(struct store_session *s, const void *chunk, size_t n)
{
    struct store_request r;
    enum store_reason why = STORE_OK;
    int rc;
    store_decoder_feed(&s->decoder, chunk, n);
    while (!why && (rc = store_decoder_next(&s->decoder, &r)) != 0) {
        why = rc < 0 ? (enum store_reason) - rc : carry_out(s, &r);
        s->shared->requests++;
        if (!why) /* the answers to one chunk of requests may be large */
            why = count_buffers(s);
    }
    enum store_reason full = count_buffers(s);
    return why ? why : full;
}

void store_session_sent(struct store_session *s, size_t n)
{
    store_out_sent(&s->peer.out, n);
    count_buffers(s);
}

struct store_session *store_session_next_ready(struct store_shared *shared)
{
    struct store_peer *p = store_table_next_ready(&shared->table);
    return p ? container_of(p, struct store_session, peer) : NULL;
}
