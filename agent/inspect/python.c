#include "agent/inspect/python.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/inspect/remote.h"
#include "core/mem.h"

enum { THREADS_MAX = 4096, TRIES = 4, LINE_TABLE_MAX = 65536 };

/* The words of the table that are used, by their place in it: 8 bytes each, the cookie the first.
 */
enum word {
    INTERPRETERS_HEAD,
    INTERP_NEXT,
    THREADS_HEAD,
    THREAD_NEXT,
    THREAD_FRAME,
    THREAD_TID,
    FRAME_PREVIOUS,
    FRAME_CODE,
    FRAME_INSTR,
    FRAME_OWNER,
    CODE_FILENAME,
    CODE_QUALNAME,
    CODE_LINETABLE,
    CODE_FIRSTLINE,
    CODE_BYTES,
    BYTES_SIZE,
    BYTES_DATA,
    STR_STATE,
    STR_LENGTH,
    STR_ASCII_SIZE,
    WORDS,
};

static const struct {
    int minor;
    uint8_t at[WORDS];
} layouts[] = {
    {13, {[INTERPRETERS_HEAD] = 5, [INTERP_NEXT] = 8,     [THREADS_HEAD] = 9,
          [THREAD_NEXT] = 21,      [THREAD_FRAME] = 23,   [THREAD_TID] = 25,
          [FRAME_PREVIOUS] = 29,   [FRAME_CODE] = 30,     [FRAME_INSTR] = 31,
          [FRAME_OWNER] = 33,      [CODE_FILENAME] = 35,  [CODE_QUALNAME] = 37,
          [CODE_LINETABLE] = 38,   [CODE_FIRSTLINE] = 39, [CODE_BYTES] = 43,
          [BYTES_SIZE] = 65,       [BYTES_DATA] = 66,     [STR_STATE] = 68,
          [STR_LENGTH] = 69,       [STR_ASCII_SIZE] = 70}},
    {14, {[INTERPRETERS_HEAD] = 5, [INTERP_NEXT] = 8,     [THREADS_HEAD] = 9,
          [THREAD_NEXT] = 24,      [THREAD_FRAME] = 26,   [THREAD_TID] = 28,
          [FRAME_PREVIOUS] = 32,   [FRAME_CODE] = 33,     [FRAME_INSTR] = 34,
          [FRAME_OWNER] = 36,      [CODE_FILENAME] = 40,  [CODE_QUALNAME] = 42,
          [CODE_LINETABLE] = 43,   [CODE_FIRSTLINE] = 44, [CODE_BYTES] = 48,
          [BYTES_SIZE] = 75,       [BYTES_DATA] = 76,     [STR_STATE] = 78,
          [STR_LENGTH] = 79,       [STR_ASCII_SIZE] = 80}},
};

#define TABLE_WORDS 96

/* 3.11 and 3.12 have the section, but no table in it. Their releases keep the fields where they
 * are. */
#define FIRST_FIXED 11
static const struct {
    int minor;
    uint16_t cframe, current; /* of a thread, and of what is there: the way to the frame */
    uint16_t off[WORDS];
} fixed[] = {
    {11,
     .cframe = 56,
     .current = 8,
     {[INTERPRETERS_HEAD] = 40,
      [INTERP_NEXT] = 0,
      [THREADS_HEAD] = 16,
      [THREAD_NEXT] = 8,
      [THREAD_TID] = 160,
      [FRAME_PREVIOUS] = 48,
      [FRAME_CODE] = 32,
      [FRAME_INSTR] = 56,
      [FRAME_OWNER] = 69,
      [CODE_FILENAME] = 112,
      [CODE_QUALNAME] = 128,
      [CODE_LINETABLE] = 136,
      [CODE_FIRSTLINE] = 72,
      [CODE_BYTES] = 184,
      [BYTES_SIZE] = 16,
      [BYTES_DATA] = 32,
      [STR_STATE] = 32,
      [STR_LENGTH] = 16,
      [STR_ASCII_SIZE] = 48}},
    {12,
     .cframe = 56,
     .current = 0,
     {[INTERPRETERS_HEAD] = 40,
      [INTERP_NEXT] = 0,
      [THREADS_HEAD] = 72,
      [THREAD_NEXT] = 8,
      [THREAD_TID] = 144,
      [FRAME_PREVIOUS] = 8,
      [FRAME_CODE] = 0,
      [FRAME_INSTR] = 56,
      [FRAME_OWNER] = 70,
      [CODE_FILENAME] = 112,
      [CODE_QUALNAME] = 128,
      [CODE_LINETABLE] = 136,
      [CODE_FIRSTLINE] = 68,
      [CODE_BYTES] = 192,
      [BYTES_SIZE] = 16,
      [BYTES_DATA] = 32,
      [STR_STATE] = 32,
      [STR_LENGTH] = 16,
      [STR_ASCII_SIZE] = 40}},
};

