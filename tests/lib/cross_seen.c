/* cross_seen.c: what has met what, and how often: a test that leaves something out must fail. Ranks
 * and tests are processes of their own; they write into memory that all of them have. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/lib/cross.h"
#include "tests/lib/test.h"

enum { LABELS = 256, LABEL_MAX = 64, SAME = 1 << 18 };

/* Everything that an operation depends on, one after the other. */
enum {
    SIZES = 0,
    KINDS = SIZES + CROSS_RANKS,
    WAYS = KINDS + CALL_KINDS,
    TYPES = WAYS + CROSS_WAYS,
    OPS = TYPES + CROSS_TYPES,
    PLACES = OPS + CROSS_OPS,
    COUNTS = PLACES + 2,
    SHIFTS = COUNTS + CROSS_COUNTS,
    ROOTS = SHIFTS + 4,
    ALL = ROOTS + CROSS_RANKS
};

static struct seen {
    _Atomic uint8_t pairs[ALL][ALL];
    _Atomic uint8_t whole[CALL_KINDS][CROSS_WAYS][CROSS_TYPES][CROSS_OPS][2];
    _Atomic int nlabels;
    struct label {
        _Atomic int ready;
        char text[LABEL_MAX];
        _Atomic uint64_t count;
    } labels[LABELS];
    struct {
        _Atomic uint64_t what, value;
    } same[SAME];
} * g_seen;

void cross_seen_init(void)
{
    g_seen = mmap(NULL, sizeof(*g_seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g_seen == MAP_FAILED)
        abort();
}

/* ------------------------------------------------------------------------------------- counting */

void cross_count(enum call_kind kind, const char *layer, const char *algo)
{
    char text[LABEL_MAX];
    snprintf(text, sizeof(text), "%-20s %s%s", call_name((int)kind), layer, algo);
    for (int i = 0; i < LABELS; i++) {
        struct label *l = &g_seen->labels[i];
        int none = 0;
        if (atomic_compare_exchange_strong(&l->ready, &none, 1)) {
            memcpy(l->text, text, sizeof(text));
            atomic_store(&l->ready, 2);
        }
        while (atomic_load(&l->ready) < 2) /* for as long as a name is copied */
            ;
        if (strcmp(l->text, text) == 0) {
            atomic_fetch_add(&l->count, 1);
            return;
        }
    }
    abort();
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct label *)a)->text, ((const struct label *)b)->text);
}

static void print(const char *transport)
{
    uint64_t all = 0;
    int n = 0;
    while (n < LABELS && atomic_load(&g_seen->labels[n].ready))
        n++;
    qsort(g_seen->labels, (size_t)n, sizeof(g_seen->labels[0]), compare);
    for (int i = 0; i < n; i++) {
        uint64_t count = atomic_load(&g_seen->labels[i].count);
        printf("%-10s %-44s %9llu\n", transport, g_seen->labels[i].text, (unsigned long long)count);
        all += count;
    }
    printf("%-10s %-44s %9llu\n", transport, "operations checked", (unsigned long long)all);
}

int cross_main(struct Suite *s, const char *transport)
{
    int failed = test_main(s);
    if (getenv("CROSS"))
        print(transport);
    return failed;
}

/* -------------------------------------------------------------------------------------- meeting */

static int type_index(dlcoll_dtype dtype)
{
    int i = 0;
    while (g_cross_types[i] != dtype)
        i++;
    return i;
}

void cross_see(const struct cross *x, const struct cross_case *c, bool forced)
{
    int type = type_index(x->v.dtype), way = x->way->index;
    const int facts[] = {SIZES + x->n - 1,
                         KINDS + (int)c->kind,
                         WAYS + way,
                         TYPES + type,
                         OPS + c->op,
                         PLACES + c->in_place,
                         COUNTS + c->count_class,
                         SHIFTS + c->shift,
                         ROOTS + c->root};
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        for (size_t j = 0; j < sizeof(facts) / sizeof(facts[0]); j++)
            atomic_store_explicit(&g_seen->pairs[facts[i]][facts[j]], 1, memory_order_relaxed);
    }
    if (forced)
        atomic_store_explicit(&g_seen->whole[c->kind][way][type][c->op][c->in_place], 1,
                              memory_order_relaxed);
}

bool cross_same(uint64_t what, uint64_t value)
{
    what |= (uint64_t)1 << 63; /* 0: nothing yet */
    value |= 1;
    for (size_t i = cross_mix(what) % SAME;; i = (i + 1) % SAME) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&g_seen->same[i].what, &none, what) || none == what) {
            none = 0;
            return atomic_compare_exchange_strong(&g_seen->same[i].value, &none, value) ||
                   none == value;
        }
    }
}

/* ------------------------------------------------------------------------------ what is missing */

