/* train.c: a complete data-parallel training program.
 *
 *     dlaunch --nproc_per_node 4 build/examples/train --checkpoint state.ckpt
 *
 * Where it is installed: cc -O2 -o train train.c $(pkg-config --cflags --libs dlcoll) -lm, and
 * --data with the folder of digits.csv.
 *
 * A small network (64 pixels, 64 hidden units, 10 digits) learns to read handwritten digits. Every
 * worker holds the whole network. The images of a batch are divided among the workers; each worker
 * computes the gradient of its images, dlcoll_all_reduce() adds the gradients, and every worker
 * makes the same step. After each epoch rank 0 writes a checkpoint, from which a restarted job
 * resumes.
 *
 * The result is the same for any number of workers, bit for bit. Floating-point sums depend on the
 * order of their terms, and so on the division of the work; integer sums do not. So the gradients
 * are added as 64-bit fixed-point numbers. If that is not needed, add floats (DLCOLL_F32): the same
 * number of workers then still gives the same bits in every run. */
#include <dlcoll.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIXELS = 64, HIDDEN = 64, DIGITS = 10, IMAGES = 1797, TEST_EVERY = 5 };

/* ------------------------------------------------------------------------------------- settings */

struct settings {
    int epochs, batch;
    double lr;
    uint64_t seed;
    const char *checkpoint, *data, *out;
    int crash_rank, crash_epoch;
};

static void usage(FILE *out)
{
    fprintf(out, "usage: train [options]\n"
                 "  --epochs N        passes over the training images (20)\n"
                 "  --batch N         images per step, over all workers (32)\n"
                 "  --lr X            learning rate (0.05)\n"
                 "  --seed N          of the first weights and of the order of the images (1)\n"
                 "  --data DIR        where digits.csv is (examples/data)\n"
                 "  --checkpoint FILE written after every epoch; training goes on from it\n"
                 "  --out FILE        the result, one line\n"
                 "  --crash-rank R    for trying out recovery: on the first attempt, rank R kills\n"
                 "  --crash-epoch E   itself in the middle of epoch E\n"
                 "  -h, --help        print this text\n");
    exit(out == stdout ? 0 : 2);
}

static double number(const char *text, double min, double max)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= min && v <= max)) {
        fprintf(stderr, "train: '%s' is not a number from %g to %g\n", text, min, max);
        exit(2);
    }
    return v;
}

static struct settings read_settings(int argc, char **argv)
{
    struct settings s = {.epochs = 20,
                         .batch = 32,
                         .lr = 0.05,
                         .seed = 1,
                         .data = "examples/data",
                         .crash_rank = -1,
                         .crash_epoch = -1};
    static const struct option options[] = {{"epochs", required_argument, NULL, 'e'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"lr", required_argument, NULL, 'l'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"data", required_argument, NULL, 'd'},
                                            {"checkpoint", required_argument, NULL, 'c'},
                                            {"out", required_argument, NULL, 'o'},
                                            {"crash-rank", required_argument, NULL, 'R'},
                                            {"crash-epoch", required_argument, NULL, 'E'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case 'e':
            s.epochs = (int)number(optarg, 0, 1e6);
            break;
        case 'b':
            s.batch = (int)number(optarg, 1, IMAGES);
            break;
        case 'l':
            s.lr = number(optarg, 0, 100);
            break;
        case 's':
            s.seed = (uint64_t)number(optarg, 0, 1e15);
            break;
        case 'd':
            s.data = optarg;
            break;
        case 'c':
            s.checkpoint = optarg;
            break;
        case 'o':
            s.out = optarg;
            break;
        case 'R':
            s.crash_rank = (int)number(optarg, 0, 1e6);
            break;
        case 'E':
            s.crash_epoch = (int)number(optarg, 1, 1e6);
            break;
        case 'h':
            usage(stdout);
            break;
        default:
            usage(stderr);
        }
    }
    if (optind < argc)
        usage(stderr);
    return s;
}

/* -------------------------------------------------------------------------------------- workers */

static dlcoll_comm *g_comm;

/* Checks the result of every library call. When another worker has died, this one cannot continue
 * either: it prints the error and exits, and dlaunch restarts all workers. */
static void check(int code)
{
    dlcoll_error error = DLCOLL_ERROR_INIT;
    if (code >= 0)
        return;
    dlcoll_last_error(g_comm, &error);
    fprintf(stderr, "train: %s\n", error.text);
    exit(1);
}