/* ------------------------------------------------------------------------- finding the runtime */

struct search {
    int pid;
    struct python *out;
};

/* "libpython3.11.so.1.0" or "python3.11", in which the version is; else false. */
static bool is_python(const char *path, int *major, int *minor)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (strncmp(base, "lib", 3) == 0)
        base += 3;
    return sscanf(base, "python%d.%d", major, minor) == 2 || strcmp(base, "python3") == 0 ||
           strcmp(base, "python") == 0;
}

/* The interpreter is the program itself or a library of it. Others can have the section, too. */
static bool look_at_map(void *arg, const struct remote_map *m)
{
    struct search *s = arg;
    struct python *py = s->out;
    uint64_t table[3];
    int major = 0, minor = 0;
    if (m->offset != 0 || !is_python(m->path, &major, &minor))
        return true;
    if (py->kind == PYTHON_NONE || minor)
        *py = (struct python){.kind = PYTHON_OTHER, .major = major, .minor = minor};
    uint64_t at = remote_section(s->pid, m, ".PyRuntime");
    if (at && remote_get(s->pid, at, table, sizeof(table)) && memcmp(table, "xdebugpy", 8) == 0) {
        py->runtime = at;
        py->major = (int)(table[1] >> 24);
        py->minor = (int)(table[1] >> 16 & 0xff);
        for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
            if (py->major == 3 && layouts[i].minor == py->minor)
                py->kind = PYTHON_READABLE;
        }
        return false;
    }
    if (py->major != 3 || py->minor < 8 || py->minor > 12)
        return true;
    py->kind = at && py->minor >= FIRST_FIXED ? PYTHON_FIXED : PYTHON_OLD;
    py->runtime = at;
    return !at; /* the section may be in a library */
}

void python_find(int pid, struct python *out)
{
    struct search s = {pid, out};
    *out = (struct python){.kind = PYTHON_NONE};
    remote_maps(pid, look_at_map, &s);
}

/* ------------------------------------------------------------------------------------- objects */

struct reader {
    int pid, minor;
    uint64_t off[WORDS];
    uint64_t cframe, current; /* with fixed offsets, in place of THREAD_FRAME */
};

static bool get_word(const struct reader *r, uint64_t base, enum word field, uint64_t *out)
{
    return base && remote_get(r->pid, base + r->off[field], out, sizeof(*out));
}

static void put_utf8(char *out, size_t cap, size_t *len, uint32_t c)
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    if (*len + n >= cap)
        return;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[*len + i] = (char)(0x80 | (c & 0x3f));
    out[*len] = (char)(first[n] | c);
    *len += n;
}

/* A str object. The three places where a version can have its bits: behind an `interned` of two
 * bits, of a byte or of two bytes. */
