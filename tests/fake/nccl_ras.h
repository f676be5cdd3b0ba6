/* nccl_ras.h: a stand-in for NCCL's RAS service: it talks as NCCL 2.28.7 and later do, or as others
 * that may listen at its port. */
#ifndef TESTS_FAKE_NCCL_RAS_H
#define TESTS_FAKE_NCCL_RAS_H

#include <sys/types.h>

enum fake_ras_kind {
    FAKE_RAS_GOOD,
    FAKE_RAS_OLD,    /* it knows no JSON */
    FAKE_RAS_SILENT, /* it waits for processes that do not answer */
    FAKE_RAS_OTHER,  /* a web server */
};

struct fake_ras {
    int port;
    pid_t pid;
};

/* A process that answers until fake_ras_end(). port 0: any. */
void fake_ras_start(struct fake_ras *f, enum fake_ras_kind kind, int port, const char *json);
void fake_ras_end(struct fake_ras *f);

/* The answer as NCCL 2.29 writes it, valid until the process ends: a job of communicators, which
 * consist of ranks, each joined by ", ". */
char *fake_ras_job(const char *communicators);
char *fake_ras_communicator(const char *hash, const char *ranks);
char *fake_ras_rank(int rank, const char *host, int pid, int broadcasts, int all_reduces);

#endif
