/* stdio_tail.h: the last bytes of a stream, for the report. Not thread-safe: the pump's lock. */
#ifndef AGENT_OUTPUT_STDIO_TAIL_H
#define AGENT_OUTPUT_STDIO_TAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stdio_tail {
    uint8_t *ring; /* TAIL_BYTES, made for the first byte; NULL */
    uint64_t seen; /* bytes put in all; the ring's end is at seen % TAIL_BYTES */
    char *head; /* the first TAIL_HEAD bytes of the newest Python traceback; NULL: none has begun */
    size_t head_len;
    uint64_t head_at;  /* bytes put before the traceback */
    uint64_t head_end; /* bytes put before its last line, which is no frame; 0: not come yet */
    size_t margin;     /* bytes in front of the traceback's lines */
    size_t column;     /* of the next byte, until head_end is known */
    bool frames;       /* the traceback's first line has ended */
};

void stdio_tail_put(struct stdio_tail *t, const void *data, size_t len);
void stdio_tail_fini(struct stdio_tail *t);

/* The last lines as a terminal would have left them: of a line that was written over with carriage
 * returns what was there at last, colours taken off, other control characters shown. At most
 * STDIO_TAIL_LINES whole lines that fit in cap; of a last line that does not fit, the end, behind
 * "...". Of a traceback that has more lines, the first frames stand in front. Terminated, without
 * the last newline. Returns the length. */
size_t stdio_tail_text(const struct stdio_tail *t, char *out, size_t cap);

#endif
