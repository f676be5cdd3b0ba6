/* The store carried to every node (--master_store relay), with real sockets and links on one loop.
 * Byte 0 chooses what the script that follows is played to:
 *
 *   0  a relay for the workers and one for the store, linked to each other: what clients and store
 *      write comes out on the other side, the same bytes in the same order, and all of it while
 *      both sides are open
 *   1  the store's relay, at whose link somebody says anything at all
 *   2  the workers' relay, whose coordinator says anything at all
 *
 * In 1 and 2 the relay must hold itself to the credit it was given. Each step is a byte: the lowest
 * three bits are what (enum step), two are which client or store, three how often the loop turns.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/wire/relay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ENDS     4
#define FLOWS    64
#define IDS      16
#define PIECE    257 /* a length in the script counts so many bytes */
#define STEPS    400
#define TURNS    16 /* in which nothing moves: nothing more will */
#define FRAME_ID 5

#define POURED_MAX (RELAY_WINDOW + (1u << 20)) /* more than a relay and a socketpair hold */

enum step { FRAME, OPEN, WRITE, READ, SHUT, CLOSE, STORE_WRITE, STORE_READ_CLOSE };

/* One connection of a worker, as both of its ends have seen it. */
struct flow {
    size_t up_sent, up_got, down_sent, down_got;
    bool over; /* one of the two has closed, shut down or failed: bytes may be lost */
    bool worker_end, store_end; /* one that has said that nothing more comes from it */
};

struct end {
    int fd;
    int flow; /* of a store's end: -1 until it has read which */
    bool eof; /* it has seen the other side's */
};

static uv_loop_t loop;
static struct auth auth = {.open = true};
static struct link_hub hubs[2];
static struct relay *relays[2];     /* the workers' and the store's; NULL: not in this story */
static int listener = -1, stranger; /* stranger: its end of the link; -1 */
static struct netaddr where;
static struct rd script;
static struct end clients[ENDS], stores[ENDS];
static struct flow flows[FLOWS];
static int nflows, mode;
static bool moved;

/* Bytes received on the link to the peer that is not authenticated. */
static struct buf heard;
static bool past_preamble;
static uint64_t may_come[IDS], came[IDS];
static uint64_t poured[IDS]; /* bytes that it has said on a stream from which nobody has read, */
static bool is_open[IDS];    /* and which neither side has closed */

static uint8_t up_byte(int flow, size_t at)
{
    return at == 0 ? 0 : at == 1 ? (uint8_t)flow : (uint8_t)((size_t)flow * 31 + at * 7 + at / 251);
}

static uint8_t down_byte(int flow, size_t at)
{
    return (uint8_t)((size_t)flow * 17 + at * 5 + at / 253);
}

static void must(bool fact)
{
    if (!fact)
        abort();
}

/* ----------------------------------------------------------------------------- around the relay */

static bool serve(void *arg, int fd)
{
    (void)arg;
    struct end *e = stores;
    while (e < stores + ENDS && e->fd >= 0)
        e++;
    if (e == stores + ENDS) { /* a store that hangs up at once */
        close(fd);
        return true;
    }
    *e = (struct end){fd, -1, false};
    return true;
}

static bool serve_nobody(void *arg, int fd)
{
    (void)arg, (void)fd;
    return false;
}

static bool is_there(void *arg, struct netaddr *out)
{
    (void)arg;
    *out = where;
    return true;
}

static bool is_nowhere(void *arg, struct netaddr *out)
{
    (void)arg, (void)out;
    return false;
}

static bool on_preamble(struct link *l, uint32_t version)
{
    (void)l;
    must(version == RDZV_PROTOCOL);
    return true;
}

static void on_frame(struct link *l, uint8_t type, struct rd body)
{
    char run_id[RDZV_RUN_ID_MAX];
    rd_str(&body, run_id, sizeof(run_id));
    must(type == RDZV_MSG_RELAY && rd_done(&body) && strcmp(run_id, "job") == 0);
    relay_adopt(relays[1], l);
}

static void on_end(struct link *l, enum rdzv_end how, const char *why)
{
    (void)how, (void)why;
    link_close(l);
}

static const struct link_events events = {on_preamble, on_frame, on_end};

/* The coordinator's door. */
static void take_link(void)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    moved = true;
    if (mode == 0) {
        must(link_new(&hubs[1], fd, false, &events, NULL) != NULL);
    } else {
        close_fd(&stranger);
        stranger = fd;
        past_preamble = false;
        heard.len = 0;
        memset(may_come, 0, sizeof(may_come));
        memset(came, 0, sizeof(came));
        for (int i = 0; i < IDS; i++)
            may_come[i] = RELAY_WINDOW;
    }
}

