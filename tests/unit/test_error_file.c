/* Error files of workers: the two forms, and everything else that may stand there. */
#include "tests/lib/test.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/report/error_file.h"
#include "core/bytes.h"
#include "core/mem.h"

static int parse(const char *text, struct error_file *out)
{
    return error_file_parse(text, strlen(text), out);
}

START_TEST(both_forms)
{
    struct error_file f;
    ck_assert_int_eq(parse("{\"message\": {\"message\": \"ValueError: bad\", \"extraInfo\": "
                           "{\"py_callstack\": \"Traceback (most recent call last):\\n  File "
                           "\\\"a.py\\\", line 3, in main\\nValueError: bad\\n\", "
                           "\"timestamp\": \"1714521600\"}}}",
                           &f),
                     0);
    ck_assert_str_eq(f.message, "Traceback (most recent call last):\n"
                                "  File \"a.py\", line 3, in main\nValueError: bad");
    ck_assert_int_eq(f.timestamp, 1714521600);
    ck_assert_int_eq(parse("{\"message\": \"out of paper\", \"timestamp\": 7}", &f), 0);
    ck_assert_str_eq(f.message, "out of paper");
    ck_assert_int_eq(f.timestamp, 7);
    /* A program of its own: the call stack does not name the error. */
    ck_assert_int_eq(parse("{\"message\": {\"message\": \"disk on fire\", \"extraInfo\": "
                           "{\"py_callstack\": \"main.c:5\\nio.c:7\"}}}",
                           &f),
                     0);
    ck_assert_str_eq(f.message, "disk on fire\nmain.c:5\nio.c:7");
    ck_assert_int_eq(f.timestamp, 0);
    ck_assert_int_eq(parse("{\"message\": {\"message\": \"short\"}}", &f), 0);
    ck_assert_str_eq(f.message, "short");
}
END_TEST

START_TEST(timestamps)
{
    static const struct {
        const char *text;
        int64_t want;
    } cases[] = {{"12.75", 12}, {"\"12\"", 12}, {"\"x\"", 0}, {"-5", 0},
                 {"1e300", 0},  {"[]", 0},      {"null", 0},  {"\"99999999999999999999\"", 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error_file f;
        char *text = test_text("{\"message\": \"m\", \"timestamp\": %s}", cases[i].text);
        ck_assert_msg(parse(text, &f) == 0 && f.timestamp == cases[i].want, "%s", text);
    }
}
END_TEST

START_TEST(other_files_are_kept_as_text)
{
    static const char *const bad[] = {"Segmentation fault",
                                      "{\"message\": {\"message\": \"cut o",
                                      "[1, 2]",
                                      "{\"message\": 5}",
                                      "{\"message\": {\"message\": 5}}",
                                      "{\"message\": {}}",
                                      "{}",
                                      "null",
                                      "\"text\"",
                                      "{\"message\": \"\xff\xfe\"}"};
    struct error_file f;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_assert_msg(parse(bad[i], &f) == -EINVAL, "'%s' was taken", bad[i]);
        ck_assert_str_eq(f.message, bad[i]);
    }
    ck_assert_int_eq(error_file_parse("a\0b", 3, &f), -EINVAL);
    ck_assert_str_eq(f.message, "ab");
    ck_assert_int_eq(error_file_parse("", 0, &f), -ENOENT);
    /* Nested far too deep; far too long. */
    char *big = xmalloc(3 << 20);
    memset(big, '[', 3 << 20);
    ck_assert_int_eq(error_file_parse(big, 3 << 20, &f), -EINVAL);
    ck_assert_uint_eq(strlen(f.message), sizeof(f.message) - 1);
    ck_assert_str_eq(f.message + sizeof(f.message) - 4, "...");
    free(big);
}
END_TEST

START_TEST(long_tracebacks_keep_their_end)
{
    struct buf b = BUF_INIT;
    static const char head[] = "{\"message\": {\"message\": \"E: the cause\", \"extraInfo\": "
                               "{\"py_callstack\": \"";
    buf_put(&b, head, sizeof(head) - 1);
    for (int i = 0; i < 1000; i++)
        buf_put(&b, "  File line\\n", 13);
    buf_put(&b, "E: the cause\"}}}", 17);
    struct error_file f;
    ck_assert_int_eq(error_file_parse((char *)b.data, b.len - 1, &f), 0);
    ck_assert_str_eq(strrchr(f.message, '\n'), "\nE: the cause");
    ck_assert_int_eq(strncmp(f.message, "[", 1), 0);
    ck_assert_ptr_nonnull(strstr(f.message, " lines left out]\n  File line\n"));
    buf_fini(&b);
}
END_TEST

