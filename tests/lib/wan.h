/* wan.h: a bad network between the hosts of netns.h: an interface wan0 on each, 10.79.0.(i+1)/24,
 * whose packets are carried by a process that delays all of them and loses some. */
#ifndef TESTS_LIB_WAN_H
#define TESTS_LIB_WAN_H

#include <stdbool.h>
#include <sys/types.h>

struct wan_rules {
    double delay_ms; /* one way */
    double loss;     /* of 1 */
    unsigned seed;
};

struct wan {
    pid_t pid;
    struct wan_count *count; /* shared */
};

/* True if tunnel devices are available; otherwise prints the reason as a skip line. */
bool wan_available(void);

/* Between the first n hosts. The process dies with the caller. */
void wan_start(struct wan *w, int n, const struct wan_rules *rules);
/* Takes the interfaces away; *lost: packets that did not arrive. Returns the number of those that
 * arrived. */
long wan_stop(struct wan *w, long *lost);

#endif
