#include "core/tls.h"

#include <dlfcn.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

/* -------------------------------------------------------------------------------- the libraries */

/* clang-format off */
#define CRYPTO_FUNCTIONS(F) \
    F(BIO_new) F(BIO_free) F(BIO_read) F(BIO_write) F(BIO_ctrl) F(BIO_s_mem) F(ERR_get_error) \
    F(ERR_clear_error) F(ERR_reason_error_string) F(EVP_sha256) F(HMAC) \
    F(X509_verify_cert_error_string)
#define SSL_FUNCTIONS(F) \
    F(OPENSSL_init_ssl) F(TLS_method) F(SSL_CTX_new) F(SSL_CTX_ctrl) \
    F(SSL_CTX_set_ciphersuites) F(SSL_CTX_set_options) F(SSL_CTX_set_num_tickets) \
    F(SSL_set_verify) F(SSL_CTX_set_psk_find_session_callback) \
    F(SSL_CTX_set_psk_use_session_callback) F(SSL_new) F(SSL_free) F(SSL_set_bio) \
    F(SSL_set_ex_data) F(SSL_get_ex_data) F(SSL_set_connect_state) F(SSL_set_accept_state) \
    F(SSL_do_handshake) F(SSL_is_init_finished) F(SSL_read) F(SSL_write) F(SSL_get_error) \
    F(SSL_ctrl) F(SSL_session_reused) F(SSL_CIPHER_find) F(SSL_SESSION_new) \
    F(SSL_SESSION_free) F(SSL_SESSION_set1_master_key) F(SSL_SESSION_set_cipher) \
    F(SSL_SESSION_set_protocol_version) F(SSL_CTX_free) F(SSL_CTX_set_verify) \
    F(SSL_CTX_load_verify_locations) F(SSL_CTX_set_default_verify_paths) F(SSL_set1_host) \
    F(SSL_set_fd) F(SSL_connect) F(SSL_get_verify_result) \
    F(SSL_CTX_use_certificate_chain_file) F(SSL_CTX_use_PrivateKey_file)
/* clang-format on */

static struct {
#define MEMBER(name) __typeof__(name) *name;
    CRYPTO_FUNCTIONS(MEMBER)
    SSL_FUNCTIONS(MEMBER)
#undef MEMBER
    SSL_CTX *ctx;
} lib;

/* The one cipher suite; its name includes the hash that the pre-shared key is bound to. */
static const unsigned char suite_id[2] = {0x13, 0x01};
#define SUITE    "TLS_AES_128_GCM_SHA256"
#define IDENTITY "dlaunch" /* names the one key of both sides; reveals nothing */

static int resolve(void *so, const char *name, void *out, struct err *e)
{
    void *f = dlsym(so, name);
    memcpy(out, &f, sizeof(f));
    return f ? 0 : err_set(e, -ENOENT, "OpenSSL has no %s: version 3 is needed", name);
}

static int load_functions(struct err *e)
{
    void *crypto = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    void *ssl = crypto ? dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!ssl)
        return err_set(e, -ENOENT,
                       "OpenSSL 3, which connections between nodes are protected with, is not "
                       "there (%s): install libssl3",
                       dlerror());
    int rc = 0;
#define FROM_CRYPTO(name) rc = rc ? rc : resolve(crypto, #name, &lib.name, e);
#define FROM_SSL(name)    rc = rc ? rc : resolve(ssl, #name, &lib.name, e);
    CRYPTO_FUNCTIONS(FROM_CRYPTO)
    SSL_FUNCTIONS(FROM_SSL)
    return rc;
}

/* The key of this connection as the session that TLS 1.3 takes it for. */
static SSL_SESSION *session_of(SSL *ssl)
{
    const struct tls_key *key = lib.SSL_get_ex_data(ssl, 0);
    SSL_SESSION *s = lib.SSL_SESSION_new();
    const SSL_CIPHER *cipher = lib.SSL_CIPHER_find(ssl, suite_id);
    if (s && cipher && lib.SSL_SESSION_set1_master_key(s, key->bytes, sizeof(key->bytes)) &&
        lib.SSL_SESSION_set_cipher(s, cipher) &&
        lib.SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    lib.SSL_SESSION_free(s);
    return NULL;
}

static int find_session(SSL *ssl, const unsigned char *identity, size_t len, SSL_SESSION **out)
{
    *out = NULL;
    if (len != strlen(IDENTITY) || memcmp(identity, IDENTITY, len) != 0)
        return 1; /* no key has this identity: the handshake fails */
    *out = session_of(ssl);
    return *out != NULL;
}

static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **identity, size_t *len,
                       SSL_SESSION **out)
{
    (void)md; /* after a retry; there is one suite */
    *out = session_of(ssl);
    *identity = (const unsigned char *)IDENTITY;
    *len = strlen(IDENTITY);
    return *out != NULL;
}

