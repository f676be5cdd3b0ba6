#include "rendezvous/rules/failure_queue.h"

#include <assert.h>
#include <stdlib.h>

#include "core/mem.h"

struct queued_failure {
    uint32_t seq;
    uint8_t *bytes; /* encoded; owned */
    size_t len;
};

void failure_queue_fini(struct failure_queue *q)
{
    for (size_t i = 0; i < q->n; i++)
        free(q->e[i].bytes);
    free(q->e);
    buf_fini(&q->taken);
}

void failure_queue_add(struct failure_queue *q, const struct failure *f)
{
    struct buf b = BUF_INIT;
    if (q->n >= FAILURE_QUEUE_MAX)
        return;
    failure_encode(&b, f);
    xbuf_reserve(&b, 0);
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 8;
        q->e = xrealloc(q->e, q->cap * sizeof(*q->e));
    }
    q->e[q->n++] = (struct queued_failure){++q->last_seq, b.data, b.len};
}

void failure_queue_acknowledge(struct failure_queue *q, uint32_t acked)
{
    size_t kept = 0;
    for (size_t i = 0; i < q->n; i++) {
        if (q->e[i].seq <= acked)
            free(q->e[i].bytes);
        else
            q->e[kept++] = q->e[i];
    }
    q->n = kept;
}

void failure_queue_resend(struct failure_queue *q)
{
    q->sent_seq = 0;
}

bool failure_queue_take(struct failure_queue *q, struct rdzv_status *st)
{
    size_t i = 0;
    q->taken.len = 0;
    while (i < q->n && q->e[i].seq <= q->sent_seq)
        i++;
    st->first_seq = i < q->n ? q->e[i].seq : 0;
    for (; i < q->n && st->nfailures < RDZV_STATUS_FAILURES; i++) {
        buf_put(&q->taken, q->e[i].bytes, q->e[i].len);
        q->sent_seq = q->e[i].seq;
        st->nfailures++;
    }
    xbuf_reserve(&q->taken, 0);
    st->failures = q->taken.data;
    st->failures_len = q->taken.len;
    return i < q->n;
}

void failure_queue_result(const struct failure_queue *q, struct rdzv_result *r)
{
    if (q->n == 0)
        return;
    size_t n = 0, *order = xcalloc(q->n, sizeof(*order));
    struct failure *all = xcalloc(q->n, sizeof(*all)), *kept;
    for (size_t i = 0; i < q->n; i++) {
        struct rd rd = rd_init(q->e[i].bytes, q->e[i].len);
        n += failure_decode(&rd, &all[n]);
    }
    size_t keep = n < RDZV_REPORT_MAX ? n : RDZV_REPORT_MAX;
    kept = xcalloc(keep, sizeof(*kept));
    failure_order(all, n, order);
    for (size_t i = 0; i < keep; i++)
        kept[i] = all[order[i]];
    if (kept[0].kind != FAILURE_STOPPED) {
        r->failures = kept;
        r->n = keep;
        r->omitted = n - keep;
    } else {
        free(kept);
    }
    free(all);
    free(order);
}

void failure_queue_check(const struct failure_queue *q)
{
    assert(q->n <= q->cap && q->n <= FAILURE_QUEUE_MAX && q->sent_seq <= q->last_seq);
    for (size_t i = 0; i < q->n; i++)
        assert(q->e[i].seq <= q->last_seq && q->e[i].len &&
               (i == 0 || q->e[i - 1].seq < q->e[i].seq));
}
