// SPDX-License-Identifier: Apache-2.0
// Rates of the CPU backend on 1 and 2 threads: products (GF/s), passes over memory (GB/s).
//
//   bench_kernels [--ways]
//
// --ways instead compares, for the products of the models that peers.py trains, the ways there are
// on one thread with the one that the backend takes: packed, oneDNN's; and what a piece makes of it
// if two threads cut rows or columns. All in turns, as shares of the peak; last, how far the way that
// is taken is behind the best. The peak is measured once for a round of all.
//
// The median of several runs of some 20 ms each; only ratios within one run hold on a shared
// machine.
//
// Products are told as a share of the peak too: of what as many threads make of multiply-adds in
// registers (fma_peak.c). Between any two runs of a product the peak is measured again, both by the
// time of the processors, so that other programs and the clock's frequency matter little. A thread
// that waits for the other one spins: its time counts against the product.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/compile/graph/optable.h"
#include "kernels/backend.h"
#include "tests/bench/fma_peak.h"

enum { RUNS = 9, MAX_THREADS = 2 };
static const double RUN_S = 0.02;

static const struct product {
    const char *what;
    int64_t m, n, k;
    int8_t a[2], b[2]; // labels: m is 0, n 1, k 2
} products[] = {
    {"forward", 64, 512, 784, {0, 2}, {2, 1}},
    {"forward", 128, 512, 784, {0, 2}, {2, 1}},
    {"forward", 256, 1024, 784, {0, 2}, {2, 1}},
    {"forward", 512, 1024, 1024, {0, 2}, {2, 1}},
    {"forward", 1024, 1024, 1024, {0, 2}, {2, 1}},
    {"forward", 256, 10, 512, {0, 2}, {2, 1}},
    {"input gradient", 256, 784, 1024, {0, 2}, {1, 2}},
    {"input gradient", 64, 512, 512, {0, 2}, {1, 2}},
    {"weight gradient", 784, 1024, 256, {2, 0}, {2, 1}},
    {"weight gradient", 784, 512, 64, {2, 0}, {2, 1}},
    {"weight gradient", 512, 10, 256, {2, 0}, {2, 1}},
    {"gpt2 qkv", 256, 768, 768, {0, 2}, {2, 1}},
    {"gpt2 up", 256, 3072, 768, {0, 2}, {2, 1}},
    {"gpt2 down", 256, 768, 3072, {0, 2}, {2, 1}},
    {"gpt2 up, dx", 256, 768, 3072, {0, 2}, {1, 2}},
    {"gpt2 up, dw", 768, 3072, 256, {2, 0}, {2, 1}},
    {"mlp 2048", 128, 2048, 2048, {0, 2}, {2, 1}},
    {"mlp 2048", 1024, 2048, 2048, {0, 2}, {2, 1}},
    {"mlp 2048, dw", 2048, 2048, 128, {2, 0}, {2, 1}},
    {"mlp 2048, dw", 2048, 2048, 1024, {2, 0}, {2, 1}},
};

