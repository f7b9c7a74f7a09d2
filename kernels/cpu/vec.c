// SPDX-License-Identifier: Apache-2.0
// The inner loops. See vec.h. Compiled with -DVEC_ISA=baseline|avx2|avx512 and that set's flags.
#include "kernels/cpu/vec.h"

#include "kernels/cpu/simd_math.h"

#include "kernels/cpu/simd_draw.h"

// ---- elementwise -------------------------------------------------------------------------------

VFN vf operand(const float *p, int step, int64_t i, int64_t left)
{
    if (!step)
        return v_set(*p);
    return left >= VL ? v_load(p + i) : v_load_part(p + i, left, 1);
}

// `a` and `b` are vectors in the expression, `c` the call.
#define MAP(name, expr)                               \
    static void map_##name(const struct vec_map *c)   \
    {                                                 \
        for (int64_t i = 0; i < c->n; i += VL) {      \
            int64_t left = c->n - i;                  \
            vf a = operand(c->a, c->a_step, i, left); \
            vf r = (expr);                            \
            if (left >= VL)                           \
                v_store(c->out + i, r);               \
            else                                      \
                v_store_part(c->out + i, r, left);    \
        }                                             \
    }
#define B operand(c->b, c->b_step, i, left)

MAP(add, a + B)
MAP(sub, a - B)
MAP(mul, a *B)
MAP(div, a / B)
MAP(scale, a * c->scale)
MAP(log, v_log(a))
MAP(exp, v_exp(a))
MAP(softplus, v_softplus(a))
MAP(softplus_grad, B / (1.0f + v_exp(-a)))
MAP(tanh, v_tanh(a))
MAP(gelu, v_gelu(a))
MAP(relu, v_select(a < 0.0f, v_set(0), a)) // NaN stays: it must reach the skip flag
MAP(relu_grad, v_select(a > 0.0f, B, v_set(0)))
MAP(gelu_grad, v_gelu_slope(a) * B)
MAP(tanh_grad, B *(1.0f - a * a))
MAP(silu, v_silu(a))
MAP(silu_grad, v_silu_slope(a) * B)
MAP(sigmoid, v_sigmoid(a))
MAP(sigmoid_grad, B *a *(1.0f - a))
MAP(equal, v_select((vi)a == (vi)B, v_set(1), v_set(0)))
#undef B

static void from_u8(float *restrict out, const uint8_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
}

static void widen(float *restrict out, const uint16_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

// A NaN keeps its sign and the upper bits of its payload, and is made quiet.
VFN vu narrow_lanes(vf x)
{
    vu bits = (vu)x, upper = bits >> 16, near = (bits + 0x7fff + (upper & 1)) >> 16;
    return (vu)v_select(x != x, (vf)(upper | 0x40), (vf)near);
}

typedef uint16_t vh __attribute__((vector_size(VEC_BYTES / 2)));

static void narrow(uint16_t *restrict out, const float *restrict x, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vh half = __builtin_convertvector(narrow_lanes(v_load(x + i)), vh);
        memcpy(out + i, &half, sizeof half);
    }
    vu last = narrow_lanes(v_load_part(x + i, n - i, 0));
    for (int k = 0; i < n; i++, k++)
        out[i] = (uint16_t)last[k];
}

// ---- sums: lanes within a block, blocks in double ----------------------------------------------

enum { BLOCK = 64 * 16 }; // elements added in f32 before they go into a double

static double lanes_sum(vf v)
{
    double s = 0;
    for (int i = 0; i < VL; i++)
        s += (double)v[i];
    return s;
}

// `a` is the vector in the expression; lanes past the end hold `rest`, for which it must be 0.
#define REDUCE(rest, expr)                                                            \
    double total = 0;                                                                 \
    for (int64_t at = 0; at < n; at += BLOCK) {                                       \
        int64_t end = n - at < BLOCK ? n : at + BLOCK;                                \
        vf acc[2] = {{0}, {0}};                                                       \
        for (int64_t i = at, k = 0; i < end; i += VL, k ^= 1) {                       \
            vf a = end - i >= VL ? v_load(x + i) : v_load_part(x + i, end - i, rest); \
            acc[k] = (expr);                                                          \
        }                                                                             \
        total += lanes_sum(acc[0] + acc[1]);                                          \
    }

static double sum(const float *x, int64_t n)
{
    REDUCE(0, acc[k] + a)
    return total;
}

