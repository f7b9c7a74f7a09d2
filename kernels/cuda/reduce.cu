// SPDX-License-Identifier: Apache-2.0
// SUM: an operand, summed over some of its dimensions.
//
// Every input is read once, 2 or 4 bytes for one addition: the kernels are bound by memory. The
// order of the additions depends on shapes alone. Four or eight neighbours are added in f32 and
// only their sum is converted, since a GPU converts few numbers to double a cycle; from there on
// sums are kept in double. There are two kernels, because neighbouring threads must read
// neighbours in memory:
//
//   columns   where the innermost dimension stays, as in the gradient of a bias. A block sums up to
//             256 columns, and its threads share the rows. Many rows are cut in parts, as
//             parts_of_rows() says, which the same kernel adds up in a second launch; a part has at
//             least 128 rows, so that its sums are few bytes beside what it reads.
//   runs      where the innermost dimension is summed over: each result is a sum over a run of
//             memory, made by a thread, a warp or a block. A few long runs are cut in chunks whose
//             sums, doubles in the workspace, a second kernel adds up. Operands that are not
//             contiguous are summed here too, element by element.
#include "kernels/cuda/reduce.h"

#include <string.h>

#include "common/op/parts.h"
#include "kernels/cuda/team.h"
#include "kernels/cuda/walk.h"

enum { THREADS = 256, WARP_RUN = 1024, CHUNK = 8192, AHEAD = 4, MOST_BLOCKS = 0x7fffffff };
enum { IN, OUT };
enum { SINKS = 3 }; // at most, of one launch

// Where the sums go: they are scaled, and stored or added to what is there.
struct sink {
    void *to;
    enum dtype type;
    double scale;
    bool accumulate;
};

DEVICE void store_sum(const struct sink *s, int64_t at, double value)
{
    float x = (float)(value * s->scale);
    store_f32(s->to, s->type, at, s->accumulate ? load_f32(s->to, s->type, at) + x : x);
}

static struct sink make_sink(const struct op_call *c, int output, float scale)
{
    struct sink s;
    memset(&s, 0, sizeof s); // the padding too: it is part of the launch's arguments
    s.to = c->out[output].data;
    s.type = c->out[output].dtype;
    s.scale = scale;
    s.accumulate = c->accumulate;
    return s;
}

// ---- columns: [kept outer][reduced][kept inner] ------------------------------------------------

struct columns {
    const void *x;
    enum dtype type;
    struct loops kept, reduced;
    int64_t cols, rows;
    int64_t tiles;   // blocks side by side, for the columns of one row
    int64_t parts;   // blocks one above the other, each with its share of the rows
    int64_t results; // of one part
    int log_wide;    // 2^log_wide threads of a block lie side by side
    bool fits;       // a thread's LANES columns are neighbours and loaded at once
    struct sink out[SINKS];
    bool own_sinks; // each outer index has a sink of its own; else all go to the first
};

// Returns the column that is number k of a thread's LANES columns: they are neighbours if packs
// fit, else 2^log_wide apart.
DEVICE int64_t find_column(const struct columns *c, int64_t first, int x, int k)
{
    return first + (c->fits ? x * LANES + k : (k << c->log_wide) + x);
}

// Returns where a row begins.
DEVICE int64_t find_columns(const struct columns *c, int64_t base, int64_t row)
{
    return base + walk_offset(&c->reduced, c->reduced.n, IN, row);
}

DEVICE void load_columns(const struct columns *c, float v[LANES], int64_t at, int64_t first, int x)
{
    if (c->fits) {
        pack_load(v, c->x, c->type, at + first + x * LANES, LANES);
        return;
    }
    unsigned bits[LANES];
    UNROLL
    for (int k = 0; k < LANES; k++) {
        int64_t col = find_column(c, first, x, k);
        bits[k] = 0;
        if (col < c->cols)
            bits[k] = load_bits(c->x, c->type, at + col);
    }
    UNROLL
    for (int k = 0; k < LANES; k++)
        v[k] = bits_f32(bits[k], c->type);
}

