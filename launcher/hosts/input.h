/* input.h: the head's standard input on its way to the workers that read it. No more is read than
 * the hosts can keep (FRAME_WINDOW), and nothing while another job of the terminal is in front. */
#ifndef LAUNCHER_HOSTS_INPUT_H
#define LAUNCHER_HOSTS_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct peer;

enum input_mode { INPUT_NONE, INPUT_RANK0, INPUT_ALL };

#define INPUT_RETRY_NS 500000000ull

struct input {
    enum input_mode mode;
    int epfd;
    struct peer **peers; /* who gets it */
    size_t n;
    bool ended, watched, ready; /* ready: a file, which epoll does not watch */
    uint64_t retry_ns;          /* the terminal belongs to another job; 0: it does not */
};

/* epfd: a set of epoll, in which the input has itself as tag. */
void input_init(struct input *in, int epfd, enum input_mode mode);
void input_fini(struct input *in);

/* A host has its plan. rank: of its node. */
void input_add(struct input *in, struct peer *p, int rank);
void input_forget(struct input *in, struct peer *p); /* it has ended */
void input_taken(struct input *in, struct peer *p, uint32_t n);

void input_read(struct input *in); /* epoll says that there is some */
void input_go_on(struct input *in, uint64_t now_ns);
void input_retry(struct input *in);         /* this process was continued */
bool input_timeout(const struct input *in); /* call input_go_on() after INPUT_RETRY_NS */

#endif
