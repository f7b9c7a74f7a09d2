// SPDX-License-Identifier: Apache-2.0
// Terms, dimensions and faults. See term.h.
#include "common/model/term.h"

#include <stdarg.h>
#include <string.h>

// ---- faults ------------------------------------------------------------------------------------

struct term build_fail(struct builder *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(b->arena, fmt, ap);
    va_end(ap);
    if (!b->failed)
        model_error_at(&b->errs, b->at ? b->at->at : (struct text_place){1, 1}, "%s", text);
    b->failed = true;
    return (struct term){0};
}

bool ends_at_logits(const struct builder *b)
{
    return b->run.kind == PROGRAM_SAMPLE || b->run.kind == PROGRAM_SCORE;
}

// Puts the line where it was found before what the graph says, the first time.
static void note_line(struct builder *b, bool *noted, const char **what)
{
    if (*noted || !*what)
        return;
    *noted = true;
    *what = arena_printf(b->arena, "%s:%d: %s", b->sizes->program->name, b->at ? b->at->at.line : 1,
                         *what);
}

static void check_samples(struct builder *b)
{
    bool alone = ends_at_logits(b);
    if (b->failed || b->g->failed || !b->g->mixed || (!alone && microbatch_share(b) == 1))
        return;
    build_fail(b,
               alone ? "%s: a text would depend on those that are drawn or scored with it"
                     : "%s, and a step has several: leave sums over the batch to a loss or a "
                       "report as they are, or set train.microbatches: 1",
               b->g->mixed);
}

void build_check(struct builder *b)
{
    check_samples(b);
    note_line(b, &b->ordered, &b->g->ordered);
    note_line(b, &b->mixed, &b->g->mixed);
    if (!b->failed && b->g->failed)
        build_fail(b, "%s", b->g->err ? b->g->err->text : "the graph refused it");
    else if (!b->failed && b->g->nnodes > MODEL_MAX_NODES)
        build_fail(b, "the graph has more than %d operations", MODEL_MAX_NODES);
}

const char *dims_of(struct builder *b, int value)
{
    const struct value *v = &b->g->values[value];
    struct buf text = {0};
    for (int d = 0; d < v->shape.n; d++)
        buf_printf(&text, "%s%s", d ? ", " : "[", dims_name(b->g->dims, v->dims[d]));
    buf_puts(&text, v->shape.n ? "]" : "[]");
    return buf_keep(&text, b->arena);
}

// ---- dimensions --------------------------------------------------------------------------------

struct dimension dimension_of_size(struct builder *b, int size)
{
    const struct model_size *s = &b->sizes->program->sizes[size];
    const struct model_size_value *v = &b->sizes->value[size];
    return (struct dimension){
        .dim = dims_id(b->g->dims, s->name),
        .extent = v->padded,
        .limit = v->padded > (int64_t)v->number.value ? (int64_t)v->number.value : 0};
}

bool is_like(const struct builder *b, enum dim dim, enum dim like)
{
    return dims_follows(b->g->dims, dim, like);
}

// The first dimension of this list that a value has decides its activation point; a value with none
// of them is at act_seq.
static const struct {
    enum dim dim;
    enum point point;
} points[] = {
    {DIM_HEADS, POINT_ATT},    {DIM_HEAD_DIM, POINT_ATT},   {DIM_MLP, POINT_HIDDEN},
    {DIM_VOCAB, POINT_LOGITS}, {DIM_CLASSES, POINT_LOGITS},
};

// Places of experts: by groups, or by experts.
static enum point find_expert_point(struct builder *b, int n, const enum dim *dims)
{
    bool dealt = false, hidden = false;
    for (int d = 0; d < n; d++) {
        dealt |= dims[d] == DIM_EXPERT;
        hidden |= is_like(b, dims[d], DIM_MLP);
    }
    if (!dealt)
        return POINT_NONE;
    return dims[0] == DIM_GROUP ? POINT_SLOTS : hidden ? POINT_EXPERT_HIDDEN : POINT_EXPERT;
}

void build_at(struct builder *b, int n, const enum dim *dims)
{
    enum point dealt = find_expert_point(b, n, dims);
    enum point p = dealt ? dealt : n ? POINT_SEQ : POINT_NONE;
    for (size_t i = 0; i < sizeof points / sizeof *points && p == POINT_SEQ; i++)
        for (int d = 0; d < n; d++)
            p = is_like(b, dims[d], points[i].dim) ? points[i].point : p;
    p = b->point != POINT_NONE && n ? b->point : p;
    graph_at(b->g, b->drawing ? POINT_NONE : p);
}

void build_at_like(struct builder *b, int value)
{
    struct value v = b->g->values[value];
    build_at(b, v.shape.n, v.dims);
}

// ---- terms -------------------------------------------------------------------------------------

// A number that is not whole is single, as the devices' are.
struct term term_number(double value, bool whole)
{
    double single = number_is_whole(value) ? value : (double)(float)value;
    return (struct term){.kind = TERM_NUMBER, .number = number_of(single, whole)};
}

struct term term_value(int value)
{
    return (struct term){.kind = TERM_VALUE, .value = value};
}

struct term term_sum(int value, int n, const enum dim *keep, double by)
{
    struct term t = {.kind = TERM_SUM, .value = value, .nkeep = n, .by = by};
    if (n)
        memcpy(t.keep, keep, sizeof *keep * (size_t)n);
    return t;
}

bool term_has_number(const struct term *t)
{
    return t->kind == TERM_NUMBER || t->kind == TERM_SIZE;
}

double microbatch_share(const struct builder *b)
{
    return (double)b->run.batch / (double)b->run.step_batch;
}

bool has_samples(const struct builder *b, int x)
{
    const struct value *v = &b->g->values[x];
    bool any = false;
    for (int d = 0; d < v->shape.n; d++)
        any |= v->born[d] == DIM_BATCH;
    return any;
}

double term_number_or(const struct term *t, double otherwise)
{
    return t->kind == TERM_NOTHING ? otherwise : t->number.value;
}
