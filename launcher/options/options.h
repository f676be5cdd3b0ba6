/* options.h: what the user asked for: the values of all options, each with where it comes from.
 *
 * Values are text here, already checked for their form (a number is a number, a choice is one of
 * its words); job_build.h turns them into a job. Who wins: command line > DLAUNCH_* > PET_* > INI
 * file > detected environment > default, and within one of them the last.
 *
 * Command lines are read by the rules of Python's argparse, as torchrun's are: "--x y" and "--x=y";
 * '-' and '_' are the same letter in names; unambiguous prefixes; -m -r -t -h, joined (-mr3); the
 * first word that is not an option is the program, and all behind it is the program's, untouched;
 * "--" before the program is dropped. */
#ifndef LAUNCHER_OPTIONS_OPTIONS_H
#define LAUNCHER_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/base/programs.h"
#include "core/err.h"

enum opt_id {
#define OPT(name, letter, kind, flags, group, values, def, help) OPT_##name,
#include "launcher/options/options.def"
#undef OPT
    OPT_COUNT
};

enum opt_kind {
    KIND_FLAG,    /* "1" or "0"; no value on the command line */
    KIND_TEXT,    /* anything */
    KIND_CHOICE,  /* one of the words in `values` */
    KIND_NUMBER,  /* 0 or more */
    KIND_RANK,    /* 0 or more, or "any" */
    KIND_PORT,    /* 0 to 65535 */
    KIND_SECONDS, /* parse_seconds() */
    KIND_NODES,   /* "N" or "MIN:MAX" */
    KIND_NPROC,   /* N, auto, cpu or gpu */
};

#define OPT_F_PET    1u  /* PET_<NAME> is its default, as for torchrun */
#define OPT_F_TR     2u  /* torchrun has it */
#define OPT_F_CLI    4u  /* command line only */
#define OPT_F_CLIENV 8u  /* command line and DLAUNCH_<NAME>, but not in files */
#define OPT_F_BRIEF  16u /* -h shows it */

enum opt_group_id {
    GROUP_JOB,
    GROUP_HOSTS,
    GROUP_RDZV,
    GROUP_SECURITY,
    GROUP_PROGRAM,
    GROUP_RESTART,
    GROUP_STOP,
    GROUP_LOG,
    GROUP_BIND,
    GROUP_CHECK,
    GROUP_DAEMON,
    GROUP_INFO,
    GROUP_COUNT
};

struct opt {
    const char *name; /* "--nnodes"; OPT_KEY() without the dashes */
    char letter;      /* 'r' for -r, or 0 */
    enum opt_kind kind;
    unsigned flags;
    enum opt_group_id group;
    const char *values; /* of a KIND_CHOICE: "none|core|numa"; else as --help calls the value */
    const char *def;    /* NULL: none */
    const char *help;
};
#define OPT_KEY(o) ((o)->name + 2)

struct opt_group {
    const char *section; /* of the INI file; NULL: not in files */
    const char *prefix;  /* may be left out of its keys there: "rdzv_", or NULL */
    const char *title;
};

extern const struct opt opt_table[OPT_COUNT];
extern const struct opt_group opt_groups[GROUP_COUNT];

enum opt_from { FROM_DEFAULT, FROM_DETECTED, FROM_FILE, FROM_PET, FROM_DLAUNCH, FROM_ARGV };

struct opt_value {
    const char *text;   /* NULL: not given, and no default */
    const char *source; /* "--nnodes", "PET_NNODES", "/etc/job.ini:12", "SLURM_NNODES", "default" */
    enum opt_from from;
};

/* The programs of a job of several (programs.h). */
struct opt_program {
    char **command;   /* as that of struct options */
    char **env;       /* "NAME=value" for its workers; NULL-terminated */
    const char *wdir; /* NULL: where dlaunch was started */
    bool numbered;    /* see struct program */
};
struct opt_programs {
    struct opt_program *list;
    int n;
    struct program_span *spans;
    int nspans, rest; /* as in struct programs */
};