// Loads AHEAD rows of a thread's columns, all packs of which are under way together.
DEVICE void load_ahead(const struct columns *c, float v[AHEAD][LANES], int64_t row, int64_t step,
                       int64_t base, int64_t first, int x)
{
    int64_t at[AHEAD];
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        at[i] = find_columns(c, base, row + i * step);
    if (c->fits && c->type == DT_BF16) {
        UNROLL
        for (int i = 0; i < AHEAD; i++)
            pack_load(v[i], c->x, DT_BF16, at[i] + first + x * LANES, LANES);
    } else if (c->fits) {
        UNROLL
        for (int i = 0; i < AHEAD; i++)
            pack_load(v[i], c->x, DT_F32, at[i] + first + x * LANES, LANES);
    } else {
        UNROLL
        for (int i = 0; i < AHEAD; i++)
            load_columns(c, v[i], at[i], first, x);
    }
}

// Adds up rows `row`, `row` + step, … before `end` of a thread's columns, AHEAD rows at a time so
// that their loads are under way together.
DEVICE void add_columns(const struct columns *c, double total[LANES], int64_t row, int64_t end,
                        int64_t step, int64_t base, int64_t first, int x)
{
    for (; row + (AHEAD - 1) * step < end; row += AHEAD * step) {
        float v[AHEAD][LANES];
        load_ahead(c, v, row, step, base, first, x);
        for (int k = 0; k < LANES; k++)
            total[k] += (double)((v[0][k] + v[1][k]) + (v[2][k] + v[3][k]));
    }
    for (; row < end; row += step) {
        float v[LANES];
        load_columns(c, v, find_columns(c, base, row), first, x);
        for (int k = 0; k < LANES; k++)
            total[k] += (double)v[k];
    }
}

KERNEL_BESIDE(THREADS, 2) columns_kernel(struct columns c)
{
    kernel_begin();
    __shared__ double part[THREADS * LANES];
    const int wide = 1 << c.log_wide, x = threadIdx.x & (wide - 1), y = threadIdx.x >> c.log_wide;
    const int64_t at = blockIdx.x / c.parts, cut = blockIdx.x % c.parts;
    const int64_t outer = at / c.tiles, first = at % c.tiles * wide * LANES;
    const int64_t base = c.kept.n ? walk_offset(&c.kept, c.kept.n - 1, IN, outer) : 0;
    const int64_t row = cut * c.rows / c.parts, end = (cut + 1) * c.rows / c.parts;
    double total[LANES] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (!c.fits || first + x * LANES < c.cols)
        add_columns(&c, total, row + y, end, THREADS >> c.log_wide, base, first, x);
    for (int k = 0; k < LANES; k++)
        part[y * wide * LANES + (int)(find_column(&c, 0, x, k))] = total[k];
    __syncthreads();
    for (int i = threadIdx.x; i < wide * LANES; i += THREADS) {
        double sum = 0;
        for (int k = 0; k < THREADS >> c.log_wide; k++)
            sum += part[k * wide * LANES + i];
        if (first + i >= c.cols)
            continue;
        if (c.own_sinks)
            store_sum(&c.out[outer], first + i, sum);
        else
            store_sum(&c.out[0], cut * c.results + outer * c.cols + first + i, sum);
    }
}

enum {
    SPREAD = 128,  // blocks that keep a large device busy
    LEAST_WIDE = 2 // 4 threads side by side: 32 columns, of which a row has 64 bytes or more
};

static int64_t count_tiles(int64_t cols, int log_wide)
{
    int64_t wide = (int64_t)LANES << log_wide;
    return (cols + wide - 1) / wide;
}

// Chooses how many threads of a block lie side by side: as few as the columns need and at most a
// warp. Where that makes too few blocks for the device, as when parts are added up, it takes fewer
// of them: the columns are spread over more blocks, and more of a block's threads share the rows.
static int choose_log_wide(int64_t cols, int64_t others)
{
    int log = 0;
    while (log < 5 && ((int64_t)LANES << log) < cols)
        log++;
    while (log > LEAST_WIDE && count_tiles(cols, log) * others < SPREAD)
        log--;
    return log;
}

// Whether every pack along the first n loops begins at a multiple of LANES elements.
static bool strides_fit(const struct loops *l, int n)
{
    bool fit = true;
    for (int i = 0; i < n; i++)
        fit = fit && l->stride[IN][i] % LANES == 0;
    return fit;
}

