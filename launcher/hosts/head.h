/* head.h: dlaunch -H: the command that starts the launchers of a job on their hosts, shows what
 * they print, passes input and signals on to them, and ends with the status of the job.
 *
 * Happy path: every host is reached (contacts.h), 64 at a time, and says where it would listen; the
 * first of them hosts the rendezvous; each gets its plan, and its launcher joins as one that was
 * started by hand; each says how its launcher ended.
 *
 * Failures:
 *   a host refuses the connection              contacts.h
 *   a host cannot be reached in time           named; left out if enough are left, else the end
 *   dlaunch is absent there, or another one    likewise
 *   a launcher ends before the workers run     likewise; its exit status is the job's
 *   the connection to a host is lost           named; its dlaunch ends there, and the other
 *                                              launchers see to the job
 *   this process is killed                     the hosts find their input at its end (remote.h) */
#ifndef LAUNCHER_HOSTS_HEAD_H
#define LAUNCHER_HOSTS_HEAD_H

#include "launcher/hosts/host_list.h"
#include "launcher/options/token.h"

/* Runs the job of these hosts. Returns the exit status. */
int head_run(struct options *o, const struct host_list *hosts, const struct head_tokens *tokens);

#endif
