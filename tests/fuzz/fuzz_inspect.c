/* The answer of dlaunch-inspect, which reads memory that changes under it and may say anything:
 * read or refused, always bounded. The first byte says in which pieces it comes. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "agent/inspect/lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool wants(void *arg, int rank, int pid)
{
    (void)arg;
    return rank < 4 && pid > 0;
}

static int read_in(const uint8_t *p, size_t n, size_t piece, struct samples *all)
{
    struct inspect_reader r = INSPECT_READER(all, wants, NULL);
    struct err e = ERR_INIT;
    int rc = 0;
    for (size_t at = 0; at < n && rc == 0; at += piece)
        rc = inspect_read(&r, p + at, at + piece < n ? piece : n - at, &e);
    assert(rc == 0 || *e.msg);
    inspect_reader_fini(&r);
    return rc;
}

static void put_all(struct buf *b, const struct samples *all)
{
    inspect_put_version(b);
    for (size_t i = 0; i < all->n; i++) {
        assert(all->s[i].nthreads <= SAMPLE_THREADS_MAX);
        inspect_put_sample(b, &all->s[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct samples all = {0}, again = {0};
    struct buf once = BUF_INIT, twice = BUF_INIT;
    if (size == 0)
        return 0;
    read_in(data + 1, size - 1, data[0] + 1u, &all);
    put_all(&once, &all); /* what was read is written and read once more */
    assert(read_in(once.data, once.len, 512, &again) == 0 && again.n == all.n);
    put_all(&twice, &again);
    assert(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    buf_fini(&once);
    buf_fini(&twice);
    samples_fini(&all);
    samples_fini(&again);
    return 0;
}
