/* usage.h: the texts that are made from the table of options. Each returns 0, or -errno when `out`
 * could not be written. */
#ifndef LAUNCHER_OPTIONS_USAGE_H
#define LAUNCHER_OPTIONS_USAGE_H

#include <stdio.h>

#define USAGE_COLUMNS 80

int usage_brief(FILE *out, const char *prog); /* -h */
int usage_help(FILE *out, const char *prog);  /* --help */
int usage_ini(FILE *out);                     /* conf/dlaunch.ini */
int usage_mdoc(FILE *out);                    /* the OPTIONS section of dlaunch(1) */
int usage_bash(FILE *out);                    /* conf/dlaunch.bash */

#endif
