/* layout.h: buffers whose elements do not lie one after the other. */
#ifndef COLLECTIVES_PERFORM_LAYOUT_H
#define COLLECTIVES_PERFORM_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "collectives/comm/coll_call.h"
#include "collectives/dlcoll.h"

/* The elements that a layout has, and where the last block ends. False: more than `most`. */
bool layout_measure(const dlcoll_layout *l, size_t most, size_t *count, size_t *end);

/* Copies elements of `elem` bytes to and from memory where they lie one after the other. */
void layout_pack(const dlcoll_layout *l, size_t elem, void *packed, const void *buffer);
void layout_unpack(const dlcoll_layout *l, size_t elem, void *buffer, const void *packed);

/* Bytes of a copy of the layout with all that it points to. */
size_t layout_copy_bytes(const dlcoll_layout *l);
/* Makes that copy in `room`, which is aligned for it. */
const dlcoll_layout *layout_copy(const dlcoll_layout *l, void *room);

/* Packs, carries out and unpacks, as a provider's run. */
int layout_run(struct coll_call *c);

#endif
