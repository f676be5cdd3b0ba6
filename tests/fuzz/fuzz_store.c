/* The store under arbitrary bytes: two sessions on one table, each fed in arbitrary pieces.
 *
 * Input: byte 0, bit 0: clients without handshake speak 1.13; bit 1: both sessions begin with the
 * newest dialect's hello, so that inputs reach its commands soon; then pieces: a byte whose top bit
 * is the session and whose other bits are the length, and that many bytes. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "rendezvous/store/store_session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t seen;

/* Sends a part of what is to be sent, as a socket would. */
static void drain(struct store_session *s, size_t limit)
{
    struct iovec iov[4];
    size_t pieces;
    while (limit && (pieces = store_out_iov(&s->peer.out, iov, 4))) {
        size_t sum = 0;
        for (size_t i = 0; i < pieces; i++) {
            if (iov[i].iov_len)
                seen ^= ((uint8_t *)iov[i].iov_base)[iov[i].iov_len - 1];
            sum += iov[i].iov_len;
        }
        size_t n = sum < limit ? sum : limit;
        store_session_sent(s, n);
        limit -= n;
    }
}

static void reopen(struct store_session *s, struct store_shared *shared, uint8_t flags)
{
    store_session_init(s, shared, flags & 1);
    if (flags & 2)
        store_session_feed(s, "\x00\xCE\xF7\x85\x3C", 5);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct store_shared shared = {.buffered = 0};
    struct store_session s[2];
    uint8_t flags = *data++;
    size--;
    store_table_init(&shared.table);
    for (int i = 0; i < 2; i++)
        reopen(&s[i], &shared, flags);
    while (size) {
        int which = data[0] >> 7;
        size_t n = data[0] & 0x7f;
        data++;
        size--;
        if (n > size)
            n = size;
        uint8_t *piece = malloc(n ? n : 1); /* of its own, so that reading past it is seen */
        for (size_t i = 0; i < n; i++)
            piece[i] = data[i];
        if (store_session_feed(&s[which], piece, n)) { /* a violation: a new connection comes */
            store_session_fini(&s[which]);
            reopen(&s[which], &shared, flags);
        }
        free(piece);
        data += n;
        size -= n;
        struct store_session *woken;
        while ((woken = store_session_next_ready(&shared)))
            drain(woken, SIZE_MAX);
        drain(&s[which], n % 3 ? SIZE_MAX : n);
    }
    for (int i = 0; i < 2; i++)
        store_session_fini(&s[i]);
    assert(shared.buffered == 0);
    store_table_fini(&shared.table);
    assert(shared.table.bytes == 0);
    return 0;
}
