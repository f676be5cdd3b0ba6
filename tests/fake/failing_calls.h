/* failing_calls.h: the kinds of calls that failing_calls.so counts. */
#ifndef TESTS_FAKE_FAILING_CALLS_H
#define TESTS_FAKE_FAILING_CALLS_H

#include <stdint.h>

/* clang-format off */
#define FAILING_CALLS(X) \
    X(malloc) X(fork) X(exec) X(pipe) X(socket) X(bind) X(listen) X(memfd) X(mmap) X(epoll) \
    X(eventfd) X(connect) X(accept) X(mkdir) X(open) X(close) X(read) X(write)
/* clang-format on */

#define FAILING_ENUM(name) FAILING_##name,
#define FAILING_NAME(name) #name,
enum { FAILING_CALLS(FAILING_ENUM) FAILING_KINDS };

#endif