START_TEST(files)
{
    struct error_file f;
    ck_assert_int_eq(error_file_read(tmppath("none"), &f), -ENOENT);
    ck_assert_str_eq(f.message, "");
    write_file(tmppath("empty"), "");
    ck_assert_int_eq(error_file_read(tmppath("empty"), &f), -ENOENT);
    write_file(tmppath("good"), "{\"message\": \"m\"}");
    ck_assert_int_eq(error_file_read(tmppath("good"), &f), 0);
    ck_assert_str_eq(f.message, "m");
    ck_assert_int_eq(error_file_read(tmppath("good/below"), &f), -ENOENT);
    ck_assert_int_eq(symlink("/etc/passwd", tmppath("link")), 0);
    ck_assert_int_eq(mkfifo(tmppath("fifo"), 0600), 0);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", tmppath("socket"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    static const struct {
        const char *name, *what;
    } odd[] = {{"link", "a symbolic link"},
               {"fifo", "a FIFO"},
               {"socket", "a socket"},
               {".", "a directory"},
               {"../../dev/zero", "a device"}};
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        const char *path = i < 4 ? tmppath(odd[i].name) : "/dev/zero";
        ck_assert_msg(error_file_read(path, &f) == -EINVAL, "%s", odd[i].name);
        ck_assert_str_eq(f.message,
                         test_text("(the error file is %s and was not read)", odd[i].what));
    }
    /* The file is one byte longer than the limit. */
    char *big = xmalloc(ERROR_FILE_MAX + 2);
    memset(big, ' ', ERROR_FILE_MAX + 1);
    memcpy(big, "{\"message\": \"m\"}", 16);
    big[ERROR_FILE_MAX + 1] = '\0';
    write_file(tmppath("big"), big);
    ck_assert_int_eq(error_file_read(tmppath("big"), &f), 0);
    close(fd);
    free(big);
}
END_TEST

START_TEST(copies)
{
    const char *from = tmppath("from"), *to = tmppath("to");
    ck_assert_int_eq(error_file_copy(from, to, 3), -ENOENT);
    ck_assert_int_eq(access(to, F_OK), -1);
    write_file(from, "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": \"5\"}}}");
    ck_assert_int_eq(error_file_copy(from, to, 3), 0);
    json_t *j = json_load_file(to, 0, NULL), *m = json_object_get(j, "message");
    ck_assert_int_eq(json_integer_value(json_object_get(m, "errorCode")), 3);
    ck_assert_str_eq(json_string_value(json_object_get(m, "message")), "m");
    ck_assert_ptr_nonnull(json_object_get(m, "extraInfo"));
    json_decref(j);
    /* The simple form has no place for it. */
    write_file(from, "{\"message\": \"m\", \"timestamp\": 5}");
    ck_assert_int_eq(error_file_copy(from, to, 3), 0);
    j = json_load_file(to, 0, NULL);
    ck_assert_uint_eq(json_object_size(j), 2);
    json_decref(j);
    /* A text that is not an error file becomes the message of one. */
    write_file(from, "Killed \xff by hand");
    ck_assert_int_eq(error_file_copy(from, to, -9), 0);
    j = json_load_file(to, 0, NULL);
    m = json_object_get(j, "message");
    ck_assert_str_eq(json_string_value(json_object_get(m, "message")), "Killed ? by hand");
    ck_assert_int_eq(json_integer_value(json_object_get(m, "errorCode")), -9);
    struct error_file f;
    ck_assert_int_eq(error_file_read(to, &f), 0);
    ck_assert_int_gt(f.timestamp, 1700000000);
    json_decref(j);
    ck_assert_int_lt(error_file_copy(from, "/nonexistent/x", 1), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("error_file");
    TCase *tc = test_case(s, "error_file", 10);
    tcase_add_test(tc, both_forms);
    tcase_add_test(tc, timestamps);
    tcase_add_test(tc, other_files_are_kept_as_text);
    tcase_add_test(tc, long_tracebacks_keep_their_end);
    tcase_add_test(tc, files);
    tcase_add_test(tc, copies);
    return s;
}

TEST_MAIN(suite)