static int set_up(SSL_CTX *ctx)
{
    lib.SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    lib.SSL_CTX_set_psk_find_session_callback(ctx, find_session);
    lib.SSL_CTX_set_psk_use_session_callback(ctx, use_session);
    return lib.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) &&
           lib.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_GROUPS_LIST, 0, (void *)"X25519") &&
           lib.SSL_CTX_ctrl(ctx, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, NULL) &&
           lib.SSL_CTX_set_ciphersuites(ctx, SUITE) && lib.SSL_CTX_set_num_tickets(ctx, 0);
}

int tls_load(struct err *e)
{
    if (lib.ctx)
        return 0;
    int rc = load_functions(e);
    if (rc < 0)
        return rc;
    /* OpenSSL reads no configuration file, which would decide how a job is protected, and runs
     * nothing at exit. */
    lib.OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL);
    SSL_CTX *ctx = lib.SSL_CTX_new(lib.TLS_method());
    if (!ctx || !set_up(ctx))
        return err_set(e, -EIO, "OpenSSL does not offer TLS 1.3 with %s and X25519", SUITE);
    lib.ctx = ctx;
    return 0;
}

int tls_key_derive(struct tls_key *out, const void *secret, size_t len, const char *purpose,
                   struct err *e)
{
    unsigned n = sizeof(out->bytes);
    if (!lib.HMAC(lib.EVP_sha256(), secret, (int)len, (const unsigned char *)purpose,
                  strlen(purpose), out->bytes, &n))
        return err_set(e, -EIO, "OpenSSL does not offer HMAC-SHA256");
    return 0;
}

/* ----------------------------------------------------------------------------- by a certificate */

static int certificate_error(SSL *ssl, const char *host, const char *step, struct err *e)
{
    long verified = ssl ? lib.SSL_get_verify_result(ssl) : X509_V_OK;
    const char *reason = lib.ERR_reason_error_string(lib.ERR_get_error());
    if (verified != X509_V_OK)
        return err_set(e, -EACCES, "TLS: certificate of %.100s: %s", host,
                       lib.X509_verify_cert_error_string(verified));
    return err_set(e, -EPROTO, "TLS: %s: %s", step, reason ? reason : "connection ended");
}

static int exchange(SSL *ssl, int fd, const char *host, const void *request, size_t len,
                    char *reply, size_t cap, struct err *e)
{
    size_t n = 0;
    int r;
    if (!lib.SSL_set1_host(ssl, host) || !lib.SSL_set_fd(ssl, fd) ||
        !lib.SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, (void *)host) ||
        lib.SSL_connect(ssl) != 1)
        return certificate_error(ssl, host, "handshake", e);
    if (lib.SSL_write(ssl, request, (int)len) != (int)len)
        return certificate_error(ssl, host, "request", e);
    while (n < cap && (r = lib.SSL_read(ssl, reply + n, (int)(cap - n))) > 0)
        n += (size_t)r;
    return n ? (int)n : certificate_error(ssl, host, "answer", e);
}

static int file_error(const char *file, struct err *e)
{
    const char *reason = lib.ERR_reason_error_string(lib.ERR_get_error());
    return err_set(e, -EINVAL, "TLS: %.200s: %s", file, reason ? reason : "cannot be used");
}

static int use_files(SSL_CTX *ctx, const struct tls_files *f, struct err *e)
{
    const char *key = f->key ? f->key : f->cert;
    if (f->ca ? !lib.SSL_CTX_load_verify_locations(ctx, f->ca, NULL)
              : !lib.SSL_CTX_set_default_verify_paths(ctx))
        return file_error(f->ca ? f->ca : "the authorities of the system", e);
    if (f->cert && lib.SSL_CTX_use_certificate_chain_file(ctx, f->cert) != 1)
        return file_error(f->cert, e);
    if (key && lib.SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        return file_error(key, e);
    return 0;
}

int tls_exchange(int fd, const char *host, const struct tls_files *files, const void *request,
                 size_t len, char *reply, size_t cap, struct err *e)
{
    lib.ERR_clear_error();
    SSL_CTX *ctx = lib.SSL_CTX_new(lib.TLS_method());
    if (!ctx || !lib.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL))
        return certificate_error(NULL, host, "start", e);
    lib.SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    int rc = use_files(ctx, files, e);
    SSL *ssl = rc == 0 ? lib.SSL_new(ctx) : NULL;
    if (rc == 0)
        rc = ssl ? exchange(ssl, fd, host, request, len, reply, cap, e)
                 : certificate_error(NULL, host, "start", e);
    lib.SSL_free(ssl);
    lib.SSL_CTX_free(ctx);
    return rc;
}

void tls_wipe(void *p, size_t len)
{
    explicit_bzero(p, len);
}

/* --------------------------------------------------------------------------------- a connection */

struct tls {
    SSL *ssl;
    BIO *in, *out; /* the bytes from the other side, and the bytes for it; owned by ssl */
    struct tls_key key;
    bool established;
};

/* Moves the bytes that OpenSSL wants to send to `wire`. */
static int drain(struct tls *t, struct buf *wire, struct err *e)
{
    int n;
    while ((n = (int)lib.BIO_ctrl(t->out, BIO_CTRL_PENDING, 0, NULL)) > 0) {
        if (!buf_reserve(wire, (size_t)n))
            return err_set(e, -ENOMEM, "out of memory");
        n = lib.BIO_read(t->out, wire->data + wire->len, n);
        if (n <= 0)
            return err_set(e, -EIO, "OpenSSL lost what it had to send");
        wire->len += (size_t)n;
    }
    return 0;
}

