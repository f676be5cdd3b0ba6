/* plans.h: what the hosts of dlaunch -H are told to run, once it is known which of them are in the
 * job: where they meet, and each host's part. */
#ifndef LAUNCHER_HOSTS_PLANS_H
#define LAUNCHER_HOSTS_PLANS_H

#include "launcher/hosts/contacts.h"

/* Everything is borrowed. */
struct plans {
    struct contacts *a;
    const char *cwd;
    bool events;                                /* the first node's launcher sends the events */
    void (*on_sent)(void *arg, struct peer *p); /* the host has its plan */
    void *arg;
};

/* Every host has answered or is lost: sends each one of the job, which its rules have numbered, its
 * plan. */
void plans_send(const struct plans *in);

/* The logical name of the working directory: a home that is mounted on demand has one. */
const char *plans_cwd(struct options *o);

#endif
