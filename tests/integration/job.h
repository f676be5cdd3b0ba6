/* job.h: checks and files that the tests of whole jobs share. */
#ifndef TESTS_INTEGRATION_JOB_H
#define TESTS_INTEGRATION_JOB_H

#include "tests/lib/test.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/cluster.h"
#include "tests/lib/folded.h"

void expect_text(const char *where, const char *text);
void expect_no_text(const char *where, const char *text);

/* As expect_text(), whatever line breaks and margins a report has put between the words. */
void expect_words(const char *where, const char *text);
void expect_status(struct proc *p, int status, double seconds);

/* How often `where` contains `text`. */
int count_text(const char *where, const char *text);

/* The file's text, valid until the process ends. */
char *text_of_file(const char *path);

/* The agent of a launcher: its guardian's only child. */
pid_t agent_of(const struct proc *p);

/* Repeats the signal until the process ends: a signal soon after the first one counts as the first.
 */
void signal_until_end(struct proc *p, int signo, double seconds);
json_t *json_of_file(const char *path);
const char *json_word(const json_t *j, const char *key);
long json_number(const json_t *j, const char *key);

#endif