// Sums e^(x − m) where m is −∞. sum_exp() cannot: it pads the last vector with −∞, which adds 0
// only if m is larger than that.
static float row_sum_exp_unbounded(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(x[i] > -INFINITY))
            return NAN;
    return n ? INFINITY : 0;
}

static double sum_exp(const float *x, int64_t n, float m)
{
    vf max = v_set(m);
    REDUCE(-INFINITY, acc[k] + v_exp(a - max))
    return total;
}

static float row_sum_exp(const float *x, int64_t n, float m)
{
    return m == -INFINITY ? row_sum_exp_unbounded(x, n) : (float)sum_exp(x, n, m);
}

// Squares in double: those of f32 gradients may overflow f32 although their sum is fine.
static double sqsum(const float *x, int64_t n)
{
    double acc[VL] = {0};
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        for (int k = 0; k < VL; k++)
            acc[k] += (double)x[i + k] * (double)x[i + k];
    for (int k = 0; i + k < n; k++)
        acc[k] += (double)x[i + k] * (double)x[i + k];
    double total = 0;
    for (int k = 0; k < VL; k++)
        total += acc[k];
    return total;
}

// The column tile is held in registers and L1; each column adds blocks of rows in row order.
enum { TILE = 128, ROW_BLOCK = 64 };

static void sum_columns(float *out, const float *x, int64_t rows, int64_t stride, int64_t cols,
                        float scale, bool accumulate)
{
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t width = cols - c < TILE ? cols - c : TILE;
        double total[TILE] = {0};
        for (int64_t r = 0; r < rows; r += ROW_BLOCK) {
            int64_t end = rows - r < ROW_BLOCK ? rows : r + ROW_BLOCK;
            float acc[TILE] = {0};
            for (int64_t i = r; i < end; i++) {
                const float *restrict row = x + i * stride + c;
                for (int64_t k = 0; k < width; k++)
                    acc[k] += row[k];
            }
            for (int64_t k = 0; k < width; k++)
                total[k] += (double)acc[k];
        }
        for (int64_t k = 0; k < width; k++) {
            float s = (float)(total[k] * (double)scale);
            out[c + k] = accumulate ? out[c + k] + s : s;
        }
    }
}

// ---- rows --------------------------------------------------------------------------------------

static float row_max(const float *x, int64_t n)
{
    vf max = v_set(-INFINITY);
    for (int64_t i = 0; i < n; i += VL) {
        vf a = n - i >= VL ? v_load(x + i) : v_load_part(x + i, n - i, -INFINITY);
        max = v_select(a > max, a, max);
    }
    float m = max[0];
    for (int i = 1; i < VL; i++)
        m = max[i] > m ? max[i] : m;
    return m;
}

// Goes block by block. A block with a larger maximum than all before it scales down the sum so far.
// As long as the maximum is −∞, only a NaN adds to the sum.
static void row_max_sum_exp(const float *x, int64_t n, float *max, float *sum)
{
    double total = 0;
    float m = -INFINITY;
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t count = n - at < BLOCK ? n - at : BLOCK;
        float top = row_max(x + at, count);
        if (top > m) {
            total *= (double)v_exp(v_set(m - top))[0];
            m = top;
        }
        if (m > -INFINITY)
            total += sum_exp(x + at, count, m);
        for (int64_t i = 0; i < count && m == -INFINITY; i++)
            total += x[at + i] == -INFINITY ? 0.0 : (double)x[at + i];
    }
    *max = m;
    *sum = n && m == -INFINITY ? NAN : (float)total;
}

static void row_exp_mul(float *out, const float *x, int64_t n, float m, float g)
{
    for (int64_t i = 0; i < n; i += VL) {
        int64_t left = n - i;
        vf a = left >= VL ? v_load(x + i) : v_load_part(x + i, left, 0);
        vf r = v_exp(a - m) * g;
        if (left >= VL)
            v_store(out + i, r);
        else
            v_store_part(out + i, r, left);
    }
}

// ---- attention ---------------------------------------------------------------------------------

VFN vf row_load(const float *x, int64_t i, int64_t left, float rest)
{
    return left >= VL ? v_load(x + i) : v_load_part(x + i, left, rest);
}

VFN void row_store(float *x, vf v, int64_t i, int64_t left)
{
    if (left >= VL)
        v_store(x + i, v);
    else
        v_store_part(x + i, v, left);
}

