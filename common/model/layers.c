// SPDX-License-Identifier: Apache-2.0
// Functions with parameters, positions or draws: layers as one writes them. See functions.h.

#include "common/compile/graph/build.h"
#include "common/model/algebra.h"
#include "common/model/functions.h"
#include "common/model/model_inputs.h"
#include "common/model/parameter.h"

static const double EPS = 1e-5, EPS_SHIFT = 1e-6;

// ---- products ----------------------------------------------------------------------------------

struct term call_linear(struct builder *b, const struct term *arg)
{
    struct written_param w;
    struct dimension brings[MAX_DIMS];
    bool over[MAX_DIMS];
    int n = 0, y = product_with_weight(b, as_real(b, arg[0]), arg[1].param, &w, over);
    if (b->failed || term_number_or(&arg[2], 1) == 0)
        return term_value(y);
    for (int d = 0; d < w.n; d++)
        if (!over[d])
            brings[n++] = w.dims[d];
    if (n == 1 && is_like(b, brings[0].dim, DIM_EMBED))
        brings[0].dim = DIM_NORM; // a vector as wide as the residual: no rule cuts it
    int bias = param_bias(b, w.path, n, brings);
    return b->failed ? (struct term){0} : term_value(add(b->g, y, bias));
}

struct term call_embed(struct builder *b, const struct term *arg)
{
    int ids = as_value(b, arg[0]), n = 0;
    enum dim out[MAX_DIMS];
    if (b->failed)
        return (struct term){0};
    struct written_param w = param_fill(b, arg[1].param, -1);
    int table = b->failed ? -1 : param_weight(b, &w, "", NULL);
    const struct value v = b->g->values[ids];
    if (table < 0)
        return (struct term){0};
    if (v.dtype != DT_I32 || w.n != 2 || v.shape.n + 1 > MAX_DIMS)
        return build_fail(b, "embed takes ids and a table of two dimensions: "
                             "embed(tokens, embed.tokens[vocab, embed])");
    for (int d = 0; d < v.shape.n; d++)
        out[n++] = v.dims[d];
    out[n++] = w.dims[1].dim;
    build_at(b, n, out);
    return term_value(graph_op(
        b->g,
        &(struct op_args){
            .op = OP_EMBED, .nin = 2, .in = (int[]){ids, table}, .nout_dims = n, .out_dims = out}));
}

// The loss depends on it by nothing: its gradient is 0.
struct term call_unread(struct builder *b, const struct term *arg)
{
    int w = as_value(b, arg[0]);
    if (b->failed)
        return (struct term){0};
    graph_at(b->g, POINT_NONE);
    return term_value(sum(b->g, w, 0, NULL, 0, DT_F32));
}

// ---- norms -------------------------------------------------------------------------------------

struct norm_parts {
    bool center, weight, bias;
    double eps;
};

// A norm over a dimension with padding, whose mean is over less than what lies there: in f32, step by
// step.
static int norm_unpadded(struct builder *b, int nin, const int *in, const struct op_attr *attr)
{
    struct graph *g = b->g;
    const struct value v = g->values[in[0]];
    const int rows = v.shape.n - 1;
    const float share = 1 / (float)v.limit[rows];
    int x = cast(g, in[0], DT_F32);
    if (attr->center)
        x = sub(g, x, sum(g, x, rows, v.dims, share, DT_F32));
    int square = sum(g, mul(g, x, x), rows, v.dims, share, DT_F32);
    int least = scale(g, graph_one(g), attr->eps);
    int by = apply(g, OP_EXP, scale(g, apply(g, OP_LOG, add(g, square, least)), -0.5f));
    x = cast(g, mul(g, x, by), v.dtype);
    x = nin > 1 ? mul(g, x, in[1]) : x;
    return nin > 2 ? add(g, x, in[2]) : x;
}