/* Whether the handshake failed because the two sides have different keys: the error of the side
 * that finds out, or the alert that this side sends (ILLEGAL_PARAMETER by OpenSSL, DECRYPT_ERROR by
 * RFC 8446). Alerts of servers that do not support such keys at all are not included. */
static bool is_wrong_key(int reason)
{
    return reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR ||
           reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER;
}

static int failed(struct err *e)
{
    unsigned long code = lib.ERR_get_error();
    const char *reason = code ? lib.ERR_reason_error_string(code) : NULL;
    lib.ERR_clear_error();
    if (is_wrong_key(ERR_GET_REASON(code)))
        return err_set(e, -EACCES, "the two sides have different keys");
    return err_set(e, -EPROTO, "TLS: %s", reason ? reason : "unknown error");
}

static int shake_hands(struct tls *t, struct err *e)
{
    lib.ERR_clear_error();
    int rc = lib.SSL_do_handshake(t->ssl);
    if (rc != 1 && lib.SSL_get_error(t->ssl, rc) != SSL_ERROR_WANT_READ)
        return failed(e);
    t->established = rc == 1;
    if (t->established && !lib.SSL_session_reused(t->ssl))
        return err_set(e, -EACCES, "the handshake did without the key");
    return 0;
}

static int read_plain(struct tls *t, struct buf *plain, struct err *e)
{
    for (;;) {
        if (!buf_reserve(plain, 16384)) /* the longest record */
            return err_set(e, -ENOMEM, "out of memory");
        lib.ERR_clear_error();
        int n = lib.SSL_read(t->ssl, plain->data + plain->len, 16384);
        if (n > 0) {
            plain->len += (size_t)n;
            continue;
        }
        int why = lib.SSL_get_error(t->ssl, n);
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_ZERO_RETURN ? 0 : failed(e);
    }
}

int tls_feed(struct tls *t, const void *p, size_t n, struct buf *plain, struct buf *wire,
             struct err *e)
{
    if (lib.BIO_write(t->in, p, (int)n) != (int)n)
        return err_set(e, -ENOMEM, "out of memory");
    int rc = t->established ? 0 : shake_hands(t, e);
    if (rc == 0 && t->established)
        rc = read_plain(t, plain, e);
    int sent = drain(t, wire, rc < 0 ? NULL : e); /* an alert says why */
    return rc < 0 ? rc : sent;
}

bool tls_established(const struct tls *t)
{
    return t->established;
}

void tls_keep_buffers(struct tls *t)
{
    lib.SSL_ctrl(t->ssl, SSL_CTRL_CLEAR_MODE, SSL_MODE_RELEASE_BUFFERS, NULL);
    lib.SSL_ctrl(t->ssl, SSL_CTRL_SET_MAX_SEND_FRAGMENT, 512, NULL);
}

int tls_encrypt(struct tls *t, const void *p, size_t n, struct buf *wire, struct err *e)
{
    const uint8_t *at = p;
    while (n > 0) {
        int part = n < 1u << 30 ? (int)n : 1 << 30;
        lib.ERR_clear_error();
        int done = lib.SSL_write(t->ssl, at, part);
        if (done <= 0)
            return failed(e);
        at += done;
        n -= (size_t)done;
    }
    return drain(t, wire, e);
}

int tls_new(struct tls **out, enum tls_side side, const struct tls_key *key, struct buf *wire,
            struct err *e)
{
    int rc = tls_load(e);
    if (rc < 0)
        return rc;
    struct tls *t = xcalloc(1, sizeof(*t));
    t->key = *key;
    t->ssl = lib.SSL_new(lib.ctx);
    t->in = lib.BIO_new(lib.BIO_s_mem());
    t->out = lib.BIO_new(lib.BIO_s_mem());
    if (!t->ssl || !t->in || !t->out) {
        lib.BIO_free(t->in);
        lib.BIO_free(t->out);
        tls_free(t);
        return err_set(e, -ENOMEM, "out of memory");
    }
    lib.SSL_set_bio(t->ssl, t->in, t->out);
    lib.SSL_set_ex_data(t->ssl, 0, &t->key);
    if (side == TLS_SERVER) {
        lib.SSL_set_accept_state(t->ssl);
    } else {
        lib.SSL_set_verify(t->ssl, SSL_VERIFY_PEER, NULL); /* a certificate convinces nobody */
        lib.SSL_set_connect_state(t->ssl);
    }
    rc = side == TLS_CLIENT ? shake_hands(t, e) : 0;
    if (rc == 0)
        rc = drain(t, wire, e);
    if (rc < 0)
        tls_free(t);
    else
        *out = t;
    return rc;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    lib.SSL_free(t->ssl);
    tls_wipe(&t->key, sizeof(t->key));
    free(t);
}
