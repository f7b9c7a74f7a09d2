// SPDX-License-Identifier: Apache-2.0
// Statements of the model section, and the whole. See builder.h.
#include "common/model/builder.h"

#include <string.h>

#include "common/base/suggest.h"
#include "common/compile/graph/build.h"
#include "common/model/algebra.h"
#include "common/model/expression.h"
#include "common/model/loss.h"
#include "common/model/model_inputs.h"
#include "common/model/term.h"

static void run_block(struct builder *b, const struct stmt *s);

// ---- losses and reports ------------------------------------------------------------------------

// What a loss or a report adds up over the microbatches: the sum of a term over all but so many
// dimensions. −1: it has more.
static int make_part(struct builder *b, struct term t, const char *what, int most)
{
    double by = t.kind == TERM_SUM && t.nkeep <= most ? t.by : 1;
    int x = t.kind == TERM_SUM && t.nkeep <= most ? t.value : as_value(b, t);
    if (b->failed)
        return -1;
    const struct value v = b->g->values[x];
    int n = t.kind == TERM_SUM ? t.nkeep : v.shape.n;
    const enum dim *dims = t.kind == TERM_SUM ? t.keep : v.dims;
    const int of = n ? v.born[value_find_dim(&v, dims[0])] : DIM_NONE;
    if (n > most || of == DIM_BATCH)
        return build_fail(b, "%s of %s: try sum(x) / samples", what, dims_of(b, x)), -1;
    if (of == DIM_SEQ && !b->g->ordered)
        b->g->ordered = "a report along the sequence";
    if (!v.share && !has_samples(b, x)) // the same in each microbatch: it counts once
        by *= microbatch_share(b);
    graph_at(b->g, POINT_NONE);
    int part = sum(b->g, x, n, dims, (float)by, DT_F32);
    build_check(b);
    return b->failed ? -1 : part;
}

// Terms are contributed one by one, each where it is made.
static void add_loss(struct builder *b, struct term t)
{
    bool nothing = term_has_number(&t) && t.number.value == 0;
    int part = nothing ? -1 : make_part(b, t, "a loss is a single number, not one", 0);
    if (part < 0)
        return;
    if (b->g->loss < 0)
        b->g->loss = graph_sum(b->g, "loss", -1, part);
    graph_contribute(b->g, b->g->loss, part);
}

// Remembers the first line that sampling leaves out and that has layers.
static void note_left_out(struct builder *b, const struct stmt *s, int64_t layers_before)
{
    if (b->layers > layers_before && !b->left_out)
        b->left_out = s->at.line;
}

static void run_report(struct builder *b, const struct stmt *s)
{
    int64_t layers = b->layers;
    if (ends_at_logits(b))
        return;
    if (s->n && s->n != s->nnames)
        build_fail(b, "%d values for %d names", s->n, s->nnames);
    for (int i = 0; i < s->nnames && !b->failed; i++) {
        const struct expr name = {.kind = EXPR_PATH, .at = s->at, .name = s->name[i]};
        const struct term t = evaluate(b, s->n ? s->value[i] : &name);
        if (!b->failed) {
            int part =
                make_part(b, t, "a report has at most one dimension, but the batch, not one", 1);
            if (part >= 0)
                graph_report(b->g, arena_strdup(b->arena, s->name[i]), part);
        }
    }
    note_left_out(b, s, layers);
}

// Sampling needs the logits on every device, so they are made a sum of the step, as the loss is.
static void draw_from(struct builder *b, struct term t)
{
    struct graph *g = b->g;
    int logits = as_value(b, t);
    if (b->failed)
        return;
    struct value v = g->values[logits];
    if (v.shape.n != 2 || v.dims[0] != DIM_BATCH) {
        build_fail(b, "logits have %s at a sample's last position: try [batch, vocab]",
                   dims_of(b, logits));
        return;
    }
    int part = sum(g, scale(g, logits, 1), 2, v.dims, 1, DT_NONE);
    g->loss = graph_sum(g, "logits", -1, part);
    graph_contribute(g, g->loss, part);
    b->done = true;
}