// Sets the scores of keys that are not seen to −∞, and returns the maximum of the others.
static float mask_scores(float *x, const int32_t *key, int32_t first, int32_t last, int64_t n)
{
    vf max = v_set(-INFINITY);
    for (int64_t i = 0; i < n; i += VL) {
        vi k = (vi)row_load((const float *)(const void *)key, i, n - i, 0); // the bits of i32
        vf a = row_load(x, i, n - i, -INFINITY);
        a = v_select((k > last) | (k < first), v_set(-INFINITY), a);
        max = v_select(a > max, a, max);
        row_store(x, a, i, n - i);
    }
    float m = max[0];
    for (int i = 1; i < VL; i++)
        m = max[i] > m ? max[i] : m;
    return m;
}

static float softmax(float *x, const int32_t *key, int32_t first, int32_t last, int64_t n)
{
    const float most = mask_scores(x, key, first, last, n);
    const vf max = v_set(most);
    double total = 0;
    if (most == -INFINITY) { // no key is seen, or every score is −∞ or NaN
        for (int64_t j = 0; j < n; j++) {
            x[j] = x[j] == -INFINITY ? 0 : x[j];
            total += (double)x[j];
        }
        return most + (float)total;
    }
    vf acc = {0};
    for (int64_t i = 0; i < n; i += VL) {
        vf p = v_exp(row_load(x, i, n - i, -INFINITY) - max);
        acc += p;
        row_store(x, p, i, n - i);
        if (i % BLOCK == BLOCK - VL) {
            total += lanes_sum(acc);
            acc = (vf){0};
        }
    }
    total += lanes_sum(acc);
    vf scale = v_set((float)(1 / total));
    for (int64_t i = 0; i < n; i += VL)
        row_store(x, row_load(x, i, n - i, 0) * scale, i, n - i);
    return most + v_log(v_set((float)total))[0];
}

static void softmax_again(float *x, const int32_t *key, int32_t first, int32_t last, int64_t n,
                          float lse)
{
    for (int64_t i = 0; i < n; i += VL) {
        vi k = (vi)row_load((const float *)(const void *)key, i, n - i, 0); // the bits of i32
        vf p = v_exp(row_load(x, i, n - i, 0) - lse);
        row_store(x, v_select((k > last) | (k < first), v_set(0), p), i, n - i);
    }
}

static float dot(const float *a, const float *b, int64_t n)
{
    double total = 0;
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t end = n - at < BLOCK ? n : at + BLOCK;
        vf acc = {0};
        for (int64_t i = at; i < end; i += VL)
            acc = v_fma(row_load(a, i, end - i, 0), row_load(b, i, end - i, 0), acc);
        total += lanes_sum(acc);
    }
    return (float)total;
}

static void softmax_grad(float *dp, const float *p, float mean, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf d = row_load(p, i, n - i, 0) * (row_load(dp, i, n - i, 0) - mean) * scale;
        row_store(dp, d, i, n - i);
    }
}

// ---- norms -------------------------------------------------------------------------------------

static void norm_stats(float stats[2], const float *x, int64_t n, float eps, bool center)
{
    double mean = center ? sum(x, n) / (double)n : 0, square = 0;
    vf m = v_set((float)mean);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t end = n - at < BLOCK ? n : at + BLOCK;
        vf acc = {0};
        for (int64_t i = at; i < end; i += VL) {
            vf d = row_load(x, i, end - i, (float)mean) - m;
            acc = v_fma(d, d, acc);
        }
        square += lanes_sum(acc);
    }
    stats[0] = (float)mean;
    stats[1] = (float)(1 / sqrt(square / (double)n + (double)eps));
}

static void norm(float *out, const float *x, const float stats[2], const float *weight,
                 const float *bias, int64_t n)
{
    vf mean = v_set(stats[0]), scale = v_set(stats[1]);
    for (int64_t i = 0; i < n; i += VL) {
        vf y = (row_load(x, i, n - i, 0) - mean) * scale;
        y = weight ? y * row_load(weight, i, n - i, 0) : y;
        y = bias ? y + row_load(bias, i, n - i, 0) : y;
        row_store(out, y, i, n - i);
    }
}

