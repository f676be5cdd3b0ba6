/* A client of PMI-2 by Slurm's library, as an MPI that was built for it is one. */
#include <slurm/pmi2.h>
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

int main(int argc, char **argv)
{
    int spawned, size, rank, appnum, found, len;
    char job[256], key[64], value[1024], want[64];
    (void)argv;
    CHECK(PMI2_Init(&spawned, &size, &rank, &appnum) == PMI2_SUCCESS);
    const char *program = getenv("DLAUNCH_APPNUM");
    CHECK(!spawned && appnum == (program ? atoi(program) : 0));
    CHECK(PMI2_Job_GetId(job, sizeof(job)) == PMI2_SUCCESS);
    CHECK(PMI2_Info_GetJobAttr("PMI_process_mapping", value, sizeof(value), &found) ==
          PMI2_SUCCESS);
    CHECK(found && strncmp(value, "(vector,", 8) == 0);
    for (int round = 0; round < 3; round++) {
        snprintf(key, sizeof(key), "k%d.%d", round, rank);
        snprintf(want, sizeof(want), "v=%d;%d", round, rank);
        CHECK(PMI2_KVS_Put(key, want) == PMI2_SUCCESS);
        CHECK(PMI2_KVS_Fence() == PMI2_SUCCESS);
        for (int i = 0; i < size; i++) {
            snprintf(key, sizeof(key), "k%d.%d", round, i);
            snprintf(want, sizeof(want), "v=%d;%d", round, i);
            CHECK(PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof(value), &len) == PMI2_SUCCESS);
            CHECK(strcmp(value, want) == 0);
        }
    }
    if (argc > 1 && rank == 1)
        PMI2_Abort(1, "enough");
    printf("rank %d of %d by PMI-2\n", rank, size);
    CHECK(PMI2_Finalize() == PMI2_SUCCESS);
    return 0;
}
