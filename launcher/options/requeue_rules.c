#include "launcher/options/requeue_rules.h"

#include <string.h>

enum requeue_part requeue_part(const struct requeue_end *e)
{
    if (!e->wanted || !e->time_is_over)
        return REQUEUE_NONE;
    if (e->decided)
        return e->coordinator ? REQUEUE_ASK : REQUEUE_COORDINATOR;
    return e->first_node ? REQUEUE_ASK : REQUEUE_FIRST_NODE;
}

const char *requeue_reason(enum requeue_part part)
{
    if (part == REQUEUE_COORDINATOR)
        return "the launcher of the coordinator asks Slurm to start the job again (--requeue)";
    if (part == REQUEUE_FIRST_NODE)
        return "no coordinator has told how the job ended: the launcher on the first node, if it "
               "is still there, asks Slurm to start it again (--requeue)";
    return NULL;
}

bool requeue_is_done(const char *answer)
{
    return strstr(answer, "pending execution") != NULL;
}
