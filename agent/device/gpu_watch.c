/* gpu_watch.c: gpu_watch_ask() hands the question to the thread; the thread answers by an async
 * handle; on_answer or on_late calls back. Questions have numbers: an answer to one that another
 * has replaced is dropped.
 *
 * Failures: no NVML here, an old one: nothing is known, and workers start. A GPU that is lost, or
 * busy when it must be free: the answer is an error. NVML that does not answer: on_late warns, and
 * it is not asked again; the thread, if it ever comes back, finds `closed` set and ends. */
#include "agent/device/gpu_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/device/nvml.h"
#include "agent/base/job_env.h"
#include "agent/device/xid.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/memlock.h"
#include "core/mem.h"
#include "core/thread.h"
#include "rendezvous/rules/text.h"

#define MIB             (1024ull * 1024)
#define SLACK           (512 * MIB)  /* used memory that still counts as free */
#define IDLE_MAX        (2048 * MIB) /* used memory of a GPU without a known process */
#define LOOK_MS         50           /* between two reads of the used memory */
#define EVENTS_MS       100          /* limit of one wait for the driver's events */
#define READY_LATE_MS   20000
#define BEGIN_LATE_MS   20000 /* while workers run: nobody waits for it */
#define FAILURE_LATE_MS 500
#define EVENTS_MAX      32
#define PROCESSES_MAX   64
#define USERS_MAX       16 /* processes of a GPU that are told from each other */

struct device {
    struct gpu gpu;
    char name[128];             /* "0000:5e:00.0"; of an instance "0000:5e:00.0 MIG-..." */
    nvmlDevice_t handle, whole; /* of an instance: its own, its GPU's; else the same */
    int workers;
    unsigned long long used; /* when the job began */
    unsigned long long ecc;  /* uncorrectable errors at the last look */
    unsigned nvlinks;        /* that were up then; bit n: link n */
    bool remap;              /* rows of its memory had to be, or could not be, remapped then */
    struct gpu_usage usage;  /* this and the rest under the lock; total 0: not known */
    struct gpu_state state;
    pid_t pids[USERS_MAX]; /* of processes that compute on it */
    int npids;
};

/* What CUDA_VISIBLE_DEVICES names, in its order. */
struct visible {
    char bus[16]; /* "": not known */
    int minor;    /* -1: not known */
    int slot;     /* among the devices that are watched; -1: it is not */
};

/* Beside Xids. */
enum { EVENT_ECC = 0, EVENT_LOST = -1, EVENT_NVLINK = -2, EVENT_REMAP = -3 };

struct event {
    char bus[16];
    uint64_t at_ns;           /* when it was seen (CLOCK_MONOTONIC) */
    int pid, code;            /* the Xid, or EVENT_... */
    unsigned long long count; /* of ECC errors, of links */
    char text[128];
};

/* State that both threads share. The last user frees it. */
struct shared {
    atomic_int users;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool closed;
    uv_async_t *async; /* valid until closed */

    int question;    /* -1: none */
    unsigned number; /* of the question */
    bool look;       /* the usage is wanted */
    bool answered;
    unsigned answers; /* the question of this number */
    struct err answer;
    char warning[1024];
    struct event events[EVENTS_MAX];
    int nevents;

    struct visible *visible; /* made once, with the devices */
    int nvisible;            /* 0: not yet, or there are none */

    /* Only the thread uses the rest, while there is one. */
    char *cuda_visible; /* the variable; NULL: it is not set */
    struct gpu_paths paths;
    int nproc;
    struct nvml nvml;
    nvmlEventSet_t set;
    struct device *devices;
    int ndevices;
    bool all;    /* watch all of them, and not only those of CUDA's devices 0 to nproc - 1 */
    bool listed; /* visible and devices are made */
    bool asked_before, wants_events, several_nodes;
    enum gpu_check check;
    double wait_s;
};

struct gpu_watch {
    struct shared *sh;
    uv_async_t async;
    uv_timer_t late;
    uv_poll_t log_poll;
    bool polls; /* the log */
    bool thread, stuck;
    struct xid_log log;
    struct event seen[EVENTS_MAX]; /* the newest */
    int nseen;
    enum gpu_question question;
    void (*done)(void *arg, const struct err *e);
    void *arg;
};

/* --------------------------------------------------------------------------------- the thread's */

