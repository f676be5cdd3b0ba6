/* gpu_watch.c: gpu_watch_ask() hands the question to the thread; the thread answers by an async
 * handle; on_answer or on_late calls back.
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

#define MIB             (1024ull * 1024)
#define SLACK           (512 * MIB)  /* used memory that still counts as free */
#define IDLE_MAX        (2048 * MIB) /* used memory of a GPU without a known process */
#define LOOK_MS         50           /* between two reads of the used memory */
#define EVENTS_MS       100          /* limit of one wait for the driver's events */
#define READY_LATE_MS   20000
#define FAILURE_LATE_MS 500
#define EVENTS_MAX      32
#define PROCESSES_MAX   64

struct device {
    struct gpu gpu;
    char name[128];             /* "0000:5e:00.0"; of an instance "0000:5e:00.0 MIG-..." */
    nvmlDevice_t handle, whole; /* of an instance: its own, its GPU's; else the same */
    int workers;
    unsigned long long used; /* when the job began */
    unsigned long long ecc;  /* uncorrectable errors at the last look */
    struct gpu_usage usage;  /* under the lock; total 0: not known */
};

struct event {
    char bus[16];
    uint64_t at_ns; /* when it was seen (CLOCK_MONOTONIC) */
    int pid, code;  /* the Xid; 0: ECC errors, `count` of them */
    unsigned long long count;
    char text[128];
};

/* State that both threads share. The last user frees it. */
struct shared {
    atomic_int users;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool closed;
    uv_async_t *async; /* valid until closed */

    int question; /* -1: none */
    bool look;    /* the usage is wanted */
    bool answered;
    struct err answer;
    char warning[1024];
    struct event events[EVENTS_MAX];
    int nevents;

    /* Only the thread uses the rest. */
    struct nvml nvml;
    nvmlEventSet_t set;
    struct device *devices;
    int ndevices;
    bool asked_before, wants_events, several_nodes;
    enum gpu_check check;
    double wait_s;
};

