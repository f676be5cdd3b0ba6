#include "agent/doctor/fact.h"

#include <stdio.h>
#include <string.h>

#include "core/debug_assert.h"
#include "core/mem.h"

/* Every fact has a row: what is read and what the helper finds out. A node has those with and
 * without dots; interfaces, GPUs, paths and answers of a check are objects with names of their own,
 * which are read by themselves. */
static const char *const known[] = {
    /* the facts that a node is asked for, and those that the leader adds */
    "node", "host", "addr", "nproc", "nodes", "gpus", "missing", "clock_s", "clock_error_s",
    /* limits, memory and folders */
    "limits", "limits.nofile", "limits.memlock_bytes", "limits.nproc", "limits.file_bytes",
    "limits.address_space_bytes", "own_threads", "threads_left", "ports", "cpus", "cgroup",
    "cgroup.pids.limit", "cgroup.pids.free", "cgroup.memory.limit", "cgroup.memory.free", "memory",
    "memory.bytes", "memory.available_bytes", "shm.path", "shm.bytes", "shm.free_bytes",
    "shm.free_files", "shm.error", "tmp.path", "tmp.bytes", "tmp.free_bytes", "tmp.free_files",
    "tmp.error", "log_dir.path", "log_dir.bytes", "log_dir.free_bytes", "log_dir.free_files",
    "log_dir.error",
    /* names and network */
    "hostname", "hostname.name", "hostname.seconds", "hostname.error", "hostname.addresses",
    "hostname.loopback", "meet.name", "meet.seconds", "meet.error", "meet.addresses",
    "meet.loopback", "interfaces", "rdma", "rdma.*",
    /* programs */
    "program.path", "program.bytes", "program.content", "program.lacks", "program_error",
    "python_error", "python_error.path", "python_error.error", "variables", "variables.*",
    "versions", "versions.*", "node_check", "node_check.command", "node_check.error",
    "node_check.signal", "node_check.status", "node_check.answer", "node_check.output",
    /* GPUs */
    "gpu.error", "gpu.present", "gpu.visible", "gpu.list", "model",

    /* a name that is resolved */
    "name", "seconds", "error", "addresses", "loopback",
    /* an interface */
    "up", "mtu", "speed_mbit", "duplex",
    /* a GPU */
    "bus", "mig", "lost", "used_bytes", "bytes", "processes", "pid", "ecc_uncorrected",
    "remap_pending", "remap_failed", "compute_mode", "mig_mode", "pcie_width", "pcie_width_max",
    /* a node check, and what it answers */
    "command", "signal", "status", "answer", "output", "failed_checks", "fail_count", "success",
    "healthy", "message",
    /* a path between two nodes */
    "a", "b", "rtt_us", "bps", "local", "measured", "at", "to", "stage", "errno"};

bool fact_is_known(const char *path)
{
    const char *dot = strchr(path, '.');
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        size_t len = strlen(known[i]);
        bool any =
            len > 1 && known[i][len - 1] == '*' && dot && strncmp(path, known[i], len - 1) == 0;
        if (any || strcmp(path, known[i]) == 0)
            return true;
    }
    return false;
}

const json_t *fact_at(const json_t *j, const char *path)
{
    char key[64];
    debug_assert(fact_is_known(path));
    while (j && *path) {
        size_t len = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)len, path);
        j = json_object_get(j, key);
        path += len + (path[len] == '.');
    }
    return j;
}

bool fact_number_at(const json_t *j, const char *path, double *out)
{
    const json_t *v = fact_at(j, path);
    *out = json_number_value(v);
    return json_is_number(v);
}

double fact_number(const json_t *j, const char *path)
{
    return json_number_value(fact_at(j, path));
}

const char *fact_text(const json_t *j, const char *path)
{
    const char *t = json_string_value(fact_at(j, path));
    return t ? t : "";
}
