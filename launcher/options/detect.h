/* detect.h: what a scheduler has put into the environment, for the values that the user did not
 * give: Slurm steps, Flux, PALS, indexed Kubernetes jobs, JobSets. (PET_* of Kubeflow are options
 * like any; here they only get their line.) */
#ifndef LAUNCHER_OPTIONS_DETECT_H
#define LAUNCHER_OPTIONS_DETECT_H

#include "launcher/options/options.h"

/* Slurm (KillWait) and Kubernetes (terminationGracePeriodSeconds) send SIGKILL 30 s after SIGTERM,
 * unless set otherwise. Workers that do not stop get it 5 s before, so that the report is written.
 */
#define SCHEDULER_GRACE "25"

struct detect_host {
    const char *name;        /* gethostname() */
    const char *hosts_file;  /* "/etc/hosts": where a pod's full name stands */
    const char *pod_message; /* "/dev/termination-log"; NULL: none */
};

/* Says what it found in one line. -EINVAL when the environment shows that the job cannot work: more
 * than one launcher on a node, a malformed node list, a pod that cannot be found by the others.
 * Does nothing with --no_detect, --standalone or --nnodes 1, for a launcher without workers, and
 * with a step that is only a part of the job: the user gave more nodes than it has, and where they
 * meet. */
int detect(struct options *o, char *const *envp, const struct detect_host *host, struct err *e);

#endif
