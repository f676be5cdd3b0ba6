/* http_post() against a server that is a thread of the test. TLS: tests/pods. */
#include "tests/lib/test.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/http.h"
#include "tests/lib/cluster.h"

struct server {
    int fd;
    const char *answer;
    char request[2048];
    pthread_t thread;
};

static void *serve_one(void *arg)
{
    struct server *s = arg;
    size_t len = 0;
    ssize_t n;
    int c = accept(s->fd, NULL, NULL);
    while (!strstr(s->request, "{\"a\":1}") &&
           (n = recv(c, s->request + len, sizeof(s->request) - 1 - len, 0)) > 0)
        len += (size_t)n;
    if (send(c, s->answer, strlen(s->answer), MSG_NOSIGNAL) < 0)
        perror("send");
    close(c);
    return NULL;
}

static int post(const char *url, const char *authorization, struct buf *answer, struct err *e)
{
    const struct http_post p = {.url = url, .authorization = authorization, .body = "{\"a\":1}"};
    return http_post(&p, answer, e);
}

/* Posts to a server that gives this answer. */
static int post_to(struct server *s, const char *answer, const char *authorization,
                   struct buf *body, struct err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    *s = (struct server){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .answer = answer};
    ck_assert_int_eq(bind(s->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(s->fd, 1), 0);
    ck_assert_int_eq(getsockname(s->fd, (struct sockaddr *)&a, &len), 0);
    ck_assert_int_eq(pthread_create(&s->thread, NULL, serve_one, s), 0);
    int rc = post(test_text("http://127.0.0.1:%d/x?y", ntohs(a.sin_port)), authorization, body, e);
    pthread_join(s->thread, NULL);
    close_fd(&s->fd);
    return rc;
}

START_TEST(requests)
{
    struct server s;
    struct err e = ERR_INIT;
    ck_assert_int_eq(post_to(&s, "HTTP/1.1 200 OK\r\n\r\n", "Bearer secret", NULL, &e), 200);
    ck_assert_ptr_eq(strstr(s.request, "POST /x?y HTTP/1.1\r\nHost: 127.0.0.1:"), s.request);
    ck_assert_ptr_nonnull(strstr(s.request, "\r\nContent-Length: 7\r\n"));
    ck_assert_ptr_nonnull(strstr(s.request, "\r\nAuthorization: Bearer secret\r\n\r\n{\"a\":1}"));
    ck_assert_int_eq(post_to(&s, "HTTP/1.0 403 Forbidden\r\n\r\n", NULL, NULL, &e), 403);
    ck_assert_ptr_null(strstr(s.request, "Authorization"));
    ck_assert_int_eq(post_to(&s, "SSH-2.0-OpenSSH\r\n", NULL, NULL, &e), -EPROTO);
    ck_assert_ptr_nonnull(strstr(e.msg, "does not answer in HTTP"));
    ck_assert_int_eq(post_to(&s, "", NULL, NULL, &e), -ECONNRESET);
}
END_TEST

/* NULL: the answer is not whole. */
static const struct {
    const char *answer, *body;
} g_answers[] = {
    {"HTTP/1.1 200 OK\r\n\r\nhello", "hello"},
    {"HTTP/1.1 200 OK\r\n\r\n", ""},
    {"HTTP/1.1 200 OK\r\ncontent-length:  5\r\n\r\nhello, and more", "hello"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", NULL},
    {"HTTP/1.1 200 OK\r\nX: y", NULL},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
     "hello"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", NULL},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhel", NULL},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n", NULL},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhel\r\n0\r\n", NULL},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n0\r\n\r\n", NULL},
};

START_TEST(answers)
{
    struct server s;
    struct err e = ERR_INIT;
    struct buf b = BUF_INIT;
    const char *body = g_answers[_i].body;
    int rc = post_to(&s, g_answers[_i].answer, NULL, &b, &e);
    if (body) {
        ck_assert_msg(rc == 200, "%d: %s", rc, e.msg);
        ck_assert_msg(b.len == strlen(body) && (b.len == 0 || memcmp(b.data, body, b.len) == 0),
                      "'%.*s'", (int)b.len, (char *)b.data);
    } else {
        ck_assert_int_eq(rc, -EPROTO);
        ck_assert_ptr_nonnull(strstr(e.msg, "is not whole"));
    }
    buf_fini(&b);
}
END_TEST

START_TEST(bad_urls)
{
    static const char *const bad[] = {"",
                                      "ftp://a/b",
                                      "http://",
                                      "http:///x",
                                      "http://:80/",
                                      "http://a:b/",
                                      "http://[::1/",
                                      "http://a:1234567890/"};
    struct err e = ERR_INIT;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(post(bad[i], NULL, NULL, &e) == -EINVAL, "'%s': %s", bad[i], e.msg);
    ck_assert_int_eq(post(test_text("http://127.0.0.1:%d/", free_port()), NULL, NULL, &e),
                     -ECONNREFUSED);
    ck_assert_ptr_nonnull(strstr(e.msg, "connect to 127.0.0.1 port "));
}
END_TEST

static Suite *make_suite(void)
{
    Suite *s = suite_create("http");
    TCase *tc = tcase_create("http");
    tcase_add_test(tc, requests);
    tcase_add_loop_test(tc, answers, 0, sizeof(g_answers) / sizeof(*g_answers));
    tcase_add_test(tc, bad_urls);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(make_suite)
