#include "tests/lib/loop.h"

#include <string.h>

#include "core/clock.h"
#include "tests/lib/test.h"

void loop_setup(uv_loop_t *loop)
{
    ck_assert_int_eq(uv_loop_init(loop), 0);
}

static void name_handle(uv_handle_t *h, void *arg)
{
    char *names = arg;
    size_t n = strlen(names);
    if (n < 200) {
        strcat(names, " ");
        strcat(names, uv_handle_type_name(h->type));
    }
}

void loop_teardown(uv_loop_t *loop)
{
    char names[256] = "";
    uv_run(loop, UV_RUN_NOWAIT);
    uv_walk(loop, name_handle, names);
    ck_assert_msg(uv_loop_close(loop) == 0, "handles left open:%s", names);
}

static void on_tick(uv_timer_t *t)
{
    (void)t;
}

void loop_run_until(uv_loop_t *loop, const bool *flag, double seconds, const char *what)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(seconds) * 1e9);
    uv_timer_t tick;
    uv_timer_init(loop, &tick);
    uv_timer_start(&tick, on_tick, 10, 10);
    while (!*flag) {
        ck_assert_msg(mono_ns() < end, "did not happen within %.1f s: %s", test_seconds(seconds),
                      what);
        uv_run(loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(loop, UV_RUN_NOWAIT);
}

void loop_turns(uv_loop_t *loop, int n)
{
    while (n--)
        uv_run(loop, UV_RUN_NOWAIT);
}
