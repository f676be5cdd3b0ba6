/* debug_assert.h: assertions of hot paths. assert() is on in every build; debug_assert() only in
 * objects that are linked into tests (-DDLAUNCH_CHECKED). */
#ifndef CORE_DEBUG_ASSERT_H
#define CORE_DEBUG_ASSERT_H

#include <assert.h>

#ifdef DLAUNCH_CHECKED
#define debug_assert(fact) assert(fact)
#else
#define debug_assert(fact) ((void)0)
#endif

#endif