static void warn(struct shared *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void warn(struct shared *s, const char *fmt, ...)
{
    size_t len = strlen(s->warning);
    va_list ap;
    va_start(ap, fmt);
    if (len)
        len += (size_t)snprintf(s->warning + len, sizeof(s->warning) - len, "\n");
    if (len < sizeof(s->warning))
        vsnprintf(s->warning + len, sizeof(s->warning) - len, fmt, ap);
    va_end(ap);
}

/* Lists what CUDA_VISIBLE_DEVICES names, and each device that is to be watched once. */
static void list_devices(struct shared *s, bool nvml)
{
    struct gpu *all;
    int order[1024], n = gpu_list(&all, s->paths.gpus, s->paths.dev, nvml);
    int count = gpu_visible(s->cuda_visible, all, n, order, (int)ARRAY_LEN(order));
    struct visible *visible = xcalloc((size_t)count + 1, sizeof(*visible));
    s->devices = xcalloc((size_t)count + 1, sizeof(*s->devices));
    for (int i = 0; i < count; i++) {
        visible[i] = (struct visible){.minor = -1, .slot = -1};
        if (order[i] < 0)
            continue;
        const struct gpu *g = &all[order[i]];
        memcpy(visible[i].bus, g->bus, sizeof(visible[i].bus));
        visible[i].minor = g->minor;
        if (i >= s->nproc && !s->all)
            continue;
        visible[i].slot = s->ndevices;
        struct device *d = &s->devices[s->ndevices++];
        d->gpu = *g;
        d->workers = (s->nproc - i + count - 1) / count;
        snprintf(d->name, sizeof(d->name), "%s%s%s", g->bus, *g->mig ? " " : "", g->mig);
    }
    free(all);
    s->listed = true;
    pthread_mutex_lock(&s->lock);
    s->visible = visible;
    s->nvisible = count;
    pthread_mutex_unlock(&s->lock);
}

static void add_event(struct shared *s, struct event *ev)
{
    ev->at_ns = mono_ns();
    pthread_mutex_lock(&s->lock);
    if (s->nevents < EVENTS_MAX)
        s->events[s->nevents++] = *ev;
    pthread_mutex_unlock(&s->lock);
}

/* Describes the first process that uses the GPU, "used by pid 1234 (python)", or the memory in use.
 * "": the GPU is free. */
static const char *user_of(const struct shared *s, const struct device *d,
                           const struct nvml_memory *m, char out[128])
{
    struct nvml_process p[PROCESSES_MAX];
    unsigned n = PROCESSES_MAX;
    out[0] = '\0';
    if (s->nvml.DeviceGetComputeRunningProcesses_v3 &&
        s->nvml.DeviceGetComputeRunningProcesses_v3(d->handle, &n, p) == NVML_SUCCESS && n > 0) {
        char path[64], name[64] = "";
        snprintf(path, sizeof(path), "/proc/%u/comm", p[0].pid);
        if (fd_read_file(AT_FDCWD, path, name, sizeof(name)) > 0)
            name[strcspn(name, "\n")] = '\0';
        snprintf(out, 128, "used by pid %u%s%s%s%s (%.1f GB)", p[0].pid, *name ? " (" : "", name,
                 *name ? ")" : "", n > 1 ? " and others" : "", (double)m->used / 1e9);
    } else if (m->used > IDLE_MAX) {
        snprintf(out, 128, "in use (%.1f of %.1f GB)", (double)m->used / 1e9,
                 (double)m->total / 1e9);
    }
    return out;
}

static unsigned long long ecc_of(const struct shared *s, const struct device *d)
{
    unsigned long long n = 0;
    if (!d->whole || !s->nvml.DeviceGetTotalEccErrors ||
        s->nvml.DeviceGetTotalEccErrors(d->whole, NVML_ECC_UNCORRECTED, NVML_ECC_SINCE_BOOT, &n) !=
            NVML_SUCCESS)
        return 0; /* many GPUs have no ECC */
    return n;
}

/* A link that the driver says nothing of, as of a lost GPU, is as it was. */
static unsigned nvlinks_of(const struct shared *s, const struct device *d)
{
    unsigned up = 0;
    for (unsigned i = 0; d->whole && s->nvml.DeviceGetNvLinkState && i < NVML_NVLINKS_MAX; i++) {
        int active = 0;
        bool said = s->nvml.DeviceGetNvLinkState(d->whole, i, &active) == NVML_SUCCESS;
        up |= said ? (unsigned)(active != 0) << i : d->nvlinks & 1u << i;
    }
    return up;
}

static bool has_remap(const struct shared *s, const struct device *d)
{
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    return d->whole && s->nvml.DeviceGetRemappedRows &&
           s->nvml.DeviceGetRemappedRows(d->whole, &corrected, &uncorrected, &pending, &failed) ==
               NVML_SUCCESS &&
           (pending || failed);
}

/* In a compute mode other than the default one, a worker's first CUDA call may fail. */
static int check_compute_mode(struct shared *s, const struct device *d, struct err *e)
{
    int mode = 0;
    if (!s->nvml.DeviceGetComputeMode ||
        s->nvml.DeviceGetComputeMode(d->whole, &mode) != NVML_SUCCESS)
        return 0;
    if (mode == NVML_MODE_PROHIBITED)
        return err_set(e, -EPERM,
                       "GPU %s is in the compute mode Prohibited: no process can use it (to change "
                       "that: nvidia-smi -i %s -c DEFAULT)",
                       d->name, d->gpu.bus);
    if (mode == NVML_MODE_EXCLUSIVE && d->workers > 1)
        warn(s,
             "GPU %s is in the compute mode Exclusive_Process: only one of its %d workers can use "
             "it (to change that: nvidia-smi -i %s -c DEFAULT)",
             d->name, d->workers, d->gpu.bus);
    return 0;
}

/* Finds the device in NVML, and notes what it has by now. */
static int meet(struct shared *s, struct device *d, struct nvml_memory *m)
{
    int rc = s->nvml.DeviceGetHandleByPciBusId_v2(d->gpu.bus, &d->whole);
    d->handle = d->whole;
    if (rc == NVML_SUCCESS && *d->gpu.mig && s->nvml.DeviceGetHandleByUUID)
        rc = s->nvml.DeviceGetHandleByUUID(d->gpu.mig, &d->handle);
    if (rc == NVML_SUCCESS)
        rc = s->nvml.DeviceGetMemoryInfo(d->handle, m);
    if (rc != NVML_SUCCESS) {
        d->handle = d->whole = NULL;
        return rc;
    }
    d->used = m->used;
    d->ecc = ecc_of(s, d);
    d->nvlinks = nvlinks_of(s, d);
    d->remap = has_remap(s, d);
    if (s->set)
        s->nvml.DeviceRegisterEvents(d->whole, NVML_EVENT_XID, s->set);
    return rc;
}

static int look_at(struct shared *s, int i, struct err *e)
{
    struct device *d = &s->devices[i];
    struct nvml_memory m = {0};
    char user[128];
    int rc = meet(s, d, &m);
    if (rc == NVML_ERROR_GPU_IS_LOST)
        return err_set(e, -EIO,
                       "GPU %s is lost: it does not answer its driver (see dmesg; a reset or a "
                       "reboot may help)",
                       d->name);
    if (rc == NVML_ERROR_NOT_FOUND)
        return err_set(e, -ENODEV, "GPU %s was not found by the driver", d->name);
    if (rc != NVML_SUCCESS)
        return err_set(e, -EIO, "GPU %s cannot be used: NVML says error %d", d->name, rc);
    if ((rc = check_compute_mode(s, d, e)) < 0)
        return rc;
    if (*user_of(s, d, &m, user)) {
        if (s->check == GPU_CHECK_FREE)
            return err_set(e, -EBUSY, "GPU %s is %s, which --gpu_check free does not allow",
                           d->name, user);
        warn(s, "GPU %s is %s", d->name, user);
    }
    return 0;
}

static void open_nvml(struct shared *s)
{
    struct err e = ERR_INIT;
    if (nvml_open(&s->nvml, &e) < 0) {
        if (s->check == GPU_CHECK_FREE)
            warn(s, "--gpu_check: %s", e.msg);
        return;
    }
    if (s->wants_events && s->nvml.EventSetCreate && s->nvml.EventSetWait_v2 &&
        s->nvml.EventSetFree && s->nvml.DeviceRegisterEvents &&
        s->nvml.EventSetCreate(&s->set) != NVML_SUCCESS)
        s->set = NULL;
}

static bool is_closed(struct shared *s)
{
    pthread_mutex_lock(&s->lock);
    bool closed = s->closed;
    pthread_mutex_unlock(&s->lock);
    return closed;
}

/* Waits until the used memory of every device is as low as it was when the job began. A process
 * that was killed while it ran a kernel holds its memory for a while. */
static int wait_for_memory(struct shared *s, struct err *e)
{
    uint64_t until = mono_ns() + (uint64_t)(s->wait_s * 1e9);
    for (int i = 0; i < s->ndevices;) {
        struct device *d = &s->devices[i];
        struct nvml_memory m = {0};
        int rc = d->handle ? s->nvml.DeviceGetMemoryInfo(d->handle, &m) : NVML_ERROR_NOT_FOUND;
        if (rc == NVML_ERROR_GPU_IS_LOST)
            return look_at(s, i, e);
        if (rc != NVML_SUCCESS || m.used <= d->used + SLACK) {
            i++;
        } else if (mono_ns() >= until || is_closed(s)) {
            char user[128];
            warn(s, "GPU %s: %.1f GB are still in use after %g s (%s); starting anyway", d->name,
                 (double)(m.used - d->used) / 1e9, s->wait_s, user_of(s, d, &m, user));
            i++;
        } else {
            struct timespec ts = {0, LOOK_MS * 1000000};
            nanosleep(&ts, NULL);
        }
    }
    return 0;
}

static void take_driver_event(struct shared *s, const struct nvml_event *ev)
{
    struct event mine = {.code = (int)ev->data};
    if (!(ev->type & NVML_EVENT_XID))
        return;
    for (int i = 0; i < s->ndevices; i++) {
        if (s->devices[i].whole == ev->device)
            memcpy(mine.bus, s->devices[i].gpu.bus, sizeof(mine.bus));
    }
    add_event(s, &mine);
}

static void take_events(struct shared *s, unsigned ms)
{
    struct nvml_event ev;
    while (s->set && s->nvml.EventSetWait_v2(s->set, &ev, ms) == NVML_SUCCESS) {
        take_driver_event(s, &ev);
        ms = 0;
    }
}

static void tell_of(struct shared *s, const struct device *d, int code, unsigned long long count)
{
    struct event ev = {.code = code, .count = count};
    memcpy(ev.bus, d->gpu.bus, sizeof(ev.bus));
    add_event(s, &ev);
}

/* What has become worse since the last look. tell: else it is of no round. */
static void look_for_faults(struct shared *s, bool tell)
{
    for (int i = 0; s->nvml.lib && i < s->ndevices; i++) {
        struct device *d = &s->devices[i];
        unsigned long long ecc = ecc_of(s, d);
        unsigned links = nvlinks_of(s, d), down = d->nvlinks & ~links;
        bool remap = has_remap(s, d);
        bool again = i > 0 && d[-1].whole == d->whole; /* another instance of the same GPU */
        if (tell && !again && ecc > d->ecc)
            tell_of(s, d, EVENT_ECC, ecc - d->ecc);
        if (tell && !again && down)
            tell_of(s, d, EVENT_NVLINK, (unsigned)__builtin_popcount(down));
        if (tell && !again && remap && !d->remap)
            tell_of(s, d, EVENT_REMAP, 0);
        d->ecc = ecc > d->ecc ? ecc : d->ecc;
        d->nvlinks = links;
        d->remap = remap;
    }
}

static void look_for_lost(struct shared *s)
{
    for (int i = 0; s->nvml.lib && i < s->ndevices; i++) {
        const struct device *d = &s->devices[i];
        struct nvml_memory m;
        nvmlDevice_t whole;
        int rc = s->nvml.DeviceGetHandleByPciBusId_v2(d->gpu.bus, &whole);
        if (rc == NVML_SUCCESS)
            rc = s->nvml.DeviceGetMemoryInfo(whole, &m);
        bool again = i > 0 && strcmp(d[-1].gpu.bus, d->gpu.bus) == 0;
        if (rc != NVML_ERROR_GPU_IS_LOST || again)
            continue;
        tell_of(s, d, EVENT_LOST, 0);
    }
}

/* The workers run, or are about to: what their GPUs have by now is not of these workers. Says
 * nothing. */
static void begin_quietly(struct shared *s)
{
    struct nvml_memory m;
    if (s->asked_before) {
        take_events(s, 0);
        look_for_faults(s, false);
        return;
    }
    s->asked_before = true;
    if (!s->listed)
        list_devices(s, true);
    open_nvml(s);
    for (int i = 0; s->nvml.lib && i < s->ndevices; i++)
        meet(s, &s->devices[i], &m);
    s->warning[0] = '\0';
}

static int ready(struct shared *s, struct err *e)
{
    if (s->asked_before) {
        take_events(s, 0);
        look_for_faults(s, false);
        return s->nvml.lib && s->wait_s > 0 ? wait_for_memory(s, e) : 0;
    }
    s->asked_before = true;
    if (s->check == GPU_CHECK_OFF && s->wait_s <= 0)
        return 0;
    open_nvml(s);
    int rc = 0;
    char text[256];
    if (s->several_nodes && memlock_is_low(MEMLOCK_CARDS, text, sizeof(text)))
        warn(s, "%s", text);
    for (int i = 0; s->nvml.lib && i < s->ndevices && rc == 0; i++)
        rc = look_at(s, i, e);
    if (s->check == GPU_CHECK_OFF) {
        s->warning[0] = '\0';
        *e = (struct err)ERR_INIT;
        rc = 0;
    }
    return rc;
}

static void answer(struct shared *s, int question, unsigned number)
{
    struct err e = ERR_INIT;
    if (question == GPU_ASK_READY) {
        ready(s, &e);
    } else if (question == GPU_ASK_BEGIN) {
        begin_quietly(s);
    } else {
        if (!s->asked_before)
            begin_quietly(s);
        take_events(s, 0);
        look_for_faults(s, true);
        look_for_lost(s);
    }
    pthread_mutex_lock(&s->lock);
    s->answer = e;
    s->answers = number;
    s->answered = true;
    if (!s->closed)
        uv_async_send(s->async);
    pthread_mutex_unlock(&s->lock);
}

static uint8_t reasons_of(const struct shared *s, const struct device *d)
{
    unsigned long long r = 0;
    if (!s->nvml.DeviceGetCurrentClocksThrottleReasons ||
        s->nvml.DeviceGetCurrentClocksThrottleReasons(d->whole, &r) != NVML_SUCCESS)
        return 0;
    return (
        uint8_t)((r & (NVML_REASON_SW_THERMAL | NVML_REASON_HW_THERMAL) ? GPU_SLOW_THERMAL : 0) |
                 (r & NVML_REASON_HW_BRAKE ? GPU_SLOW_POWER_BRAKE : 0) |
                 (r & NVML_REASON_HW ? GPU_SLOW_HARDWARE : 0));
}

static uint32_t nvlink_errors_of(const struct shared *s, const struct device *d)
{
    unsigned long long n, sum = 0;
    for (unsigned i = 0; s->nvml.DeviceGetNvLinkErrorCounter && i < NVML_NVLINKS_MAX; i++) {
        for (int k = 0; k < NVML_NVLINK_COUNTERS; k++) {
            if (s->nvml.DeviceGetNvLinkErrorCounter(d->whole, i, k, &n) == NVML_SUCCESS)
                sum += n;
        }
    }
    return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}

/* As NVML's functions of that form: 0 if it does not know. */
static uint8_t small_number(int (*get)(nvmlDevice_t, unsigned *), nvmlDevice_t dev)
{
    unsigned n = 0;
    return get && get(dev, &n) == NVML_SUCCESS && n < 256 ? (uint8_t)n : 0;
}

static struct gpu_state state_of(const struct shared *s, const struct device *d)
{
    unsigned celsius = 0;
    if (!d->whole)
        return (struct gpu_state){0};
    if (!s->nvml.DeviceGetTemperature ||
        s->nvml.DeviceGetTemperature(d->whole, NVML_TEMPERATURE_GPU, &celsius) != NVML_SUCCESS)
        celsius = 0;
    return (struct gpu_state){
        .known = true,
        .reasons = reasons_of(s, d),
        .celsius = celsius < 256 ? (uint8_t)celsius : 0,
        .pcie_generation = small_number(s->nvml.DeviceGetCurrPcieLinkGeneration, d->whole),
        .pcie_width = small_number(s->nvml.DeviceGetCurrPcieLinkWidth, d->whole),
        .nvlink_errors = nvlink_errors_of(s, d)};
}

static void look_at_usage(struct shared *s)
{
    for (int i = 0; s->nvml.lib && i < s->ndevices; i++) {
        struct device *d = &s->devices[i];
        struct nvml_memory m = {0};
        struct nvml_utilization u = {0};
        struct gpu_usage usage = {.percent = -1};
        struct nvml_process p[PROCESSES_MAX];
        unsigned n = PROCESSES_MAX;
        if (!d->handle || !s->nvml.DeviceGetComputeRunningProcesses_v3 ||
            s->nvml.DeviceGetComputeRunningProcesses_v3(d->handle, &n, p) != NVML_SUCCESS)
            n = 0;
        if (d->handle && s->nvml.DeviceGetMemoryInfo(d->handle, &m) == NVML_SUCCESS) {
            usage.used = m.used;
            usage.total = m.total;
        }
        if (d->handle && d->handle == d->whole && s->nvml.DeviceGetUtilizationRates &&
            s->nvml.DeviceGetUtilizationRates(d->handle, &u) == NVML_SUCCESS)
            usage.percent = (int)u.gpu;
        struct gpu_state state = state_of(s, d);
        pthread_mutex_lock(&s->lock);
        d->usage = usage;
        d->state = state;
        d->npids = n < USERS_MAX ? (int)n : USERS_MAX;
        for (int k = 0; k < d->npids; k++)
            d->pids[k] = (pid_t)p[k].pid;
        pthread_mutex_unlock(&s->lock);
    }
}

static void gpu_watch_release(struct shared *s)
{
    if (atomic_fetch_sub(&s->users, 1) > 1)
        return;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s->devices);
    free(s->visible);
    free(s->cuda_visible);
    free(s);
}