// With y the normed x and g = dy · weight: dx = scale · (g − mean g − y · mean(g·y)).
static void norm_grad(float *dx, const float *x, const float *dy, const float stats[2],
                      const float *weight, const float *add, int64_t n, bool center)
{
    vf mean = v_set(stats[0]), scale = v_set(stats[1]);
    double total = 0, dot = 0;
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t end = n - at < BLOCK ? n : at + BLOCK;
        vf acc = {0}, acc_dot = {0};
        for (int64_t i = at; i < end; i += VL) {
            vf y = (row_load(x, i, end - i, stats[0]) - mean) * scale;
            vf g = row_load(dy, i, end - i, 0);
            g = weight ? g * row_load(weight, i, end - i, 0) : g;
            acc += g;
            acc_dot = v_fma(g, y, acc_dot);
        }
        total += lanes_sum(acc);
        dot += lanes_sum(acc_dot);
    }
    vf mean_g = v_set(center ? (float)(total / (double)n) : 0);
    vf mean_dot = v_set((float)(dot / (double)n));
    for (int64_t i = 0; i < n; i += VL) {
        vf y = (row_load(x, i, n - i, 0) - mean) * scale;
        vf g = row_load(dy, i, n - i, 0);
        g = weight ? g * row_load(weight, i, n - i, 0) : g;
        vf d = scale * (g - mean_g - y * mean_dot);
        row_store(dx, add ? row_load(add, i, n - i, 0) + d : d, i, n - i);
    }
}

static void norm_columns(float *out, const float *x, const float *dy, const float *stats,
                         int64_t rows, int64_t stride, int64_t cols, bool accumulate)
{
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t width = cols - c < TILE ? cols - c : TILE;
        double total[TILE] = {0};
        for (int64_t r = 0; r < rows; r += ROW_BLOCK) {
            int64_t end = rows - r < ROW_BLOCK ? rows : r + ROW_BLOCK;
            float acc[TILE] = {0};
            for (int64_t i = r; i < end; i++) {
                const float *restrict row = x + i * stride + c, *restrict g = dy + i * stride + c;
                const float mean = stats[2 * i], scale = stats[2 * i + 1];
                for (int64_t k = 0; k < width; k++)
                    acc[k] += g[k] * ((row[k] - mean) * scale);
            }
            for (int64_t k = 0; k < width; k++)
                total[k] += (double)acc[k];
        }
        for (int64_t k = 0; k < width; k++)
            out[c + k] = accumulate ? out[c + k] + (float)total[k] : (float)total[k];
    }
}

// ---- rotary, embeddings ------------------------------------------------------------------------

static void rotate(float *out, const float *x, const float *cosine, const float *sine, int64_t n)
{
    int64_t half = n / 2;
    for (int64_t i = 0; i < half; i += VL) {
        int64_t left = half - i;
        vf a = row_load(x, i, left, 0), b = row_load(x + half, i, left, 0);
        vf c = row_load(cosine, i, left, 1), s = row_load(sine, i, left, 0);
        row_store(out, a * c - b * s, i, left);
        row_store(out + half, b * c + a * s, i, left);
    }
}

