/* host_id.h: which host this is, whatever its names and launchers. */
#ifndef COLLECTIVES_BOOTSTRAP_HOST_ID_H
#define COLLECTIVES_BOOTSTRAP_HOST_ID_H

#include <stdint.h>

/* Equal for processes that share a kernel and its network. */
uint64_t host_id(void);

#endif
