#include "collectives/base/fiber.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)2 << 20)
#else
#define STACK_BYTES ((size_t)256 << 10)
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

/* The sanitizers are told of each change of stacks: before it, and on the new stack after it. */
static void before_enter(struct fiber *f)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&f->back_fake, f->stack, f->bytes);
#elif defined(__SANITIZE_THREAD__)
    f->back_id = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->id, 0);
#else
    (void)f;
#endif
}

static void after_enter(struct fiber *f)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake, &f->back_stack, &f->back_bytes);
#else
    (void)f;
#endif
}

static void before_leave(struct fiber *f)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&f->fake, f->back_stack, f->back_bytes);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(f->back_id, 0);
#else
    (void)f;
#endif
}

static void after_leave(struct fiber *f)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->back_fake, NULL, NULL);
#else
    (void)f;
#endif
}

/* The first function on the stack. A fiber that has ended runs the next function from here on. */
static void fiber_main(unsigned high, unsigned low)
{
    struct fiber *f = (struct fiber *)((uintptr_t)high << 16 << 16 | low);
    after_enter(f);
    for (;;) {
        f->run(f->arg);
        f->ended = true;
        fiber_pause(f);
    }
}

/* To be called in the thread that runs the fiber: the context has the thread's signal mask. */
static void make_context(struct fiber *f)
{
    int r = getcontext(&f->context);
    assert(r == 0);
    (void)r;
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, (void (*)(void))fiber_main, 2, (unsigned)((uintptr_t)f >> 16 >> 16),
                (unsigned)(uintptr_t)f);
#if defined(__SANITIZE_THREAD__)
    f->id = __tsan_create_fiber(0);
#endif
}

struct fiber *fiber_new(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all = STACK_BYTES + page;
    uint8_t *map = mmap(NULL, all, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    struct fiber *f = calloc(1, sizeof(*f));
    if (!f || mprotect(map, page, PROT_NONE) < 0) {
        munmap(map, all);
        free(f);
        return NULL;
    }
    f->stack = map + page;
    f->bytes = STACK_BYTES;
    f->ended = true;
    return f;
}

void fiber_free(struct fiber *f)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    assert(f->ended);
#if defined(__SANITIZE_THREAD__)
    if (f->id)
        __tsan_destroy_fiber(f->id);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(f->stack, f->bytes); /* another mapping may come to lie there */
#endif
    munmap((uint8_t *)f->stack - page, f->bytes + page);
    free(f);
}

void fiber_start(struct fiber *f, void (*run)(void *arg), void *arg)
{
    assert(f->ended);
    if (!f->context.uc_stack.ss_sp)
        make_context(f);
    f->run = run;
    f->arg = arg;
    f->ended = false;
    fiber_resume(f);
}

void fiber_resume(struct fiber *f)
{
    ucontext_t here;
    f->back = &here;
    before_enter(f);
    swapcontext(&here, &f->context);
    after_leave(f);
}

void fiber_pause(struct fiber *f)
{
    before_leave(f);
    swapcontext(&f->context, f->back);
    after_enter(f);
}
