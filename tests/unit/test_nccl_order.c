/* Operations on host memory and on device memory of one communicator: each in an order of its own.
 * With the NCCL of tests/fake. */
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <time.h>

#include "collectives/nccl/nccl_api.h"
#include "tests/fake/nccl.h"
#include "tests/lib/ranks.h"

static const struct cuda_api *g_cuda;
static int g_stream;

static void setup(void)
{
    const char *path = build_path("tests/fake/libnccl.so.2");
    ck_assert_msg(dlopen(path, RTLD_NOW), "%s", dlerror()); /* what its ranks share is made here */
    setenv("DLCOLL_NCCL_LIB", path, 1);
    setenv("DLCOLL_CUDA_LIB", path, 1);
    unsetenv("DLCOLL_BACKEND");
}

/* Binds the thread to a device, as cudaSetDevice() does: once for each thread. */
static void use_device(int device)
{
    struct err e = ERR_INIT;
    cuda_context c, now = NULL;
    EXPECT(cuda_api_get(&g_cuda, &e) == 0, "%s", e.msg);
    g_cuda->CtxGetCurrent(&now);
    if (now)
        return;
    EXPECT(g_cuda->Init(0) == CUDA_OK && g_cuda->DevicePrimaryCtxRetain(&c, device) == CUDA_OK);
    EXPECT(g_cuda->CtxPushCurrent(c) == CUDA_OK);
}

static int *device_number(void)
{
    cuda_ptr p;
    use_device(0);
    EXPECT(g_cuda->MemAlloc(&p, sizeof(int)) == CUDA_OK);
    return (void *)(uintptr_t)p;
}

/* Longer than anybody waits before he looks, or asks, what the others have called. */
static void compute(void)
{
    test_elapse(0.8);
}

/* While one rank is late for the first of two that have handles, all have called a third one, which
 * is enqueued at once: it is nothing that was called in the second one's place. */
static void call_in_both_orders(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    int *x = device_number(), *y = device_number(), a = rank, b = 0, d = 1, e = 0;
    dlcoll_work *w[2];
    dlcoll_opts stream = DLCOLL_OPTS_INIT;
    (void)j;
    stream.stream = &g_stream;
    *x = 1;
    EXPECT(dlcoll_all_reduce(x, y, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 2)
        compute();
    EXPECT(dlcoll_reduce(&a, &b, 1, DLCOLL_I32, DLCOLL_SUM, 1, c, NULL, &w[0]) == 0);
    EXPECT(dlcoll_all_reduce(&d, &e, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, &w[1]) == 0);
    EXPECT(dlcoll_all_reduce(x, y, 1, DLCOLL_I32, DLCOLL_SUM, c, &stream, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_wait_all(w, 2, -1) == 0, "%s", why(c));
    EXPECT(e == 3 && (rank != 1 || b == 3), "%d %d", e, b);
    dlcoll_work_free(w[0]);
    dlcoll_work_free(w[1]);
    comm_end(c);
}

START_TEST(orders_of_host_and_device_are_two)
{
    setenv("DLCOLL_SHM", _i == 1 ? "0" : "1", 1);
    ranks_run(3, _i == 2 ? 3 : 1, call_in_both_orders);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("nccl_order");
    TCase *tc = test_case(s, "order", 40);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, orders_of_host_and_device_are_two, 0, 3);
    return s;
}

TEST_MAIN(suite)
