/* The console of the job (agent/output/stdio_job.h). The lowest bit of the first byte says what the
 * rest is:
 *   0  pages of records as a hostile node may send them, each a u16 length and its bytes; bit 1 of
 *      the first byte: the console is a terminal
 *   1  a script: workers of two nodes print, and time passes. On the console each worker's lines
 *      are all there, in their order */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/output/stdio_job.h"
#include "agent/output/stdio_stream.h"
#include "core/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES = 2, EACH = 4, RANKS = NODES * EACH, STEPS_MAX = 3000 };

struct worker {
    struct stdio_stream stream[2];
    struct buf printed[2]; /* what the console has to show of it */
};

static struct stream_buffers buffers;
static int ends[2][2];
static struct buf got[2]; /* what the consoles have shown */
static struct console console[2];
static struct stdio_job *jobs[NODES]; /* the first one shows */
static struct worker workers[RANKS];
static uint64_t now;

static void ignore_page(void *arg)
{
    (void)arg;
}

static void ignore_stream(void *arg, struct stdio_stream *s)
{
    (void)arg, (void)s;
}

/* Empties the consoles' pipes, so that they have room. */
static void read_consoles(void)
{
    for (int i = 0; i < 2; i++) {
        ssize_t n;
        do {
            console_flush(&console[i], now);
            xbuf_reserve(&got[i], 65536);
            n = read(ends[i][0], got[i].data + got[i].len, 65536);
            got[i].len += n > 0 ? (size_t)n : 0;
        } while (n > 0);
    }
}

static void open_jobs(bool tty)
{
    const struct stdio_job_opts opts = {.route = {&console[0], &console[1]},
                                        .buffers = &buffers,
                                        .nworkers = EACH,
                                        .fold = true,
                                        .nranks = RANKS,
                                        .on_page = ignore_page,
                                        .on_stream = ignore_stream};
    for (int i = 0; i < 2; i++) {
        console_init(&console[i], ends[i][1], "console", -1, NULL);
        console[i].tty = tty;
        got[i].len = 0;
    }
    for (int i = 0; i < NODES; i++)
        jobs[i] = stdio_job_new(&opts);
    stdio_job_begin(jobs[0], RANKS);
    now = UINT64_C(1000000000);
}

static void close_jobs(void)
{
    for (int i = NODES - 1; i >= 0; i--) {
        stdio_job_end(jobs[i], now);
        stdio_job_free(jobs[i]);
    }
    for (int i = 0; i < 2; i++)
        console_end(&console[i], now);
    read_consoles();
    for (int i = 0; i < 2; i++)
        console_fini(&console[i]);
}

static void pass_time(uint8_t pick)
{
    static const uint64_t ms[] = {1, 20, 60, 120, 300, 1000};
    now += ms[pick % 6] * UINT64_C(1000000);
    for (int i = 0; i < NODES; i++)
        stdio_job_show(jobs[i], now);
    read_consoles();
}

static void take_records(struct rd r)
{
    while (!r.bad && r.p < r.end) {
        size_t n = rd_u16(&r), left = (size_t)(r.end - r.p);
        n = n < left ? n : left;
        const uint8_t *p = rd_take(&r, n);
        if (n)
            stdio_job_add(jobs[0], p, n);
        stdio_job_take(jobs[0], now);
        pass_time((uint8_t)n);
    }
}

/* -------------------------------------------------------------------------------------- a script
 */

static void open_worker(int rank)
{
    struct worker *w = &workers[rank];
    struct stdio_job *j = jobs[rank / EACH];
    char prefix[24];
    snprintf(prefix, sizeof(prefix), "[%d]: ", rank);
    for (int i = 0; i < 2; i++) {
        struct stdio_stream *s = &w->stream[i];
        *s = (struct stdio_stream){.fd = -1, .file = {.fd = -1}, .is_err = i == 1, .writer = w};
        s->console = stdio_job_console(j);
        s->fold = stdio_job_fold(j);
        s->label = stdio_label_new(rank, rank % EACH, prefix, NULL);
        s->label->is_err = i == 1;
        s->source = (struct fold_source){.writer = w, .label = s->label};
    }
}

static void end_worker(int rank)
{
    struct worker *w = &workers[rank];
    struct stdio_job *j = jobs[rank / EACH];
    for (int i = 0; i < 2; i++) {
        stream_end(&w->stream[i], &buffers, now);
        struct buf *b = &w->printed[i];
        if (b->len && b->data[b->len - 1] != '\n') /* the next line does not continue it */
            buf_put(b, "\n", 1);
    }
    console_forget(stdio_job_console(j), w);
    stdio_job_forget(j, rank);
}

static void print(int rank, bool err, const void *text, size_t n)
{
    struct worker *w = &workers[rank];
    memcpy(buffers.room + STREAM_BEFORE, text, n);
    stream_feed(&w->stream[err], &buffers, n, now);
    buf_put(&w->printed[err], text, n);
}

static void show_partials(void)
{
    for (int i = 0; i < RANKS; i++) {
        for (int k = 0; k < 2; k++) {
            struct stdio_stream *s = &workers[i].stream[k];
            uint64_t due = stream_due_ns(s);
            if (due && due <= now)
                stream_show_partial(s, &buffers, now);
        }
    }
}

