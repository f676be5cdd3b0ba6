/* store_worker: a worker that uses nothing but the store at MASTER_ADDR:MASTER_PORT: it tells the
 * others where it is, reads what they say, and prints "rank R of N: all here". */
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/store_client.h"

#define WAIT_MS 20000

static struct err e;

static int fail(const char *what)
{
    fprintf(stderr, "store_worker: %s: %s\n", what, e.msg);
    return 1;
}

int main(void)
{
    struct store_client *c;
    int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
    char key[32], value[32];
    if (store_client_new(&c, getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), WAIT_MS, &e) < 0)
        return fail("connect");
    snprintf(key, sizeof(key), "rank/%d", rank);
    int n = snprintf(value, sizeof(value), "I am %d", rank);
    if (store_client_set(c, key, value, (size_t)n, &e) < 0)
        return fail("set");
    for (int i = 0; i < size; i++) {
        void *got;
        size_t len;
        int other;
        snprintf(key, sizeof(key), "rank/%d", i);
        if (store_client_get(c, key, &got, &len, WAIT_MS, &e) < 0)
            return fail("get");
        if (sscanf(got, "I am %d", &other) != 1 || other != i)
            return fail("a wrong value");
        free(got);
    }
    if (store_client_barrier(c, "all", size, WAIT_MS, &e) < 0)
        return fail("barrier");
    printf("rank %d of %d: all here\n", rank, size);
    store_client_free(c);
    return 0;
}
