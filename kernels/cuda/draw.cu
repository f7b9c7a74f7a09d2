// SPDX-License-Identifier: Apache-2.0
// DROPOUT and NORMAL: random numbers by the index of an element in the whole step's tensor.
//
// A number is a pure function of seed, stream, step and index (Philox 4x32-10, base/rand.h), so no
// state is kept and no mask is stored: the gradient draws again what the forward drew. DROPOUT
// moves an element in and one out; ten rounds of some 8 instructions make four of them, which hide
// behind memory. A thread takes the lanes of a row that it has in registers (lanes.h), in as many
// blocks of four words as their indices touch. Which words are kept is the same bit for bit as on
// the CPU, and so are the products. NORMAL draws noise of a latent space, a few thousand numbers a
// step, in double as the host's rand_normals: they differ from that by what the two libraries' log,
// cos and sqrt do, which is one unit of the last place of f32 at most.
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/walk.h"

#include <string.h>

enum { THREADS = 256, BLOCKS_EACH = 8 };

// A row is the last dimension: a run of indices.
struct site {
    uint64_t seed;
    unsigned stream, threshold; // an element is kept if its word >> 8 is not below the threshold
    float scale;                // of the elements that are kept
    int dims;
    int64_t from[DRAW_DIMS], extent[DRAW_DIMS], here[DRAW_DIMS];
    const unsigned *step;
    const int32_t *position; // along dimension `place`; null: all are in order
    int place;
    int64_t row, groups, all;
};

// Returns the index, in the whole step's tensor, of element `at` of this rank's row r.
DEVICE uint64_t index_of(const struct site *s, int64_t r, int64_t at)
{
    int64_t index = s->from[s->dims - 1] + at, unit = s->extent[s->dims - 1], left = r;
    for (int k = s->dims - 2; k >= 0; k--) {
        int64_t here;
        left = walk_divide(left, s->here[k], &here);
        index += unit * (s->position && k == s->place ? s->position[here] : s->from[k] + here);
        unit *= s->extent[k];
    }
    return (uint64_t)index;
}

// ---- dropout ------------------------------------------------------------------------------------

enum { WORDS = LANES + 4 }; // of the blocks that the lanes' indices touch

DEVICE void draw_words(const struct site *s, unsigned step, uint64_t block, unsigned *w)
{
    uint4 four = draw_block(s->seed, s->stream, step, block);
    w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
}

// Returns w[skip + k], skip < 4. It selects, since registers cannot be indexed at run time.
DEVICE unsigned word_at(const unsigned w[WORDS], int k, unsigned skip)
{
    unsigned even = skip & 2 ? w[k + 2] : w[k], odd = skip & 2 ? w[k + 3] : w[k + 1];
    return skip & 1 ? odd : even;
}

DEVICE void drop_lanes(const struct site *s, unsigned step, uint64_t index, int wide,
                       float v[LANES])
{
    unsigned w[WORDS] = {0}, skip = (unsigned)(index & 3);
    for (int k = 0; k < wide; k += 4)
        draw_words(s, step, (index >> 2) + (unsigned)k / 4, w + k);
    if (skip)
        draw_words(s, step, (index >> 2) + (unsigned)wide / 4, w + wide);
    for (int k = 0; k < wide; k++)
        v[k] = word_at(w, k, skip) >> 8 >= s->threshold ? v[k] * s->scale : 0;
}

DEVICE void run_dropout(const struct site *s, int wide, const void *x, void *y, enum dtype t)
{
    float v[LANES];
    unsigned step = *s->step;
    int64_t stride = (int64_t)gridDim.x * THREADS, at;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s->all; i += stride) {
        int64_t row = walk_divide(i, s->groups, &at);
        at *= wide;
        int n = lanes_left(s->row, at, wide);
        lanes_load(x, t, row * s->row + at, 1, n, wide, v);
        drop_lanes(s, step, index_of(s, row, at), wide, v);
        lanes_store(y, t, row * s->row + at, n, wide, v);
    }
}

KERNEL(THREADS) dropout_f32_kernel(struct site s, const float *x, float *y)
{
    kernel_begin();
    run_dropout(&s, 4, x, y, DT_F32);
}

KERNEL(THREADS) dropout_bf16_kernel(struct site s, const uint16_t *x, uint16_t *y)
{
    kernel_begin();
    run_dropout(&s, 8, x, y, DT_BF16);
}

// ---- normals ------------------------------------------------------------------------------------

KERNEL(THREADS) normal_kernel(struct site s, float *y)
{
    kernel_begin();
    unsigned step = *s.step;
    int64_t stride = (int64_t)gridDim.x * THREADS, at;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s.all; i += stride) {
        int64_t row = walk_divide(i, s.row, &at);
        uint64_t index = index_of(&s, row, at);
        y[i] = draw_normal_of(draw_block(s.seed, s.stream, step, index >> 1), index & 1);
    }
}

// ---- the ops ------------------------------------------------------------------------------------

// `step` is the operand that holds the step.
static void plan_site(const struct op_call *c, int step, struct site *s)
{
    const struct op_draw *d = &c->attr->draw;
    const struct shape *shape = &c->out[0].shape;
    double rate = (double)d->rate;
    memset(s, 0, sizeof *s);
    s->seed = d->seed;
    s->stream = d->stream;
    s->threshold = (unsigned)ceil(rate * 0x1p24);
    s->scale = (float)(1 / (1 - rate));
    s->dims = d->n;
    s->place = d->place - 1;
    if (step + 1 < c->nin)
        s->position = (const int32_t *)c->in[step + 1].data;
    for (int k = 0; k < d->n; k++) {
        s->from[k] = d->from[k];
        s->extent[k] = d->extent[k];
        s->here[k] = shape->dim[k];
    }
    s->step = (const unsigned *)c->in[step].data;
    s->row = shape->dim[shape->n - 1];
}

static unsigned count_blocks(const struct stream_q *q, int64_t n)
{
    return launch_blocks(n, THREADS, (int64_t)q->device->processors * BLOCKS_EACH);
}

int op_dropout(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct site s;
    const struct shape *shape = &c->out[0].shape;
    bool bf16 = c->in[0].dtype == DT_BF16;
    int rc = op_check_dropout(c, e);
    if (rc)
        return rc;
    plan_site(c, 1, &s);
    s.groups = lanes_groups(s.row, bf16 ? 8 : 4);
    s.all = shape_count(shape) / (s.row ? s.row : 1) * s.groups;
    if (!s.all)
        return 0;
    unsigned blocks = count_blocks(q, s.all);
    if (bf16)
        LAUNCH(dropout_bf16_kernel, blocks, THREADS, 0, q, s, (uint16_t *)c->in[0].data,
               (uint16_t *)c->out[0].data);
    else
        LAUNCH(dropout_f32_kernel, blocks, THREADS, 0, q, s, (float *)c->in[0].data,
               (float *)c->out[0].data);
    return op_launched(q, c, e);
}

int op_normal(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct site s;
    int rc = op_check_draw(c, e);
    if (rc)
        return rc;
    plan_site(c, 0, &s);
    s.all = shape_count(&c->out[0].shape);
    if (!s.all)
        return 0;
    LAUNCH(normal_kernel, count_blocks(q, s.all), THREADS, 0, q, s, (float *)c->out[0].data);
    return op_launched(q, c, e);
}
