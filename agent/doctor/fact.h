/* fact.h: reading the facts about a node (checks.h says what they are). One table (fact.c) has the
 * name of every fact; to read one that is not in it is a fault of the program, and tests compare
 * the table with what the helper finds out. */
#ifndef AGENT_DOCTOR_FACT_H
#define AGENT_DOCTOR_FACT_H

#include <jansson.h>
#include <stdbool.h>

/* Whether there is a fact at "a.b.c". */
bool fact_is_known(const char *path);

/* The fact with this name; NULL: not known of this node. */
const json_t *fact_at(const json_t *j, const char *path);
/* *out is 0 if the fact is not known. */
bool fact_number_at(const json_t *j, const char *path, double *out);
double fact_number(const json_t *j, const char *path);
/* "": the fact is not known. */
const char *fact_text(const json_t *j, const char *path);

#endif