static int launch_columns(struct stream_q *q, const struct op_call *call, struct columns *c,
                          struct err *e)
{
    const int64_t others = c->results / c->cols * c->parts;
    c->log_wide = choose_log_wide(c->cols, others);
    c->tiles = count_tiles(c->cols, c->log_wide);
    int64_t blocks = others * c->tiles;
    if (blocks > MOST_BLOCKS)
        return op_refuse(call, e, "more results than a grid has blocks");
    c->fits = pack_aligned(c->x) && c->cols % LANES == 0 &&
              strides_fit(&c->reduced, c->reduced.n) &&
              strides_fit(&c->kept, c->kept.n ? c->kept.n - 1 : 0);
    LAUNCH(columns_kernel, (unsigned)blocks, THREADS, 0, q, *c);
    return op_launched(q, call, e);
}

// Sets c to sum, for each of `sinks`, `parts` rows of `cols` f32.
static void set_parts(struct columns *c, const float *partial, int sinks, int64_t parts,
                      int64_t cols)
{
    memset(c, 0, sizeof *c);
    c->x = partial;
    c->type = DT_F32;
    c->kept.n = 2;
    c->kept.extent[0] = sinks;
    c->kept.stride[IN][0] = parts * cols;
    c->kept.extent[1] = c->cols = cols;
    c->kept.stride[IN][1] = 1;
    c->results = sinks * cols;
    c->reduced.n = 1;
    c->reduced.extent[0] = c->rows = parts;
    c->reduced.stride[IN][0] = cols;
    c->parts = 1;
    c->own_sinks = true;
}

int reduce_parts(struct stream_q *q, const struct op_call *call, int first, const float *partial,
                 int64_t parts, int64_t cols, struct err *e)
{
    struct columns c;
    PRE(first < call->nout && call->nout - first <= SINKS);
    set_parts(&c, partial, call->nout - first, parts, cols);
    for (int k = first; k < call->nout; k++)
        c.out[k - first] = make_sink(call, k, 1);
    return launch_columns(q, call, &c, e);
}

static int sum_columns(struct stream_q *q, const struct op_call *call, const struct loops *kept,
                       const struct loops *reduced, struct err *e)
{
    struct columns c;
    struct sink out = make_sink(call, 0, call->attr->scale);
    memset(&c, 0, sizeof c);
    c.x = call->in[0].data;
    c.type = call->in[0].dtype;
    c.kept = *kept;
    c.reduced = *reduced;
    c.cols = kept->extent[kept->n - 1];
    c.rows = loops_count(reduced, reduced->n);
    c.results = loops_count(kept, kept->n);
    c.parts = parts_of_rows(c.rows, c.results);
    float *partial = (float *)call->workspace;
    PRE(c.parts == 1 || parts_bytes(c.rows, c.results) <= call->workspace_bytes);
    c.out[0] = out;
    if (c.parts > 1) {
        memset(&c.out[0], 0, sizeof c.out[0]);
        c.out[0].to = partial;
        c.out[0].type = DT_F32;
        c.out[0].scale = 1;
    }
    int rc = launch_columns(q, call, &c, e);
    if (rc || c.parts == 1)
        return rc;
    set_parts(&c, partial, 1, c.parts, c.results);
    c.out[0] = out;
    return launch_columns(q, call, &c, e);
}

// ---- runs: [kept][reduced] ---------------------------------------------------------------------

struct reduce_runs {
    const void *x;
    enum dtype type;
    struct loops kept, reduced;
    int64_t results;
    int64_t n;            // elements that make one result
    int64_t size, chunks; // elements of a chunk, and chunks of a result
    int team;             // threads that sum a chunk
    bool fits;            // LANES neighbours are loaded at once
    double *partial;      // [results][chunks]; null: each result has one chunk
    struct sink out;
};

// Sums a thread's share of the elements [begin, end) of the run at `base`: first whole packs, then
// what is left.
DEVICE double sum_contiguous(const struct reduce_runs *c, int64_t base, int64_t begin, int64_t end,
                             int lane)
{
    const int64_t packs = c->fits ? (end - begin) / LANES * LANES : 0;
    double sum = 0;
    for (int64_t i = lane * LANES; i < packs; i += c->team * LANES) {
        float v[LANES];
        pack_load(v, c->x, c->type, base + begin + i, LANES);
        sum += (double)pack_sum(v, LANES);
    }
    for (int64_t i = begin + packs + lane; i < end; i += c->team)
        sum += (double)load_f32(c->x, c->type, base + i);
    return sum;
}

