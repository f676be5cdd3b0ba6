/* reduce_portable.c: the kernels for every processor there is. */
#define TABLE reduce_portable
#define NAME  "portable"
#define WIDTH 16
#include "collectives/reduce/reduce_vector.h"