// What is known of each of the data's ids, whole on every device: how unlikely it was, and whether it
// was the most likely.
static void score_by(struct builder *b, struct term t)
{
    struct graph *g = b->g;
    struct term given;
    int logits = as_real(b, t);
    if (b->failed)
        return;
    const struct value v = g->values[logits];
    bool tokens = v.shape.n == 3 && v.dims[0] == DIM_BATCH && v.dims[1] == DIM_SEQ;
    if (!tokens && !(v.shape.n == 2 && v.dims[0] == DIM_BATCH)) {
        build_fail(b, "logits have %s: try [batch, seq, vocab], or [batch, classes]",
                   dims_of(b, logits));
        return;
    }
    (void)input_find(b, tokens ? "targets" : "labels", &given);
    int ids = as_value(b, given), n = v.shape.n - 1;
    if (b->failed)
        return;
    graph_at(g, b->point ? b->point : POINT_LOGITS);
    int rows = loss_cross_entropy(g, logits, ids, v.limit[n]);
    int best = loss_rows(g, OP_ROW_ARGMAX, 1, &logits, DT_I32, v.limit[n]);
    int right = apply_over(g, OP_EQUAL, best, ids, n, v.dims, DT_NONE);
    // Both in one value, which the devices bring together as they do logits.
    graph_at(g, POINT_NONE);
    enum dim dims[MAX_DIMS] = {DIM_QKV};
    int64_t sizes[MAX_DIMS] = {2};
    memcpy(dims + 1, v.dims, sizeof *dims * (size_t)n);
    memcpy(sizes + 1, v.shape.dim, sizeof *sizes * (size_t)n);
    int both = graph_op(g, &(struct op_args){.op = OP_STACK,
                                             .nin = 2,
                                             .in = (int[]){rows, right},
                                             .nout_dims = n + 1,
                                             .out_dims = dims,
                                             .sizes = sizes,
                                             .dtype = DT_F32});
    both = sum(g, both, n + 1, dims, 1, DT_F32);
    g->loss = graph_sum(g, "scores", -1, both);
    graph_contribute(g, g->loss, both);
    build_check(b);
    b->done = true;
}

// ---- binding -----------------------------------------------------------------------------------

// q, k, v = …: the pieces of a stack.
static void unpack_stack(struct builder *b, const struct stmt *s, struct term t)
{
    int x = as_value(b, t);
    if (b->failed)
        return;
    if (t.kind == TERM_VALUE && t.nvalues == s->nnames) {
        for (int i = 0; i < s->nnames; i++)
            bind_name(b, s->name[i], term_value(x + i));
        return;
    }
    const struct value v = b->g->values[x];
    if (v.shape.n == 0 || v.dims[0] != DIM_QKV || v.shape.dim[0] != s->nnames ||
        s->nnames > OP_MAX_OUT) {
        build_fail(b,
                   "%s is no stack of %d (at most %d) values: a parameter's dimension %d makes one",
                   dims_of(b, x), s->nnames, OP_MAX_OUT, s->nnames);
        return;
    }
    build_at(b, v.shape.n - 1, v.dims + 1);
    int first = graph_op(b->g, &(struct op_args){.op = OP_SPLIT,
                                                 .nin = 1,
                                                 .in = &x,
                                                 .nout_dims = v.shape.n - 1,
                                                 .out_dims = v.dims + 1,
                                                 .nout = s->nnames});
    build_check(b);
    for (int i = 0; i < s->nnames && !b->failed; i++)
        bind_name(b, s->name[i], term_value(first + i));
}

static void bind_one(struct builder *b, const struct stmt *s, int i, struct term t)
{
    const char *name = s->name[i];
    if (t.kind == TERM_SUM && t.nkeep) // made here, not where it is read
        t = term_value(as_value(b, t));
    const struct expr old = {.kind = EXPR_PATH, .at = s->at, .name = name};
    if (strcmp(name, "loss") == 0)
        add_loss(b, t);
    else if (s->adds)
        bind_name(b, name, algebra_operator(b, SIGN_ADD, evaluate(b, &old), t));
    else
        bind_name(b, name, t);
}

