/* Statements of others about ranks. Byte 0 chooses: samples as another node sends them, which are
 * judged and shown as one tree, or the answer of NCCL's RAS service. Read or refused, always
 * bounded. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/inspect/nccl_ras.h"
#include "agent/stacks/stack_tree.h"
#include "agent/stacks/verdict.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool decode(struct samples *all, const void *data, size_t size)
{
    struct rd r = rd_init(data, size);
    return samples_decode(&r, all);
}

/* The samples that were read are written and read once more. */
static void expect_inverse(const struct samples *all)
{
    struct buf once = BUF_INIT, twice = BUF_INIT;
    struct samples again = {0};
    samples_encode(&once, all);
    assert(decode(&again, once.data, once.len));
    samples_encode(&twice, &again);
    assert(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    samples_fini(&again);
    buf_fini(&once);
    buf_fini(&twice);
}

static void check(const struct samples *first, const struct samples *second)
{
    struct verdict v;
    hang_verdict(first, second, &v);
    assert(v.n >= 0 && v.n <= VERDICT_RANKS);
    assert(v.state != HANG_NONE || v.n == 0 || !*v.text);
    assert(memchr(v.text, '\0', sizeof(v.text)));
}

static void show(const struct samples *all)
{
    struct stack_tree tree = {0};
    stack_tree_add(&tree, all);
    free(stack_tree_text(&tree, all));
    json_decref(stack_tree_json(&tree, all));
    stack_tree_fini(&tree);
}

static void take_samples(const uint8_t *data, size_t size)
{
    struct samples all = {0}, none = {0};
    if (decode(&all, data, size)) {
        expect_inverse(&all);
        samples_sort(&all);
        check(&all, &all);
        check(&none, &all);
        show(&all);
    }
    samples_fini(&all);
}

static void take_ras(const char *json, size_t size)
{
    struct nccl_ras r = {0};
    bool good = nccl_ras_parse(&r, json, size);
    assert(good || r.n == 0);
    for (size_t i = 0; i < r.n; i++)
        assert(nccl_ras_of(&r, r.ranks[i].pid));
    nccl_ras_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] % 2 == 0)
        take_samples(data + 1, size - 1);
    else if (size > 0)
        take_ras((const char *)data + 1, size - 1);
    return 0;
}
