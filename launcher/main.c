/* main.c: from the command line to the exit status.
 *
 *     options, environment, file, scheduler -> struct options     read_options()
 *     -> hosts are given: a launcher on each                      head_run()
 *     -> --serve: launchers for heads on other hosts              serve_run()
 *     -> struct job_spec                                          job_build()
 *     -> --print_config, --print_binding, --dry_run, --daemon
 *     -> --doctor: no worker is started                           doctor_run()
 *     -> guardian (this process) and agent (its child)            guardian_run(), agent_process()
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/report/events.h"
#include "agent/report/job_operations.h"
#include "agent/report/top.h"
#include "agent/stacks/stacks.h"
#include "agent/doctor/doctor.h"
#include "agent/doctor/facts.h"
#include "agent/guardian.h"
#include "agent/job_signals.h"
#include "agent/base/mpir.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"
#include "launcher/options/config_file.h"
#include "launcher/control/control.h"
#include "launcher/control/metrics.h"
#include "launcher/control/daemon.h"
#include "launcher/options/detect.h"
#include "launcher/hosts/allocation.h"
#include "launcher/hosts/head.h"
#include "launcher/hosts/head_plan.h"
#include "launcher/hosts/plan_options.h"
#include "launcher/hosts/remote.h"
#include "launcher/hosts/serve.h"
#include "launcher/options/job_build.h"
#include "launcher/options/plan.h"
#include "launcher/options/programs.h"
#include "launcher/options/requeue_rules.h"
#include "launcher/options/sbatch.h"
#include "launcher/options/time_limit.h"
#include "launcher/options/token.h"
#include "launcher/options/usage.h"

#define EXIT_INTERNAL 125
/* The time to wait for descendants that do not die before they are reported. */
#define STOP_GRACE 10.0

extern char **environ;

/* State of agent_process(). */
struct run {
    const struct job_spec *job;
    pid_t pid; /* process that the user started, or its background process */
    struct daemon *daemon;

    uv_loop_t loop;
    struct agent *agent;
    struct guardian_link *link;
    struct control *control;
    struct metrics *metrics;
    struct notify notify;
    bool done;          /* the agent is */
    bool remote;        /* a head waits for the result */
    bool wants_requeue; /* --requeue */
    enum requeue_part requeue;
    int exit_status;
};

/* ------------------------------------------------------------------------------------ the agent */

static void get_status(void *arg, struct agent_status *out)
{
    agent_get_status(((struct run *)arg)->agent, out);
}

static const struct event_list *get_events(void *arg)
{
    return events_want(agent_feature(((struct run *)arg)->agent, &events_feature));
}

static struct json_t *get_operations(void *arg)
{
    return operations_of_job(agent_feature(((struct run *)arg)->agent, &operations_feature));
}

static void get_top(void *arg, size_t most, void (*on_done)(void *arg, struct json_t *top),
                    void *done_arg)
{
    top_of_job(agent_feature(((struct run *)arg)->agent, &top_feature), most, on_done, done_arg);
}

static void stop(void *arg, const char *why)
{
    agent_stop(((struct run *)arg)->agent, why);
}

static void get_stacks(void *arg, const char *ranks,
                       void (*on_done)(void *arg, struct json_t *stacks), void *done_arg)
{
    stacks_of_job(agent_feature(((struct run *)arg)->agent, &stacks_feature), ranks, on_done,
                  done_arg);
}

static const struct event_log *get_log(void *arg)
{
    return agent_log(((struct run *)arg)->agent);
}

static void unlink_later(void *arg, const char *path)
{
    guardian_set_path(((struct run *)arg)->link->page->unlink_path[3], path);
}

static bool request(void *arg, enum request_kind kind, int signo, const char *ranks)
{
    return agent_request(((struct run *)arg)->agent, kind, signo, ranks);
}

static void open_control(struct run *r)
{
    struct err e = ERR_INIT;
    struct control_opts opts = {.pid = r->pid,
                                .job = r->job,
                                .page = r->link->page,
                                .get_status = get_status,
                                .get_events = get_events,
                                .get_operations = get_operations,
                                .get_top = get_top,
                                .stop = stop,
                                .request = request,
                                .get_stacks = get_stacks,
                                .arg = r};
    if (control_open(&r->control, &r->loop, &opts, &e) < 0)
        log_verbose("%s; dlaunchctl will not find this job", e.msg);
}

