/* store_talk: calls every function of the store client against the server on 127.0.0.1:PORT;
 * store_peer.py runs it against PyTorch's own servers.
 *
 *     store_talk PORT
 *
 * Prints "ok" or the failure. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/store/store_client.h"

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct err e;

static void fail(int line, const char *what)
{
    printf("store_talk.c:%d: %s: %s\n", line, what, e.msg);
    exit(1);
}

#define CHECK(cond)                \
    do {                           \
        if (!(cond))               \
            fail(__LINE__, #cond); \
    } while (0)
#define OK(call) CHECK((call) == 0)

static bool is(void *val, size_t len, const char *want)
{
    bool same = len == strlen(want) && memcmp(val, want, len) == 0;
    free(val);
    return same;
}

/* --- The blocking client -----------------------------------------------------------------------*/

static void talk(int port)
{
    struct store_client *c;
    void *val;
    size_t len, big_len = 6 << 20;
    int64_t number;
    bool yes;
    OK(store_client_new(&c, "127.0.0.1", port, 10000, &e));
    OK(store_client_set(c, "a", "1", 1, &e));
    OK(store_client_get(c, "a", &val, &len, 5000, &e));
    CHECK(is(val, len, "1"));
    OK(store_client_try_get(c, "a", &val, &len, &e));
    CHECK(is(val, len, "1"));
    CHECK(store_client_try_get(c, "missing", &val, &len, &e) == -ENOENT);
    OK(store_client_add(c, "n", 5, &number, &e));
    OK(store_client_add(c, "n", -7, &number, &e));
    CHECK(number == -2);
    OK(store_client_wait(c, KEYS("a", "n"), 2, 5000, &e));
    CHECK(store_client_wait(c, KEYS("a", "never"), 2, 30, &e) == -ETIMEDOUT);
    OK(store_client_check(c, KEYS("a", "n"), 2, &yes, &e));
    CHECK(yes);
    OK(store_client_check(c, KEYS("missing"), 1, &yes, &e));
    CHECK(!yes);
    OK(store_client_compare_set(c, "a", "1", 1, "2", 1, &val, &len, &e));
    CHECK(is(val, len, "2"));
    OK(store_client_compare_set(c, "a", "1", 1, "3", 1, &val, &len, &e));
    CHECK(is(val, len, "2"));
    OK(store_client_set(c, "x", "X", 1, &e));
    OK(store_client_delete(c, "x", &yes, &e));
    CHECK(yes);
    OK(store_client_delete(c, "x", &yes, &e));
    CHECK(!yes);
    char *big = xcalloc(1, big_len);
    memset(big, 'x', big_len);
    OK(store_client_set(c, "big", big, big_len, &e));
    OK(store_client_get(c, "big", &val, &len, 5000, &e));
    CHECK(len == big_len && memcmp(val, big, len) == 0);
    free(val);
    free(big);
    store_client_free(c);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    talk(atoi(argv[1]));
    printf("ok\n");
    return 0;
}
