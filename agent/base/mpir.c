#include "agent/base/mpir.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/netaddr.h"
#include "rendezvous/rules/event_log.h"

#define PROCESSES_MAX 65536 /* address space: memory is used for those that there are */

/* The names, types and values are MPIR's, and global. */
typedef struct {
    char *host_name;
    char *executable_name;
    int pid;
} MPIR_PROCDESC;

enum { MPIR_NULL, MPIR_DEBUG_SPAWNED, MPIR_DEBUG_ABORTING };

extern MPIR_PROCDESC *MPIR_proctable;
extern int MPIR_proctable_size;
extern volatile int MPIR_being_debugged, MPIR_debug_state;
extern int MPIR_i_am_starter, MPIR_partial_attach_ok;
extern char MPIR_executable_path[256], MPIR_server_arguments[1024];
void MPIR_Breakpoint(void);

MPIR_PROCDESC *MPIR_proctable;
int MPIR_proctable_size;
volatile int MPIR_being_debugged, MPIR_debug_state;
/* A debugger only looks whether these symbols exist: the first says that this process is no process
 * of the MPI job, the second that the job runs while the debugger is attached to some processes. */
int MPIR_i_am_starter, MPIR_partial_attach_ok;
/* A debugger may have its daemons started through these; dlaunch starts none. */
char MPIR_executable_path[256], MPIR_server_arguments[1024];

__attribute__((noinline)) void MPIR_Breakpoint(void)
{
    __asm__ volatile("" ::: "memory"); /* the debugger stops here */
}

static struct shared {
    _Atomic uint32_t shown; /* rises with each table that is complete */
    _Atomic int32_t n;      /* of the job's processes; 0: a round is being started */
    char executable[4096];
    MPIR_PROCDESC table[PROCESSES_MAX];
    char hosts[PROCESSES_MAX][HOST_MAX];
} * g_shared; /* NULL: no debugger is expected */

static int g_world, g_known; /* in the agent: ranks of the round, and those that are in the table */

void mpir_init(bool wanted, const char *executable)
{
    if (!wanted && !MPIR_being_debugged)
        return;
    void *p = mmap(NULL, sizeof(*g_shared), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return;
    g_shared = p;
    snprintf(g_shared->executable, sizeof(g_shared->executable), "%s",
             executable ? executable : "");
    MPIR_proctable = g_shared->table;
}

bool mpir_is_wanted(void)
{
    return g_shared != NULL;
}

static void take_worker(const struct event *e)
{
    if (e->rank < 0 || e->rank >= g_world)
        return;
    MPIR_PROCDESC *p = &g_shared->table[e->rank];
    g_known += p->pid == 0;
    snprintf(g_shared->hosts[e->rank], HOST_MAX, "%s", e->host ? e->host : "");
    p->host_name = g_shared->hosts[e->rank];
    p->executable_name = g_shared->executable;
    p->pid = e->pid;
}

static void begin_round(const struct event *e)
{
    g_world = e->world_size < PROCESSES_MAX ? e->world_size : PROCESSES_MAX;
    g_known = 0;
    for (int i = 0; i < g_world; i++)
        g_shared->table[i].pid = 0;
}

bool mpir_take_events(const struct event_list *events, uint64_t *at)
{
    const struct event *e;
    bool workers = false, ended = false;
    while ((e = event_list_next(events, at))) {
        ended |= e->name == EVENT_STOP || e->name == EVENT_START || e->name == EVENT_FINISH;
        if (e->name == EVENT_START)
            begin_round(e);
        else if (e->name == EVENT_WORKER_START)
            take_worker(e);
        workers |= e->name == EVENT_WORKER_START;
    }
    if (ended)
        atomic_store(&g_shared->n, 0);
    if (workers && g_known == g_world) {
        atomic_store(&g_shared->n, g_world);
        atomic_fetch_add(&g_shared->shown, 1);
    }
    return ended || workers;
}

void mpir_show(void)
{
    static uint32_t shown;
    if (!g_shared)
        return;
    uint32_t now = atomic_load(&g_shared->shown);
    MPIR_proctable_size = atomic_load(&g_shared->n);
    if (now == shown || MPIR_proctable_size == 0)
        return;
    shown = now;
    MPIR_debug_state = MPIR_DEBUG_SPAWNED;
    MPIR_Breakpoint();
}
