/* tls.h: TLS 1.3 under a pre-shared key, for one connection, without its socket: bytes in, bytes
 * out. Whoever does not hold the key cannot finish the handshake; what follows is encrypted and
 * cannot be changed, replayed or cut in the middle unnoticed. The key is agreed anew for each
 * connection (X25519), so that a key that leaks later does not open what was recorded.
 *
 * There are no certificates. Both sides hold the same key; the pre-shared key proves each to the
 * other (RFC 8446, section 2.2, psk_dhe_ke). OpenSSL does the work; it is loaded when the first
 * connection needs it, because a job on one node does not.
 *
 * One thread at a time, but for tls_exchange(). */
#ifndef CORE_TLS_H
#define CORE_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "core/err.h"

#define TLS_KEY_LEN    32
#define TLS_FIRST_BYTE 0x16 /* of a client's first record */

struct tls_key {
    uint8_t bytes[TLS_KEY_LEN];
};

/* Loads OpenSSL unless it is loaded already. -ENOENT: OpenSSL is not installed; the text says what
 * to install. */
int tls_load(struct err *e);

/* A key for one purpose from a secret: what one purpose shows of its key says nothing about those
 * of others. HMAC-SHA256 of the purpose under the secret. Needs tls_load(). */
int tls_key_derive(struct tls_key *out, const void *secret, size_t len, const char *purpose,
                   struct err *e);

/* Files in PEM for a connection by certificates. NULL: ca: the system's authorities; cert: the
 * client has none; key: it is in the file of the certificate. */
struct tls_files {
    const char *ca, *cert, *key;
};

/* One request and the beginning of its answer over a blocking socket, to a server that has a
 * certificate for `host` by an authority of the files. Returns the bytes of the answer, at most
 * cap; -EINVAL: a file cannot be used. Needs tls_load(); for any thread. */
int tls_exchange(int fd, const char *host, const struct tls_files *files, const void *request,
                 size_t len, char *reply, size_t cap, struct err *e);

/* Overwrites a secret so that the compiler does not leave it out. */
void tls_wipe(void *p, size_t len);

struct tls;

enum tls_side { TLS_CLIENT, TLS_SERVER };

/* The key is copied. A client's first message is in *wire at once. Loads OpenSSL. */
int tls_new(struct tls **out, enum tls_side side, const struct tls_key *key, struct buf *wire,
            struct err *e);
void tls_free(struct tls *t); /* NULL is allowed */

/* Takes n bytes that came from the other side: appends the decrypted bytes to *plain, and to *wire
 * the bytes that have to be sent. 0, -EACCES (the other side has another key), -EPROTO (the other
 * side does not speak TLS, or not with a pre-shared key, or the bytes were changed on the way).
 * After an error *wire may hold an alert that is worth sending; nothing else may follow. */
int tls_feed(struct tls *t, const void *p, size_t n, struct buf *plain, struct buf *wire,
             struct err *e);

/* The handshake is over: tls_encrypt() may be called. */
bool tls_established(const struct tls *t);

/* Keeps the memory that encryption and decryption take, so that tls_encrypt() and tls_feed()
 * allocate no more. From then on bytes that are encrypted at once are sent in parts of 512 bytes.
 */
void tls_keep_buffers(struct tls *t);

/* Appends p[0..n), encrypted, to *wire. */
int tls_encrypt(struct tls *t, const void *p, size_t n, struct buf *wire, struct err *e);

#endif
