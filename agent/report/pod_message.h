/* pod_message.h: the termination message of a Kubernetes pod. */
#ifndef AGENT_REPORT_POD_MESSAGE_H
#define AGENT_REPORT_POD_MESSAGE_H

#include "agent/report/report_input.h"

/* The kubelet keeps so many bytes of a container's message. */
#define POD_MESSAGE_MAX 4096

/* Makes the report of a failed job, cut to POD_MESSAGE_MAX bytes, the content of
 * job->pod_message. */
int pod_message_write(const struct report_input *in, struct err *e);

#endif
