/* preamble.h: how a connection between launchers begins, for strangers that imitate one. */
#ifndef TESTS_LIB_PREAMBLE_H
#define TESTS_LIB_PREAMBLE_H

#define PREAMBLE "DLR1\x02\x01\x09\0" /* unit/test_rdzv_recorded compares */

#endif
