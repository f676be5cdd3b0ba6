/* The MPI program of the tests, for any MPI: program MODE [ARGUMENT].
 *
 *   hello         every rank says who it is
 *   ring          a token goes around three times, by blocking messages
 *   collectives   every collective operation, on results that are known
 *   jacobi        solves a Laplace equation on a grid cut into rows; compares with a serial result
 *   abort CODE    rank 1 calls MPI_Abort
 *   leave         rank 1 exits with 0, without MPI_Finalize
 *   absent        rank 1 exits with 0, without MPI_Init
 *   wait          every rank prints its pid, then waits for rank 0, which sleeps
 *   restart       like hello; in the first round rank 1 kills itself after MPI_Init
 *   spawn         asks for another process
 *   appnum        every rank says which program of the job it runs */
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int me, n;

#define CHECK(what)                                                             \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "rank %d, line %d: not %s\n", me, __LINE__, #what); \
            MPI_Abort(MPI_COMM_WORLD, 99);                                      \
        }                                                                       \
    } while (0)

static void hello(void)
{
    MPI_Comm node;
    int size;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &size);
    printf("rank %d of %d, %d on its node\n", me, n, size);
    MPI_Comm_free(&node);
}

static void ring(void)
{
    for (int lap = 0, token; lap < 3; lap++) {
        token = lap * n;
        if (me > 0)
            MPI_Recv(&token, 1, MPI_INT, me - 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(token == lap * n + me);
        token++;
        if (n > 1)
            MPI_Send(&token, 1, MPI_INT, (me + 1) % n, 5, MPI_COMM_WORLD);
        if (me == 0 && n > 1) {
            MPI_Recv(&token, 1, MPI_INT, n - 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(token == lap * n + n);
        }
    }
}

static void collectives(void)
{
    int *in = malloc((size_t)n * sizeof(int)), *out = malloc((size_t)n * sizeof(int)), x, y;
    long big[4096], sum[4096];
    for (int root = 0; root < n; root++) {
        x = me == root ? 1000 + root : -1;
        MPI_Bcast(&x, 1, MPI_INT, root, MPI_COMM_WORLD);
        CHECK(x == 1000 + root);
        MPI_Reduce(&me, &y, 1, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
        CHECK(me != root || y == n * (n - 1) / 2);
        MPI_Gather(&me, 1, MPI_INT, out, 1, MPI_INT, root, MPI_COMM_WORLD);
        for (int i = 0; i < n && me == root; i++)
            CHECK(out[i] == i);
        for (int i = 0; i < n; i++)
            in[i] = 7 * i;
        MPI_Scatter(in, 1, MPI_INT, &y, 1, MPI_INT, root, MPI_COMM_WORLD);
        CHECK(y == 7 * me);
    }
    for (int i = 0; i < 4096; i++)
        big[i] = (long)i * (me + 1);
    MPI_Allreduce(big, sum, 4096, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 4096; i++)
        CHECK(sum[i] == (long)i * n * (n + 1) / 2);
    MPI_Allgather(&me, 1, MPI_INT, out, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++)
        CHECK(out[i] == i);
    for (int i = 0; i < n; i++)
        in[i] = me * n + i;
    MPI_Alltoall(in, 1, MPI_INT, out, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++)
        CHECK(out[i] == i * n + me);
    MPI_Scan(&me, &x, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(x == me * (me + 1) / 2);
    for (int i = 0; i < n; i++)
        in[i] = i + me;
    MPI_Reduce_scatter_block(in, &x, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(x == n * me + n * (n - 1) / 2);
    MPI_Barrier(MPI_COMM_WORLD);
    free(in);
    free(out);
}

#define ROWS  24 /* without the edges */
#define COLS  16
#define STEPS 50

static void edges(double (*u)[COLS], int first, int rows)
{
    memset(u, 0, (size_t)(rows + 2) * sizeof(*u));
    for (int i = 0; i < rows + 2; i++) {
        int row = first + i;
        for (int j = 0; j < COLS; j++) {
            if (row == 0 || row == ROWS + 1 || j == 0 || j == COLS - 1)
                u[i][j] = row + 2.0 * j;
        }
    }
}

static double step(double (*to)[COLS], double (*from)[COLS], int rows)
{
    double change = 0;
    for (int i = 1; i <= rows; i++) {
        for (int j = 1; j < COLS - 1; j++) {
            to[i][j] = (from[i - 1][j] + from[i + 1][j] + from[i][j - 1] + from[i][j + 1]) / 4;
            change = fmax(change, fabs(to[i][j] - from[i][j]));
        }
    }
    return change;
}

static void jacobi(void)
{
    static double all[2][ROWS + 2][COLS], part[2][ROWS + 2][COLS];
    int rows = ROWS / n + (me < ROWS % n), first = 0;
    int up = me > 0 ? me - 1 : MPI_PROC_NULL, down = me < n - 1 ? me + 1 : MPI_PROC_NULL;
    double change = 0, most;
    CHECK(n <= ROWS);
    MPI_Exscan(&rows, &first, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0)
        first = 0;
    for (int k = 0; k < 2; k++) {
        edges(all[k], 0, ROWS);
        edges(part[k], first, rows);
    }
    for (int s = 0; s < STEPS; s++) {
        double(*from)[COLS] = part[s % 2], (*to)[COLS] = part[(s + 1) % 2];
        MPI_Sendrecv(from[1], COLS, MPI_DOUBLE, up, 1, from[rows + 1], COLS, MPI_DOUBLE, down, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(from[rows], COLS, MPI_DOUBLE, down, 2, from[0], COLS, MPI_DOUBLE, up, 2,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        change = step(to, from, rows);
        MPI_Allreduce(&change, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        CHECK(most == step(all[(s + 1) % 2], all[s % 2], ROWS));
    }
    for (int i = 1; i <= rows; i++)
        CHECK(memcmp(part[STEPS % 2][i], all[STEPS % 2][first + i], sizeof(part[0][0])) == 0);
}

static void wait_for_ever(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d is process %d\n", me, (int)getpid());
    fflush(stdout);
    if (me == 0)
        sleep(600);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void appnum(void)
{
    int *value, flag;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &value, &flag);
    printf("rank %d runs program %d\n", me, flag ? *value : -1);
}

static void spawn(void)
{
    MPI_Comm other;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rc = MPI_Comm_spawn("true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other,
                            MPI_ERRCODES_IGNORE);
    CHECK(rc != MPI_SUCCESS);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "hello", *arg = argc > 2 ? argv[2] : "";
    const char *rank = getenv("RANK"), *round = getenv("TORCHELASTIC_RESTART_COUNT");
    if (strcmp(mode, "absent") == 0 && rank && strcmp(rank, "1") == 0)
        return 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (strcmp(mode, "ring") == 0)
        ring();
    else if (strcmp(mode, "collectives") == 0)
        collectives();
    else if (strcmp(mode, "jacobi") == 0)
        jacobi();
    else if (strcmp(mode, "abort") == 0 && me == 1)
        MPI_Abort(MPI_COMM_WORLD, atoi(arg));
    else if (strcmp(mode, "leave") == 0 && me == 1)
        _exit(0);
    else if (strcmp(mode, "wait") == 0)
        wait_for_ever();
    else if (strcmp(mode, "restart") == 0 && me == 1 && round && strcmp(round, "0") == 0)
        raise(SIGKILL);
    else if (strcmp(mode, "spawn") == 0)
        spawn();
    else if (strcmp(mode, "appnum") == 0)
        appnum();
    hello();
    MPI_Finalize();
    return 0;
}
