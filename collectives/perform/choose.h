/* choose.h: the table of those who carry out collective operations, and which of them takes a call.
 */
#ifndef COLLECTIVES_PERFORM_CHOOSE_H
#define COLLECTIVES_PERFORM_CHOOSE_H

struct coll_call;
struct coll_provider;

extern const struct coll_provider *const g_providers[]; /* in the order of preference; then NULL */

/* Returns the provider of a call, never NULL, because the last provider takes every call. Providers
 * in the user's rules come first (algo_select.h). */
const struct coll_provider *provider_choose(const struct coll_call *c);

/* Runs one of the steps that a call consists of, and takes over how it has ended. */
int provider_run_step(struct coll_call *whole, struct coll_call *step);

#endif
