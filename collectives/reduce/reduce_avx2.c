/* reduce_avx2.c: the kernels for AVX2 and F16C. */
#if defined(__x86_64__)
#define TABLE reduce_avx2
#define NAME  "avx2"
#define WIDTH 32
#include "collectives/reduce/reduce_vector.h"
#endif