static void check_frame(uint8_t type, struct rd body)
{
    if (type == RDZV_MSG_RELAY)
        return;
    must(type > RDZV_MSG_RELAY && type <= RDZV_MSG_RELAY_END);
    uint32_t id = rd_u32(&body);
    must(!body.bad);
    if (type == RDZV_MSG_RELAY_DATA && id < IDS) {
        came[id] += (size_t)(body.end - body.p);
        must(came[id] <= may_come[id]);
    }
    if (type == RDZV_MSG_RELAY_END && id < IDS)
        is_open[id] = false;
}

static void hear_stranger(void)
{
    uint8_t piece[16384];
    ssize_t n = stranger < 0 ? 0 : recv(stranger, piece, sizeof(piece), 0);
    if (n == 0)
        close_fd(&stranger);
    if (n <= 0 || stranger < 0)
        return;
    moved = true;
    buf_put(&heard, piece, (size_t)n);
    if (!past_preamble && heard.len >= RDZV_PREAMBLE_LEN) {
        must(rdzv_get_preamble(heard.data) == RDZV_PROTOCOL);
        buf_consume(&heard, RDZV_PREAMBLE_LEN);
        past_preamble = true;
    }
    while (past_preamble && heard.len >= RDZV_FRAME_HEADER) {
        struct rd r = rd_init(heard.data, heard.len);
        uint32_t len = rd_u32(&r);
        if (heard.len - 4 < len)
            break;
        uint8_t type = rd_u8(&r);
        check_frame(type, rd_init(r.p, len - 1));
        buf_consume(&heard, 4 + (size_t)len);
    }
}

static void turn(int times)
{
    for (; times >= 0; times--) {
        uv_run(&loop, UV_RUN_NOWAIT);
        take_link();
        hear_stranger();
    }
}

/* ------------------------------------------------------------------------------------ the steps */

static size_t length(void)
{
    return (size_t)rd_u8(&script) * PIECE;
}

static void open_client(struct end *e)
{
    struct netaddr door;
    if (e->fd >= 0 || nflows == FLOWS)
        return;
    e->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    e->flow = nflows++;
    e->eof = false;
    must(netaddr_parse_ip(&door, "127.0.0.1", relay_port(relays[0])));
    must(connect(e->fd, &door.sa, door.len) == 0 || errno == EINPROGRESS);
    uint8_t first[2] = {up_byte(e->flow, 0), (uint8_t)e->flow};
    if (mode && script.p < script.end && *script.p >= 0xf0)
        first[0] = rd_u8(&script); /* no client of a store */
    struct pollfd p = {e->fd, POLLOUT, 0};
    must(poll(&p, 1, 1000) == 1);
    must(send(e->fd, first, 2, MSG_NOSIGNAL) == 2);
    flows[e->flow] = (struct flow){.up_sent = 2};
}

static void over(const struct end *e)
{
    if (e->flow >= 0)
        flows[e->flow].over = true;
}

static void close_end(struct end *e, bool store)
{
    over(e);
    memset(is_open, 0, sizeof(is_open));
    if (e->fd >= 0 && e->flow >= 0)
        *(store ? &flows[e->flow].store_end : &flows[e->flow].worker_end) = true;
    close_fd(&e->fd);
}

static void write_end(struct end *e, bool up, size_t n)
{
    uint8_t piece[256 * PIECE];
    if (e->fd < 0 || e->flow < 0)
        return;
    size_t *sent = up ? &flows[e->flow].up_sent : &flows[e->flow].down_sent;
    for (size_t i = 0; i < n; i++)
        piece[i] = up ? up_byte(e->flow, *sent + i) : down_byte(e->flow, *sent + i);
    ssize_t done = send(e->fd, piece, n, MSG_NOSIGNAL);
    if (done > 0) {
        moved = true;
        *sent += (size_t)done;
    } else if (done < 0 && errno != EAGAIN) {
        over(e);
    }
}

/* Compares with what was written on the other side. */
static void take(struct end *e, bool up, const uint8_t *p, size_t n)
{
    if (mode)
        return;
    if (up && e->flow < 0) { /* the first two bytes come together */
        must(n >= 2 && p[1] < nflows);
        e->flow = p[1];
    }
    struct flow *f = &flows[e->flow];
    size_t *got = up ? &f->up_got : &f->down_got;
    must(*got + n <= (up ? f->up_sent : f->down_sent));
    for (size_t i = 0; i < n; i++, ++*got)
        must(p[i] == (up ? up_byte(e->flow, *got) : down_byte(e->flow, *got)));
}

