/* nsec.h: units of times in nanoseconds. */
#ifndef TESTS_LIB_NSEC_H
#define TESTS_LIB_NSEC_H

#define SEC  1000000000ull
#define MSEC 1000000ull

#endif