static void rotate_pairs(float *out, const float *x, const float *cosine, const float *sine,
                         int64_t n)
{
    for (int64_t i = 0; i < n / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        out[2 * i] = a * cosine[i] - b * sine[i];
        out[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

static void add_to(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += x[i];
}

// ---- random draws ------------------------------------------------------------------------------

VFN vf drop(vf x, vu word, const struct vec_draw *d)
{
    return v_select((vi)(word >> 8) >= (vi)(d->threshold + (vu){0}), x * d->scale, v_set(0));
}

static void dropout(float *out, const float *x, int64_t n, const struct vec_draw *d, uint64_t first)
{
    uint32_t words[WORDS];
    uint64_t block = first / 4;
    int64_t skip = (int64_t)(first % 4), take;
    for (int64_t i = 0; i < n; i += take, skip = 0, block += WL) {
        v_words(words, d, block);
        take = n - i < WORDS - skip ? n - i : WORDS - skip;
        if (take == WORDS)
            for (int k = 0; k < WORDS; k += VL)
                v_store(out + i + k, drop(v_load(x + i + k), v_load_words(words + k), d));
        else
            for (int64_t k = 0; k < take; k++)
                out[i + k] = words[skip + k] >> 8 >= d->threshold ? x[i + k] * d->scale : 0;
    }
}

static void normals(float *out, int64_t n, const struct vec_draw *d, uint64_t first)
{
    uint32_t words[WORDS];
    float made[NORMALS];
    uint64_t block = first / 2;
    int64_t skip = (int64_t)(first % 2), take;
    for (int64_t i = 0; i < n; i += take, skip = 0, block += WL) {
        v_words(words, d, block);
        v_normals(made, words);
        take = n - i < NORMALS - skip ? n - i : NORMALS - skip;
        memcpy(out + i, made + skip, (size_t)take * sizeof *out);
    }
}

// ---- updates -----------------------------------------------------------------------------------

struct lanes {
    vf p, g, m, v;
};

VFN vf sgd(struct lanes *l, const struct vec_update *u)
{
    return l->p - u->lr * (l->g + u->decay * l->p);
}

// beta · x + more
VFN vf average_decay(const struct average *a, vf x, vf more)
{
    return a->keep * x + (a->rest * x + more);
}

VFN vf momentum(struct lanes *l, const struct vec_update *u)
{
    vf g = l->g + u->decay * l->p;
    l->m = average_decay(&u->first, l->m, g);
    return l->p - u->lr * (u->nesterov ? average_decay(&u->first, l->m, g) : l->m);
}

VFN vf adam(struct lanes *l, const struct vec_update *u)
{
    l->m = average_decay(&u->first, l->m, u->first.gain * l->g);
    l->v = average_decay(&u->second, l->v, u->second.gain * (l->g * l->g));
    vf step = (l->m * u->bias1) / (v_sqrt(l->v * u->bias2) + u->eps);
    return l->p - u->lr * (step + u->decay * l->p);
}

VFN vf state_load(const float *s, int64_t i, int64_t left)
{
    return left >= VL ? v_load(s + i) : v_load_part(s + i, left, 0);
}

VFN void state_store(float *s, vf v, int64_t i, int64_t left)
{
    if (left >= VL)
        v_store(s + i, v);
    else
        v_store_part(s + i, v, left);
}

#define UPDATE(name, has_m, has_v)                                     \
    static void update_##name(const struct vec_update *call)           \
    {                                                                  \
        const struct vec_update u = *call;                             \
        for (int64_t i = 0; i < u.n; i += VL) {                        \
            int64_t left = u.n - i;                                    \
            struct lanes l = {.p = state_load(u.p, i, left),           \
                              .g = state_load(u.g, i, left) * u.clip}; \
            if (has_m)                                                 \
                l.m = state_load(u.m, i, left);                        \
            if (has_v)                                                 \
                l.v = state_load(u.v, i, left);                        \
            state_store(u.p, name(&l, &u), i, left);                   \
            if (has_m)                                                 \
                state_store(u.m, l.m, i, left);                        \
            if (has_v)                                                 \
                state_store(u.v, l.v, i, left);                        \
        }                                                              \
    }

UPDATE(sgd, false, false)
UPDATE(momentum, true, false)
UPDATE(adam, true, true)

// ---- the table ---------------------------------------------------------------------------------

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

const struct vec PASTE(vec_, VEC_ISA) = {
    .map =
        {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits)
#define STEP(id, name, nin, slope, of) [OP_##id] = map_##name,
#include "common/op/ops.def"
            [OP_CAST] = map_scale,
            [OP_SCALE] = map_scale,
            [OP_EQUAL] = map_equal,
        },
    .update = {[OP_SGD] = update_sgd, [OP_MOMENTUM] = update_momentum, [OP_ADAM] = update_adam},
    .from_u8 = from_u8,
    .widen = widen,
    .narrow = narrow,
    .sum = sum,
    .sqsum = sqsum,
    .sum_columns = sum_columns,
    .row_max = row_max,
    .row_sum_exp = row_sum_exp,
    .row_exp_mul = row_exp_mul,
    .row_max_sum_exp = row_max_sum_exp,
    .multiply = PASTE(vec_multiply_, VEC_ISA),
    .transpose = PASTE(vec_transpose_, VEC_ISA),
    .dot = dot,
    .softmax = softmax,
    .softmax_again = softmax_again,
    .softmax_grad = softmax_grad,
    .norm_stats = norm_stats,
    .norm = norm,
    .norm_grad = norm_grad,
    .norm_columns = norm_columns,
    .rotate = rotate,
    .rotate_pairs = rotate_pairs,
    .add_to = add_to,
    .dropout = dropout,
    .normals = normals,
};