static void read_end(struct end *e, bool up, size_t n)
{
    uint8_t piece[256 * PIECE];
    ssize_t got = e->fd < 0 || n < 2 ? -1 : recv(e->fd, piece, n, 0);
    if (got > 0) {
        moved = true;
        take(e, up, piece, (size_t)got);
        if (mode && e->flow < 0) /* whose it is does not matter here */
            e->flow = 0;
        memset(poured, 0, sizeof(poured));
    } else if (e->fd >= 0 && n >= 2 && (got == 0 || errno != EAGAIN)) {
        e->eof = true;
    }
}

static void say(const void *p, size_t n)
{
    if (stranger >= 0 && n && send(stranger, p, n, MSG_NOSIGNAL) < 0 && errno != EAGAIN)
        close_fd(&stranger);
}

/* One frame of the stranger's, or as many bytes as it likes. */
static void say_frame(void)
{
    static const enum rdzv_msg types[] = {
        RDZV_MSG_RELAY_OPEN, RDZV_MSG_RELAY_DATA, RDZV_MSG_RELAY_CREDIT, RDZV_MSG_RELAY_FIN,
        RDZV_MSG_RELAY_END,  RDZV_MSG_RELAY_DATA, RDZV_MSG_RELAY};
    static const uint8_t filler[256 * PIECE];
    uint8_t what = rd_u8(&script), who = rd_u8(&script);
    struct buf b = BUF_INIT;
    size_t type = what % 8;
    if (type == 7) {
        size_t left = (size_t)(script.end - script.p), n = who & 15;
        say(rd_take(&script, n < left ? n : left), n < left ? n : left);
        return;
    }
    uint32_t id = who < 0xf0 ? who % IDS : 0x01010101u * who;
    size_t n = types[type] == RDZV_MSG_RELAY_DATA ? length() : what >> 7;
    uint32_t more = types[type] == RDZV_MSG_RELAY_CREDIT ? (uint32_t)length() : 0;
    bool credit = types[type] == RDZV_MSG_RELAY_CREDIT && !(what & 64);
    buf_u32(&b, (uint32_t)(FRAME_ID + n + (credit ? 4 : 0)));
    buf_u8(&b, (uint8_t)types[type]);
    buf_u32(&b, id);
    if (credit)
        buf_u32(&b, more);
    buf_put(&b, filler, n);
    if (credit && id < IDS)
        may_come[id] += more;
    if (types[type] == RDZV_MSG_RELAY_OPEN && id < IDS)
        may_come[id] += RELAY_WINDOW;
    say(b.data, b.len);
    buf_fini(&b);
    if (mode != 1 || id >= IDS)
        return;
    if (types[type] == RDZV_MSG_RELAY_OPEN)
        is_open[id] = true;
    if (types[type] == RDZV_MSG_RELAY_END)
        is_open[id] = false;
    poured[id] = is_open[id] ? poured[id] + n : 0;
    if (poured[id] > POURED_MAX) { /* no relay keeps so much: it closes the link */
        turn(TURNS);
        must(stranger < 0 || !is_open[id]);
    }
}

static void step(void)
{
    uint8_t b = rd_u8(&script);
    struct end *c = &clients[(b >> 3) & 3], *s = &stores[(b >> 3) & 3];
    switch ((enum step)(b & 7)) {
    case FRAME:
        if (mode)
            say_frame();
        break;
    case OPEN:
        if (relays[0])
            open_client(c);
        break;
    case WRITE:
        write_end(c, true, length());
        break;
    case READ:
        read_end(c, false, length());
        break;
    case SHUT: /* the store's answer may still come */
        if (c->fd >= 0 && shutdown(c->fd, SHUT_WR) == 0) {
            over(c);
            flows[c->flow].worker_end = true;
        }
        break;
    case CLOSE:
        close_end(c, false);
        break;
    case STORE_WRITE:
        write_end(s, false, length());
        break;
    case STORE_READ_CLOSE: {
        size_t n = length();
        if (n)
            read_end(s, true, n);
        else
            close_end(s, true);
        break;
    }
    }
    turn(b >> 5);
}

/* ------------------------------------------------------------------------------------ the story */

