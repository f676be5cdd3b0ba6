/* train_gpu.cu: the network of train.c on GPUs, one worker for each.
 *
 *     nvcc -O2 -o train_gpu examples/train_gpu.cu -Iinclude -Llib -ldlcoll
 *     dlaunch --nproc_per_node gpu ./train_gpu [DIR of digits.csv]
 *
 * Data parallel: every worker holds the whole network, computes the gradient of its share of a batch
 * and adds all gradients with dlcoll_all_reduce() on its stream, device memory to device memory;
 * everything is enqueued, and the host waits once per epoch. */
#include <cuda_runtime_api.h>
#include <dlcoll.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIXELS = 64, HIDDEN = 64, DIGITS = 10, IMAGES = 1797, TEST_EVERY = 5, EPOCHS = 30, BATCH = 32 };
enum { W1 = HIDDEN * (PIXELS + 1), W2 = DIGITS * (HIDDEN + 1), WEIGHTS = W1 + W2 };
static const float rate = 0.2f;

struct image {
    float pixel[PIXELS];
    int digit;
};

static dlcoll_comm *g_comm;

static void need(int code, const char *what)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    if (code >= 0)
        return;
    dlcoll_last_error(g_comm, &e);
    fprintf(stderr, "train_gpu: %s: %s\n", what, e.text);
    exit(1);
}

static void cuda(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "train_gpu: %s: %s\n", what, cudaGetErrorString(rc));
    exit(1);
}

static int read_images(const char *dir, struct image *out)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/digits.csv", dir);
    FILE *f = fopen(path, "r");
    int n = 0, v;
    for (; f && n < IMAGES; n++) {
        for (int p = 0; p < PIXELS; p++) {
            if (fscanf(f, "%d,", &v) != 1)
                goto end;
            out[n].pixel[p] = (float)v / 16;
        }
        if (fscanf(f, "%d", &out[n].digit) != 1)
            break;
    }
end:
    if (f)
        fclose(f);
    return n;
}

/* One block for an image, one thread for a hidden unit. Adds the image's gradient to g, or, if g is
 * NULL, counts a correct result in *right. */
__global__ void one_image(const float *w, const struct image *images, const int *order, int n,
                          float *g, int *right)
{
    __shared__ float x[PIXELS], h[HIDDEN], out[DIGITS], d[DIGITS];
    int t = threadIdx.x;
    if ((int)blockIdx.x >= n)
        return;
    const struct image *im = &images[order[blockIdx.x]];
    const float *w2 = w + W1;
    x[t] = im->pixel[t];
    __syncthreads();
    const float *row = w + t * (PIXELS + 1);
    float a = row[PIXELS];
    for (int p = 0; p < PIXELS; p++)
        a += row[p] * x[p];
    h[t] = a > 0 ? a : 0;
    __syncthreads();
    if (t < DIGITS) {
        const float *r = w2 + t * (HIDDEN + 1);
        float o = r[HIDDEN];
        for (int k = 0; k < HIDDEN; k++)
            o += r[k] * h[k];
        out[t] = o;
    }
    __syncthreads();
    if (t == 0) {
        float most = out[0], sum = 0;
        int best = 0;
        for (int k = 1; k < DIGITS; k++) {
            best = out[k] > most ? k : best;
            most = out[k] > most ? out[k] : most;
        }
        for (int k = 0; k < DIGITS; k++)
            sum += d[k] = expf(out[k] - most);
        for (int k = 0; k < DIGITS; k++)
            d[k] = d[k] / sum - (k == im->digit);
        if (!g && best == im->digit)
            atomicAdd(right, 1);
    }
    __syncthreads();
    if (!g)
        return;
    float back = 0;
    for (int k = 0; k < DIGITS; k++) {
        back += d[k] * w2[k * (HIDDEN + 1) + t];
        atomicAdd(&g[W1 + k * (HIDDEN + 1) + t], d[k] * h[t]);
    }
    if (t < DIGITS)
        atomicAdd(&g[W1 + t * (HIDDEN + 1) + HIDDEN], d[t]);
    if (h[t] <= 0)
        return;
    for (int p = 0; p < PIXELS; p++)
        atomicAdd(&g[t * (PIXELS + 1) + p], back * x[p]);
    atomicAdd(&g[t * (PIXELS + 1) + PIXELS], back);
}

__global__ void step(float *w, const float *g, float by)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < WEIGHTS)
        w[i] -= by * g[i];
}

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

