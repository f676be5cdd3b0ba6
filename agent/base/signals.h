/* signals.h: signals by name. */
#ifndef AGENT_BASE_SIGNALS_H
#define AGENT_BASE_SIGNALS_H

/* "SIGSEGV", "SIGRTMIN+3", "signal 99". Static or in out. */
const char *signal_name(int signo, char out[24]);

/* "segmentation fault"; NULL: its name says it all. */
const char *signal_meaning(int signo);

#endif