static void open_relay(int i)
{
    struct relay_config c = {.hub = &hubs[i],
                             .auth = &auth,
                             .run_id = "job",
                             .nproc = 1,
                             .serve = i ? serve : serve_nobody,
                             .where = i ? is_nowhere : is_there};
    struct err e = ERR_INIT;
    must(relay_open(&relays[i], &loop, &c, &e) == 0);
}

static void begin(void)
{
    nflows = 0;
    stranger = -1;
    heard.len = 0;
    past_preamble = false;
    for (int i = 0; i < ENDS; i++)
        clients[i] = stores[i] = (struct end){-1, -1, false};
    memset(flows, 0, sizeof(flows));
    memset(came, 0, sizeof(came));
    memset(may_come, 0, sizeof(may_come));
    memset(poured, 0, sizeof(poured));
    memset(is_open, 0, sizeof(is_open));
    for (int i = 0; i < 2; i++)
        link_hub_init(&hubs[i], &loop, NULL, NULL);
    relays[0] = relays[1] = NULL;
    if (mode != 1)
        open_relay(0);
    if (mode != 2)
        open_relay(1);
    if (mode == 1) {
        int pair[2];
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        stranger = pair[1];
        struct link *l = link_new(&hubs[1], pair[0], true, &events, NULL);
        must(l != NULL);
        relay_adopt(relays[1], l);
    }
}

/* Every byte has arrived on flows whose both ends are open; the other flows have seen the end. */
static bool all_came(void)
{
    for (int i = 0; i < ENDS; i++) {
        const struct end *e = &stores[i];
        const struct flow *f = &flows[e->flow < 0 ? 0 : e->flow];
        if (e->fd >= 0 && e->flow >= 0 &&
            (f->over ? f->worker_end && !e->eof
                     : f->up_got != f->up_sent || f->down_got != f->down_sent))
            return false;
        e = &clients[i];
        if (e->fd >= 0 && flows[e->flow].store_end && !e->eof)
            return false;
    }
    return true;
}

/* Nothing is lost. The kernel may take its time, when a full buffer of TCP's has been emptied. */
static void check_all_came(void)
{
    uint64_t end = mono_ns() + UINT64_C(5000000000);
    for (int quiet = 0; quiet < TURNS; quiet = moved ? 0 : quiet + 1) {
        moved = false;
        for (int i = 0; i < ENDS; i++) {
            read_end(&clients[i], false, 255 * PIECE);
            read_end(&stores[i], true, 255 * PIECE);
        }
        turn(0);
        if (quiet == TURNS - 1 && !all_came()) {
            must(mono_ns() < end);
            poll(NULL, 0, 1);
            quiet--;
        }
    }
}

static void one_closed(void *arg)
{
    ++*(int *)arg;
}

static void end(void)
{
    int closed = 0, want = 2;
    for (int i = 0; i < ENDS; i++) {
        close_end(&clients[i], false);
        close_end(&stores[i], true);
    }
    close_fd(&stranger);
    turn(2);
    for (int i = 0; i < 2; i++) {
        if (relays[i]) {
            relay_close(relays[i], one_closed, &closed);
            want++;
        }
        link_hub_close(&hubs[i], one_closed, &closed);
    }
    for (int i = 0; i < 100 && closed < want; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    for (int i = 0; i < ENDS; i++) /* what came while it closed */
        close_fd(&stores[i].fd);
    must(closed == want && !uv_loop_alive(&loop));
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (listener < 0) {
        log_init(LOG_LEVEL_ERROR, NULL);
        signal(SIGPIPE, SIG_IGN); /* as rdzv.h asks for */
        uv_loop_init(&loop);
        must(netaddr_parse_ip(&where, "127.0.0.1", 0));
        listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        must(bind(listener, &where.sa, where.len) == 0 && listen(listener, 16) == 0);
        must(getsockname(listener, &where.sa, &where.len) == 0);
    }
    mode = data[0] % 3;
    script = rd_init(data + 1, size - 1);
    begin();
    if (mode == 1) {
        struct buf b = BUF_INIT;
        rdzv_put_preamble(&b);
        say(b.data, b.len);
        buf_fini(&b);
    }
    bool greeted = mode != 2;
    for (int i = 0; i < STEPS && script.p < script.end; i++) {
        if (!greeted && stranger >= 0) {
            struct buf b = BUF_INIT;
            rdzv_put_preamble(&b);
            say(b.data, b.len);
            buf_fini(&b);
            greeted = true;
        }
        step();
    }
    if (mode == 0)
        check_all_came();
    end();
    return 0;
}