static void *gpu_watch_run(void *arg)
{
    struct shared *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closed) {
        int question = s->question;
        unsigned number = s->number;
        bool look = s->look;
        s->question = -1;
        s->look = false;
        if (question < 0 && !look && !s->set) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        if (question >= 0)
            answer(s, question, number);
        else if (!look)
            take_events(s, EVENTS_MS);
        if (look)
            look_at_usage(s);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    if (s->set)
        s->nvml.EventSetFree(s->set);
    nvml_close(&s->nvml);
    gpu_watch_release(s);
    return NULL;
}

/* ----------------------------------------------------------------------------------- the loop's */

static void gpu_watch_finish(struct gpu_watch *w, const struct err *e)
{
    void (*done)(void *, const struct err *) = w->done;
    uv_timer_stop(&w->late);
    w->done = NULL;
    if (done)
        done(w->arg, e);
}

static void keep(struct gpu_watch *w, const struct event *ev)
{
    if (w->nseen == EVENTS_MAX) {
        memmove(w->seen, w->seen + 1, sizeof(w->seen) - sizeof(w->seen[0]));
        w->nseen--;
    }
    w->seen[w->nseen++] = *ev;
}

static void on_answer(uv_async_t *async)
{
    struct gpu_watch *w = container_of(async, struct gpu_watch, async);
    struct shared *s = w->sh;
    char warning[sizeof(s->warning)];
    pthread_mutex_lock(&s->lock);
    bool answered = s->answered && s->answers == s->number;
    struct err e = s->answer;
    s->answered = false;
    memcpy(warning, s->warning, sizeof(warning));
    s->warning[0] = '\0';
    for (int i = 0; i < s->nevents; i++)
        keep(w, &s->events[i]);
    s->nevents = 0;
    pthread_mutex_unlock(&s->lock);
    if (!answered)
        return;
    w->stuck = false;
    for (char *line = warning, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        end += *end ? (*end = '\0', 1) : 0;
        log_warn("%s", line);
    }
    gpu_watch_finish(w, e.code ? &e : NULL);
}

