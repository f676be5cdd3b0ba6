/* clone3.h: threads in containers whose seccomp profile does not know clone3().
 *
 * Profiles that are older than the call answer EPERM. The C library falls back to clone() after
 * ENOSYS only, so no program can start a thread there. */
#ifndef AGENT_PROCESS_CLONE3_H
#define AGENT_PROCESS_CLONE3_H

/* Where clone3() is refused, makes it fail with ENOSYS, for this process and all that it starts
 * from now on. These processes lose the right to gain privileges by execve() (set-user-id
 * programs), which the kernel demands of a process that installs a filter. To be called before
 * there are threads. */
void clone3_make_absent_if_refused(void);

#endif