/* Scans, all_to_all_w and neighbour operations have tests of their own. */
static bool crossed(enum call_kind kind)
{
    bool has_own_test = kind >= CALL_SCAN && kind <= CALL_NEIGHBOR_ALL_TO_ALL;
    return (call_has_data(kind) && kind < CALL_EXCHANGE_BYTES && !has_own_test) ||
           kind == CALL_BATCH;
}

/* Whether an operation of that kind, way, type, reduction and place is one, and free to go the way
 * that is forced in a world of some size. */
static bool exists(const struct cross_way *w, enum call_kind kind, int type, int op, bool in_place)
{
    if (!crossed(kind) || !cross_way_has(w, kind) || !cross_has(g_cross_types[type], op) ||
        call_reduces(kind) == (op == CROSS_MOVE) || (in_place && !cross_kind_places(kind)))
        return false;
    enum call_kind plain = kind == CALL_ALL_REDUCE_COALESCED ? CALL_ALL_REDUCE : kind;
    const struct algo *a = cross_algo(plain, w->algo);
    bool uneven =
        a && (a->kind != plain || (w->transport == CROSS_HIER && plain == CALL_ALL_GATHER));
    if (w->transport == CROSS_HIER && plain == CALL_ALL_TO_ALL)
        uneven = true;
    /* Two nodes are a power of two; so are two ranks. */
    return !a || (!(a->any_order && op == CROSS_ORDERED) && !(a->regular && uneven));
}

static void check_whole(enum cross_transport transport)
{
    struct cross_way w;
    for (int k = 0; cross_way(&w, transport, k); k++) {
        for (int i = 0; i < CALL_KINDS * CROSS_TYPES * CROSS_OPS * 2; i++) {
            int kind = i / (CROSS_TYPES * CROSS_OPS * 2), type = i / (CROSS_OPS * 2) % CROSS_TYPES;
            int op = i / 2 % CROSS_OPS, in_place = i % 2;
            if (!exists(&w, (enum call_kind)kind, type, op, in_place))
                continue;
            ck_assert_msg(atomic_load(&g_seen->whole[kind][k][type][op][in_place]),
                          "way %d: no %s of type %d, %s, in place %d, has gone it", k,
                          call_name(kind), (int)g_cross_types[type], cross_op_name(op), in_place);
        }
    }
}

static bool g_possible[ALL][ALL];

/* The combinations of kind, way, type, reduction and place that can occur. */
static void find_possible(enum cross_transport transport)
{
    struct cross_way w;
    for (int k = 0; cross_way(&w, transport, k); k++) {
        for (int i = 0; i < CALL_KINDS * CROSS_TYPES * CROSS_OPS * 2; i++) {
            int kind = i / (CROSS_TYPES * CROSS_OPS * 2), type = i / (CROSS_OPS * 2) % CROSS_TYPES;
            int op = i / 2 % CROSS_OPS, in_place = i % 2;
            const int facts[] = {KINDS + kind, WAYS + k, TYPES + type, OPS + op, PLACES + in_place};
            for (int f = 0; f < 25 && exists(&w, (enum call_kind)kind, type, op, in_place); f++)
                g_possible[facts[f / 5]][facts[f % 5]] = true;
        }
    }
}

/* a > b: they are of different sorts and must have met. */
static bool must_meet(int a, int b)
{
    static const int sorts[] = {SIZES, KINDS, WAYS, TYPES, OPS, PLACES, COUNTS, SHIFTS, ROOTS, ALL};
    for (int i = 0; i < 9; i++) {
        if (a >= sorts[i] && b >= sorts[i] && a < sorts[i + 1])
            return false;
    }
    if (a >= ROOTS) /* of the operations that have one */
        return b < KINDS ? a - ROOTS <= b - SIZES
                         : b < WAYS && call_rooted((enum call_kind)(b - KINDS)) && g_possible[b][b];
    bool free_a = a >= COUNTS, free_b = b < KINDS || b >= COUNTS;
    return free_a || free_b ? (free_a || g_possible[a][a]) && (free_b || g_possible[b][b])
                            : g_possible[a][b];
}

static const char *fact_name(int a)
{
    static const char *const names[] = {"ranks - 1", "kind",  "way",   "type", "reduction",
                                        "in place",  "count", "shift", "root"};
    static const int sorts[] = {SIZES, KINDS, WAYS, TYPES, OPS, PLACES, COUNTS, SHIFTS, ROOTS, ALL};
    int i = 0;
    while (a >= sorts[i + 1])
        i++;
    return test_text("%s %d", names[i], a - sorts[i]);
}

void cross_seen_check(enum cross_transport transport, int sizes_from)
{
    if (getenv("CROSS_SIZE"))
        return;
    check_whole(transport);
    find_possible(transport);
    for (int a = 0; a < ALL; a++) {
        for (int b = 0; b < a; b++) {
            if ((b < KINDS && b < sizes_from - 1) || !must_meet(a, b))
                continue;
            ck_assert_msg(atomic_load(&g_seen->pairs[a][b]), "%s has not met %s", fact_name(a),
                          fact_name(b));
        }
    }
}