static void fail(const char *name, const char *why)
{
    fprintf(stderr, "train: %s: %s\n", name, why);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Draws numbers that are equal on every worker: splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ----------------------------------------------------------------------------------------- data */

struct image {
    float pixel[PIXELS]; /* 0 to 1 */
    int digit;
};

static struct image g_train[IMAGES], g_test[IMAGES];
static int g_ntrain, g_ntest;

/* Every fifth image is for testing. */
static void load_images(const char *dir)
{
    char path[4096], line[512];
    snprintf(path, sizeof(path), "%s/digits.csv", dir);
    FILE *f = fopen(path, "r");
    if (!f)
        fail(path, strerror(errno));
    for (int i = 0; fgets(line, sizeof(line), f); i++) {
        struct image image;
        char *p = line;
        for (int k = 0; k <= PIXELS; k++, p += *p == ',') {
            long v = strtol(p, &p, 10);
            if (k < PIXELS)
                image.pixel[k] = (float)v / 16;
            else
                image.digit = (int)v;
            if (*p != (k < PIXELS ? ',' : '\n') || v < 0 || v > (k < PIXELS ? 16 : 9))
                fail(path, "not a file of digits");
        }
        if (i == IMAGES)
            fail(path, "too many images");
        if (i % TEST_EVERY == TEST_EVERY - 1)
            g_test[g_ntest++] = image;
        else
            g_train[g_ntrain++] = image;
    }
    fclose(f);
    if (g_ntrain + g_ntest != IMAGES)
        fail(path, "images are missing");
}

/* The order of the training images in an epoch depends only on seed and epoch, so that all workers,
 * and workers that resume, use the same order. */
static void shuffle(int *order, uint64_t seed, int epoch)
{
    uint64_t state = seed * 1000003u + (uint64_t)epoch;
    for (int i = 0; i < g_ntrain; i++)
        order[i] = i;
    for (int i = g_ntrain - 1; i > 0; i--) {
        int k = (int)(next_random(&state) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
}

/* -------------------------------------------------------------------------------------- network */

struct network {
    float w1[HIDDEN][PIXELS], b1[HIDDEN];
    float w2[DIGITS][HIDDEN], b2[DIGITS];
};

enum { PARAMETERS = sizeof(struct network) / sizeof(float) };

static void first_weights(struct network *net, uint64_t seed)
{
    uint64_t state = seed;
    memset(net, 0, sizeof(*net));
#define UNIFORM(limit) (((float)(next_random(&state) >> 40) / (1 << 23) - 1) * (limit))
    for (int h = 0; h < HIDDEN; h++)
        for (int i = 0; i < PIXELS; i++)
            net->w1[h][i] = UNIFORM(sqrtf(6.0f / PIXELS));
    for (int d = 0; d < DIGITS; d++)
        for (int h = 0; h < HIDDEN; h++)
            net->w2[d][h] = UNIFORM(sqrtf(6.0f / HIDDEN));
#undef UNIFORM
}

/* Computes the hidden units and the probability of every digit. Returns the most likely digit. */
static int look(const struct network *net, const struct image *image, float hidden[HIDDEN],
                float probability[DIGITS])
{
    int best = 0;
    float sum = 0;
    for (int h = 0; h < HIDDEN; h++) {
        float x = net->b1[h];
        for (int i = 0; i < PIXELS; i++)
            x += net->w1[h][i] * image->pixel[i];
        hidden[h] = x > 0 ? x : 0;
    }
    for (int d = 0; d < DIGITS; d++) {
        float x = net->b2[d];
        for (int h = 0; h < HIDDEN; h++)
            x += net->w2[d][h] * hidden[h];
        probability[d] = x;
        if (x > probability[best])
            best = d;
    }
    float top = probability[best];
    for (int d = 0; d < DIGITS; d++)
        sum += probability[d] = expf(probability[d] - top);
    for (int d = 0; d < DIGITS; d++)
        probability[d] /= sum;
    return best;
}

/* The sums over all workers, in units of 1/ONE. */
struct sums {
    int64_t w1[HIDDEN][PIXELS], b1[HIDDEN];
    int64_t w2[DIGITS][HIDDEN], b2[DIGITS];
    int64_t loss;
};

enum { SUMS = sizeof(struct sums) / sizeof(int64_t) };
#define ONE ((float)((int64_t)1 << 32))

static int64_t fixed(float x)
{
    return (int64_t)(x * ONE);
}

/* Adds the gradient of the loss (cross entropy) of one image. */
static void learn(const struct network *net, const struct image *image, struct sums *sums)
{
    float hidden[HIDDEN], error[DIGITS], blame[HIDDEN] = {0};
    look(net, image, hidden, error);
    sums->loss += fixed(-logf(fmaxf(error[image->digit], 1e-30f)));
    error[image->digit] -= 1;
    for (int d = 0; d < DIGITS; d++) {
        for (int h = 0; h < HIDDEN; h++) {
            sums->w2[d][h] += fixed(error[d] * hidden[h]);
            blame[h] += error[d] * net->w2[d][h];
        }
        sums->b2[d] += fixed(error[d]);
    }
    for (int h = 0; h < HIDDEN; h++) {
        if (hidden[h] <= 0)
            continue;
        for (int i = 0; i < PIXELS; i++)
            sums->w1[h][i] += fixed(blame[h] * image->pixel[i]);
        sums->b1[h] += fixed(blame[h]);
    }
}

/* ---------------------------------------------------------------------------------------- state */

/* The whole state of the training, which a checkpoint contains. */
struct state {
    char magic[8];
    int32_t parameters, epoch; /* epochs done */
    uint64_t seed;
    int64_t batch;
    double lr;
    struct network net, velocity;
    uint64_t checksum; /* of all before it */
};

static const char g_magic[8] = "DIGITS1";

static uint64_t checksum(const void *data, size_t len)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return h;
}

static void first_state(struct state *st, const struct settings *s)
{
    memset(st, 0, sizeof(*st));
    memcpy(st->magic, g_magic, sizeof(st->magic));
    st->parameters = PARAMETERS;
    st->seed = s->seed;
    st->batch = s->batch;
    st->lr = s->lr;
    first_weights(&st->net, s->seed);
}

/* A reader sees the old state or the new one, even if the machine stops at any time: the state is
 * written to a temporary file, which is forced to disk and renamed; the renaming is forced to disk.
 */
static void save(struct state *st, const char *path)
{
    char aside[4096], dir[4096];
    if (snprintf(aside, sizeof(aside), "%s.new", path) >= (int)sizeof(aside))
        fail(path, "the name is too long");
    st->checksum = checksum(st, offsetof(struct state, checksum));
    FILE *f = fopen(aside, "wb");
    if (!f || fwrite(st, sizeof(*st), 1, f) != 1 || fflush(f) != 0 || fsync(fileno(f)) < 0)
        fail(aside, strerror(errno));
    fclose(f);
    if (rename(aside, path) < 0)
        fail(path, strerror(errno));
    strcpy(dir, path);
    int fd = open(dirname(dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        fail(dir, strerror(errno));
    close(fd);
}

/* Reads the state from the file, if the file exists. Prints a line and returns false if the file
 * cannot be used. */
static bool resume(struct state *st, const struct settings *s)
{
    struct state found;
    const char *wrong = NULL;
    FILE *f = fopen(s->checkpoint, "rb");
    if (!f && errno == ENOENT)
        return true;
    if (!f)
        wrong = strerror(errno);
    else if (fread(&found, sizeof(found), 1, f) != 1)
        wrong = "is not a whole checkpoint";
    else if (memcmp(found.magic, g_magic, sizeof(found.magic)) != 0 ||
             found.parameters != PARAMETERS)
        wrong = "is not a checkpoint of this program";
    else if (fgetc(f) != EOF ||
             found.checksum != checksum(&found, offsetof(struct state, checksum)))
        wrong = "is damaged";
    else if (found.seed != s->seed || found.batch != s->batch || found.lr != s->lr)
        wrong = "was made with another seed, batch size or learning rate";
    if (f)
        fclose(f);
    if (wrong) {
        fprintf(stderr, "train: checkpoint %s: %s\n", s->checkpoint, wrong);
        return false;
    }
    *st = found;
    printf("resumed after epoch %d from %s\n", st->epoch, s->checkpoint);
    return true;
}

/* Only rank 0 reads the file, because other hosts may not see it, and broadcasts the state. */
static void agree_on_state(struct state *st, const struct settings *s)
{
    first_state(st, s);
    if (dlcoll_rank(g_comm) == 0 && s->checkpoint && !resume(st, s))
        st->epoch = -1;
    check(dlcoll_broadcast(st, st, sizeof(*st), DLCOLL_U8, 0, g_comm, NULL, NULL));
    if (st->epoch < 0) /* rank 0 has printed the reason */
        exit(1);
}

/* ------------------------------------------------------------------------------------- training */

/* One step down the sum of the gradients, with momentum: the same on every worker. */
static void step(struct state *st, const struct sums *sums, int images)
{
    float *w = &st->net.w1[0][0], *v = &st->velocity.w1[0][0];
    const int64_t *g = &sums->w1[0][0];
    for (int i = 0; i < PARAMETERS; i++) {
        v[i] = 0.9f * v[i] + (float)((double)g[i] / ONE / images);
        w[i] -= (float)st->lr * v[i];
    }
}

/* One pass over the training images. Returns the mean loss. */
static double train_epoch(struct state *st, const struct settings *s)
{
    static int order[IMAGES];
    int rank = dlcoll_rank(g_comm), size = dlcoll_size(g_comm);
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT"); /* the launcher's count */
    bool first_attempt = !restarts || atoi(restarts) == 0;
    double loss = 0;
    shuffle(order, s->seed, st->epoch);
    for (int start = 0; start < g_ntrain; start += s->batch) {
        static struct sums sums;
        int images = g_ntrain - start < s->batch ? g_ntrain - start : s->batch;
        memset(&sums, 0, sizeof(sums));
        for (int i = rank; i < images; i += size)
            learn(&st->net, &g_train[order[start + i]], &sums);

        /* This line makes the program parallel. */
        check(dlcoll_all_reduce(&sums, &sums, SUMS, DLCOLL_I64, DLCOLL_SUM, g_comm, NULL, NULL));

        step(st, &sums, images);
        loss += (double)sums.loss / ONE;
        if (first_attempt && rank == s->crash_rank && st->epoch + 1 == s->crash_epoch &&
            start >= g_ntrain / 2)
            raise(SIGKILL);
    }
    st->epoch++;
    return loss / g_ntrain;
}

/* The fraction of the test images that are classified correctly; each worker tests its own part. */
static double test_accuracy(const struct state *st)
{
    float hidden[HIDDEN], probability[DIGITS];
    int64_t right = 0;
    for (int i = dlcoll_rank(g_comm); i < g_ntest; i += dlcoll_size(g_comm))
        right += look(&st->net, &g_test[i], hidden, probability) == g_test[i].digit;
    check(dlcoll_all_reduce(&right, &right, 1, DLCOLL_I64, DLCOLL_SUM, g_comm, NULL, NULL));
    return (double)right / g_ntest;
}

static void report(const struct state *st, const struct settings *s, double accuracy)
{
    unsigned long long sum = checksum(&st->net, sizeof(st->net));
    printf("done: %d epochs, test accuracy %.4f, parameters %016llx\n", st->epoch, accuracy, sum);
    if (!s->out)
        return;
    FILE *f = fopen(s->out, "w");
    if (f)
        fprintf(f, "epochs %d accuracy %.4f parameters %016llx\n", st->epoch, accuracy, sum);
    if (!f || fclose(f) != 0)
        fail(s->out, strerror(errno));
}

int main(int argc, char **argv)
{
    static struct state state;
    struct settings s = read_settings(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    load_images(s.data);
    check(dlcoll_init(&g_comm, NULL));
    bool speaker = dlcoll_rank(g_comm) == 0;
    if (speaker)
        printf("training on %d images with %d worker%s\n", g_ntrain, dlcoll_size(g_comm),
               dlcoll_size(g_comm) == 1 ? "" : "s");

    agree_on_state(&state, &s);
    double accuracy = state.epoch >= s.epochs ? test_accuracy(&state) : 0;
    while (state.epoch < s.epochs) {
        double start = now(), loss = train_epoch(&state, &s), seconds = now() - start;
        accuracy = test_accuracy(&state);
        if (speaker && s.checkpoint)
            save(&state, s.checkpoint);
        if (speaker)
            printf("epoch %2d/%d  loss %.4f  test accuracy %.4f  %.0f images/s\n", state.epoch,
                   s.epochs, loss, accuracy, g_ntrain / seconds);
    }
    if (speaker)
        report(&state, &s, accuracy);
    check(dlcoll_finalize(g_comm));
    dlcoll_destroy(g_comm);
    return 0;
}
