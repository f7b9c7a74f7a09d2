// SPDX-License-Identifier: Apache-2.0
// What the design of a transformer's products counts on a library for, asked of it before anything
// else: one bias for q, k and v in one row, a bias and gelu that keeps what it read, gelu's slope, a
// bias and the residual, gradients of weights added up in f32, such a gradient with that of the
// bias, and those of q, k and v, which are three. Of GPT-2 124M's widths, in bf16, through backend.h.
//
//   bench_ends [--rows N] [--width C] KIND
//
// N (65536): samples times positions. C (768): the model's width. Each is asked for with sums in
// order and in any order. Prints, with tabs between:
//   end  name  sums  verdict  us  us_apart  off
// verdict: fused (one kernel does it, and it is the faster way); slower (there is one, two kernels
// are faster); declined (there is none); plain (nothing follows the product). us: as chosen;
// us_apart: with a kernel of its own for what follows. off: how far the two ways' results are from
// each other, in parts of the largest number.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/compile/graph/optable.h"
#include "common/op/chain.h"
#include "kernels/backend.h"

enum { PATTERN = 1 << 20, RUNS = 10, ROUNDS = 3, MOST = OP_MAX_IN + OP_MAX_OUT };
enum { I, J, K, L, LABELS };

// Operands as letters of i, j, k, l with commas between, inputs first. Register 0 is the product.
static const struct end {
    const char *name, *operands;
    int nout, wide; // wide: which of j and k is the MLP's width, four times C; −1: neither
    struct op_chain chain;
} ends[] = {
    {"bias", "ik,kj,j,ij", 1, -1, {2, 1, {{OP_ADD, {0, 1}, 0}}, {2}}},
    {"bias of three", "ik,klj,lj,ilj", 1, -1, {2, 1, {{OP_ADD, {0, 1}, 0}}, {2}}},
    {"bias, gelu, both kept",
     "ik,kj,j,ij,ij",
     2,
     J,
     {2, 2, {{OP_ADD, {0, 1}, 0}, {OP_GELU, {2, -1}, 0}}, {2, 3}}},
    {"gelu's slope", "ik,jk,ij,ij", 1, J, {2, 1, {{OP_GELU_GRAD, {1, 0}, 0}}, {2}}},
    {"bias, residual",
     "ik,kj,j,ij,ij",
     1,
     K,
     {3, 2, {{OP_ADD, {0, 1}, 0}, {OP_ADD, {3, 2}, 0}}, {4}}},
    {"gradient of weights", "ki,kj,ij", 1, J, {0}},
    {"gradient of weights and bias", "ki,kj,ij,j", 2, J, {0}},
    {"gradients of three", "ki,klj,lij,lj", 2, -1, {0}},
};

static int64_t rows = 65536, width = 768;

struct probe { // a device, and one call in its memory
    const struct backend *backend;
    struct device *device;
    struct stream_q *q;
    struct op_call call;
    struct op_attr attr;
    void *memory[MOST];
    int n;
};

// ---- a call ------------------------------------------------------------------------------------

// The gradient's sum is over the rows; elsewhere they are i.
static int64_t extent_of(const struct end *d, char letter)
{
    bool grad = !d->chain.steps;
    int label = letter - 'i';
    if (label == L)
        return 3;
    if (label == (grad ? K : I))
        return rows;
    return label == d->wide ? 4 * width : width;
}

// Whether nothing follows the product.
static bool is_plain(const struct end *d)
{
    return !d->chain.steps && d->nout == 1;
}

static void shape_operands(struct probe *p, const struct end *d)
{
    bool grad = !d->chain.steps;
    int n = 1, k = 0;
    for (const char *c = d->operands; *c; c++)
        n += *c == ',';
    p->attr = (struct op_attr){.labels = LABELS, .scale = 1, .chain = grad ? NULL : &d->chain};
    p->call = (struct op_call){.op = is_plain(d) ? OP_MATMUL
                                     : grad      ? OP_MATMUL_SUM
                                                 : OP_LINEAR,
                               .attr = &p->attr,
                               .nin = n - d->nout,
                               .nout = d->nout,
                               .accumulate = is_plain(d)};
    for (const char *c = d->operands; *c; k++, c += *c == ',') {
        struct tensor *t = k < p->call.nin ? &p->call.in[k] : &p->call.out[k - p->call.nin];
        t->dtype = grad && k >= p->call.nin ? DT_F32 : DT_BF16;
        for (; *c && *c != ','; c++) {
            p->attr.label[k][t->shape.n] = (int8_t)(*c - 'i');
            t->shape.dim[t->shape.n++] = extent_of(d, *c);
        }
    }
}