struct options {
    const char *prog; /* name of the command, without folders */
    bool torchrun;    /* the name is torchrun or torch.distributed.launch */
    struct opt_value value[OPT_COUNT];
    char **command;                /* program and arguments, NULL-terminated, or NULL */
    bool command_literal;          /* "--" stands in front of it: every ':' in it is its own */
    struct opt_programs *programs; /* NULL: there is one program */
    const char *command_source;    /* "command line", "/etc/job.ini:3" */
    enum opt_from command_from;
    char **env;              /* [env] of the file: "NAME=value", NULL-terminated; NULL when empty */
    const char **env_source; /* source of each variable */
    size_t nenv;
    const char **exported_all; /* as `exported`, but for all programs where there are several */
    const char **exported;     /* --export, each time it was given; NULL-terminated, or NULL */
    char *const *envp;         /* where DLAUNCH_* and PET_* were read from; NULL: nowhere */
    struct opt_note *notes;    /* messages for the user, in order */
    const char *nodelist;      /* Slurm's node list, if its values are used; else NULL */
    bool brief_help;           /* -h, not --help */
    int exit_status;           /* exit status for an error in the options: 2, or torchrun's 1 */
    struct options_mem *mem;
};

/* Sets default values and the name of the command. */
void options_init(struct options *o, const char *argv0);
void options_fini(struct options *o);

/* Reads argv (argv[0] is skipped); o->command borrows it. Stops at --help and --version. -EINVAL
 * with one line. */
int options_read_argv(struct options *o, int argc, char **argv, struct err *e);

/* Reads DLAUNCH_*, PET_* and the few variables by which torchrun knows options. Borrows envp. */
int options_read_env(struct options *o, char *const *envp, struct err *e);
/* Warns of DLAUNCH_* and PET_* variables that are not those of an option. */
void options_warn_env(char *const *envp);

/* Sets a value unless a source with precedence has set it; borrows text and source. -EINVAL if the
 * text is not of the option's kind: "<where>: <why>", and o->exit_status is set. */
int options_set(struct options *o, enum opt_id id, const char *text, enum opt_from from,
                const char *source, struct err *e);
/* Checks the form of a value. The message does not name the source. */
int opt_check(enum opt_id id, const char *text, struct err *e);

static inline bool opt_given(const struct options *o, enum opt_id id)
{
    return o->value[id].from != FROM_DEFAULT;
}
/* "" when there is neither value nor default. */
static inline const char *opt_text(const struct options *o, enum opt_id id)
{
    return o->value[id].text ? o->value[id].text : "";
}
bool opt_flag(const struct options *o, enum opt_id id);
/* Whether this launcher runs workers: it may be a coordinator outside of the nodes, or a witness.
 */
static inline bool opt_workers(const struct options *o)
{
    return !opt_flag(o, OPT_rdzv_only) && !opt_given(o, OPT_witness);
}
long opt_number(const struct options *o, enum opt_id id); /* KIND_NUMBER, KIND_PORT, KIND_RANK */
double opt_seconds(const struct options *o, enum opt_id id);
/* Whether the value of a KIND_CHOICE is this one of its words. */
bool opt_is(const struct options *o, enum opt_id id, const char *word);
/* A variable as the workers will have it: of the file's [env], else of envp; or NULL. */
const char *options_env(const struct options *o, const char *name);

/* The place of a value for messages: "--nnodes", "PET_NNODES", "/etc/job.ini:12: nnodes". */
const char *opt_where(struct options *o, enum opt_id id);

/* The option with this name ("nnodes", '-' and '_' alike, any case), or OPT_COUNT. */
enum opt_id opt_find(const char *name, size_t len);
/* Writes " (did you mean X?)" if an option X is near `name` or begins with it, else "". `dashes` is
 * put before X. */
const char *opt_nearest(const char *name, const char *dashes, char out[64]);

/* The word at `index` of "a|b|c", its length in *len; NULL behind the last. */
const char *opt_word(const char *words, int index, size_t *len);

/* Keeps a line for the user, a warning or a notice; options_log_notes() logs and drops them. */
void options_warn(struct options *o, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), nonnull(2)));
void options_note(struct options *o, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), nonnull(2)));
void options_log_notes(struct options *o);

/* Memory that lives as long as the options. */
void *options_alloc(struct options *o, size_t size); /* zeroed */
/* Takes the memory of other options, which are to be dropped. */
void options_keep(struct options *o, struct options *other);
char *options_printf(struct options *o, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), nonnull(2)));

#endif