static void on_late(uv_timer_t *t)
{
    struct gpu_watch *w = container_of(t, struct gpu_watch, late);
    w->stuck = true;
    if (w->question == GPU_ASK_READY)
        log_warn("the NVIDIA driver did not report the state of the GPUs in time; continuing "
                 "without it");
    gpu_watch_finish(w, NULL);
}

void gpu_watch_read_log(struct gpu_watch *w)
{
    struct xid x;
    while (xid_log_next(&w->log, &x)) {
        struct event ev = {.at_ns = mono_ns(), .code = x.code, .pid = x.pid};
        memcpy(ev.bus, x.bus, sizeof(ev.bus));
        memcpy(ev.text, x.text, sizeof(ev.text));
        keep(w, &ev);
    }
}

/* The kernel has written something. */
static void on_log(uv_poll_t *p, int status, int events)
{
    struct gpu_watch *w = container_of(p, struct gpu_watch, log_poll);
    (void)events;
    gpu_watch_read_log(w);
    if (status < 0)
        uv_poll_stop(p);
}

static int start_thread(struct gpu_watch *w)
{
    atomic_fetch_add(&w->sh->users, 1);
    int rc = thread_start(NULL, 0, gpu_watch_run, w->sh);
    if (rc)
        atomic_fetch_sub(&w->sh->users, 1);
    w->thread = rc == 0;
    if (w->polls) /* workers use GPUs: when the kernel says something of them matters */
        uv_poll_start(&w->log_poll, UV_READABLE, on_log);
    return -rc;
}