static size_t bytes_of(const struct tensor *t)
{
    return (size_t)shape_count(&t->shape) * dtype_size(t->dtype);
}

// Random numbers in [−1/2, 1/2), weights so small that the products' sums are about as large.
static int fill_tensor(const struct probe *p, const struct tensor *t, double most, struct err *e)
{
    size_t size = dtype_size(t->dtype), left = bytes_of(t), piece = PATTERN * size;
    uint32_t seed = 1;
    char *host;
    int rc = p->backend->memory.host_alloc(p->device, piece, (void **)&host, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < PATTERN; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)((double)(int32_t)seed * 0x1p-32 * most);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(host + i * size, size == 4 ? (void *)&x : (void *)&half, size);
    }
    for (char *to = t->data; left && !rc; to += piece, left -= piece) {
        piece = left < piece ? left : piece;
        rc = p->backend->stream.copy(p->q, to, host, piece, e);
    }
    rc = rc ? rc : p->backend->stream.sync(p->q, e);
    p->backend->memory.host_free(p->device, host);
    return rc;
}

static int place_call(struct probe *p, const struct end *d, struct err *e)
{
    int rc = 0;
    shape_operands(p, d);
    p->call.workspace_bytes = op_workspace(&p->call, BACKEND_CUDA);
    for (int k = 0; k < p->call.nin + p->call.nout && !rc; k++) {
        struct tensor *t = k < p->call.nin ? &p->call.in[k] : &p->call.out[k - p->call.nin];
        rc = p->backend->memory.alloc(p->device, bytes_of(t), &t->data, e);
        if (rc)
            break;
        p->memory[p->n++] = t->data;
        rc = fill_tensor(p, t, k == 1 ? 4 / sqrt((double)width) : 1, e);
    }
    if (!rc && p->call.workspace_bytes)
        rc = p->backend->memory.alloc(p->device, p->call.workspace_bytes, &p->call.workspace, e);
    return rc;
}

// ---- a device ----------------------------------------------------------------------------------

static int open_probe(struct probe *p, const char *kind, const struct end *d, bool in_order,
                      bool apart, struct err *e)
{
    const struct device_options o = {.deterministic = in_order};
    *p = (struct probe){.n = 0};
    if (apart)
        setenv("WEFT_CUDA_EPILOGUES", "0", 1);
    int rc = backend_load(kind, &p->backend, e);
    rc = rc ? rc : p->backend->device.open(&o, &p->device, e);
    unsetenv("WEFT_CUDA_EPILOGUES");
    rc = rc ? rc : p->backend->stream.create(p->device, &p->q, e);
    if (!rc && !p->backend->choice)
        rc = err_set(e, ERR_UNSUPPORTED, "%s chooses no algorithms", kind);
    return rc ? rc : place_call(p, d, e);
}

static void close_probe(struct probe *p)
{
    while (p->n)
        p->backend->memory.free(p->device, p->memory[--p->n]);
    if (p->call.workspace)
        p->backend->memory.free(p->device, p->call.workspace);
    if (p->device)
        p->backend->device.close(p->device);
}

// ---- what is asked -----------------------------------------------------------------------------

// Whether the choice for what follows the product is an algorithm: that of a product alone is one
// always, so a line that says none is about what follows.
static int tune_call(struct probe *p, bool time, bool *fused, struct err *e)
{
    struct buf text = {0};
    int rc = p->backend->choice->tune(p->q, &p->call, time, e);
    rc = rc ? rc : p->backend->choice->write(p->device, &text, e);
    *fused = !rc && !strstr(buf_str(&text), " = none\n");
    buf_clear(&text);
    return rc;
}

static int time_call(const struct probe *p, double *us, struct err *e)
{
    int rc = 0;
    for (int r = -1; r < ROUNDS && !rc; r++) {
        int64_t began = clock_mono_ns();
        for (int i = 0; i < RUNS && !rc; i++)
            rc = p->backend->op.run[p->call.op](p->q, &p->call, e);
        rc = rc ? rc : p->backend->stream.sync(p->q, e);
        double now = (double)(clock_mono_ns() - began) / 1e3 / RUNS;
        *us = r < 1 || now < *us ? now : *us;
    }
    return rc;
}