struct gpu_watch {
    struct shared *sh;
    uv_async_t async;
    uv_timer_t late;
    bool thread, stuck;
    struct xid_log log;
    char (*buses)[16]; /* PCI addresses of CUDA's devices; "": not known */
    int *slots;        /* where they are in the list of the thread; -1: not there */
    int nbuses;
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
    if (!s->nvml.DeviceGetTotalEccErrors ||
        s->nvml.DeviceGetTotalEccErrors(d->whole, NVML_ECC_UNCORRECTED, NVML_ECC_SINCE_BOOT, &n) !=
            NVML_SUCCESS)
        return 0; /* many GPUs have no ECC */
    return n;
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

static int look_at(struct shared *s, int i, struct err *e)
{
    struct device *d = &s->devices[i];
    struct nvml_memory m = {0};
    char user[128];
    int rc = s->nvml.DeviceGetHandleByPciBusId_v2(d->gpu.bus, &d->whole);
    d->handle = d->whole;
    if (rc == NVML_SUCCESS && *d->gpu.mig && s->nvml.DeviceGetHandleByUUID)
        rc = s->nvml.DeviceGetHandleByUUID(d->gpu.mig, &d->handle);
    if (rc == NVML_SUCCESS)
        rc = s->nvml.DeviceGetMemoryInfo(d->handle, &m);
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
    d->used = m.used;
    d->ecc = ecc_of(s, d);
    if (s->set)
        s->nvml.DeviceRegisterEvents(d->whole, NVML_EVENT_XID, s->set);
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
        int rc = s->nvml.DeviceGetMemoryInfo(d->handle, &m);
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

/* tell: else they are of no round. */
static void look_for_ecc(struct shared *s, bool tell)
{
    for (int i = 0; s->nvml.lib && i < s->ndevices; i++) {
        struct device *d = &s->devices[i];
        struct event ev = {.count = ecc_of(s, d)};
        bool again = i > 0 && d[-1].whole == d->whole; /* another instance of the same GPU */
        if (ev.count <= d->ecc || again)
            continue;
        unsigned long long total = ev.count;
        ev.count -= d->ecc;
        d->ecc = total;
        memcpy(ev.bus, d->gpu.bus, sizeof(ev.bus));
        if (tell)
            add_event(s, &ev);
    }
}

static int ready(struct shared *s, struct err *e)
{
    if (s->asked_before) {
        take_events(s, 0);
        look_for_ecc(s, false);
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

static void answer(struct shared *s, int question)
{
    struct err e = ERR_INIT;
    if (question == GPU_ASK_READY) {
        ready(s, &e);
    } else {
        take_events(s, 0);
        look_for_ecc(s, true);
    }
    pthread_mutex_lock(&s->lock);
    s->answer = e;
    s->answered = true;
    if (!s->closed)
        uv_async_send(s->async);
    pthread_mutex_unlock(&s->lock);
}

static void look_at_usage(struct shared *s)
{
    for (int i = 0; s->nvml.lib && i < s->ndevices; i++) {
        struct device *d = &s->devices[i];
        struct nvml_memory m = {0};
        struct nvml_utilization u = {0};
        struct gpu_usage usage = {.percent = -1};
        if (d->handle && s->nvml.DeviceGetMemoryInfo(d->handle, &m) == NVML_SUCCESS) {
            usage.used = m.used;
            usage.total = m.total;
        }
        if (d->handle && d->handle == d->whole && s->nvml.DeviceGetUtilizationRates &&
            s->nvml.DeviceGetUtilizationRates(d->handle, &u) == NVML_SUCCESS)
            usage.percent = (int)u.gpu;
        pthread_mutex_lock(&s->lock);
        d->usage = usage;
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
    free(s);
}

static void *gpu_watch_run(void *arg)
{
    struct shared *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closed) {
        int question = s->question;
        bool look = s->look;
        s->question = -1;
        s->look = false;
        if (question < 0 && !look && !s->set) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        if (question >= 0)
            answer(s, question);
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
    bool answered = s->answered;
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

static int start_thread(struct gpu_watch *w)
{
    atomic_fetch_add(&w->sh->users, 1);
    int rc = thread_start(NULL, 0, gpu_watch_run, w->sh);
    if (rc)
        atomic_fetch_sub(&w->sh->users, 1);
    w->thread = rc == 0;
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
    bool waiting = w->done != NULL;
    w->done = done;
    w->arg = arg;
    if (waiting)
        return;
    w->question = q;
    if (w->stuck || (!w->thread && start_thread(w) < 0)) {
        uv_timer_start(&w->late, on_nothing, 0, 0);
        return;
    }
    uint64_t late =
        q == GPU_ASK_READY ? READY_LATE_MS + (uint64_t)(s->wait_s * 1e3) : FAILURE_LATE_MS;
    uv_timer_start(&w->late, on_late, late, 0);
    pthread_mutex_lock(&s->lock);
    s->question = (int)q;
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

bool gpu_watch_usage(struct gpu_watch *w, int local_rank, struct gpu_usage *out)
{
    int slot = w->slots[local_rank % w->nbuses];
    if (slot < 0)
        return false;
    pthread_mutex_lock(&w->sh->lock);
    *out = w->sh->devices[slot].usage;
    pthread_mutex_unlock(&w->sh->lock);
    return out->total > 0;
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

const char *gpu_watch_note(struct gpu_watch *w, int local_rank, pid_t pid, uint64_t since_ns,
                           char *out, size_t cap)
{
    int device = local_rank % w->nbuses;
    const char *bus = w->buses[device];
    size_t len = 0;
    out[0] = '\0';
    gpu_watch_read_log(w);
    for (int i = 0; i < w->nseen && len < cap; i++) {
        const struct event *ev = &w->seen[i];
        if (ev->at_ns < since_ns || (!(ev->pid && ev->pid == pid) && strcmp(ev->bus, bus) != 0))
            continue;
        bool own = strcmp(ev->bus, bus) == 0;
        const char *text = xid_meaning(ev->code);
        len += (size_t)snprintf(out + len, cap - len, "%sGPU ", len ? "\n" : "");
        if (own && len < cap)
            len += (size_t)snprintf(out + len, cap - len, "%d ", device);
        if (len < cap && ev->code == 0)
            len += (size_t)snprintf(
                out + len, cap - len,
                "(%s): %llu uncorrectable ECC error%s since the workers were started", ev->bus,
                ev->count, ev->count == 1 ? "" : "s");
        else if (len < cap)
            len += (size_t)snprintf(out + len, cap - len, "(%s): Xid %d%s%s", ev->bus, ev->code,
                                    text || *ev->text ? ", " : "", text ? text : ev->text);
    }
    return out;
}

/* ------------------------------------------------------------------------------- beginning, end */

/* Finds the PCI addresses of CUDA's devices, and lists each device that workers use once, for the
 * thread. */
static void gpu_watch_find_devices(struct gpu_watch *w, const struct job_spec *job,
                                   const char *proc_dir)
{
    struct gpu *all;
    int order[1024], n = gpu_list(&all, proc_dir, GPU_DEV, true);
    int count = gpu_visible(job_env_gpus(job), all, n, order, (int)ARRAY_LEN(order));
    struct shared *s = w->sh;
    w->buses = xcalloc((size_t)count + 1, sizeof(*w->buses));
    w->slots = xcalloc((size_t)count + 1, sizeof(*w->slots));
    w->nbuses = count;
    s->devices = xcalloc((size_t)count + 1, sizeof(*s->devices));
    for (int i = 0; i < count; i++) {
        w->slots[i] = -1;
        if (order[i] < 0)
            continue;
        const struct gpu *g = &all[order[i]];
        memcpy(w->buses[i], g->bus, sizeof(w->buses[i]));
        if (i >= job->nproc)
            continue;
        w->slots[i] = s->ndevices;
        struct device *d = &s->devices[s->ndevices++];
        d->gpu = *g;
        d->workers = (job->nproc - i + count - 1) / count;
        snprintf(d->name, sizeof(d->name), "%s%s%s", g->bus, *g->mig ? " " : "", g->mig);
    }
    free(all);
}

struct gpu_watch *gpu_watch_new(uv_loop_t *loop, struct uvx_scope *scope,
                                const struct job_spec *job, const char *proc_dir, const char *kmsg)
{
    struct gpu_watch *w = xcalloc(1, sizeof(*w));
    struct shared *s = w->sh = xcalloc(1, sizeof(*s));
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    atomic_init(&s->users, 1);
    s->question = -1;
    gpu_watch_find_devices(w, job, proc_dir);
    if (w->nbuses == 0) {
        gpu_watch_release(s);
        free(w->buses);
        free(w->slots);
        free(w);
        return NULL;
    }
    xid_log_open(&w->log, kmsg);
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
    free(w->buses);
    free(w->slots);
    free(w);
}