// Sums a run as sum_contiguous does, where the run's neighbours are not neighbours in memory.
DEVICE double sum_scattered(const struct reduce_runs *c, int64_t base, int64_t i, int64_t end)
{
    double sum = 0;
    for (; i < end; i += c->team) {
        int64_t at = base + walk_offset(&c->reduced, c->reduced.n, IN, i);
        sum += (double)load_f32(c->x, c->type, at);
    }
    return sum;
}

KERNEL(THREADS) runs_kernel(struct reduce_runs c)
{
    kernel_begin();
    __shared__ double part[WARP];
    const int lane = threadIdx.x % c.team;
    const bool contiguous = c.reduced.n == 1 && c.reduced.stride[IN][0] == 1;
    for (int64_t i = team_row(c.team); i < c.results * c.chunks; i += team_step(c.team)) {
        const int64_t result = i / c.chunks, begin = i % c.chunks * c.size;
        const int64_t end = c.n - begin < c.size ? c.n : begin + c.size;
        const int64_t base = walk_offset(&c.kept, c.kept.n, IN, result);
        double sum = contiguous ? sum_contiguous(&c, base, begin, end, lane)
                                : sum_scattered(&c, base, begin + lane, end);
        if (c.team > 1)
            sum = team_sum_f64(sum, c.team, part);
        if (lane == 0 && c.partial)
            c.partial[i] = sum;
        else if (lane == 0)
            store_sum(&c.out, result, sum);
    }
}

KERNEL(THREADS) chunks_kernel(const double *partial, int64_t chunks, struct sink out)
{
    kernel_begin();
    __shared__ double part[WARP];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < chunks; i += THREADS)
        sum += partial[blockIdx.x * chunks + i];
    sum = block_sum_f64(sum, part);
    if (threadIdx.x == 0)
        store_sum(&out, blockIdx.x, sum);
}

// Cuts a few results of many elements in chunks, at most OP_CHUNKS for all of them together, and
// chooses how many threads sum a chunk.
static void cut_runs(struct reduce_runs *c)
{
    int64_t most = c->results < OP_CHUNKS ? OP_CHUNKS / c->results : 1;
    int64_t least = (c->n + most - 1) / most;
    c->size = most == 1 ? c->n : (least + LANES - 1) / LANES * LANES;
    c->size = most > 1 && c->size < CHUNK ? (int64_t)CHUNK : c->size;
    c->size = c->size < 1 ? 1 : c->size;
    c->chunks = c->n > c->size ? (c->n + c->size - 1) / c->size : 1;
    int64_t longest = c->n < c->size ? c->n : c->size;
    c->team = longest <= 2 * LANES ? 1 : longest <= WARP_RUN ? (int)WARP : (int)THREADS;
}

static int sum_runs(struct stream_q *q, const struct op_call *call, struct reduce_runs *c,
                    struct err *e)
{
    c->x = call->in[0].data;
    c->type = call->in[0].dtype;
    c->results = loops_count(&c->kept, c->kept.n);
    c->fits = pack_aligned(c->x) && strides_fit(&c->kept, c->kept.n);
    cut_runs(c);
    if (c->chunks > 1) {
        c->partial = (double *)call->workspace;
        PRE((size_t)(c->results * c->chunks) * sizeof(double) <= call->workspace_bytes);
    }
    int64_t each = THREADS / c->team, n = c->results * c->chunks;
    LAUNCH(runs_kernel, launch_blocks(n, each, MOST_BLOCKS), THREADS, 0, q, *c);
    if (c->chunks > 1)
        LAUNCH(chunks_kernel, (unsigned)c->results, THREADS, 0, q, c->partial, c->chunks, c->out);
    return op_launched(q, call, e);
}

// ---- the ops -----------------------------------------------------------------------------------

int op_sum(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct loops kept, reduced;
    const int index[2] = {0, 1};
    if (!loops_over(c, 1, c->out[0].shape.n, -1, index, 2, &kept) ||
        !loops_over(c, 0, c->in[0].shape.n, 1, index, 2, &reduced))
        return op_refuse(c, e, "operands disagree about an extent");
    if (kept.n && kept.stride[IN][kept.n - 1] == 1)
        return sum_columns(q, c, &kept, &reduced, e);
    struct reduce_runs r;
    memset(&r, 0, sizeof r);
    r.kept = kept;
    r.reduced = reduced;
    r.n = loops_count(&reduced, reduced.n);
    r.out = make_sink(c, 0, c->attr->scale);
    return sum_runs(q, c, &r, e);
}