static struct term make_norm(struct builder *b, const struct term *arg, struct norm_parts norm)
{
    int in[3] = {as_real(b, arg[0])}, n = 1;
    if (b->failed)
        return (struct term){0};
    const struct value v = b->g->values[in[0]];
    bool named = arg[1].kind == TERM_PARAM;
    if (v.shape.n == 0)
        return build_fail(b, "a norm is of a dimension, and this is a single number");
    const int last = v.shape.n - 1;
    const struct dimension along = {
        .dim = DIM_NORM, .extent = v.shape.dim[last], .limit = v.limit[last]};
    if (named && norm.weight)
        in[n++] = param_make(b, arg[1].param->path, "weight", 1, &along, INIT_ONE, 0);
    if (named && norm.bias)
        in[n++] = param_make(b, arg[1].param->path, "bias", 1, &along, INIT_ZERO, 0);
    if (b->failed)
        return (struct term){0};
    struct op_attr attr = {.eps = (float)term_number_or(&arg[2], norm.eps), .center = norm.center};
    build_at_like(b, in[0]);
    if (along.limit)
        return term_value(norm_unpadded(b, n, in, &attr));
    return term_value(graph_shaped(b->g, OP_NORM, n, in, in[0], &attr, DT_NONE));
}

struct term call_layernorm(struct builder *b, const struct term *arg)
{
    return make_norm(b, arg,
                     (struct norm_parts){.center = true, .weight = true, .bias = true, .eps = EPS});
}

struct term call_rmsnorm(struct builder *b, const struct term *arg)
{
    return make_norm(b, arg, (struct norm_parts){.weight = true, .eps = EPS});
}

struct term call_rmsnorm_shift(struct builder *b, const struct term *arg)
{
    return make_norm(b, arg, (struct norm_parts){.weight = true, .bias = true, .eps = EPS_SHIFT});
}

// ---- draws -------------------------------------------------------------------------------------

const char *draw_path(struct builder *b)
{
    static int here;
    const char *of = b->drawn ? b->drawn : b->prefix;
    if (!*of)
        of = b->past_layers ? "head" : "embed";
    const char *path = arena_printf(b->arena, "%s/dropout", of);
    if (b->dropped && map_get(&b->sites, path))
        path = arena_printf(b->arena, "%s/dropout", b->dropped);
    if (map_put(&b->sites, path, &here))
        build_fail(b, "two draws are called %s: NAME: dropout(…) names one apart", path);
    return path;
}

bool draw_rate_fits(struct builder *b, double rate)
{
    if (!(rate >= 0 && rate < 1))
        build_fail(b, "a share of %g is dropped: try at least 0 and less than 1", rate);
    return !b->failed;
}

struct term call_dropout(struct builder *b, const struct term *arg)
{
    int x = as_real(b, arg[0]);
    double rate = term_number_or(&arg[1], model_sizes_number(b->sizes, "dropout", -1));
    if (b->failed)
        return (struct term){0};
    if (rate < 0 && arg[1].kind == TERM_NOTHING)
        return build_fail(b, "dropout of what share: try dropout(x, 0.1) or a size `dropout`");
    if (!draw_rate_fits(b, rate) || !draws_drops(&b->draws, rate))
        return term_value(x);
    if (b->g->values[x].shape.n == 0)
        return build_fail(b, "a single number is dropped: try a value with dimensions");
    const char *path = draw_path(b);
    int positions = draws_want_positions(b->g, x) ? input_positions(b) : -1;
    build_at_like(b, x);
    return term_value(b->failed ? 0 : draws_dropout(&b->draws, x, positions, path, rate));
}

struct term call_normal(struct builder *b, const struct term *arg)
{
    static int here;
    int like = as_real(b, arg[0]);
    if (b->failed || !b->draws.on)
        return term_number(0, true);
    if (b->g->values[like].shape.n == 0)
        return build_fail(b, "normal is like a single number: try a value with dimensions");
    if (map_put(&b->sites, arg[1].param->path, &here))
        return build_fail(b, "two draws are called %s", arg[1].param->path);
    int positions = draws_want_positions(b->g, like) ? input_positions(b) : -1;
    build_at_like(b, like);
    return term_value(b->failed ? 0 : draws_normal(&b->draws, like, positions, arg[1].param->path));
}
