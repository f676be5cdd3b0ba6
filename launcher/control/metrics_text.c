#include "launcher/control/metrics_text.h"

#include <stdlib.h>
#include <string.h>

#include "agent/base/usage.h"
#include "core/mem.h"

static const double bounds[METRICS_BUCKETS] = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};

/* ------------------------------------------------------------------------------------- counting */

static void observe(struct metrics_histogram *h, uint64_t from_ns, uint64_t to_ns)
{
    double seconds = to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
    int i = 0;
    while (i < METRICS_BUCKETS && seconds > bounds[i])
        i++;
    h->bucket[i]++;
    h->n++;
    h->sum += seconds;
}

/* Ends the span that began at *from, if one did. */
static void end_span(struct metrics_histogram *h, uint64_t *from_ns, uint64_t to_ns)
{
    if (*from_ns)
        observe(h, *from_ns, to_ns);
    *from_ns = 0;
}

static void sum_event(struct metrics_sums *s, const struct event *e)
{
    switch (e->name) {
    case EVENT_RENDEZVOUS:
        s->rendezvous_ns = e->at_ns;
        break;
    case EVENT_NODE_JOIN:
        s->joined++;
        break;
    case EVENT_NODE_LEAVE:
    case EVENT_NODE_LOST:
        s->joined -= s->joined > 0;
        break;
    case EVENT_START:
        s->rounds++;
        s->in_round = e->nnodes;
        end_span(&s->rendezvous, &s->rendezvous_ns, e->at_ns);
        if (s->restart_ns) {
            end_span(&s->recovery[PART_RENDEZVOUS], &s->restart_ns, e->at_ns);
            s->start_ns = e->at_ns;
        }
        break;
    case EVENT_READY:
        end_span(&s->recovery[PART_START], &s->start_ns, e->at_ns);
        break;
    case EVENT_FAILURE:
        s->failures[e->cause]++;
        break;
    case EVENT_STOP:
        s->in_round = 0;
        s->start_ns = 0;
        s->stop_ns = e->at_ns;
        break;
    case EVENT_RESTART:
        s->restarts[e->cause]++;
        if (s->stop_ns)
            s->restart_ns = e->at_ns;
        end_span(&s->recovery[PART_STOP], &s->stop_ns, e->at_ns);
        break;
    case EVENT_FINISH:
        s->in_round = 0;
        break;
    default:
        break;
    }
}

void metrics_sums_add(struct metrics_sums *s, const struct event_log *log)
{
    const struct event *e;
    while ((e = event_list_next(&log->job, &s->at)))
        sum_event(s, e);
}

/* -------------------------------------------------------------------------------------- writing */

struct page {
    FILE *out;
    bool openmetrics;
};

/* A family's head. unit: "", or the end of the name. The types differ in the two formats: a counter
 * is called with _total in one, an info is a gauge in the other. */
static void head(const struct page *p, const char *name, const char *type, const char *unit,
                 const char *help)
{
    const char *suffix = p->openmetrics                 ? ""
                         : strcmp(type, "counter") == 0 ? "_total"
                         : strcmp(type, "info") == 0    ? "_info"
                                                        : "";
    if (!p->openmetrics && strcmp(type, "info") == 0)
        type = "gauge";
    fprintf(p->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, suffix, help, name, suffix, type);
    if (p->openmetrics && *unit)
        fprintf(p->out, "# UNIT %s %s\n", name, unit);
}

/* A label's value. */
static void put_value(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n')
            fputs("\\n", out);
        else if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x80)
            fprintf(out, "\\\\x%02x", (unsigned char)*text);
        else
            putc(*text, out);
    }
}

static void put_histogram(const struct page *p, const char *name, const char *part,
                          const struct metrics_histogram *h)
{
    uint64_t sum = 0;
    const char *comma = *part ? "," : "";
    for (int i = 0; i < METRICS_BUCKETS; i++) {
        sum += h->bucket[i];
        fprintf(p->out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, part, comma, bounds[i],
                (unsigned long long)sum);
    }
    fprintf(p->out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, part, comma,
            (unsigned long long)h->n);
    const char *open = *part ? "{" : "", *close = *part ? "}" : "";
    fprintf(p->out, "%s_sum%s%s%s %.9g\n%s_count%s%s%s %llu\n", name, open, part, close, h->sum,
            name, open, part, close, (unsigned long long)h->n);
}

static void put_by_cause(const struct page *p, const char *name, const char *label,
                         const uint64_t *n)
{
    for (enum cause c = CAUSE_NONE + 1; c < CAUSES; c++) {
        if (n[c])
            fprintf(p->out, "%s_total{%s=\"%s\"} %llu\n", name, label, cause_name(c),
                    (unsigned long long)n[c]);
    }
}