static enum point find_point(struct builder *b, const char *name)
{
    const char *known[POINT_COUNT];
    for (int p = 1; p < POINT_COUNT; p++) {
        known[p - 1] = point_name((enum point)p);
        if (strcmp(known[p - 1], name) == 0)
            return (enum point)p;
    }
    const char *near = suggest(name, known, POINT_COUNT - 1);
    build_fail(b, "%s is no activation point: try %s", name, near ? near : "act_seq");
    return POINT_NONE;
}

static void run_bind(struct builder *b, const struct stmt *s)
{
    bool loss = strcmp(s->name[0], "loss") == 0;
    bool logits = strcmp(s->name[0], "logits") == 0 && b->calls == 0;
    int64_t layers = b->layers;
    struct term t[MODEL_MAX_LIST];
    if (loss && ends_at_logits(b))
        return;
    if (s->n > MODEL_MAX_LIST || s->nnames > MODEL_MAX_LIST) {
        build_fail(b, "more than %d values in a line", MODEL_MAX_LIST);
        return;
    }
    PRE(s->n > 0);
    b->point = s->point ? find_point(b, s->point) : POINT_NONE;
    b->drawing = logits && b->run.kind == PROGRAM_SAMPLE;
    for (int i = 0; i < s->n && !b->failed; i++)
        t[i] = evaluate(b, s->value[i]);
    if (loss)
        note_left_out(b, s, layers);
    b->bound_logits |= logits;
    b->at = s->value[0];
    if (b->drawing && !b->failed)
        draw_from(b, t[0]);
    else if (logits && b->run.kind == PROGRAM_SCORE && !b->failed)
        score_by(b, t[0]);
    else if (s->n == 1 && s->nnames > 1 && !b->failed)
        unpack_stack(b, s, t[0]);
    else
        for (int i = 0; i < s->n && !b->failed; i++)
            bind_one(b, s, i, t[i]);
    for (int i = 0; i < s->nnames && b->run.named && !b->failed; i++)
        for (int k = b->body; k < b->nbindings; k++) {
            const struct bound_name *to = &b->bindings[k];
            if (strcmp(to->name, s->name[i]) == 0 && to->term.kind == TERM_VALUE)
                b->run.named(b->run.ctx, s->at.line, to->name, dims_of(b, to->term.value));
        }
    b->drawing = false;
    b->point = POINT_NONE;
}

// ---- layers and blocks -------------------------------------------------------------------------

// Names the scope in which people and rematerialisation see the nodes that follow.
static void set_graph_scope(struct builder *b)
{
    if (!b->in_layer)
        graph_scope(b->g, "%s", b->block ? b->block : b->layers ? "head" : "embed");
}

static bool is_scope(const struct graph *g, const char *name)
{
    bool any = false;
    for (int i = 0; i < g->nscopes && !any; i++)
        any = strcmp(g->scopes[i], name) == 0;
    return any;
}

// A layer of the model: what a pipeline may cut at, and what is remade alone. False: it lies in
// another.
static bool begin_layer(struct builder *b)
{
    if (b->in_layer)
        return false;
    if (b->layers == MODEL_MAX_LAYERS)
        build_fail(b, "more than %d layers", MODEL_MAX_LAYERS);
    b->in_layer = true;
    b->past_layers |= b->calls == 0;
    if (!b->bound_logits && !b->counted.skipped)
        b->counted.skipped = b->left_out;
    // Layers with one path may share parameters, but each is a layer of its own.
    if (!*b->prefix)
        graph_scope(b->g, "layer %lld", (long long)b->layers);
    else if (is_scope(b->g, b->prefix))
        graph_scope(b->g, "%s (layer %lld)", b->prefix, (long long)b->layers);
    else
        graph_scope(b->g, "%s", b->prefix);
    graph_layer(b->g, b->layers++);
    return true;
}