static bool get_str(const struct reader *r, uint64_t obj, char *out, size_t cap)
{
    static const int shifts[] = {2, 8, 16};
    uint32_t state;
    uint64_t length;
    uint8_t raw[4 * SAMPLE_TEXT_MAX];
    if (!obj || !remote_get(r->pid, obj + r->off[STR_STATE], &state, sizeof(state)) ||
        !get_word(r, obj, STR_LENGTH, &length))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(shifts); i++) {
        uint32_t bits = state >> shifts[i], kind = bits & 7, compact = bits >> 3 & 1,
                 ascii = bits >> 4 & 1;
        if (!compact || (kind != 1 && kind != 2 && kind != 4))
            continue;
        size_t n = length < SAMPLE_TEXT_MAX ? (size_t)length : SAMPLE_TEXT_MAX, len = 0;
        uint64_t wide = ascii ? 0
                        : r->minor < 12
                            ? 24
                            : 16;   /* the fields in front of it that other versions have */
        uint64_t skip = length - n; /* of a long path the end says more */
        uint64_t at = obj + r->off[STR_ASCII_SIZE] + wide + skip * kind;
        if (!remote_get(r->pid, at, raw, n * kind))
            return false;
        for (size_t k = 0; k < n; k++) {
            uint32_t c = kind == 1 ? raw[k]
                         : kind == 2
                             ? (uint32_t)(raw[2 * k] | raw[2 * k + 1] << 8)
                             : (uint32_t)(raw[4 * k] | raw[4 * k + 1] << 8 | raw[4 * k + 2] << 16);
            put_utf8(out, cap, &len, c);
        }
        out[len] = '\0';
        return true;
    }
    return false;
}

static uint32_t get_varint(const uint8_t **p, const uint8_t *end)
{
    uint32_t v = 0;
    for (int shift = 0; *p < end && shift < 32; shift += 6) {
        uint8_t c = *(*p)++;
        v |= (uint32_t)(c & 63) << shift;
        if (!(c & 64))
            break;
    }
    return v;
}

static int get_svarint(const uint8_t **p, const uint8_t *end)
{
    uint32_t v = get_varint(p, end);
    return v & 1 ? -(int)(v >> 1) : (int)(v >> 1);
}

/* The line of code unit `unit`, from a location table (cpython, Objects/locations.md). */
static int line_of_unit(const uint8_t *p, size_t n, int line, uint64_t unit)
{
    const uint8_t *end = p + n;
    uint64_t at = 0;
    while (p < end) {
        unsigned code = *p >> 3 & 15, length = (*p & 7) + 1u;
        bool has_line = code != 15;
        p++;
        if (code == 14) {
            line += get_svarint(&p, end);
            for (int i = 0; i < 3; i++)
                get_varint(&p, end);
        } else if (code == 13) {
            line += get_svarint(&p, end);
        } else if (code >= 10 && code <= 12) {
            line += (int)code - 10;
            p += 2;
        } else if (code < 10) {
            p++;
        }
        at += length;
        if (unit < at)
            return has_line ? line : 0;
    }
    return 0;
}

static int line_of(const struct reader *r, uint64_t code, uint64_t instr)
{
    static uint8_t table[LINE_TABLE_MAX];
    uint64_t obj, size, first = code + r->off[CODE_BYTES];
    int32_t line;
    if (!remote_get(r->pid, code + r->off[CODE_FIRSTLINE], &line, sizeof(line)))
        return 0;
    if (instr < first || !get_word(r, code, CODE_LINETABLE, &obj) ||
        !get_word(r, obj, BYTES_SIZE, &size) || size > sizeof(table) ||
        !remote_get(r->pid, obj + r->off[BYTES_DATA], table, size))
        return line;
    int found = line_of_unit(table, size, line, (instr - first) / 2);
    return found ? found : line;
}

/* False: this is not a frame of Python code, or its code object is not one (any more). */
static bool get_frame(const struct reader *r, uint64_t frame, char text[SAMPLE_TEXT_MAX])
{
    uint64_t code, name, file, instr;
    char file_name[4 * SAMPLE_TEXT_MAX], fn[160];
    if (!get_word(r, frame, FRAME_CODE, &code) || !get_word(r, frame, FRAME_INSTR, &instr))
        return false;
    code &= ~(uint64_t)7; /* tags of a reference */
    if (!get_word(r, code, CODE_QUALNAME, &name) || !get_word(r, code, CODE_FILENAME, &file) ||
        !get_str(r, name, fn, sizeof(fn)) || !get_str(r, file, file_name, sizeof(file_name)))
        return false;
    const char *base = strrchr(file_name, '/');
    snprintf(text, SAMPLE_TEXT_MAX, "%s (%.80s:%d)", fn, base ? base + 1 : file_name,
             line_of(r, code, instr));
    return true;
}

