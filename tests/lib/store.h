/* store.h: store servers of both kinds on a thread of the test, and a raw client that says exactly
 * which bytes go out and which must come back. */
#ifndef TESTS_LIB_STORE_H
#define TESTS_LIB_STORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "rendezvous/store/store_proto.h"
#include "rendezvous/store/store_server.h"

/* --- Servers -----------------------------------------------------------------------------------*/

enum { SERVER_LOOP, SERVER_THREAD, SERVER_KINDS };

struct test_server;
struct test_server *server_start(int kind, const struct store_server_opts *opts); /* NULL: none */
int server_port(const struct test_server *s);
void server_stop(struct test_server *s);
/* SERVER_LOOP only; carried out on its thread before they return. */
void server_reset(struct test_server *s);
struct store_server_stats server_stats(struct test_server *s);

/* --- Servers that are none ---------------------------------------------------------------------*/

/* A server that follows a script: takes `take` bytes, says `say`, and then goes on with the
 * connection (stay) or closes it; at the end of the script it waits until it is told to end. */
struct act {
    size_t take;
    const char *say; /* hex; "PING": the nonce that came at the end of what was taken */
    bool stay;
    int first; /* not 0: what is taken must begin with this byte, else it closes */
};

struct fake {
    int listener, port;
    const struct act *acts;
    int n;
    pthread_t thread;
    int ended[2]; /* a pipe: closed when the script shall end */
};

#define ACT(take_, say_, stay_)                   \
    {                                             \
        .take = take_, .say = say_, .stay = stay_ \
    }
#define HELLO ACT(10, "PING", true) /* VALIDATE and PING */

void fake_start(struct fake *f, const struct act *acts, int n);
void fake_end(struct fake *f);
int listen_anywhere(int *port); /* a listening socket on 127.0.0.1 */

/* --- Requests as bytes -------------------------------------------------------------------------*/

/* Appends one request as a client of the newest version sends it. Keys and values are strings;
 * lists end with NULL. */
void put_hello(struct buf *b);
void put_ping(struct buf *b, uint32_t nonce);
void put_plain(struct buf *b, enum store_cmd cmd); /* GETNUMKEYS, CANCEL_WAIT, LIST_KEYS */
void put_key(struct buf *b, enum store_cmd cmd, const char *key);
void put_set(struct buf *b, enum store_cmd cmd, const char *key, const char *val);
void put_number(struct buf *b, enum store_cmd cmd, const char *key, int64_t number);
void put_compare(struct buf *b, const char *key, const char *expected, const char *desired);
void put_list(struct buf *b, enum store_cmd cmd, const char *const *keys);
void put_pairs(struct buf *b, const char *const *keys_and_values);
void put_bytes(struct buf *b, const void *p, size_t n); /* u64 length, bytes */

/* "00 CE f7" to bytes. */
void put_hex(struct buf *b, const char *hex);

/* --- A client on a socket ----------------------------------------------------------------------*/

int raw_connect(int port);            /* blocking, with a receive timeout */
int raw_open(int port);               /* and has said hello */
void raw_send(int fd, struct buf *b); /* sends all bytes; frees b */
/* Asserts that exactly these bytes come next. */
void raw_expect(int fd, const void *p, size_t n);
void raw_expect_u8(int fd, uint8_t v);
void raw_expect_i64(int fd, int64_t v);
void raw_expect_value(int fd, const char *val);
int64_t raw_num_keys(int fd); /* the answer to GETNUMKEYS */
/* Checks that nothing was received: the answer to a PING is the next message. */
void raw_expect_silence(int fd);
/* The server closes, and sends nothing before. */
void raw_expect_closed(int fd);

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