static void pass_pages(int node)
{
    struct buf b;
    while ((b = stdio_job_next_page(jobs[node])).len) {
        stdio_job_add(jobs[0], b.data, b.len);
        stdio_job_taken(jobs[node], b.len);
        buf_fini(&b);
    }
    stdio_job_take(jobs[0], now);
    read_consoles();
}

static void begin_round(void)
{
    for (int i = 0; i < RANKS; i++)
        end_worker(i);
    for (int i = 0; i < NODES; i++) {
        stdio_job_show_source(jobs[i], now);
        pass_pages(i);
    }
    stdio_job_begin(jobs[0], RANKS);
    for (int i = 0; i < RANKS; i++)
        open_worker(i);
}

/* Letters without numbers, which would be folded into ranges. */
static void print_letters(int rank, struct rd *r)
{
    char text[16];
    size_t n = 1 + rd_u8(r) % sizeof(text);
    bool err = n % 2;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = rd_u8(r) % 8;
        text[i] = c < 2 ? '\n' : (char)('a' + c);
    }
    print(rank, err, text, n);
}

static void step(struct rd *r)
{
    static const char *const words[] = {
        "alpha\n",
        "beta\n",
        "gamma",
        " and so on\n",
        "\n",
        "one\ntwo\n",
        "Traceback (most recent call last):\n  File x\nValueError: y\n",
        "Traceback (most recent call last):\n  File x\n"};
    uint8_t what = rd_u8(r), pick = rd_u8(r);
    int rank = what / 8 % RANKS;
    switch (what % 8) {
    case 0:
    case 1:
        print(rank, pick & 1, words[pick / 2 % 8], strlen(words[pick / 2 % 8]));
        break;
    case 2: /* all ranks, from one of them on */
        for (int i = 0; i < RANKS; i++)
            print((rank + i) % RANKS, pick & 1, words[pick / 2 % 8], strlen(words[pick / 2 % 8]));
        break;
    case 3:
        print_letters(rank, r);
        break;
    case 4:
        pass_time(pick);
        show_partials();
        break;
    case 5:
        pass_pages(rank / EACH);
        break;
    case 6:
        end_worker(rank);
        open_worker(rank);
        break;
    default:
        if (pick % 8 == 0)
            begin_round();
        else
            pass_pages(pick % NODES);
    }
}

/* Whether the set at p, "[0-2,7]: ", has the rank; *len: of the set. */
static bool set_has(const char *p, const char *end, long rank, size_t *len)
{
    const char *stop = memchr(p, ']', (size_t)(end - p));
    bool has = false;
    if (!stop || *p != '[' || end - stop < 3 || memcmp(stop, "]: ", 3) != 0)
        abort();
    *len = (size_t)(stop + 3 - p);
    for (char *q = (char *)p; q < stop;) {
        long from = strtol(q + 1, &q, 10), to = *q == '-' ? strtol(q + 1, &q, 10) : from;
        has |= rank >= from && rank <= to;
    }
    return has;
}

/* The lines of the rank on the console must be those that it has printed. */
static void check_lines(const struct buf *shown, int rank, const struct buf *printed)
{
    struct buf lines = BUF_INIT;
    const char *p = (const char *)shown->data, *end = p + shown->len;
    for (const char *stop; p < end; p = stop) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len;
        stop = nl ? nl + 1 : end;
        if (set_has(p, stop, rank, &len))
            buf_put(&lines, p + len, (size_t)(stop - p) - len);
    }
    if (lines.len && lines.data[lines.len - 1] != '\n') /* the last line of the console */
        buf_put(&lines, "\n", 1);
    if (lines.len != printed->len || memcmp(lines.data, printed->data, lines.len) != 0)
        abort();
    buf_fini(&lines);
}

static void run_script(struct rd r)
{
    for (int i = 0; i < RANKS; i++)
        open_worker(i);
    for (int n = 0; !r.bad && r.p < r.end && n < STEPS_MAX; n++)
        step(&r);
    for (int i = 0; i < RANKS; i++)
        end_worker(i);
    for (int i = 0; i < NODES; i++) {
        stdio_job_show_source(jobs[i], now);
        pass_pages(i);
    }
}

static void check_script(void)
{
    for (int i = 0; i < RANKS; i++) {
        for (int k = 0; k < 2; k++) {
            if (workers[i].printed[k].len)
                check_lines(&got[k], i, &workers[i].printed[k]);
            buf_fini(&workers[i].printed[k]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 65536)
        return 0;
    if (!buffers.room) {
        buffers.room = xmalloc(STREAM_BEFORE + STREAM_CHUNK);
        buffers.visible = xmalloc(STREAM_CHUNK);
        for (int i = 0; i < 2; i++) {
            if (pipe2(ends[i], O_NONBLOCK | O_CLOEXEC) < 0)
                abort();
        }
    }
    bool script = data[0] & 1;
    open_jobs(!script && data[0] & 2);
    if (script)
        run_script(rd_init(data + 1, size - 1));
    else
        take_records(rd_init(data + 1, size - 1));
    close_jobs();
    if (script)
        check_script();
    return 0;
}