/* Answers through the loop, because a callback must not be called from inside gpu_watch_ask(). */
static void on_nothing(uv_timer_t *t)
{
    gpu_watch_finish(container_of(t, struct gpu_watch, late), NULL);
}

void gpu_watch_ask(struct gpu_watch *w, enum gpu_question q,
                   void (*done)(void *arg, const struct err *e), void *arg)
{
    struct shared *s = w->sh;
    w->done = done;
    w->arg = arg;
    w->question = q;
    if (w->stuck || (!w->thread && start_thread(w) < 0)) {
        uv_timer_start(&w->late, on_nothing, 0, 0);
        return;
    }
    uint64_t late = q == GPU_ASK_READY            ? READY_LATE_MS + (uint64_t)(s->wait_s * 1e3)
                    : q == GPU_ASK_BEGIN && !done ? BEGIN_LATE_MS
                                                  : FAILURE_LATE_MS;
    uv_timer_start(&w->late, on_late, late, 0);
    pthread_mutex_lock(&s->lock);
    s->question = (int)q;
    s->number++;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void gpu_watch_look(struct gpu_watch *w)
{
    struct shared *s = w->sh;
    if (!w->thread || w->stuck)
        return;
    pthread_mutex_lock(&s->lock);
    s->look = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* CUDA's device of the worker; -1: not known. NVML knows who computes on a device, unless it counts
 * processes otherwise, as in a container; a worker that can see one device only has only that one's
 * file open; else worker i has device i. */
static int device_of(struct gpu_watch *w, const struct gpu_user *u)
{
    struct shared *s = w->sh;
    int found = -1;
    pthread_mutex_lock(&s->lock);
    int n = s->nvisible;
    for (int i = 0; i < n; i++) {
        const struct device *d = s->visible[i].slot < 0 ? NULL : &s->devices[s->visible[i].slot];
        for (int k = 0; d && k < d->npids; k++) {
            if (d->pids[k] == u->pid || (u->files.pid && d->pids[k] == u->files.pid))
                found = i;
        }
    }
    for (int i = 0; i < n && found < 0; i++) {
        if (s->visible[i].minor >= 0 && u->files.minors == UINT64_C(1) << s->visible[i].minor)
            found = i;
    }
    pthread_mutex_unlock(&s->lock);
    return found >= 0 ? found : n ? u->local_rank % n : -1;
}

struct gpu_state gpu_watch_state(struct gpu_watch *w, const struct gpu_user *u)
{
    int i = device_of(w, u), slot = i < 0 ? -1 : w->sh->visible[i].slot;
    struct gpu_state state = {0};
    pthread_mutex_lock(&w->sh->lock);
    if (slot >= 0)
        state = w->sh->devices[slot].state;
    pthread_mutex_unlock(&w->sh->lock);
    return state;
}

bool gpu_watch_usage(struct gpu_watch *w, const struct gpu_user *u, struct gpu_usage *out)
{
    int i = device_of(w, u), slot = i < 0 ? -1 : w->sh->visible[i].slot;
    if (slot < 0)
        return false;
    pthread_mutex_lock(&w->sh->lock);
    *out = w->sh->devices[slot].usage;
    pthread_mutex_unlock(&w->sh->lock);
    return out->total > 0;
}

static void put_time(char *out, size_t cap, uint64_t at_ns, uint64_t until_ns)
{
    uint64_t now = mono_ns(), at = day_ns() - (now - at_ns);
    double before = ((double)until_ns - (double)at_ns) / 1e9;
    time_t seconds = (time_t)(at / 1000000000u);
    struct tm tm;
    char text[32] = "";
    if (localtime_r(&seconds, &tm))
        strftime(text, sizeof(text), "%T", &tm);
    text_add(out, cap, ", seen at %s.%03u", text, (unsigned)(at / 1000000 % 1000));
    if (until_ns && before >= 0) /* what is read later may have happened earlier */
        text_add(out, cap, " (%.1f s before the worker ended)", before);
}

static void put_event(char *out, size_t cap, const struct event *ev, int device, uint64_t until_ns)
{
    const char *text = xid_meaning(ev->code);
    text_add(out, cap, "%sGPU ", *out ? "\n" : "");
    if (device >= 0)
        text_add(out, cap, "%d ", device);
    text_add(out, cap, "(%s): ", ev->bus);
    if (ev->code == EVENT_LOST) {
        text_add(out, cap, "lost: it does not answer its driver");
    } else if (ev->code == EVENT_NVLINK) {
        text_add(out, cap, "%llu NVLink%s went down since the workers were started", ev->count,
                 ev->count == 1 ? "" : "s");
    } else if (ev->code == EVENT_REMAP) {
        text_add(out, cap, "rows of its memory have to be, or could not be, remapped");
    } else if (ev->code == EVENT_ECC) {
        text_add(out, cap, "%llu uncorrectable ECC error%s since the workers were started",
                 ev->count, ev->count == 1 ? "" : "s");
    } else {
        text_add(out, cap, "Xid %d%s%s", ev->code, text || *ev->text ? ", " : "",
                 text ? text : ev->text);
        put_time(out, cap, ev->at_ns, until_ns);
    }
}

static bool is_of(int pid, const struct gpu_user *u)
{
    return pid == u->pid || pid == u->files.pid;
}

/* Whether what happened is a fault of the GPU, and if the worker did not end by itself, one that a
 * worker does not survive, and that was before its end. What NVML says is known only after it. */
static bool is_fault(const struct event *ev, bool by_itself, uint64_t until_ns)
{
    bool survived = ev->code == 63 || ev->code == 64 || ev->code == EVENT_REMAP;
    if (by_itself)
        return ev->code <= 0 || xid_is_fault(ev->code);
    return !survived && (ev->code <= 0 || (xid_is_fault(ev->code) && ev->at_ns <= until_ns));
}

/* Calls for each event of the worker, or of its GPU. device: CUDA's number; -1: another GPU. */
static void each_event(struct gpu_watch *w, const struct gpu_user *u,
                       void (*one)(const struct event *ev, int device, void *arg), void *arg)
{
    gpu_watch_read_log(w);
    if (w->nseen && !w->thread && !w->sh->listed)
        list_devices(w->sh, false);
    int device = device_of(w, u);
    const char *bus = device < 0 ? "" : w->sh->visible[device].bus;
    for (int i = 0; i < w->nseen; i++) {
        const struct event *ev = &w->seen[i];
        bool own = *bus && strcmp(ev->bus, bus) == 0;
        if (ev->at_ns >= u->since_ns && (own || (ev->pid && is_of(ev->pid, u))))
            one(ev, own ? device : -1, arg);
    }
}

struct note {
    char *out;
    size_t cap;
    uint64_t until_ns;
};

static void note_event(const struct event *ev, int device, void *arg)
{
    const struct note *n = arg;
    put_event(n->out, n->cap, ev, device, n->until_ns);
}

const char *gpu_watch_note(struct gpu_watch *w, const struct gpu_user *u, char *out, size_t cap)
{
    struct note n = {out, cap, u->until_ns};
    out[0] = '\0';
    each_event(w, u, note_event, &n);
    return out;
}

struct fault_check {
    bool by_itself, fault;
    uint64_t until_ns;
};

static void check_event(const struct event *ev, int device, void *arg)
{
    struct fault_check *c = arg;
    (void)device;
    c->fault |= is_fault(ev, c->by_itself, c->until_ns);
}

bool gpu_watch_fault(struct gpu_watch *w, const struct gpu_user *u, bool by_itself)
{
    struct fault_check c = {.by_itself = by_itself, .until_ns = u->until_ns};
    each_event(w, u, check_event, &c);
    return c.fault;
}

/* ------------------------------------------------------------------------------- beginning, end */

/* A file that cannot be polled, as in tests, is read when the GPUs are asked about. */
static void poll_log(struct gpu_watch *w, uv_loop_t *loop, struct uvx_scope *scope)
{
    if (w->log.fd < 0 || uv_poll_init(loop, &w->log_poll, w->log.fd) != 0)
        return;
    uv_unref((uv_handle_t *)&w->log_poll);
    uvx_own(scope, &w->log_poll);
    w->polls = true;
}

struct gpu_watch *gpu_watch_new(uv_loop_t *loop, struct uvx_scope *scope,
                                const struct job_spec *job, const struct gpu_paths *paths)
{
    struct gpu_watch *w = xcalloc(1, sizeof(*w));
    struct shared *s = w->sh = xcalloc(1, sizeof(*s));
    const char *visible = job_env_gpus(job);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    atomic_init(&s->users, 1);
    s->question = -1;
    s->paths = *paths;
    s->nproc = job->nproc;
    s->all = !job->gpus;
    s->cuda_visible = visible ? xstrdup(visible) : NULL;
    if (job->gpus)
        list_devices(s, true);
    if (job->gpus && s->nvisible == 0) {
        gpu_watch_release(s);
        free(w);
        return NULL;
    }
    xid_log_open(&w->log, paths->kmsg);
    s->check = job->gpu_check;
    s->wait_s = job->gpu_wait;
    s->several_nodes = job->rdzv.max_nodes > 1;
    s->wants_events = w->log.fd < 0;
    s->async = &w->async;
    uv_async_init(loop, &w->async, on_answer);
    uv_timer_init(loop, &w->late);
    uv_unref((uv_handle_t *)&w->async);
    uvx_own(scope, &w->async);
    uvx_own(scope, &w->late);
    poll_log(w, loop, scope);
    return w;
}

/* Called before the handles are closed: the thread makes no more use of them. */
void gpu_watch_stop(struct gpu_watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->sh->lock);
    w->sh->closed = true;
    pthread_cond_signal(&w->sh->wake);
    pthread_mutex_unlock(&w->sh->lock);
}

void gpu_watch_free(struct gpu_watch *w)
{
    if (!w)
        return;
    xid_log_close(&w->log);
    gpu_watch_release(w->sh);
    free(w);
}
