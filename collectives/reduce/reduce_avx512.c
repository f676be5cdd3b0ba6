/* reduce_avx512.c: the kernels for AVX-512 F, BW, DQ and VL. */
#if defined(__x86_64__)
#define TABLE reduce_avx512
#define NAME  "avx512"
#define WIDTH 64
#include "collectives/reduce/reduce_vector.h"
#endif
