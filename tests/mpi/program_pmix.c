/* A client of PMIx: each rank asks those of other nodes for what they have put, without a fence
 * (direct modex); then all ranks, behind one. (libpmix 4.2.2 cannot do the first on one node: a
 * rank that has not put it yet is "not found".) */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                \
    do {                                                           \
        if (!(what)) {                                             \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #what); \
            exit(3);                                               \
        }                                                          \
    } while (0)

static pmix_proc_t me;

static void put(const char *key, const char *text)
{
    char value[64];
    pmix_value_t v = {.type = PMIX_STRING, .data.string = value};
    snprintf(value, sizeof(value), "%s of %u", text, me.rank);
    CHECK(PMIx_Put(PMIX_GLOBAL, key, &v) == PMIX_SUCCESS);
    CHECK(PMIx_Commit() == PMIX_SUCCESS);
}

static void look(const char *key, const char *text, uint32_t rank)
{
    pmix_proc_t other = me;
    pmix_value_t *v;
    char want[64];
    other.rank = rank;
    snprintf(want, sizeof(want), "%s of %u", text, rank);
    CHECK(PMIx_Get(&other, key, NULL, 0, &v) == PMIX_SUCCESS);
    CHECK(v->type == PMIX_STRING && strcmp(v->data.string, want) == 0);
}

/* Whether the list "0,1" has this rank. */
static int has(const char *list, uint32_t rank)
{
    char *end;
    for (const char *p = list; *p; p = *end ? end + 1 : end) {
        if (strtoul(p, &end, 10) == rank)
            return 1;
    }
    return 0;
}

int main(void)
{
    pmix_value_t *v;
    pmix_proc_t all;
    pmix_info_t collect = {.key = PMIX_COLLECT_DATA,
                           .value = {.type = PMIX_BOOL, .data.flag = true}};
    CHECK(PMIx_Init(&me, NULL, 0) == PMIX_SUCCESS);
    all = me;
    all.rank = PMIX_RANK_WILDCARD;
    CHECK(PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &v) == PMIX_SUCCESS && v->type == PMIX_UINT32);
    uint32_t n = v->data.uint32;
    put("one", "first");
    CHECK(PMIx_Get(&all, PMIX_LOCAL_PEERS, NULL, 0, &v) == PMIX_SUCCESS && v->type == PMIX_STRING);
    for (uint32_t i = 0; i < n; i++) {
        if (!has(v->data.string, i))
            look("one", "first", i);
    }
    put("two", "second");
    CHECK(PMIx_Fence(&all, 1, &collect, 1) == PMIX_SUCCESS);
    for (uint32_t i = 0; i < n; i++)
        look("two", "second", i);
    printf("rank %u of %u by PMIx\n", me.rank, n);
    CHECK(PMIx_Finalize(NULL, 0) == PMIX_SUCCESS);
    return 0;
}