// What peers.py's models multiply, the least products left out.
static const struct product model_products[] = {
    {"gpt up", 2048, 1536, 384, {0, 2}, {2, 1}},
    {"gpt up, dx", 2048, 384, 1536, {0, 2}, {1, 2}},
    {"gpt up, dw", 384, 1536, 2048, {2, 0}, {2, 1}},
    {"gpt down", 2048, 384, 1536, {0, 2}, {2, 1}},
    {"gpt down, dx", 2048, 1536, 384, {0, 2}, {1, 2}},
    {"gpt down, dw", 1536, 384, 2048, {2, 0}, {2, 1}},
    {"gpt q", 2048, 384, 384, {0, 2}, {2, 1}},
    {"gpt q, dx", 2048, 384, 384, {0, 2}, {1, 2}},
    {"gpt q, dw", 384, 384, 2048, {2, 0}, {2, 1}},
    {"mlp 512", 128, 512, 784, {0, 2}, {2, 1}},
    {"mlp 512, dw", 784, 512, 128, {2, 0}, {2, 1}},
    {"mlp 512", 1024, 512, 784, {0, 2}, {2, 1}},
    {"mlp 512, dw", 784, 512, 1024, {2, 0}, {2, 1}},
    {"mlp 512, dx", 1024, 512, 256, {0, 2}, {1, 2}},
    {"mlp 512, dw", 512, 256, 1024, {2, 0}, {2, 1}},
    {"mlp 2048", 128, 2048, 784, {0, 2}, {2, 1}},
    {"mlp 2048", 128, 2048, 2048, {0, 2}, {2, 1}},
    {"mlp 2048, dx", 128, 2048, 2048, {0, 2}, {1, 2}},
    {"mlp 2048, dw", 2048, 2048, 128, {2, 0}, {2, 1}},
    {"mlp 2048, dw", 784, 2048, 128, {2, 0}, {2, 1}},
    {"mlp 2048", 1024, 2048, 2048, {0, 2}, {2, 1}},
    {"mlp 2048, dx", 1024, 2048, 2048, {0, 2}, {1, 2}},
    {"mlp 2048, dw", 2048, 2048, 1024, {2, 0}, {2, 1}},
    {"vae", 128, 400, 784, {0, 2}, {2, 1}},
    {"vae out", 128, 784, 400, {0, 2}, {2, 1}},
    {"vae out, dx", 128, 400, 784, {0, 2}, {1, 2}},
    {"vae, dw", 784, 400, 128, {2, 0}, {2, 1}},
    {"gpt2 up", 256, 3072, 768, {0, 2}, {2, 1}},
    {"gpt2 up, dx", 256, 768, 3072, {0, 2}, {1, 2}},
    {"gpt2 up, dw", 768, 3072, 256, {2, 0}, {2, 1}},
    {"gpt2 q", 256, 768, 768, {0, 2}, {2, 1}},
};

// A pass over `rows` × `cols`; `moved` counts the arrays of that size read and written.
static const struct pass {
    enum op op;
    int64_t rows, cols;
    int moved;
    bool bias, row_value; // the second operand is a vector; the output is one value a row
} passes[] = {
    {OP_ADD, 256, 1024, 2, true, false},      {OP_RELU, 256, 1024, 2, false, false},
    {OP_GELU, 256, 1024, 2, false, false},    {OP_TANH, 256, 1024, 2, false, false},
    {OP_MUL, 4096, 4096, 3, false, false},    {OP_SUM, 256, 1024, 1, false, false},
    {OP_SQNORM, 1024, 1024, 1, false, false}, {OP_ROW_MAX, 256, 50257, 1, false, true},
    {OP_ADAM, 4096, 1024, 7, false, false},
};

struct bench {
    const struct backend *b;
    struct device *d;
    struct stream_q *q;
    int threads;
    double (*peak)(int64_t rounds, float *end);
    int64_t rounds; // of the peak, in RUN_S
};

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *runs)
{
    qsort(runs, RUNS, sizeof *runs, by_value);
    return runs[RUNS / 2];
}

static void must(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_kernels: %s\n", e->text);
    exit(1);
}

static double wall_s(void)
{
    return (double)clock_mono_ns() * 1e-9;
}

// Of all threads together.
static double processor_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// ---- the peak ----------------------------------------------------------------------------------

static void *run_peak(void *arg)
{
    const struct bench *x = arg;
    float end;
    x->peak(x->rounds, &end);
    return NULL;
}

// Operations in a second of one processor, while x->threads of them run.
static double measure_peak(struct bench *x)
{
    pthread_t thread[MAX_THREADS];
    float end;
    double start = processor_s();
    for (int t = 1; t < x->threads; t++)
        if (pthread_create(&thread[t], NULL, run_peak, x))
            must(ERR_LIMIT, &(struct err){.text = "cannot start a thread"});
    double work = x->threads * x->peak(x->rounds, &end);
    for (int t = 1; t < x->threads; t++)
        pthread_join(thread[t], NULL);
    return work / (processor_s() - start);
}