int main(int argc, char **argv)
{
    static struct image images[IMAGES];
    static float weights[WEIGHTS];
    int train[IMAGES], test[IMAGES], ntrain = 0, ntest = 0, gpus = 0, *d_order, *d_right, right = 0;
    struct image *d_images;
    float *w, *g;
    cudaStream_t stream;
    dlcoll_opts on = DLCOLL_OPTS_INIT;
    dlcoll_init_opts init = DLCOLL_INIT_OPTS_INIT;
    uint64_t seed = 88172645463325252ull;

    init.backend = DLCOLL_BACKEND_NCCL;
    need(dlcoll_init(&g_comm, &init), "dlcoll_init");
    int rank = dlcoll_rank(g_comm), size = dlcoll_size(g_comm);
    cuda(cudaGetDeviceCount(&gpus), "CUDA");
    cuda(cudaSetDevice(dlcoll_local_rank(g_comm) % gpus), "CUDA");
    if (read_images(argc > 1 ? argv[1] : "examples/data", images) != IMAGES) {
        fprintf(stderr, "train_gpu: digits.csv: not there, or not whole\n");
        return 2;
    }
    for (int i = 0; i < IMAGES; i++) {
        if (i % TEST_EVERY == 0)
            test[ntest++] = i;
        else
            train[ntrain++] = i;
    }
    for (int i = 0; i < WEIGHTS; i++) {
        float scale = sqrtf(2.0f / PIXELS);
        weights[i] = scale * ((float)(next(&seed) >> 40) / 8388608.0f - 1.0f);
    }
    cuda(cudaStreamCreate(&stream), "stream");
    cuda(cudaMalloc(&d_images, sizeof(images)), "memory");
    cuda(cudaMalloc(&d_order, sizeof(train)), "memory");
    cuda(cudaMalloc(&d_right, sizeof(int)), "memory");
    cuda(cudaMalloc(&w, sizeof(weights)), "memory");
    cuda(cudaMalloc(&g, sizeof(weights)), "memory");
    cuda(cudaMemcpy(d_images, images, sizeof(images), cudaMemcpyHostToDevice), "copy");
    cuda(cudaMemcpy(w, weights, sizeof(weights), cudaMemcpyHostToDevice), "copy");
    on.stream = stream;

    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (int i = ntrain - 1; i > 0; i--) { /* the same order on every worker */
            int j = (int)(next(&seed) % (uint64_t)(i + 1)), t = train[i];
            train[i] = train[j];
            train[j] = t;
        }
        cuda(cudaMemcpyAsync(d_order, train, sizeof(int) * (size_t)ntrain, cudaMemcpyHostToDevice,
                             stream),
             "copy");
        for (int at = 0; at < ntrain; at += BATCH) {
            int n = ntrain - at < BATCH ? ntrain - at : BATCH;
            int from = n * rank / size, mine = n * (rank + 1) / size - from;
            cuda(cudaMemsetAsync(g, 0, sizeof(weights), stream), "memset");
            if (mine)
                one_image<<<mine, HIDDEN, 0, stream>>>(w, d_images, d_order + at + from, mine, g,
                                                       d_right);
            need(dlcoll_all_reduce(g, g, WEIGHTS, DLCOLL_F32, DLCOLL_SUM, g_comm, &on, NULL),
                 "all_reduce");
            step<<<(WEIGHTS + 255) / 256, 256, 0, stream>>>(w, g, rate / (float)n);
        }
        cuda(cudaStreamSynchronize(stream), "epoch");
    }
    cuda(cudaMemcpy(d_order, test, sizeof(int) * (size_t)ntest, cudaMemcpyHostToDevice), "copy");
    cuda(cudaMemset(d_right, 0, sizeof(int)), "memset");
    one_image<<<ntest, HIDDEN, 0, stream>>>(w, d_images, d_order, ntest, NULL, d_right);
    cuda(cudaStreamSynchronize(stream), "test");
    cuda(cudaMemcpy(&right, d_right, sizeof(right), cudaMemcpyDeviceToHost), "copy");
    if (rank == 0)
        printf("%d GPUs: %.1f %% of %d test images right\n", size, 100.0 * right / ntest, ntest);
    need(dlcoll_finalize(g_comm), "dlcoll_finalize");
    dlcoll_destroy(g_comm);
    return right > ntest * 0.93 ? 0 : 1;
}
