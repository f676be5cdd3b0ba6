/* debug_assert.h: assertions of hot paths. assert() is on in every build; debug_assert() and
 * debug_check(), which calls a function of assertions, only in objects that are linked into tests
 * (-DDLAUNCH_CHECKED). */
#ifndef CORE_DEBUG_ASSERT_H
#define CORE_DEBUG_ASSERT_H

#include <assert.h>

#ifdef DLAUNCH_CHECKED
#define debug_assert(fact) assert(fact)
#define debug_check(call)  call
#else
#define debug_assert(fact) ((void)0)
#define debug_check(call)  ((void)0)
#endif

#endif
