/* store_worker: a worker that uses nothing but the store at MASTER_ADDR:MASTER_PORT.
 *
 *   (nothing)             each tells the others where it is, reads what they say, and prints "rank
 *                         R of N: all here"
 *   greet                 connects within two seconds, or not, and leaves
 *   connections N         has so many of them until all are here
 *   outlive               rank 0 leaves when all are here; the others go on with the store for a
 *                         second
 *   hammer SECONDS BYTES  stores and reads values of that size, as fast as it goes
 *   wait FILE             waits for a key that nobody sets until the store is gone; appends to FILE
 *                         when it begins
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "rendezvous/store/store_client.h"

#define WAIT_MS 20000

static struct err e;

static int fail(const char *what)
{
    fprintf(stderr, "store_worker: %s: %s\n", what, e.msg);
    return 1;
}

static int wait_for_all(struct store_client *c, int size)
{
    const char *all = "all here";
    int64_t here;
    if (store_client_add(c, "here", 1, &here, &e) < 0 ||
        (here == size && store_client_set(c, all, NULL, 0, &e) < 0) ||
        store_client_wait(c, &all, 1, WAIT_MS, &e) < 0)
        return fail("wait for all");
    return 0;
}

static int meet(struct store_client *c, int rank, int size)
{
    char key[32], value[32];
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
    if (wait_for_all(c, size) != 0)
        return 1;
    printf("rank %d of %d: all here\n", rank, size);
    return 0;
}

static int hold(struct store_client *c, int size, int n)
{
    struct store_client **more = calloc((size_t)n, sizeof(struct store_client *));
    int status = 0;
    for (int i = 1; i < n && status == 0; i++) {
        if (store_client_new(&more[i], getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), WAIT_MS,
                             &e) < 0)
            status = fail("connect again");
    }
    if (status == 0)
        status = wait_for_all(c, size);
    for (int i = 1; i < n; i++) {
        if (more[i])
            store_client_free(more[i]);
    }
    free(more);
    return status;
}

static int hammer(struct store_client *c, int rank, double seconds, size_t bytes)
{
    char key[32], *value = malloc(bytes);
    uint64_t end = mono_ns() + (uint64_t)(seconds * 1e9);
    memset(value, 'v', bytes);
    snprintf(key, sizeof(key), "hammer/%d", rank);
    int rounds = 0;
    for (; mono_ns() < end; rounds++) {
        void *got;
        size_t len;
        if (store_client_set(c, key, value, bytes, &e) < 0 ||
            store_client_get(c, key, &got, &len, WAIT_MS, &e) < 0)
            return fail("hammer");
        bool same = len == bytes && memcmp(got, value, bytes) == 0;
        free(got);
        if (!same)
            return fail("another value than the one that was stored");
    }
    free(value);
    printf("rank %d: %d rounds\n", rank, rounds);
    return 0;
}

static int wait_for_ever(struct store_client *c, const char *file)
{
    FILE *f = fopen(file, "a");
    if (!f || fprintf(f, "waiting\n") < 0 || fclose(f) != 0)
        return 2;
    const char *key = "never";
    if (store_client_wait(c, &key, 1, 600000, &e) == 0)
        return 3;
    return fail("wait");
}

int main(int argc, char **argv)
{
    struct store_client *c;
    int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE")), status;
    const char *what = argc > 1 ? argv[1] : "";
    int wait_ms = strcmp(what, "greet") == 0 ? 2000 : WAIT_MS;
    if (store_client_new(&c, getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), wait_ms, &e) < 0)
        return fail("connect");
    if (strcmp(what, "greet") == 0)
        status = 0;
    else if (strcmp(what, "hammer") == 0 && argc == 4)
        status = hammer(c, rank, atof(argv[2]), (size_t)atol(argv[3]));
    else if (strcmp(what, "connections") == 0 && argc == 3)
        status = hold(c, size, atoi(argv[2]));
    else if (strcmp(what, "wait") == 0 && argc == 3)
        status = wait_for_ever(c, argv[2]);
    else
        status = meet(c, rank, size);
    if (status == 0 && strcmp(what, "outlive") == 0 && rank != 0)
        status = hammer(c, rank, 1, 100);
    store_client_free(c);
    return status;
}
