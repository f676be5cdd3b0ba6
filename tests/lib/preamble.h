/* preamble.h: how a connection between launchers begins, for strangers that imitate one. */
#ifndef TESTS_LIB_PREAMBLE_H
#define TESTS_LIB_PREAMBLE_H

#include <assert.h>

#include "core/protocols.h"

#define PREAMBLE "DLR1\x03\x01\x0a\0"
static_assert(PROTOCOLS_OF_NODES == (0x03 | 0x01 << 8 | 0x0a << 16), "PREAMBLE is of this build");

#endif