static void end_layer(struct builder *b, bool began)
{
    if (!began)
        return;
    b->in_layer = false;
    set_graph_scope(b);
}

static struct term make_width(struct builder *b, const struct stmt *s, const struct number *list,
                              int n)
{
    const char *name = s->nlike ? s->like[n % s->nlike] : s->nnames ? s->name[0] : "width";
    int64_t item = list->item[n];
    return (struct term){
        .kind = TERM_SIZE,
        .number = number_of((double)item, true),
        .dim = {.dim = dims_id(b->g->dims, name), .extent = item},
    };
}

// repeat COUNT as index, or repeat LIST as width, index.
static void run_repeat(struct builder *b, const struct stmt *s)
{
    const struct expr *over = s->value[0];
    struct term t = evaluate_outside(b, over);
    const char *outer = b->prefix;
    bool list = t.kind == TERM_LIST, named = !list && t.kind == TERM_SIZE && over->name;
    if (!b->failed && !list && !term_has_number(&t))
        build_fail(b, "repeat is of a number or of a list");
    double count = list ? t.number.n : t.number.value;
    if (!b->failed && !(number_is_whole(count) && count >= 0 && count <= MODEL_MAX_LAYERS))
        build_fail(b, "repeated %g times: try 0 to %d times", count, MODEL_MAX_LAYERS);
    for (int n = 0; n < (int)count && !b->failed && !b->returned && !b->done; n++) {
        b->prefix = arena_printf(b->arena, "%s%s%s/%d", outer, *outer ? "/" : "",
                                 named ? over->name : "layers", n);
        bool began = begin_layer(b);
        int around = b->turn;
        b->turn = ++b->turns;
        if (list && s->nnames)
            bind_name(b, s->name[0], make_width(b, s, &t.number, n));
        if (s->nnames > list)
            bind_name(b, s->name[list], term_number(n, true));
        run_block(b, s->body);
        b->turn = around;
        end_layer(b, began);
    }
    b->prefix = outer;
}

static void run_scope(struct builder *b, const struct stmt *s)
{
    const char *outer = b->prefix, *block = b->block;
    b->prefix = path_join(b, outer, &s->path);
    bool began = stmt_is_layer(s) && begin_layer(b);
    if (!began && !b->calls && !block)
        b->block = b->prefix;
    b->counted.blocks |= !b->in_layer && !b->calls;
    set_graph_scope(b);
    run_block(b, s->body);
    b->prefix = outer;
    b->block = block;
    end_layer(b, began);
    set_graph_scope(b);
}

static void run_if(struct builder *b, const struct stmt *s)
{
    bool holds = evaluate_number(b, s->value[0]) != 0;
    if (!b->failed)
        run_block(b, holds ? s->body : s->otherwise);
}

static void run_return(struct builder *b, const struct stmt *s)
{
    struct term t = s->n == 1 ? evaluate(b, s->value[0]) : build_fail(b, "one value is returned");
    if (!b->calls)
        build_fail(b, "return is for `let` functions");
    b->result = t;
    b->returned = true;
}

static void run_block(struct builder *b, const struct stmt *s)
{
    static void (*const runs[])(struct builder *, const struct stmt *) = {
        [STMT_BIND] = run_bind,   [STMT_REPEAT] = run_repeat, [STMT_IF] = run_if,
        [STMT_SCOPE] = run_scope, [STMT_REPORT] = run_report, [STMT_RETURN] = run_return,
    };
    const int outer = b->g->line; // of a call of the block
    for (; s && !b->failed && !b->returned && !b->done; s = s->next) {
        const struct expr here = {.kind = EXPR_PATH, .at = s->at};
        b->at = &here;
        b->g->line = s->at.line;
        runs[s->kind](b, s);
        b->at = NULL;
    }
    b->g->line = outer;
}

