// SPDX-License-Identifier: Apache-2.0
// What a program reads of the data. See model_inputs.h.
#include "common/model/model_inputs.h"

#include <string.h>

#include "common/compile/graph/build.h"

const char *const input_names[] = {"tokens", "positions", "targets", "images", "labels", NULL};

// Ids a sample, or one of it. A sample program has a batch of its own, so inputs of its own.
static int make_ids(struct builder *b, const char *name, bool seq)
{
    int64_t size = model_sizes_whole(b->sizes, "seq", 0);
    if (seq && !size)
        build_fail(b, "%s needs a size called seq: how many tokens a sample has", name);
    if (b->failed)
        return 0;
    const enum dim dims[] = {DIM_BATCH, DIM_SEQ};
    const int64_t sizes[] = {b->run.batch, size};
    if (b->run.kind == PROGRAM_SAMPLE)
        name = arena_printf(b->arena, "sample/%s", name);
    graph_at(b->g, POINT_IDS);
    return graph_value(b->g, VALUE_INPUT, name, DT_I32, seq ? 2 : 1, dims, sizes);
}

static int read_tokens(struct builder *b)
{
    if (b->tokens < 0) {
        b->tokens = make_ids(b, "tokens", true);
        b->positions = make_ids(b, "positions", true);
    }
    return b->tokens;
}

int input_positions(struct builder *b)
{
    read_tokens(b);
    return b->positions;
}

static int read_targets(struct builder *b)
{
    if (b->run.kind == PROGRAM_SAMPLE)
        build_fail(b,
                   "targets are not known while text is drawn: bind logits before they are read");
    if (b->targets < 0)
        b->targets = make_ids(b, "targets", true);
    return b->targets;
}

// The images as f32: bytes are scaled to 0 … 1.
static int read_images(struct builder *b)
{
    static const char *const names[] = {"inputs", "embed"};
    struct dimension d = {0};
    if (b->images >= 0)
        return b->images;
    for (size_t i = 0; i < sizeof names / sizeof *names && !d.extent; i++)
        if (model_sizes_whole(b->sizes, names[i], 0))
            d = dimension_of_size(b, model_size_find(b->sizes->program, names[i]));
    if (!d.extent)
        return build_fail(b, "images need a size called inputs: how many features one has"), 0;
    if (d.limit)
        return build_fail(b, "images have %lld features, and no padding: leave `padded` out of %s",
                          (long long)d.limit, dims_name(b->g->dims, d.dim)),
               0;
    graph_at(b->g, POINT_IDS);
    int x = graph_value(b->g, VALUE_INPUT, "images", b->run.bytes ? DT_U8 : DT_F32, 2,
                        (enum dim[]){DIM_BATCH, d.dim}, (int64_t[]){b->run.batch, d.extent});
    graph_at(b->g, POINT_SEQ);
    const struct op_attr to_one = {.scale = 1.0f / 255};
    b->images = b->run.bytes ? graph_shaped(b->g, OP_CAST, 1, &x, x, &to_one, DT_NONE) : x;
    return b->images;
}

static int read_labels(struct builder *b)
{
    graph_at(b->g, POINT_LOGITS); // which they are held against
    if (b->labels < 0)
        b->labels = graph_value(b->g, VALUE_INPUT, "labels", DT_I32, 1, (enum dim[]){DIM_BATCH},
                                &b->run.batch);
    return b->labels;
}

bool input_find(struct builder *b, const char *name, struct term *out)
{
    static int (*const readers[])(struct builder *) = {read_tokens, input_positions, read_targets,
                                                       read_images, read_labels};
    for (int i = 0; input_names[i]; i++)
        if (strcmp(input_names[i], name) == 0) {
            *out = term_value(readers[i](b));
            return true;
        }
    return false;
}

// A product with ones and zeros, so it is exact.
int input_last_rows(struct builder *b, int x)
{
    enum dim out[MAX_DIMS];
    int n = 0;
    struct graph *g = b->g;
    const struct value v = g->values[x];
    int *made = map_get(&b->lasts, arena_printf(b->arena, "%d", x));
    if (made || b->failed || value_find_dim(&v, DIM_SEQ) < 0)
        return made ? *made : x;
    static const enum dim dims[] = {DIM_BATCH, DIM_SEQ};
    int positions = input_positions(b);
    if (b->last < 0)
        b->last = make_ids(b, "last", false);
    graph_at(g, POINT_IDS);
    int at = apply_over(g, OP_EQUAL, positions, b->last, 2, dims, DT_F32);
    at = graph_shaped(g, OP_CAST, 1, &at, at, &(struct op_attr){.scale = 1}, DT_NONE);
    graph_at(g, POINT_NONE);
    for (int d = 0; d < v.shape.n; d++)
        if (v.dims[d] != DIM_SEQ)
            out[n++] = v.dims[d];
    made = arena_new(b->arena, int);
    *made = graph_matmul(g, at, x, n, out);
    map_put(&b->lasts, arena_printf(b->arena, "%d", x), made);
    return *made;
}
