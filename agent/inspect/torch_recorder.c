#include "agent/inspect/torch_recorder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/inspect/pickle.h"
#include "agent/inspect/remote.h"
#include "core/fd.h"
#include "core/hash.h"

#define SECOND               UINT64_C(1000000000)
#define TORCH_RECORDER_ANY_S (UINT64_C(1) << 32)

static bool is_message(const struct pickle_value *entry)
{
    return pickle_number(pickle_get(entry, "is_p2p"), 0) != 0;
}

/* An operation has ended by its own state, which not all backends write, or because a later one of
 * its group has ended. */
static bool has_ended(const struct pickle_value *root, const struct pickle_value *entry)
{
    char state[16], group[24];
    pickle_text(pickle_get(entry, "state"), state, sizeof(state));
    if (strcmp(state, "completed") == 0)
        return true;
    snprintf(group, sizeof(group), "%lld",
             (long long)pickle_number(pickle_get(entry, "pg_id"), -1));
    const struct pickle_value *status = pickle_get(pickle_get(root, "pg_status"), group);
    int64_t last = pickle_number(pickle_get(status, "last_completed_collective"), -1);
    return !is_message(entry) && last >= 0 &&
           pickle_number(pickle_get(entry, "collective_seq_id"), INT64_MAX) <= last;
}

static int64_t record_of(const struct pickle_value *entry)
{
    return pickle_number(pickle_get(entry, "record_id"), -1);
}

/* NULL: there is none. */
static const struct pickle_value *find_entry(const struct pickle_value *root)
{
    const struct pickle_value *open = NULL, *last = NULL, *entries = pickle_get(root, "entries");
    const struct pickle_item *i = entries && entries->type == PICKLE_LIST ? entries->first : NULL;
    for (; i; i = i->next) {
        if (record_of(i->value) < 0)
            continue;
        if (!has_ended(root, i->value) && (!open || record_of(i->value) < record_of(open)))
            open = i->value;
        if (!last || record_of(i->value) > record_of(last))
            last = i->value;
    }
    return open ? open : last;
}

/* "nccl:all_reduce" of a group -> "all_reduce in group 0". */
static void describe(const struct pickle_value *entry, struct sample_op *out)
{
    char name[96], group[96] = "";
    pickle_text(pickle_get(entry, "profiling_name"), name, sizeof(name));
    const struct pickle_value *names = pickle_get(entry, "process_group");
    if (names && names->type == PICKLE_LIST && names->first)
        pickle_text(names->first->value, group, sizeof(group));
    for (const char *c = group; *c; c++)
        out->group = hash_add(out->group, (uint64_t)(unsigned char)*c);
    const char *colon = strchr(name, ':');
    snprintf(out->text, sizeof(out->text), "%s in group %s", colon ? colon + 1 : name, group);
}

bool torch_recorder_parse(const void *dump, size_t len, uint64_t now_ns, struct sample_op *out)
{
    struct pickle *p = pickle_read(dump, len);
    const struct pickle_value *root = p ? pickle_root(p) : NULL, *e = find_entry(root);
    *out = (struct sample_op){0};
    if (e) {
        const char *number = is_message(e) ? "p2p_seq_id" : "collective_seq_id";
        uint64_t created = (uint64_t)pickle_number(pickle_get(e, "time_created_ns"), 0);
        out->number = (uint64_t)record_of(e) + 1;
        out->seq = (uint64_t)pickle_number(pickle_get(e, number), 0);
        out->open = !has_ended(root, e);
        out->age_ms = created && now_ns > created ? (now_ns - created) / 1000000 : 0;
        out->reported = true;
        describe(e, out);
    }
    pickle_free(p);
    return e != NULL;
}

static uint64_t now_real(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* False: there is none, or none that is younger than so many seconds. */
static bool read_dump(const char *path, uint64_t seconds, struct sample_op *out)
{
    struct stat st;
    uint64_t now = now_real();
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 ||
        (uint64_t)st.st_size > PICKLE_BYTES_MAX)
        return false;
    uint64_t written = (uint64_t)st.st_mtim.tv_sec * SECOND + (uint64_t)st.st_mtim.tv_nsec;
    if (now > written + seconds * SECOND)
        return false;
    /* The file is read, not mapped: a mapped file that becomes shorter meanwhile would be a
     * SIGBUS. */
    size_t len = (size_t)st.st_size;
    void *dump = malloc(len);
    bool good = dump && pread(fd, dump, len, 0) == (ssize_t)len &&
                torch_recorder_parse(dump, len, now, out);
    free(dump);
    return good;
}

bool torch_recorder_read(const char *path, struct sample_op *out)
{
    return read_dump(path, TORCH_RECORDER_ANY_S, out);
}

/* Nobody reads the pipe: there is no such thread, or it is busy with another dump. */
static void ask(const char *path)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
        (void)!write(fd, "1", 1);
}

/* Writes the path at which a dump may be, in `root` and below it. False: the path is not set. */
static bool look_in(const char *root, const char *below, struct sample *s)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s%s%d", root ? root : "", below, s->rank);
    return root && read_dump(path, TORCH_RECORDER_FRESH_S, &s->op);
}

/* Without a path in the environment PyTorch writes into the user's cache, newer versions into that
 * of XDG. Versions that write into /tmp need the path in the environment: a file of that name in
 * /tmp may be anybody's. */
static bool look_for_dump(const char *environment, struct sample *s)
{
    const char *file = remote_env(environment, "TORCH_FR_DUMP_TEMP_FILE");
    const char *home = remote_env(environment, "HOME");
    file = file ? file : remote_env(environment, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE");
    if (file)
        return look_in(file, "", s);
    return look_in(remote_env(environment, "XDG_CACHE_HOME"), "/torch/comm_lib_trace_rank_", s) ||
           look_in(home ? home : "/tmp", "/.cache/torch/comm_lib_trace_rank_", s);
}

void torch_recorder_look(const char *environment, struct sample *s)
{
    char path[4096];
    const char *pipe = remote_env(environment, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
    if (!pipe || look_for_dump(environment, s))
        return;
    snprintf(path, sizeof(path), "%s%d.pipe", pipe, s->rank);
    ask(path);
}