static void choose_peak(struct bench *x)
{
    static const struct {
        const char *isa;
        double (*peak)(int64_t rounds, float *end);
    } sets[] = {
        {"baseline", fma_peak_baseline}, {"avx2", fma_peak_avx2}, {"avx512", fma_peak_avx512}};
    struct device_info info;
    x->b->device.info(x->d, &info);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        x->peak = strcmp(info.isa, sets[i].isa) == 0 ? sets[i].peak : x->peak;
    x->rounds = 1 << 16;
    double work = x->peak(x->rounds, &(float){0}), rate = measure_peak(x);
    x->rounds = (int64_t)((double)x->rounds * RUN_S * rate / work);
}

// ---- calls -------------------------------------------------------------------------------------

struct spent {
    double wall, processor; // s a call
};

static struct spent run_calls(const struct bench *x, const struct op_call *c, int64_t times)
{
    struct err e = {0};
    double wall = wall_s(), processor = processor_s();
    for (int64_t i = 0; i < times; i++)
        must(x->b->op.run[c->op](x->q, c, &e), &e);
    return (struct spent){(wall_s() - wall) / (double)times,
                          (processor_s() - processor) / (double)times};
}

// Returns the median seconds of a call; *share is what part of the peak `flops` a call are, unless
// they are 0.
static double seconds(struct bench *x, struct op_call *c, double flops, double *share)
{
    double runs[RUNS], shares[RUNS];
    struct err e = {0};
    c->workspace_bytes = op_workspace(c, BACKEND_CPU);
    must(x->b->memory.alloc(x->d, c->workspace_bytes + 1, &c->workspace, &e), &e);
    run_calls(x, c, 1); // the first call compiles
    int64_t times = (int64_t)(RUN_S / run_calls(x, c, 1).wall) + 1;
    for (int r = 0; r < RUNS; r++) {
        struct spent s = run_calls(x, c, times);
        runs[r] = s.wall;
        if (flops > 0)
            shares[r] = flops / s.processor / measure_peak(x);
    }
    x->b->memory.free(x->d, c->workspace);
    if (flops > 0)
        *share = median(shares);
    return median(runs);
}

static struct tensor tensor(const struct bench *x, int n, const int64_t *dim)
{
    struct tensor t = {.dtype = DT_F32, .shape = {.n = n}};
    struct err e = {0};
    for (int d = 0; d < n; d++)
        t.shape.dim[d] = dim[d];
    int64_t count = shape_count(&t.shape);
    must(x->b->memory.alloc(x->d, (size_t)count * sizeof(float), &t.data, &e), &e);
    for (int64_t i = 0; i < count; i++)
        ((float *)t.data)[i] = (float)(i % 17) * 0.1f;
    return t;
}

struct rate {
    double gflops, share; // share: of the peak
};

static struct op_call product_call(const struct bench *x, const struct product *p,
                                   struct op_attr *attr)
{
    const int64_t extent[3] = {p->m, p->n, p->k};
    struct op_call c = {.op = OP_MATMUL, .attr = attr, .nin = 2, .nout = 1};
    *attr = (struct op_attr){.label = {{p->a[0], p->a[1]}, {p->b[0], p->b[1]}, {0, 1}}};
    c.in[0] = tensor(x, 2, (int64_t[]){extent[p->a[0]], extent[p->a[1]]});
    c.in[1] = tensor(x, 2, (int64_t[]){extent[p->b[0]], extent[p->b[1]]});
    c.out[0] = tensor(x, 2, extent);
    return c;
}

static void free_product(const struct bench *x, struct op_call *c)
{
    x->b->memory.free(x->d, c->in[0].data);
    x->b->memory.free(x->d, c->in[1].data);
    x->b->memory.free(x->d, c->out[0].data);
}