// A body sees its arguments, the sizes and the data, and no other body's names.
static struct term run_let(struct builder *b, const struct let *let, const struct term *arg)
{
    int outer = b->body, n = b->nbindings;
    enum point point = b->point;
    if (b->calls == MODEL_MAX_CALLS)
        return build_fail(b, "functions call each other more than %d deep: none may call itself",
                          MODEL_MAX_CALLS);
    b->calls++;
    b->body = n;
    for (int i = 0; i < let->n; i++)
        bind_name(b, let->param[i], arg[i]);
    b->result = (struct term){0};
    run_block(b, let->body);
    if (!b->failed && !b->returned)
        build_fail(b, "%s returns nothing", let->name);
    b->returned = false;
    b->body = outer;
    b->nbindings = n;
    b->point = point;
    b->calls--;
    return b->result;
}

// ---- the whole ---------------------------------------------------------------------------------

// A parameter that nothing of the loss depends on would never be trained.
static void check_reached(struct builder *b)
{
    const struct graph *g = b->g;
    bool *reached = arena_array(b->arena, bool, g->nvalues);
    for (int i = 0; i < g->nsums; i++)
        for (int c = 0; g->sums[i].value == g->loss && c < g->sums[i].n; c++)
            reached[g->sums[i].contrib[c]] = true;
    for (int i = g->nnodes - 1; i >= 0; i--) {
        const struct node *n = &g->nodes[i];
        bool any = false;
        for (int k = 0; k < n->nout; k++)
            any |= reached[n->out[k]];
        for (int k = 0; k < n->nin; k++)
            reached[n->in[k]] |= any;
    }
    for (const struct made_param *p = b->newest; p && !b->failed; p = p->before) {
        const struct expr here = {.at = p->at};
        b->at = &here;
        if (!reached[p->value])
            build_fail(b, "%s is a parameter on which the loss does not depend",
                       g->values[p->value].name);
        b->at = NULL;
    }
}

static void check_whole(struct builder *b)
{
    b->at = NULL;
    if (b->failed)
        return;
    if (ends_at_logits(b) && !b->done)
        build_fail(b, b->run.kind == PROGRAM_SAMPLE
                          ? "no line binds `logits`, so there is nothing to draw text from"
                          : "no line binds `logits`, so there is nothing to score by");
    else if (b->g->loss < 0)
        build_fail(b, "the program has no loss: try loss = cross_entropy(logits, targets)");
    else if (b->run.kind == PROGRAM_TRAIN)
        check_reached(b);
}

static int report_failure(struct builder *b)
{
    struct graph *g = b->g;
    const struct model_error *e = &b->errs.item[0];
    if (!b->failed)
        return g->failed;
    g->failed = g->failed ? g->failed : ERR_INVALID;
    return err_set(g->err, g->failed, "%s:%d:%d: %s", b->sizes->program->name, e->at.line,
                   e->at.column, e->message);
}

int model_build(struct graph *g, const struct model_sizes *sizes, const struct model_run *run)
{
    struct builder b = {
        .g = g,
        .arena = g->arena,
        .sizes = sizes,
        .run = *run,
        .errs = {.arena = g->arena},
        .draws = draws_init(g, run->seed, run->kind == PROGRAM_TRAIN),
        .prefix = "",
        .run_let = run_let,
        .tokens = -1,
        .positions = -1,
        .targets = -1,
        .last = -1,
        .images = -1,
        .labels = -1,
    };
    // Each size's dimension takes the rule that the text says.
    const struct model_program *p = b.sizes->program;
    for (int i = 0; i < p->nsizes; i++)
        if (p->sizes[i].kind == MODEL_WHOLE && p->sizes[i].like)
            dims_set_like(b.g->dims, dims_id(b.g->dims, p->sizes[i].name),
                          dims_id(b.g->dims, p->sizes[i].like));
    set_graph_scope(&b);
    run_block(&b, sizes->program->syntax->body);
    check_whole(&b);
    if (run->layers) {
        *run->layers = b.counted;
        run->layers->n = (int)b.layers;
    }
    map_clear(&b.params);
    map_clear(&b.sites);
    map_clear(&b.lasts);
    return report_failure(&b);
}
