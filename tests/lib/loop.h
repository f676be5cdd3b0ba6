/* loop.h: a libuv loop for tests. A handle that is still open at the end fails the test. */
#ifndef TESTS_LIB_LOOP_H
#define TESTS_LIB_LOOP_H

#include <stdbool.h>
#include <uv.h>

void loop_setup(uv_loop_t *loop);
/* Fails the test, naming their types, when handles are left. */
void loop_teardown(uv_loop_t *loop);
/* Runs the loop until *flag; fails the test with `what` after `seconds`. */
void loop_run_until(uv_loop_t *loop, const bool *flag, double seconds, const char *what);
/* Runs n turns without blocking. */
void loop_turns(uv_loop_t *loop, int n);

#endif