/* Reports the agent's state to systemd. */
static void on_state(void *arg)
{
    struct run *r = arg;
    struct agent_status s;
    char text[128];
    if (r->notify.fd < 0)
        return;
    agent_get_status(r->agent, &s);
    snprintf(text, sizeof(text), "STATUS=%s (%s), workers: %d here, %d in the job", s.state,
             s.health, s.nworkers, s.rdzv.world_size);
    notify_send(&r->notify, text);
}

static void on_unseen(void *arg, const char *text)
{
    daemon_warn(((struct run *)arg)->daemon, "/dev/log", text);
}

static void on_event(void *arg)
{
    control_events_changed(((struct run *)arg)->control);
}

/* Whose part it is to ask Slurm. */
static void note_requeue(struct run *r, int exit_status, const struct rdzv_info *info)
{
    const char *node = getenv("SLURM_NODEID");
    const struct requeue_end end = {.wanted = r->wants_requeue,
                                    .time_is_over = exit_status == EXIT_TIME_LIMIT,
                                    .decided = info->decided.epoch != 0,
                                    .coordinator = info->coordinator,
                                    .first_node = !node || strcmp(node, "0") == 0};
    r->requeue = requeue_part(&end);
    if (r->requeue == REQUEUE_FIRST_NODE)
        log_notice("%s", requeue_reason(r->requeue));
    else if (r->requeue == REQUEUE_COORDINATOR)
        log_verbose("%s", requeue_reason(r->requeue));
}

static void on_end(void *arg, int exit_status, const char *text)
{
    struct run *r = arg;
    struct agent_status s;
    char decided[64];
    agent_get_status(r->agent, &s);
    const struct generation *by = &s.rdzv.decided;
    snprintf(decided, sizeof(decided), REMOTE_DECIDED, (unsigned long long)by->epoch, by->counter);
    if (r->remote && by->epoch)
        notify_send(&r->notify, decided);
    note_requeue(r, exit_status, &s.rdzv);
    control_keep(r->control, exit_status, text);
}

static void on_control_closed(void *arg)
{
    (void)arg;
}

static void on_agent_done(void *arg, int exit_status)
{
    struct run *r = arg;
    r->exit_status = exit_status;
    notify_send(&r->notify, "STOPPING=1");
    r->done = true;
    metrics_close(r->metrics);
    control_close(r->control, on_control_closed, NULL);
}

/* Returns the exit status if agent_open() failed: the user's input is wrong, unless the machine has
 * run out of something. */
static int open_status(int code)
{
    bool exhausted = code == -ENOMEM || code == -EMFILE || code == -ENFILE || code == -EAGAIN;
    return exhausted ? EXIT_INTERNAL : 2;
}

/* Lets writes fail with EPIPE or EFBIG. The signal is blocked and not ignored: workers start with
 * an empty signal mask, but inherit ignored signals. */
static void block_signal(int signo)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signo);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static void count_handle(uv_handle_t *h, void *n)
{
    (void)h;
    ++*(int *)n;
}

/* Runs the loop until no handle is open. If the loop cannot be closed then, a thread of libuv's
 * pool is still in a call, such as to a name server that does not answer, and exit() would wait for
 * that thread. */
static void run_loop(struct run *r)
{
    int nopen = 1;
    while (nopen && uv_run(&r->loop, UV_RUN_ONCE)) {
        if (!r->done) /* the job still runs */
            continue;
        nopen = 0;
        uv_walk(&r->loop, count_handle, &nopen);
    }
    notify_close(&r->notify);
    if (r->requeue == REQUEUE_ASK && r->exit_status == EXIT_TIME_LIMIT)
        time_limit_requeue();
    if (uv_loop_close(&r->loop) < 0) {
        fflush(NULL);
        _exit(r->exit_status);
    }
}

static int agent_process(void *arg, struct guardian_link *link)
{
    struct run *r = arg;
    struct err e = ERR_INIT;
    block_signal(SIGPIPE);
    block_signal(SIGXFSZ);
    uvx_explain_abort();
    int rc = uv_loop_init(&r->loop);
    if (rc < 0) {
        log_error("cannot create an event loop: %s", uv_strerror(rc));
        return EXIT_INTERNAL;
    }
    r->link = link;
    if (r->notify.fd < 0)
        notify_open(&r->notify);
    const struct metrics_opts metrics = {r->job, get_status, get_log, unlink_later, r};
    if (metrics_open(&r->metrics, &r->loop, &metrics, &e) < 0) {
        log_error("%s", e.msg);
        return 2;
    }
    const struct agent_callbacks cb = {
        .on_state = on_state,
        .on_unseen = on_unseen,
        .on_event = on_event,
        .on_end = on_end,
        .on_done = on_agent_done,
        .arg = r,
    };
    if (agent_open(&r->agent, &r->loop, r->job, link, &cb, &e) < 0) {
        log_set_writer(daemon_say, r->daemon); /* the agent's writer no longer exists */
        log_error("%s", e.msg);
        return open_status(e.code);
    }
    metrics_start(r->metrics);
    open_control(r); /* before the first worker starts, which may run dlaunchctl at once */
    daemon_ready(r->daemon);
    notify_send(&r->notify, "READY=1");
    on_state(r);
    run_loop(r);
    return r->exit_status;
}

