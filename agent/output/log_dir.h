/* log_dir.h: torchrun's layout of log files:
 *     <base>/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}
 * The run directory is made once per agent. n is the number of restarts, which does not grow when a
 * node was lost or has come: later starts of one number have attempt_<n>.1, attempt_<n>.2 and so
 * on, and what the earlier ones have written stays. Where other users may make files too (/tmp),
 * nothing of theirs is followed: the run directory has a name that nobody can guess and mode 0700
 * under TMPDIR (or, where that does not take one, in the next of the places that Python's tempfile
 * knows), and a symbolic link of another user on the way to `base` is refused.
 *
 * Where no output is kept, one directory holds the error files of all, flat:
 *     TMPDIR/torchelastic_dlaunch_<random>/attempt_<n>.<local_rank>.error.json
 * The agent holds a lock on that directory. One without a lock belonged to an agent that is dead.
 * Directories for 128 workers, made and removed again, cost a quarter of the time of a job that
 * does nothing (ext4: 120 usec each).
 *
 * An agent that may be killed together with all others who could remove a directory (Slurm) makes
 * none: its error files, if workers write any, are in the user's own directory, which stays,
 *     TMPDIR/dlaunch-<uid>/<random>.attempt_<n>.<local_rank>.error.json */
#ifndef AGENT_OUTPUT_LOG_DIR_H
#define AGENT_OUTPUT_LOG_DIR_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "rendezvous/rules/failure.h"

struct log_dir {
    char run[512];     /* the run directory; "": no files at all (--log_dir /dev/null) */
    char attempt[544]; /* the current attempt's directory */
    bool base_is_ours; /* the run directory's parent was made, and is removed, with it */
    bool flat;         /* no directories in the run directory */
    bool shared;       /* flat: the run directory is the user's, for all agents */
    char prefix[16];   /* shared: the prefix of the names of this agent's files */
    int last_flat;     /* number of the last attempt; -1: none */
    int lock_fd;       /* flat: the directory, locked; -1: locks do not work here */
};

/* base NULL: a fresh torchelastic_XXXXXXXX under TMPDIR. "/dev/null": no files. Else it is made as
 * "mkdir -p" does. -ENOTDIR when base is a file, and the other errors of the file system with the
 * path that they are about. run_id is made harmless for a path. On failure *d holds no files. */
int log_dir_open(struct log_dir *d, const char *base, const char *run_id, struct err *e);

/* Opens a flat directory for error files alone; `shared`: the user's, or, where that cannot be
 * used, one of its own after all. On failure *d holds no files. */
int log_dir_open_flat(struct log_dir *d, bool shared, struct err *e);

/* Removes empty flat directories beside that of *d whose agents died without removing them. */
void log_dir_sweep(const struct log_dir *d);

/* Makes attempt_<n>, or attempt_<n>.<k> if that is there, and a directory for each of nproc local
 * ranks from `first` on; flat: removes what an earlier attempt of that number has left. */
int log_dir_attempt(struct log_dir *d, int n, int first, int nproc, struct err *e);

/* The worker that had this folder of its own ("": it had none, or was not started in the current
 * attempt) has ended, and another takes its place: removes the folder, and that of its attempt, if
 * they are empty. Else a job that is started again thousands of times would have as many folders
 * to look through at its end. */
void log_dir_left(const struct log_dir *d, int local_rank, const char *worker_dir);

/* The file of a local rank in this attempt, or "" when there are no files. Returns out. */
const char *log_dir_file(const struct log_dir *d, int local_rank, const char *name, char *out,
                         size_t cap);

/* Removes the run directory when nothing but empty directories is in it. */
void log_dir_close(struct log_dir *d);

/* Functions for the loop, which cannot wait for good for the directory's server, with the effects
 * of those above: -ETIMEDOUT, or nothing, when it has not answered within LOG_DIR_MS.
 * log_dir_next_timed() is log_dir_left() of workers that start again, whose folders `dirs` has,
 * and log_dir_attempt(). */
struct timed_calls;
#define LOG_DIR_MS 5000
typedef char log_dir_path[FAILURE_PATH_MAX];
int log_dir_next_timed(struct log_dir *d, struct timed_calls *server, int n, int first, int nproc,
                       const log_dir_path *dirs, struct err *e);
void log_dir_sweep_timed(const struct log_dir *d);
void log_dir_close_timed(struct log_dir *d, struct timed_calls *server);

#endif
