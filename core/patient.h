/* patient.h: calls that may not return, such as of a file whose server does not answer. Each is
 * made on a thread of its own, and the caller waits for it for so long and no longer. */
#ifndef CORE_PATIENT_H
#define CORE_PATIENT_H

#include <stdbool.h>

/* Remembers whether a call has not returned, for calls that would be answered by the same server.
 */
struct patient;

struct patient *patient_new(void);

/* Calls work(arg), and waits up to ms for its end. True: it is done. False: it is not, and neither
 * is it begun if an earlier call of `p` has not returned; arg is no longer the caller's, drop(arg)
 * disposes of it when the work has ended after all. p NULL: no earlier call counts. Where no thread
 * can be had, the caller's makes the call: that a file is not looked at would be worse. */
bool patient_call(struct patient *p, void (*work)(void *arg), void *arg, void (*drop)(void *arg),
                  int ms);

void patient_free(struct patient *p); /* NULL is allowed; calls may still be under way */

#endif