/* ---------------------------------------------------------------------------------- the options */

static void on_config_error(void *arg, const char *line)
{
    (void)arg;
    log_error("%s", line);
}

static void set_log_format(const struct options *o)
{
    if (opt_is(o, OPT_log_format, "json"))
        log_set_format(LOG_JSON);
    else if (opt_is(o, OPT_log_time, "always"))
        log_set_format(LOG_TIMED);
}

/* Reads argv, environment and file. Returns 0, or -EINVAL after logging the errors. */
static int read_options(struct options *o, int argc, char **argv)
{
    struct err e = ERR_INIT;
    if (options_read_argv(o, argc, argv, &e) < 0) {
        log_error("%s", e.msg);
        return -EINVAL;
    }
    if (opt_given(o, OPT_help) || opt_given(o, OPT_version) || opt_given(o, OPT_print_completion) ||
        opt_given(o, OPT_print_options))
        return 0;
    if (options_read_env(o, environ, &e) < 0) {
        log_error("%s", e.msg);
        return -EINVAL;
    }
    if (opt_given(o, OPT_conf) &&
        config_file_read(o, opt_text(o, OPT_conf), on_config_error, NULL) > 0)
        return -EINVAL;
    log_init(opt_flag(o, OPT_quiet)     ? LOG_LEVEL_ERROR
             : opt_flag(o, OPT_verbose) ? LOG_LEVEL_VERBOSE
                                        : LOG_LEVEL_NOTICE,
             NULL);
    set_log_format(o);
    options_warn_env(environ);
    if (programs_read(o, environ, &e) < 0) {
        log_error("%s", e.msg);
        return -EINVAL;
    }
    return 0;
}

/* Returns the exit status after printing. */
static int printed(int rc)
{
    char why[ERR_TEXT_MAX];
    if (rc < 0)
        log_error("standard output: %s", err_text(-rc, why));
    return rc < 0 ? 1 : 0;
}

/* Prints what needs no job. Returns the exit status, or -1 to continue. */
static int print_and_end(const struct options *o)
{
    int rc;
    if (opt_given(o, OPT_help)) {
        rc = o->brief_help ? usage_brief(stdout, o->prog) : usage_help(stdout, o->prog);
    } else if (opt_given(o, OPT_version)) {
        printf("dlaunch %s\n", DLAUNCH_VERSION);
        rc = fflush(stdout) != 0 ? -errno : 0;
    } else if (opt_given(o, OPT_print_options)) {
        rc = opt_is(o, OPT_print_options, "ini") ? usage_ini(stdout) : usage_mdoc(stdout);
    } else if (opt_given(o, OPT_print_completion)) {
        if (!opt_is(o, OPT_print_completion, "bash")) {
            log_error("--print_completion: %s is not supported (only bash)",
                      opt_text(o, OPT_print_completion));
            return 2;
        }
        rc = usage_bash(stdout);
    } else {
        return -1;
    }
    return printed(rc);
}

/* -------------------------------------------------------------------------------------- the job */

/* Opens the log file if one is named or --daemon is given. */
static int open_log(struct daemon *d, struct options *o, struct err *e)
{
    const char *path = o->value[OPT_log_file].text;
    if (!path && opt_flag(o, OPT_daemon))
        path = options_printf(o, "dlaunch-%d.log", (int)getpid());
    if (!path)
        return 0;
    if (daemon_log_to(d, path, e) < 0)
        return err_wrap(e, "%s", opt_where(o, OPT_log_file));
    if (opt_flag(o, OPT_daemon))
        log_notice("running in the background as process %d, output in %s", (int)getpid(), path);
    if (opt_is(o, OPT_log_time, "auto") && !opt_is(o, OPT_log_format, "json"))
        log_set_format(LOG_TIMED); /* lines to the terminal above have no time */
    return 0;
}

/* The files of a command that may run in the background. */
struct background {
    struct daemon daemon;
    struct pid_file pid_file;
};

