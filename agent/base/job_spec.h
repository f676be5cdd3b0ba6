/* job_spec.h: the job as this node's agent runs it: typed, checked and frozen. The launcher fills
 * it in (launcher/options/job_build.c) from options, environment and files; nothing changes it
 * afterwards.
 */
#ifndef AGENT_BASE_JOB_SPEC_H
#define AGENT_BASE_JOB_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/base/stdio_opts.h"
#include "agent/base/programs.h"
#include "rendezvous/rdzv.h"

/* The places to which a stream of a worker goes: bits, torchrun's Std. */
#define STD_NONE 0
#define STD_OUT  1
#define STD_ERR  2
#define STD_BOTH 3

enum stdin_mode {
    STDIN_NONE,  /* every worker reads /dev/null */
    STDIN_RANK0, /* global rank 0 inherits the launcher's standard input */
    STDIN_ALL,   /* every worker inherits it: torchrun's way */
};

enum bind_mode {
    BIND_NONE,
    BIND_CORE,
    BIND_NUMA,
    BIND_SOCKET,
    BIND_GPU_NODE, /* and below: torchrun's --numa_binding, in its order */
    BIND_GPU_SOCKET,
    BIND_GPU_EXCLUSIVE,
    BIND_GPU_COMPLEX,
};

enum gpu_check {
    GPU_CHECK_AUTO, /* lost ones end the job, used ones are warned about */
    GPU_CHECK_OFF,
    GPU_CHECK_FREE, /* used ones end it, too */
};

enum isolation {
    ISOLATE_AUTO,  /* guardian, and a cgroup where one can be made */
    ISOLATE_NONE,  /* guardian alone */
    ISOLATE_PIDNS, /* a PID namespace: nothing can outlive the agent */
};

struct job_spec {
    /* The command; NULL and NULL without workers. `path` is what execve() gets; argv is a
     * template: every "${local_rank}" in argv[i], i >= 1, is replaced for each worker. */
    const char *path;
    char **argv;
    const char *name; /* the program's name in reports: the script or program as the user gave it */
    const char *cwd;  /* where workers begin; NULL: where dlaunch was started */
    const struct programs *programs; /* which ranks run which program, the first of them being the
                                        one above; NULL: it is the only one */

    /* The workers of this node. */
    int nproc; /* 0: none; see rdzv_config.h */
    const char *role;
    bool virtual_local_rank; /* LOCAL_RANK=0 everywhere, CUDA_VISIBLE_DEVICES cut to one's own */
    const char *instances;   /* of MIG, to be cut in place of CUDA_VISIBLE_DEVICES; NULL: none */
    char **env;              /* "NAME=value" set for every worker, from [env]; NULL-terminated */
    const char *omp_num_threads; /* to set when the environment has none; NULL: leave alone */
    enum stdin_mode stdin_mode;
    enum bind_mode bind;
    bool gpus; /* worker i has CUDA's device i (asked for, or as --nproc_per_node gpu counted) */
    enum gpu_check gpu_check;
    const char *mpi_reason; /* rdzv.mpi: the library that says so, or the option */
    double gpu_wait; /* for GPU memory to be released before a restart, seconds; 0: not at all */
    bool launch_local_rank_arg; /* torch.distributed.launch: --local-rank=N behind the script */
    int local_rank_arg_at;      /* where in argv that argument goes */
    struct {
        const char *modules; /* modules that warm interpreters import, with commas between them, or
                                "auto"; NULL: no warm interpreters */
        const char *python;  /* the interpreter of warm starts, for execve() */
        char **argv; /* the interpreter's name and options, as a worker's command line begins */
        int program; /* where in that command line the script, or the module behind -m, is */
        const char *comm; /* name of the process of a script that is executed itself; else "" */
        bool first_round; /* the first workers may be worth waiting for a warm interpreter */
    } warm;

    /* The job. */
    struct rdzv_config rdzv;
    double timeout;    /* wall clock for the whole job, seconds; 0: none */
    double hang_after; /* --hang_after, seconds; 0: hangs are not watched for */
    enum on_hang { ON_HANG_REPORT, ON_HANG_RESTART, ON_HANG_END } on_hang;
    const char *nccl_profiler; /* our plug-in for NCCL; NULL: it is not wanted, or not there */
    const char *inspect;       /* dlaunch-inspect; NULL: the one that belongs to this program */
    int slow_percent;          /* --slow_ranks; 0: slow ranks are not watched for */
    struct {
        double at_s;    /* Unix time when the scheduler ends the job; 0: not known */
        double warn_s;  /* --end_warning: the job is stopped so long before; 0: it is not */
        int signal;     /* by which its workers learn of it */
        double grace_s; /* from then until SIGKILL */
    } end;
    double shutdown_timeout;       /* grace between the stop signal and SIGKILL, seconds */
    const int *stop_signals;       /* that stop the job, each once; 0-terminated */
    const char *signals_to_handle; /* the signals as the user wrote them, which torchrun hands on */
    enum isolation isolation;
    bool mpir;           /* --mpir */
    bool killed_at_once; /* Slurm may kill launcher, guardian and workers in one go: no file is made
                            that one of them would have to remove */

    /* Output. One entry per local rank. */
    const char *log_dir;      /* base; NULL: files only when a redirect needs them, under TMPDIR;
                                 "/dev/null": no files */
    const uint8_t *redirects; /* STD_*: to file only */
    const uint8_t *tee;       /* STD_*: to file and console */
    const bool *show;         /* --local_ranks_filter: whether it reaches the console */
    const char *ranks;        /* --ranks: the global ranks that do; NULL: all */
    enum fold_mode fold;      /* --fold */
    bool job_console;         /* --console job, and there may be several nodes */
    char **dup_stdout, **dup_stderr; /* substrings; matching lines are copied to filtered_*.log */
    const char *prefix_template;     /* of teed lines; NULL: "[${role_name}${local_rank}]:" */
    const char *report_path;         /* --report FILE; NULL: none */
    const char *metrics_addr;        /* --metrics: an IP address; NULL: none */
    int metrics_port;                /* 0: a free one */
    const char *metrics_dir;         /* --metrics_file DIR; NULL: none */
    const char *events_path;         /* --events FILE; NULL: none */
    bool ledger;                     /* --ledger */
    const char *timeline_path;       /* --timeline FILE; NULL: none */
    const char *checkpoint_mark;     /* --checkpoint_mark PATH; NULL: none */
    const char *progress_file;       /* --progress_file FILE; NULL: none */
    const char *pod_message;         /* of the pod, for the report of a failure; NULL: none */
    int report_fd;      /* takes the report for people in place of standard error; 0: none */
    int report_columns; /* of the terminal that report_fd leads to; 0: it is none */

    struct {
        bool on;                /* --doctor */
        bool json;              /* --output json */
        bool preflight;         /* --preflight */
        const char *node_check; /* --check_command; NULL: none */
        double node_check_timeout;
        const char *program;       /* the file that has to be alike on all nodes; NULL: not known */
        const char *program_error; /* why it cannot be started; NULL: it can */
        const char *python;        /* the program's interpreter; NULL: no Python program */
    } doctor;

    bool torchrun; /* called by that name: its rules to the letter */
    bool quiet;
    const char *host; /* this node's name, for people: same as rdzv.host */
};

static inline bool job_is_stopped_by(const struct job_spec *job, int signo)
{
    const int *s = job->stop_signals;
    while (*s && *s != signo)
        s++;
    return *s != 0;
}

#endif
