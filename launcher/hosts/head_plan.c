#include "launcher/hosts/head_plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "launcher/hosts/contacts.h"
#include "launcher/hosts/plan_options.h"
#include "launcher/options/shell_split.h"

static void print_words(char *const *words)
{
    for (; *words; words++) {
        size_t cap = 4 * strlen(*words) + 3;
        char *text = xmalloc(cap);
        shell_quote(*words, text, cap);
        printf(" %s", text);
        free(text);
    }
    printf("\n");
}

static void print_reach(const struct contacts *a, const struct peer *p)
{
    const struct reach *r = &a->reach;
    const struct host *host = p->host;
    if (p->is_local) {
        printf(" (this host)\n");
        return;
    }
    if (p->via)
        printf(" through %s:", p->via->host->name);
    bool daemon = r->way != REACH_COMMAND && *a->tokens->daemon && !host->user;
    if (daemon)
        printf(" daemon at port %s%s", opt_text(a->o, OPT_serve_port),
               r->way == REACH_DAEMON ? "\n" : ", else");
    if (r->way != REACH_DAEMON)
        print_words(reach_argv(r, a->o, host));
}

int head_plan_print(struct options *o, const struct host_list *hosts,
                    const struct head_tokens *tokens, struct err *e)
{
    struct contacts a;
    int program_at;
    if (contacts_init(&a, o, hosts, tokens, e) < 0)
        return -EINVAL;
    struct job_of_hosts j = {a.max, a.min, a.spares, NULL, "ID"};
    if (a.max + a.spares > 1 && !opt_given(o, OPT_rdzv_endpoint))
        j.endpoint = "ADDRESS:PORT";
    printf("%d host%s", a.max, a.max == 1 ? "" : "s");
    printf(a.spares ? ", %d more to spare\n" : "\n", a.spares);
    for (size_t i = 0; i < a.npeers && (int)i < a.max + a.spares; i++) {
        const struct host *host = a.peers[i].host;
        char number[16];
        snprintf(number, sizeof(number), "%d", host->nproc);
        const char *workers = host->nproc ? number : opt_text(o, OPT_nproc_per_node);
        printf("  node %zu  %s%s%s  %s worker%s%s%s%s ", i, host->user ? host->user : "",
               host->user ? "@" : "", host->name, workers, strcmp(workers, "1") == 0 ? "" : "s",
               host->ids ? " (GPUs " : "", host->ids ? host->ids : "", host->ids ? ")" : "");
        print_reach(&a, &a.peers[i]);
    }
    contacts_fini(&a);
    printf("The first one then runs");
    print_words(plan_options_argv(o, &j, &hosts->host[0], 0, &program_at));
    return fflush(stdout) != 0 ? err_sys(e, errno, "standard output") : 0;
}