static void put_job(const struct page *p, const struct metrics_sums *s)
{
    static const char *const parts[PARTS] = {"part=\"stop\"", "part=\"rendezvous\"",
                                             "part=\"start\""};
    head(p, "dlaunch_nodes", "gauge", "", "Nodes of the job.");
    fprintf(p->out, "dlaunch_nodes{state=\"joined\"} %d\ndlaunch_nodes{state=\"running\"} %d\n",
            s->joined, s->in_round);
    head(p, "dlaunch_rounds", "counter", "", "Starts of the workers.");
    fprintf(p->out, "dlaunch_rounds_total %llu\n", (unsigned long long)s->rounds);
    head(p, "dlaunch_restarts", "counter", "", "Restarts, by the cause of the stop.");
    put_by_cause(p, "dlaunch_restarts", "cause", s->restarts);
    head(p, "dlaunch_failures", "counter", "", "Failures of workers and nodes, by class.");
    put_by_cause(p, "dlaunch_failures", "class", s->failures);
    head(p, "dlaunch_rendezvous_seconds", "histogram", "seconds",
         "Time until the nodes of a round were complete.");
    put_histogram(p, "dlaunch_rendezvous_seconds", "", &s->rendezvous);
    head(p, "dlaunch_recovery_seconds", "histogram", "seconds",
         "Parts of a restart: stopping the workers, rendezvous, starting them.");
    for (int i = 0; i < PARTS; i++)
        put_histogram(p, "dlaunch_recovery_seconds", parts[i], &s->recovery[i]);
}

static void put_workers(const struct page *p, const struct agent_status *s)
{
    static const char *const states[] = {"waiting", "running", "exited", "failed", "stopped"};
    double(*usage)[2] = xcalloc((size_t)s->nworkers + 1, sizeof(*usage));
    head(p, "dlaunch_workers", "gauge", "", "Workers of this node.");
    for (size_t k = 0; k < ARRAY_LEN(states); k++) {
        int n = 0;
        for (int i = 0; i < s->nworkers; i++)
            n += strcmp(s->workers[i].state, states[k]) == 0;
        fprintf(p->out, "dlaunch_workers{state=\"%s\"} %d\n", states[k], n);
    }
    for (int i = 0; i < s->nworkers; i++) {
        bool runs = strcmp(s->workers[i].state, "running") == 0;
        if (!runs || !usage_read(s->workers[i].pid, &usage[i][0], &usage[i][1]))
            usage[i][0] = -1;
    }
    head(p, "dlaunch_worker_cpu_seconds", "counter", "seconds",
         "CPU time of the worker's own process.");
    for (int i = 0; i < s->nworkers; i++) {
        if (usage[i][0] >= 0)
            fprintf(p->out, "dlaunch_worker_cpu_seconds_total{rank=\"%d\"} %.9g\n",
                    s->workers[i].rank, usage[i][0]);
    }
    head(p, "dlaunch_worker_resident_memory_bytes", "gauge", "bytes",
         "Resident memory of the worker's own process.");
    for (int i = 0; i < s->nworkers; i++) {
        if (usage[i][0] >= 0)
            fprintf(p->out, "dlaunch_worker_resident_memory_bytes{rank=\"%d\"} %.0f\n",
                    s->workers[i].rank, usage[i][1]);
    }
    free(usage);
}

static void put_score(const struct page *p, const struct agent_status *s, const char *name,
                      const char *help, bool own)
{
    head(p, name, "gauge", "", help);
    for (int i = 0; i < s->nworkers; i++) {
        const struct agent_worker_status *w = &s->workers[i];
        if (w->relative > 0)
            fprintf(p->out, "%s{rank=\"%d\"} %.4g\n", name, w->rank, own ? w->own : w->relative);
    }
}

static void put_pace(const struct page *p, const struct agent_status *s)
{
    head(p, "dlaunch_collective_wait_seconds", "counter", "seconds",
         "Time that the worker has spent in collective operations.");
    for (int i = 0; i < s->nworkers; i++) {
        if (s->workers[i].waited_s >= 0)
            fprintf(p->out, "dlaunch_collective_wait_seconds_total{rank=\"%d\"} %.9g\n",
                    s->workers[i].rank, s->workers[i].waited_s);
    }
    put_score(p, s, "dlaunch_worker_relative_speed",
              "How fast the worker is, as a part of the speed of most others.", false);
    put_score(p, s, "dlaunch_worker_own_speed",
              "How fast the worker is, as a part of the best speed that it had.", true);
}

/* A gauge: running time becomes lost time when the workers are stopped. */
static void put_ledger(const struct page *p, const struct ledger *l)
{
    head(p, "dlaunch_time_seconds", "gauge", "seconds", "Time of all nodes, by what it went into.");
    for (int c = 0; c < LEDGER_CLASSES; c++)
        fprintf(p->out, "dlaunch_time_seconds{phase=\"%s\"} %.9g\n", ledger_name(c),
                (double)l->ns[c] / 1e9);
}

void metrics_text(FILE *out, const struct job_spec *job, const struct agent_status *status,
                  const struct metrics_sums *sums, const struct ledger *ledger, bool openmetrics)
{
    const struct page p = {out, openmetrics};
    const char *slurm = getenv("SLURM_JOB_ID");
    head(&p, "dlaunch_build", "info", "", "The version of dlaunch.");
    fprintf(out, "dlaunch_build_info{version=\"%s\"} 1\n", DLAUNCH_VERSION);
    head(&p, "dlaunch_job", "info", "", "The job.");
    fputs("dlaunch_job_info{run_id=\"", out);
    put_value(out, job->rdzv.run_id);
    fputs("\",name=\"", out);
    put_value(out, job->name ? job->name : "");
    fputs("\",slurm_job_id=\"", out);
    put_value(out, slurm ? slurm : "");
    fputs("\"} 1\n", out);
    put_workers(&p, status);
    if (job->slow_percent > 0)
        put_pace(&p, status);
    if (sums)
        put_job(&p, sums);
    if (ledger)
        put_ledger(&p, ledger);
    if (openmetrics)
        fputs("# EOF\n", out);
}
