/* report_words.h: the words of reports, apart from their layout. Pure. */
#ifndef AGENT_REPORT_REPORT_WORDS_H
#define AGENT_REPORT_REPORT_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/report/report_input.h"
#include "core/bytes.h"

/* "3 min 12 s", "0.8 s", "2 h 5 min". */
void words_duration(struct buf *b, double seconds);

/* "0-1, 3, 5-7" of n ascending numbers. */
void words_ranges(struct buf *b, const int *v, size_t n);

/* The outcome, as the end of a sentence about the worker: "exited with code 3". */
void words_outcome(struct buf *b, const struct failure *f);

/* Describes the end in a list: "exit code 3", "SIGABRT", with ", after rank 5 died" where that is
 * known. */
void words_outcome_short(struct buf *b, const struct failure *f);

/* The cause, if more is known than the outcome; else nothing. */
void words_cause(struct buf *b, const struct failure *f);

/* One line of advice, or nothing. `own_node`: the failure happened on this node. */
void words_hint(struct buf *b, const struct failure *f, bool own_node);

/* words_add: printf. words_escaped: control characters and newlines become \xNN. */
void words_add(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), nonnull(2)));
void words_escaped(struct buf *b, const char *text);

#endif