static double count_flops(const struct product *p)
{
    return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

static struct rate product_rate(struct bench *x, const struct product *p)
{
    const double flops = count_flops(p);
    struct rate rate;
    struct op_attr attr;
    struct op_call c = product_call(x, p, &attr);
    rate.gflops = 1e-9 * flops / seconds(x, &c, flops, &rate.share);
    free_product(x, &c);
    return rate;
}

static struct op_call pass_call(const struct bench *x, const struct pass *p, struct op_attr *attr)
{
    const int64_t wide[2] = {p->rows, p->cols};
    struct op_call c = {
        .op = p->op, .attr = attr, .nin = op_inputs(p->op), .nout = op_outputs(p->op)};
    int vectors = p->op == OP_ADAM ? 2 : 0;
    *attr = (struct op_attr){.scale = 1, .lr_scale = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8f};
    for (int k = 0; k < c.nin + c.nout; k++)
        attr->label[k][1] = 1;
    for (int k = 0; k < c.nin; k++) {
        bool vector = (p->bias && k == 1) || k >= c.nin - vectors;
        c.in[k] = vector ? tensor(x, 1, &wide[1]) : tensor(x, 2, wide);
        attr->label[k][0] = vector;
    }
    for (int k = 0; k < c.nout; k++)
        c.out[k] = p->op == OP_ADAM ? c.in[k ? k + 1 : 0] : tensor(x, p->row_value ? 1 : 2, wide);
    if (p->op == OP_SUM || p->op == OP_SQNORM) {
        c.out[0].shape = (struct shape){p->op == OP_SUM, {p->cols}};
        attr->label[1][0] = 1;
    }
    if (p->op == OP_ADAM)
        ((float *)c.in[4].data)[CLIP_SKIP] = 0;
    return c;
}

static double pass_rate(struct bench *x, const struct pass *p)
{
    struct op_attr attr;
    struct op_call c = pass_call(x, p, &attr);
    double bytes = (double)p->moved * (double)p->rows * (double)p->cols * sizeof(float);
    double s = seconds(x, &c, 0, NULL);
    for (int k = 0; k < c.nin; k++)
        x->b->memory.free(x->d, c.in[k].data);
    if (p->op != OP_ADAM)
        x->b->memory.free(x->d, c.out[0].data);
    return bytes * 1e-9 / s;
}

static void print_peak(struct bench *x)
{
    double runs[MAX_THREADS][RUNS];
    for (int r = 0; r < RUNS; r++)
        for (int t = 0; t < MAX_THREADS; t++)
            runs[t][r] = 1e-9 * x[t].threads * measure_peak(&x[t]);
    printf("%-24s %22.1f %7.1f GF/s\n", "multiply-adds alone", median(runs[0]), median(runs[1]));
}

static void print_product(struct bench *x, const struct product *p)
{
    struct rate one = product_rate(&x[0], p), two = product_rate(&x[1], p);
    printf("%-16s m %4lld n %4lld k %4lld  %7.1f %7.1f GF/s  %5.1f %5.1f %% of the peak\n", p->what,
           (long long)p->m, (long long)p->n, (long long)p->k, one.gflops, two.gflops,
           100 * one.share, 100 * two.share);
}

static void open_bench(struct bench *x, int threads)
{
    struct err e = {0};
    x->threads = threads;
    must(backend_load("cpu", &x->b, &e), &e);
    must(x->b->device.open(&(struct device_options){.threads = threads}, &x->d, &e), &e);
    must(x->b->stream.create(x->d, STREAM_USUAL, &x->q, &e), &e);
    choose_peak(x);
}

static void print_machine(const struct bench *x, const char *what)
{
    struct device_info info;
    x->b->device.info(x->d, &info);
    printf("%s, %s, %s: %s\n", info.model, info.isa, info.libraries, what);
}

// ---- ways --------------------------------------------------------------------------------------

enum { TAKEN, PACKED, ONEDNN, BY_ROWS, BY_COLUMNS, WAYS };

// The product as the way makes it, or the piece of a thread of two. A piece chooses between packed and
// oneDNN by its own shape, where a thread's piece goes the way of the whole.
static struct product find_piece(const struct product *p, int way)
{
    struct product piece = *p;
    piece.m /= way == BY_ROWS ? 2 : 1;
    piece.n /= way == BY_COLUMNS ? 2 : 1;
    return piece;
}

// Fills in the share of the peak that each way makes of a product.
static void compare_ways(struct bench *x, const struct product *p, double *share)
{
    struct op_attr attr[WAYS];
    struct op_call call[WAYS];
    double runs[WAYS][RUNS];
    int64_t times[WAYS];
    for (int w = 0; w < WAYS; w++) {
        struct product piece = find_piece(p, w);
        call[w] = product_call(&x[w], &piece, &attr[w]);
        run_calls(&x[w], &call[w], 1);
        times[w] = (int64_t)(RUN_S / 4 / run_calls(&x[w], &call[w], 1).processor) + 1;
    }
    for (int r = 0; r < RUNS; r++) {
        double peak = measure_peak(x);
        for (int w = 0; w < WAYS; w++) {
            struct product piece = find_piece(p, w);
            double s = run_calls(&x[w], &call[w], times[w]).processor;
            runs[w][r] = count_flops(&piece) / s / peak;
        }
    }
    for (int w = 0; w < WAYS; w++) {
        share[w] = median(runs[w]);
        free_product(&x[w], &call[w]);
    }
}

static void print_ways(void)
{
    struct bench x[WAYS] = {{0}};
    static const char *const settings[WAYS] = {
        [TAKEN] = "", [PACKED] = "packed", [ONEDNN] = "onednn", [BY_ROWS] = "", [BY_COLUMNS] = ""};
    for (int w = 0; w < WAYS; w++) {
        setenv("WEFT_CPU_PRODUCTS", settings[w], 1);
        open_bench(&x[w], 1);
    }
    print_machine(&x[TAKEN], "% of the peak on one thread");
    printf("%-39s   taken  packed  onednn  by rows columns  behind\n", "");
    for (size_t i = 0; i < sizeof model_products / sizeof *model_products; i++) {
        const struct product *p = &model_products[i];
        double share[WAYS];
        compare_ways(x, p, share);
        double best = share[PACKED] > share[ONEDNN] ? share[PACKED] : share[ONEDNN];
        printf("%-13s m %4lld n %4lld k %4lld %c%c ", p->what, (long long)p->m, (long long)p->n,
               (long long)p->k, p->a[0] ? 'T' : 'N', p->b[0] == 1 ? 'T' : 'N');
        for (int w = 0; w < WAYS; w++)
            printf(" %7.1f", 100 * share[w]);
        printf(" %6.1f %%\n", 100 * (1 - share[TAKEN] / best));
        fflush(stdout);
    }
    for (int w = 0; w < WAYS; w++)
        x[w].b->device.close(x[w].d);
}

int main(int argc, char **argv)
{
    struct bench x[MAX_THREADS] = {{0}};
    if (argc == 2 && strcmp(argv[1], "--ways") == 0) {
        print_ways();
        return 0;
    }
    for (int t = 0; t < MAX_THREADS; t++)
        open_bench(&x[t], t + 1);
    print_machine(x, "1 thread, 2 threads");
    print_peak(x);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        print_product(x, &products[i]);
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        const struct pass *p = &passes[i];
        printf("%-16s %5lld x %5lld         %7.1f %7.1f GB/s\n", op_name(p->op), (long long)p->rows,
               (long long)p->cols, pass_rate(&x[0], p), pass_rate(&x[1], p));
    }
    for (int t = 0; t < MAX_THREADS; t++)
        x[t].b->device.close(x[t].d);
    return 0;
}
