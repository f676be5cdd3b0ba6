/* timed_call.h: calls that may not return, such as a read of a file whose server does not answer. A
 * thread of its own makes each call, and the caller waits for the end of the call up to a limit. */
#ifndef CORE_TIMED_CALL_H
#define CORE_TIMED_CALL_H

#include <stdbool.h>
#include <stdint.h>

/* Remembers whether a call has not returned, for calls that would be answered by the same server.
 */
struct timed_calls;

struct timed_calls *timed_calls_new(void);

/* Calls work(arg), and waits up to ms for the end of the call. True: the work is done. False: the
 * work is not done, or not even begun because an earlier call of `p` has not returned; arg no
 * longer belongs to the caller, and drop(arg) disposes of arg when the work has ended after all. p
 * NULL: no earlier call counts. Where no thread can be had, the calling thread does the work: not
 * to look at the file at all would be worse. */
bool timed_call(struct timed_calls *p, void (*work)(void *arg), void *arg, void (*drop)(void *arg),
                int ms);

/* Asked while this thread waits: whether the wait is to end, because somebody is in a hurry. NULL:
 * nobody is asked. */
void timed_call_ask(bool (*hurried)(void *arg), void *arg);
/* Whether a wait that began then (mono_ns()) is to end; never within the first half second. */
bool timed_call_is_hurried(uint64_t since_ns);
#define TIMED_CALL_LOOK_MS 20 /* between two such questions */

void timed_calls_free(struct timed_calls *p); /* NULL is allowed; calls may still be under way */

#endif