// The first numbers of the last output after one run over what it held at first.
static int read_result(const struct probe *p, float *to, size_t *n, struct err *e)
{
    const struct tensor *t = &p->call.out[p->call.nout - 1];
    size_t size = dtype_size(t->dtype), all = bytes_of(t) / size;
    char *host;
    *n = all < PATTERN ? all : PATTERN;
    int rc = p->backend->memory.host_alloc(p->device, *n * size, (void **)&host, e);
    if (rc)
        return rc;
    rc = fill_tensor(p, t, 1, e);
    rc = rc ? rc : p->backend->op.run[p->call.op](p->q, &p->call, e);
    rc = rc ? rc : p->backend->stream.copy(p->q, host, t->data, *n * size, e);
    rc = rc ? rc : p->backend->stream.sync(p->q, e);
    for (size_t i = 0; i < *n && !rc; i++) {
        uint32_t bits = 0;
        if (size == 4)
            memcpy(&bits, host + i * size, size);
        else
            memcpy((char *)&bits + 2, host + i * size, size);
        memcpy(&to[i], &bits, sizeof bits);
    }
    p->backend->memory.host_free(p->device, host);
    return rc;
}

struct answer {
    bool has, chosen; // an algorithm with what follows; that it is the faster way
    double us;
    size_t n;
    float *result;
};

static int ask_way(const char *kind, const struct end *d, bool in_order, bool apart,
                   struct answer *a, struct err *e)
{
    struct probe p;
    int rc = 0;
    if (!apart) { // where it is one kernel: of two there is nothing to ask
        rc = open_probe(&p, kind, d, in_order, apart, e);
        rc = rc ? rc : tune_call(&p, false, &a->has, e);
        close_probe(&p);
    }
    if (rc)
        return rc;
    rc = open_probe(&p, kind, d, in_order, apart, e);
    rc = rc ? rc : tune_call(&p, true, &a->chosen, e);
    rc = rc ? rc : time_call(&p, &a->us, e);
    rc = rc ? rc : read_result(&p, a->result, &a->n, e);
    close_probe(&p);
    return rc;
}

static double distance(const struct answer *a, const struct answer *b)
{
    double most = 0, off = 0;
    for (size_t i = 0; i < a->n; i++) {
        most = fmax(most, fabs((double)b->result[i]));
        off = fmax(off, fabs((double)a->result[i] - (double)b->result[i]));
    }
    return most > 0 ? off / most : NAN; // nothing was computed
}

static int ask_end(const char *kind, const struct end *d, bool in_order, struct answer way[2],
                   struct err *e)
{
    int rc = ask_way(kind, d, in_order, false, &way[0], e);
    rc = rc ? rc : ask_way(kind, d, in_order, true, &way[1], e);
    if (rc)
        return rc;
    printf("end\t%s\t%s\t%s\t%.2f\t%.2f\t%.1e\n", d->name, in_order ? "in order" : "any order",
           is_plain(d)      ? "plain"
           : !way[0].has    ? "declined"
           : !way[0].chosen ? "slower"
                            : "fused",
           way[0].us, way[1].us, distance(&way[0], &way[1]));
    fflush(stdout);
    return 0;
}

static bool read_arguments(int argc, char **argv, const char **kind)
{
    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--rows") == 0)
            rows = atoll(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--width") == 0)
            width = atoll(argv[++i]);
        else if (argv[i][0] == '-' || *kind)
            return false;
        else
            *kind = argv[i];
    }
    return *kind && rows > 0 && width > 0;
}

int main(int argc, char **argv)
{
    const char *kind = NULL;
    struct answer way[2] = {{0}};
    struct err e = {0};
    int rc = 0;
    if (!read_arguments(argc, argv, &kind)) {
        fprintf(stderr, "usage: bench_ends [--rows N] [--width C] KIND\n");
        return 2;
    }
    for (int k = 0; k < 2; k++) {
        way[k].result = calloc(PATTERN, sizeof *way[k].result);
        PRE(way[k].result);
    }
    for (size_t i = 0; i < 2 * sizeof ends / sizeof *ends && !rc; i++)
        rc = ask_end(kind, &ends[i / 2], i % 2 == 0, way, &e);
    if (rc)
        fprintf(stderr, "bench_ends: %s\n", e.text);
    free(way[0].result);
    free(way[1].result);
    return rc != 0;
}
