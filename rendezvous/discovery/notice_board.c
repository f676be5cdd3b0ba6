#include "rendezvous/discovery/notice_board.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "rendezvous/rules/text.h"

#define WORD "dlaunch-rendezvous"

void notice_board_machine(char out[NOTICE_BOARD_MACHINE])
{
    char boot[48], ns[32];
    ssize_t n = fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
    ssize_t m = readlink("/proc/self/ns/net", ns, sizeof(ns) - 1);
    ns[m > 0 ? m : 0] = '\0';
    boot[n > 0 ? strcspn(boot, "\n") : 0] = '\0';
    text_set(out, NOTICE_BOARD_MACHINE, "%s:%s", boot[0] ? boot : "?", ns);
}

static void put_word(char *out, size_t cap, const char *word)
{
    text_add(out, cap, " ");
    for (const unsigned char *p = (const unsigned char *)word; *p; p++)
        text_add(out, cap, *p <= ' ' || *p == '%' || *p == 0x7f ? "%%%02x" : "%c", *p);
}

static int hex(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Takes the next word of the line, unescaped. False: there is none, or it is too long or malformed.
 */
static bool get_word(char **line, char *out, size_t cap)
{
    size_t n = 0;
    if (**line != ' ')
        return false;
    for (char *p = *line + 1;; p++) {
        char c = *p;
        if (c == ' ' || c == '\n' || c == '\0') {
            out[n] = '\0';
            *line = p;
            return n > 0;
        }
        if (c == '%') {
            if (hex(p[1]) < 0 || hex(p[2]) < 0)
                return false;
            c = (char)(hex(p[1]) << 4 | hex(p[2]));
            p += 2;
        }
        if (c == '\0' || n + 1 >= cap)
            return false;
        out[n++] = c;
    }
}

static bool get_number(char **line, long max, int *out)
{
    char word[16], *end;
    if (!get_word(line, word, sizeof(word)) || !isdigit((unsigned char)word[0]))
        return false;
    long v = strtol(word, &end, 10);
    *out = (int)v;
    return !*end && v <= max;
}

static bool parse_addrs(struct notice_board *b, char *list)
{
    char *save = NULL;
    for (char *ip = strtok_r(list, ",", &save); ip; ip = strtok_r(NULL, ",", &save)) {
        if (b->naddrs == CONNECTOR_ADDRS_MAX)
            return false;
        /* An address with a scope that this host does not have cannot be used here. */
        b->naddrs += netaddr_parse_ip(&b->addrs[b->naddrs], ip, b->port);
    }
    return b->naddrs > 0;
}

bool notice_board_parse(char *line, struct notice_board *b)
{
    char nonce[32], addrs[CONNECTOR_ADDRS_MAX * ADDR_STRLEN];
    int version;
    *b = (struct notice_board){0};
    if (strncmp(line, WORD, strlen(WORD)) != 0)
        return false;
    line += strlen(WORD);
    return get_number(&line, 1, &version) && version == 1 &&
           get_word(&line, b->run_id, sizeof(b->run_id)) && get_word(&line, nonce, sizeof(nonce)) &&
           get_number(&line, 65535, &b->port) && b->port > 0 &&
           get_word(&line, addrs, sizeof(addrs)) && get_word(&line, b->host, sizeof(b->host)) &&
           get_number(&line, INT32_MAX, &b->pid) &&
           get_word(&line, b->machine, sizeof(b->machine)) && strcmp(line, "\n") == 0 &&
           parse_addrs(b, addrs);
}

/* Whether an address of this host is published in addition to the named address. */
static bool is_one_more(const struct rdzv_discovery *f, const struct netaddr *a)
{
    return !netaddr_is_link_local(a) && /* its scope is not valid on another host */
           !(f->have_local && netaddr_same_ip(a, &f->local));
}

void notice_board_format(struct rdzv_discovery *f, char *out, size_t cap)
{
    struct netaddr addrs[CONNECTOR_ADDRS_MAX] = {f->local};
    char word[CONNECTOR_ADDRS_MAX * ADDR_STRLEN] = "", ip[ADDR_STRLEN],
                                    machine[NOTICE_BOARD_MACHINE];
    int named = f->have_local ? 1 : 0, n = named;
    if (f->max_nodes > 1)
        n += netaddr_list_local(addrs + named, CONNECTOR_ADDRS_MAX - named);
    if (getrandom(&f->nonce, sizeof(f->nonce), GRND_NONBLOCK) < 0)
        f->nonce = mono_ns();
    text_set(out, cap, "%s 1", WORD);
    put_word(out, cap, f->run_id);
    text_add(out, cap, " %016llx %d", (unsigned long long)f->nonce, f->listen_port);
    for (int i = 0; i < n; i++) {
        if (i < named || is_one_more(f, &addrs[i]))
            text_add(word, sizeof(word), "%s%s", word[0] ? "," : "", netaddr_ip(&addrs[i], ip));
    }
    put_word(out, cap, word[0] ? word : "127.0.0.1");
    put_word(out, cap, f->node_name[0] ? f->node_name : "?");
    notice_board_machine(machine);
    text_add(out, cap, " %d", (int)getpid());
    put_word(out, cap, machine);
    text_add(out, cap, "\n");
}

void notice_board_join(struct rdzv_discovery *f, const struct notice_board *b)
{
    char machine[NOTICE_BOARD_MACHINE];
    notice_board_machine(machine);
    f->naddrs = 0;
    if (strcmp(machine, b->machine) == 0) {
        netaddr_parse_ip(&f->addrs[f->naddrs++], "127.0.0.1", b->port);
        netaddr_parse_ip(&f->addrs[f->naddrs++], "::1", b->port);
    }
    for (int i = 0; i < b->naddrs && f->naddrs < CONNECTOR_ADDRS_MAX; i++)
        f->addrs[f->naddrs++] = b->addrs[i];
}