static bool get_innermost(const struct reader *r, uint64_t thread, uint64_t *out)
{
    uint64_t cframe;
    if (!r->cframe)
        return get_word(r, thread, THREAD_FRAME, out);
    return remote_get(r->pid, thread + r->cframe, &cframe, sizeof(cframe)) && cframe &&
           remote_get(r->pid, cframe + r->current, out, sizeof(*out));
}

/* The frames of a thread, the innermost first. The thread runs: what was read together may not
 * belong together, which shows in most cases. False: it showed. */
static bool get_frames(const struct reader *r, uint64_t thread, struct sample_thread *t)
{
    uint64_t frame;
    char text[SAMPLE_TEXT_MAX];
    if (!get_innermost(r, thread, &frame))
        return false;
    for (int i = 0; frame && i < SAMPLE_FRAMES_MAX; i++) {
        int8_t owner;
        uint64_t previous;
        if (!remote_get(r->pid, frame + r->off[FRAME_OWNER], &owner, 1) ||
            !get_word(r, frame, FRAME_PREVIOUS, &previous))
            return false;
        if (owner >= 0 && owner < 3) { /* else the interpreter's own, between Python and C */
            if (!get_frame(r, frame, text))
                return false;
            sample_add_frame(t, text);
        }
        frame = previous;
    }
    return t->nframes > 0;
}

static struct sample_thread *find_thread(struct sample *s, uint64_t tid)
{
    for (int i = 0; i < s->nthreads; i++) {
        if (s->threads[i].tid == (int)tid)
            return &s->threads[i];
    }
    return NULL;
}

static bool read_thread(const struct reader *r, uint64_t thread, struct sample *s)
{
    uint64_t tid;
    struct sample_thread *t = get_word(r, thread, THREAD_TID, &tid) ? find_thread(s, tid) : NULL;
    if (!t || t->python)
        return false;
    for (int i = 0; i < TRIES; i++) {
        sample_drop_frames(t);
        if (get_frames(r, thread, t)) {
            sample_reverse(t);
            return t->python = true;
        }
    }
    sample_drop_frames(t);
    return false;
}

static bool get_offsets(struct reader *r, const struct python *py)
{
    uint64_t table[TABLE_WORDS];
    for (size_t i = 0; i < ARRAY_LEN(fixed) && py->kind == PYTHON_FIXED; i++) {
        if (fixed[i].minor != py->minor)
            continue;
        r->cframe = fixed[i].cframe;
        r->current = fixed[i].current;
        for (int w = 0; w < WORDS; w++)
            r->off[w] = fixed[i].off[w];
        return true;
    }
    if (py->kind != PYTHON_READABLE || !remote_get(r->pid, py->runtime, table, sizeof(table)))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        for (int w = 0; layouts[i].minor == py->minor && w < WORDS; w++)
            r->off[w] = table[layouts[i].at[w]];
    }
    return true;
}

int python_read(const struct python *py, struct sample *s)
{
    struct reader r = {.pid = s->pid, .minor = py->minor};
    uint64_t interp, thread;
    int n = 0;
    if (!get_offsets(&r, py))
        return 0;
    if (!get_word(&r, py->runtime, INTERPRETERS_HEAD, &interp))
        return 0;
    for (int i = 0; interp && i < THREADS_MAX; i++) {
        if (!get_word(&r, interp, THREADS_HEAD, &thread))
            break;
        for (int k = 0; thread && k < THREADS_MAX; k++) {
            n += read_thread(&r, thread, s);
            if (!get_word(&r, thread, THREAD_NEXT, &thread))
                break;
        }
        if (!get_word(&r, interp, INTERP_NEXT, &interp))
            break;
    }
    return n;
}
