/* The control socket, both sides of it. The first byte of the input picks one:
 *   0  a launcher: what a client sends, in pieces (parted by 0xff); every answer is a line of JSON
 *   1  dlaunchctl: what a launcher answers, which it shows
 *
 * The program is one file with a main(); it is read in here, under another name. */
#define main dlaunchctl_main
int main(int argc, char **argv);
#include "launcher/control/dlaunchctl.c"
#undef main

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "launcher/control/control.h"
#include "rendezvous/rules/event_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ------------------------------------------------------------------------------------- launcher */

static uv_loop_t loop;
static int socket_fd = -1; /* of the path, which has been removed */
static int stops;

static void get_status(void *arg, struct agent_status *out)
{
    static struct agent_worker_status workers[2] = {
        {.rank = 2, .pid = 77, .state = "running", .seconds = 2.5},
        {.rank = 3, .local_rank = 1, .pid = 78, .state = "failed", .signal = 9, .seconds = 1}};
    (void)arg;
    *out = (struct agent_status){.state = "RUNNING",
                                 .health = "HEALTHY",
                                 .elapsed = 12.5,
                                 .nworkers = 2,
                                 .workers = workers,
                                 .rdzv = {.phase = "running", .nnodes = 2, .world_size = 8}};
}

static const struct event_list *get_events(void *arg)
{
    static const struct event_list none;
    (void)arg;
    return &none;
}

static void stop(void *arg, const char *why)
{
    (void)arg, (void)why;
    stops++;
}

static bool request_all(void *arg, enum request_kind kind, int signo, const char *ranks)
{
    (void)arg, (void)kind, (void)ranks;
    if (signo < 0 || signo >= NSIG)
        abort();
    return true;
}

/* Unlinks the launcher's socket at once, so that no file is left behind however this program ends.
 */
static void open_launcher(void)
{
    static struct job_spec job = {
        .host = "node-a", .name = "./tr\xff\x1b", .rdzv = {.run_id = "j"}};
    static struct control *control;
    struct control_opts opts = {.pid = 4242,
                                .job = &job,
                                .get_status = get_status,
                                .get_events = get_events,
                                .stop = stop,
                                .request = request_all,
                                .client_ms = 60000};
    char dir[] = "/tmp/dlaunch-fuzz.XXXXXX", path[64];
    struct err e = ERR_INIT;
    signal(SIGPIPE, SIG_IGN); /* a launcher blocks it */
    uv_loop_init(&loop);
    if (!mkdtemp(dir) || setenv("XDG_RUNTIME_DIR", dir, 1) < 0 ||
        control_open(&control, &loop, &opts, &e) < 0)
        abort();
    snprintf(path, sizeof(path), "%s/dlaunch/4242.sock", dir);
    socket_fd = open(path, O_PATH | O_CLOEXEC);
    if (socket_fd < 0 || unlink(path) < 0)
        abort();
    *strrchr(path, '/') = '\0';
    if (rmdir(path) < 0 || rmdir(dir) < 0)
        abort();
}

static void turn(void)
{
    for (int i = 0; i < 3; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
}

/* Reads the answers so far: whole lines, each a JSON object. Returns their number. */
static int read_answers(int fd)
{
    static char text[65536];
    int lines = 0;
    ssize_t n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    if (text[n - 1] != '\n')
        abort();
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        json_t *j = json_loads(line, 0, NULL);
        if (!json_is_object(j))
            abort();
        json_decref(j);
    }
    return lines;
}

static void ask_launcher(const uint8_t *data, size_t size)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int asked = 0, answered = 0;
    if (socket_fd < 0)
        open_launcher();
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d", socket_fd);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        abort();
    stops = 0;
    turn();
    for (size_t at = 0, n; at < size; at += n + 1) {
        const uint8_t *sep = memchr(data + at, 0xff, size - at);
        n = sep ? (size_t)(sep - (data + at)) : size - at;
        if (n && send(fd, data + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break; /* it has closed */
        for (size_t i = 0; i < n; i++)
            asked += data[at + i] == '\n';
        turn();
        answered += read_answers(fd);
    }
    if (answered > asked || stops > answered)
        abort();
    close(fd);
    turn();
}

/* ----------------------------------------------------------------------------------- dlaunchctl */

static void show(const uint8_t *data, size_t size)
{
    static struct jobs jobs;
    static const struct options text = {.timeout = -1}, json = {.timeout = -1, .json = true};
    FILE *out = stdout;
    json_t *answer = json_loadb((const char *)data, size, 0, NULL);
    if (json_is_object(answer)) {
        stdout = fopen("/dev/null", "w");
        jobs = (struct jobs){.n = 1, .job = {{.pid = 1, .dirfd = -1, .status = answer}}};
        do_status(&jobs, NULL, &text);
        do_status(&jobs, NULL, &json);
        do_status(&jobs, &jobs.job[0], &text);
        do_status(&jobs, &jobs.job[0], &json);
        fclose(stdout);
        stdout = out;
    }
    json_decref(answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 0)
        ask_launcher(data + 1, size - 1);
    else if (size > 0 && data[0] == 1)
        show(data + 1, size - 1);
    return 0;
}
