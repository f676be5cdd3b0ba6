/* Lists of hosts. The first byte says what the rest is: a list, a file, a list with a filter behind
 * its first newline, or frames of a host. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/hosts/frame.h"
#include "launcher/hosts/host_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_hosts(const struct host_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct host *h = &l->host[i];
        if (!h->name[0] || h->name[0] == '-' || strpbrk(h->name, " \t\n;'\"$`\\&|<>@") ||
            (h->user && (!h->user[0] || h->user[0] == '-')) || h->slots < 0)
            abort();
    }
}

static void check_frames(const uint8_t *data, size_t size)
{
    struct frame f;
    struct frame_hello hello;
    struct frame_exit ended;
    struct plan_of_host plan;
    struct frame_forward w;
    struct forward_start start;
    long n;
    for (; (n = frame_get(data, size, &f)) > 0; data += n, size -= (size_t)n) {
        frame_hello_get(&f, &hello);
        frame_exit_get(&f, &ended);
        if (plan_get(&f, &plan) == 0)
            plan_fini(&plan);
        if (frame_forward_get(&f, &w) == 0 && forward_start_get(&w, &start) == 0)
            forward_start_fini(&start);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct options o;
    struct err e = ERR_INIT;
    if (size == 0)
        return 0;
    if (data[0] == 'r') {
        check_frames(data + 1, size - 1);
        return 0;
    }
    char *text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    char *filter = data[0] == 'i' || data[0] == 'e' ? strchr(text, '\n') : NULL;
    if (filter)
        *filter++ = '\0';
    options_init(&o, "dlaunch");
    struct host_list l = {.o = &o};
    int rc =
        data[0] == 'f' ? host_list_add_lines(&l, text, "file", &e) : host_list_add(&l, text, &e);
    if (rc == 0 && filter)
        rc = host_list_filter(&l, filter, data[0] == 'i', &e);
    if (rc == 0)
        rc = host_list_share(&l, size % 7, size % 3, &e);
    if (rc < 0 && !e.msg[0])
        abort();
    if (rc == 0)
        check_hosts(&l);
    options_fini(&o);
    free(text);
    return 0;
}
