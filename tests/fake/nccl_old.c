/* NCCL before it had split, several roots and registration. */
#define FAKE_OLD
#include "tests/fake/nccl.c"