/* Returns -1 in the process that is to run the job, else the exit status. */
static int enter_background(struct background *b, struct options *o)
{
    struct err e = ERR_INIT;
    int status = 0;
    *b = (struct background){.daemon = DAEMON_INIT, .pid_file = {.fd = -1}};
    if (o->value[OPT_pid_file].text &&
        pid_file_open(&b->pid_file, opt_text(o, OPT_pid_file), &e) < 0) {
        log_error("%s: %s", opt_where(o, OPT_pid_file), e.msg);
        return 2;
    }
    if (opt_flag(o, OPT_daemon)) {
        int rc = daemon_detach(&b->daemon, &status, &e);
        if (rc > 0)
            return status;
        if (rc == 0)
            log_set_writer(daemon_say, &b->daemon);
    }
    if (e.code == 0 && pid_file_write(&b->pid_file, &e) < 0)
        err_wrap(&e, "%s", opt_where(o, OPT_pid_file));
    if (e.code == 0)
        open_log(&b->daemon, o, &e);
    if (e.code == 0)
        return -1;
    log_error("%s", e.msg);
    pid_file_close(&b->pid_file);
    return 2;
}

/* Runs the job, in this process or in its background process. Returns the exit status. */
static int run_job(const struct job_spec *job, struct options *o, const struct remote_job *remote)
{
    struct background b;
    int signals[NSIG], status = enter_background(&b, o);
    if (status >= 0)
        return status;
    job_signals_list(job, signals);
    struct guardian_opts opts = {.isolation = job->isolation,
                                 .forward_signals = signals,
                                 .stop_signals = job->stop_signals,
                                 .stop_grace = STOP_GRACE};
    struct run run = {.job = job,
                      .pid = getpid(),
                      .daemon = &b.daemon,
                      .remote = remote != NULL,
                      .wants_requeue = opt_flag(o, OPT_requeue),
                      .notify = {remote ? remote->state_fd : -1}};
    mpir_init(job->mpir, job->path);
    status = guardian_run(&opts, agent_process, &run);
    pid_file_close(&b.pid_file);
    return job->torchrun && status != 0 ? 1 : status;
}

/* Starts the job's launchers on other hosts. Returns the exit status. */
static int run_on_hosts(const struct host_list *hosts, struct options *o)
{
    struct background b;
    struct err e = ERR_INIT;
    struct head_tokens tokens;
    int status;
    if ((opt_given(o, OPT_report) && job_check_file(o, OPT_report, &e) < 0) ||
        token_of_head(o, &tokens, &e) < 0 ||
        (opt_flag(o, OPT_dry_run) && head_plan_print(o, hosts, &tokens, &e) < 0)) {
        log_error("%s", e.msg);
        return 2;
    }
    if (opt_flag(o, OPT_dry_run))
        return 0;
    status = enter_background(&b, o);
    if (status >= 0)
        return status;
    daemon_ready(&b.daemon);
    status = head_run(o, hosts, &tokens);
    explicit_bzero(&tokens, sizeof(tokens));
    pid_file_close(&b.pid_file);
    if (opt_flag(o, OPT_requeue) && status == EXIT_TIME_LIMIT)
        time_limit_requeue();
    return o->torchrun && status != 0 ? 1 : status;
}

static int launch_here(const struct remote_job *remote, int argc, char **argv);

/* The daemon that waits for jobs. */
struct service {
    struct background background;
    struct notify notify;
};

static void on_serving(void *arg)
{
    struct service *s = arg;
    daemon_ready(&s->background.daemon);
    notify_send(&s->notify, "READY=1");
}

/* Waits for jobs. Returns the exit status. */
static int serve(struct options *o)
{
    struct service s;
    struct err e = ERR_INIT;
    char token[TOKEN_TEXT_MAX];
    const char *source;
    int fd = serve_listen(o, &e);
    if (fd < 0 || token_of_daemon(o, token, &source, &e) < 0) {
        log_error("%s", e.msg);
        return 2;
    }
    int status = enter_background(&s.background, o);
    if (status >= 0)
        return status;
    log_verbose("the token is that of %s", source);
    notify_open(&s.notify);
    const struct serve_opts opts = {
        .listen_fd = fd, .token = token, .on_ready = on_serving, .arg = &s, .launch = launch_here};
    status = serve_run(&opts);
    explicit_bzero(token, sizeof(token));
    notify_close(&s.notify);
    pid_file_close(&s.background.pid_file);
    return status;
}

