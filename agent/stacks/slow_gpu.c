#include "agent/stacks/slow_gpu.h"

#include "agent/report/report_words.h"

#define HOTTER 5 /* than the hottest of the others, degrees: else it is not said */

/* The least and the most of a value with the others. */
struct range {
    unsigned least, most;
    bool any;
};

static void widen(struct range *r, unsigned v)
{
    if (!r->any || v < r->least)
        r->least = v;
    if (!r->any || v > r->most)
        r->most = v;
    r->any = true;
}

static void put_others(struct buf *b, const struct range *r, const char *unit)
{
    if (!r->any)
        return;
    words_add(b, " (others %u", r->least);
    if (r->least < r->most)
        words_add(b, " to %u", r->most);
    words_add(b, "%s)", unit);
}

/* A link of more lanes or of a newer generation is faster. */
static unsigned pcie_rate(const struct gpu_state *g)
{
    return g->pcie_generation ? (unsigned)g->pcie_width << g->pcie_generation : 0;
}

static const char *next(int *said)
{
    return (*said)++ ? ", " : "; its GPU: ";
}

static void put_reasons(struct buf *b, unsigned reasons, int *said)
{
    if (reasons & GPU_SLOW_THERMAL)
        words_add(b, "%sthermal slowdown", next(said));
    if (reasons & GPU_SLOW_POWER_BRAKE)
        words_add(b, "%spower brake", next(said));
    if (reasons == GPU_SLOW_HARDWARE)
        words_add(b, "%shardware slowdown", next(said));
}

void slow_gpu_words(struct buf *b, const struct gpu_state *all, int n, int rank)
{
    const struct gpu_state *own = &all[rank], *slowest = NULL;
    struct range celsius = {0}, errors = {0};
    int said = 0;
    if (!own->known)
        return;
    for (int i = 0; i < n; i++) {
        if (i == rank || !all[i].known)
            continue;
        if (all[i].celsius)
            widen(&celsius, all[i].celsius);
        widen(&errors, all[i].nvlink_errors);
        if (pcie_rate(&all[i]) && (!slowest || pcie_rate(&all[i]) < pcie_rate(slowest)))
            slowest = &all[i];
    }
    put_reasons(b, own->reasons, &said);
    if (own->celsius && (said || (celsius.any && own->celsius >= celsius.most + HOTTER))) {
        words_add(b, "%s%u C", next(&said), own->celsius);
        put_others(b, &celsius, " C");
    }
    if (pcie_rate(own) && slowest && pcie_rate(own) < pcie_rate(slowest))
        words_add(b, "%sPCIe generation %u x%u (others at least %u x%u)", next(&said),
                  own->pcie_generation, own->pcie_width, slowest->pcie_generation,
                  slowest->pcie_width);
    if (own->nvlink_errors > (errors.any ? errors.most : 0)) {
        words_add(b, "%s%u NVLink errors", next(&said), own->nvlink_errors);
        put_others(b, &errors, "");
    }
}