static void set_remote(struct job_spec *job, const struct remote_job *remote)
{
    job->report_fd = remote->report_fd;
    job->report_columns = remote->columns;
    job->inspect = remote->inspect;
    job->rdzv.listen_fd = remote->listen_fd;
}

/* --print_sbatch. Returns the exit status. */
static int print_sbatch(struct options *o, int argc, char **argv)
{
    struct err e = ERR_INIT;
    if (plan_options_without_hosts(o, &e) == 0 && sbatch_print(stdout, o, argc, argv, &e) == 0)
        return 0;
    log_error("%s", e.msg);
    return ferror(stdout) ? 1 : 2;
}

/* The hosts that the user names, or the scheduler. 0: the job runs on them; 1: there are none; or a
 * negative errno. */
static int find_hosts(struct host_list *hosts, struct options *o, struct err *e)
{
    int given = time_limit_read(o, environ, e);
    if (given == 0)
        given = host_list_read(hosts, o, e);
    if (given > 0 && (given = allocation_read(o, environ, e)) == 0)
        given = host_list_read(hosts, o, e);
    return given > 0 && plan_options_without_hosts(o, e) < 0 ? -EINVAL : given;
}

/* Runs the job that the options describe on this host, or says what it would be. remote: as
 * launch(). Returns the exit status. */
static int run_here(struct options *o, const struct remote_job *remote)
{
    struct job_spec job;
    struct err e = ERR_INIT;
    int status = o->torchrun ? 1 : 2;
    bool binding = opt_flag(o, OPT_print_binding);
    int rc = job_build(&job, o, &status, &e);
    options_log_notes(o);
    if (rc < 0 || token_build(&job, o, &e) < 0 ||
        (binding && plan_print_binding(stdout, &job, &e) < 0) ||
        (opt_flag(o, OPT_dry_run) && plan_print(stdout, &job, o, &e) < 0)) {
        log_error("%s", e.msg);
        if (ferror(stdout))
            return 1;
        return o->torchrun && status != 2 ? 1 : status;
    }
    if (remote)
        set_remote(&job, remote);
    if (binding || opt_flag(o, OPT_dry_run))
        return 0;
    return job.doctor.on ? doctor_run(&job) : run_job(&job, o, remote);
}

/* remote: this is one host's part of a job that was started elsewhere; NULL: it is not. */
static int launch(struct options *o, int argc, char **argv, const struct remote_job *remote)
{
    struct host_list hosts;
    struct err e = ERR_INIT;
    char host[256] = "";
    int status;
    if (read_options(o, argc, argv) < 0)
        return o->exit_status;
    status = print_and_end(o);
    if (status >= 0)
        return status;
    if (opt_flag(o, OPT_serve))
        return serve(o);
    if (remote && programs_take(o, remote->programs, &e) < 0) {
        log_error("%s", e.msg);
        return 2;
    }
    if (opt_flag(o, OPT_print_sbatch))
        return print_sbatch(o, argc, argv);
    int given = find_hosts(&hosts, o, &e);
    if (given < 0) {
        log_error("%s", e.msg);
        return o->torchrun ? 1 : 2;
    }
    if (given == 0 && !opt_flag(o, OPT_print_config) && !opt_flag(o, OPT_new_token))
        return run_on_hosts(&hosts, o);
    gethostname(host, sizeof(host) - 1);
    struct detect_host where = {host, "/etc/hosts", "/dev/termination-log"};
    if (detect(o, environ, &where, &e) < 0) {
        if (*e.msg) /* another task of the step says it */
            log_error("%s", e.msg);
        return o->torchrun ? 1 : 2;
    }
    if (opt_flag(o, OPT_new_token)) {
        if (token_new(o, &e) < 0) {
            log_error("%s", e.msg);
            return 2;
        }
        return printed(fflush(stdout) != 0 ? -errno : 0);
    }
    if (opt_flag(o, OPT_print_config))
        return printed(plan_print_config(stdout, o));
    return run_here(o, remote);
}

static int launch_here(const struct remote_job *remote, int argc, char **argv)
{
    struct options o;
    options_init(&o, argv[0]);
    int status = launch(&o, argc, argv, remote);
    options_fini(&o);
    return status;
}

int main(int argc, char **argv)
{
    fd_open_std();
    if (argc > 0 && strcmp(argv[0], FACTS_NAME) == 0)
        return facts_main(argc, argv);
    block_signal(SIGXFSZ);
    if (argc == 2 && strcmp(argv[1], "--from_head") == 0)
        return remote_main(NULL, launch_here);
    return launch_here(NULL, argc, argv);
}
