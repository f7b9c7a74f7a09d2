// SPDX-License-Identifier: Apache-2.0
// Expressions of the model section. See expression.h.
#include "common/model/expression.h"

#include <string.h>

#include "common/base/suggest.h"
#include "common/model/algebra.h"
#include "common/model/functions.h"
#include "common/model/model_inputs.h"

enum { LET_ARGS = 16 };

// ---- names -------------------------------------------------------------------------------------

void bind_name(struct builder *b, const char *name, struct term t)
{
    for (int i = b->body; i < b->nbindings; i++)
        if (strcmp(b->bindings[i].name, name) == 0) {
            b->bindings[i].term = t;
            return;
        }
    if (b->nbindings - b->body == MODEL_MAX_NAMES) {
        build_fail(b, "more than %d names in one body", MODEL_MAX_NAMES);
        return;
    }
    b->bindings =
        arena_grow(b->arena, b->bindings, sizeof *b->bindings, b->nbindings, &b->bindings_cap);
    b->bindings[b->nbindings++] = (struct bound_name){name, t};
}

static const struct term *find_binding(const struct builder *b, const char *name)
{
    for (int i = b->body; i < b->nbindings; i++)
        if (strcmp(b->bindings[i].name, name) == 0)
            return &b->bindings[i].term;
    return NULL;
}

static struct term make_size_term(struct builder *b, int size)
{
    static const enum term_kind kinds[] = {[MODEL_WHOLE] = TERM_SIZE,
                                           [MODEL_NUMBER] = TERM_NUMBER,
                                           [MODEL_LIST] = TERM_LIST,
                                           [MODEL_CHOICE] = TERM_WORD};
    const struct model_size *s = &b->sizes->program->sizes[size];
    struct term t = {.kind = kinds[s->kind], .number = b->sizes->value[size].number, .size = size};
    if (s->kind == MODEL_WHOLE)
        t.dim = dimension_of_size(b, size);
    return t;
}

// What the builder itself says: samples of the step, and which program is built.
static bool find_given(const struct builder *b, const char *name, struct term *out)
{
    const struct {
        const char *name;
        double value;
    } given[] = {{"samples", (double)b->run.step_batch},
                 {"training", b->run.kind == PROGRAM_TRAIN},
                 {"evaluating", b->run.kind == PROGRAM_EVAL || b->run.kind == PROGRAM_SCORE},
                 {"sampling", b->run.kind == PROGRAM_SAMPLE}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (strcmp(given[i].name, name) == 0) {
            *out = term_number(given[i].value, true);
            return true;
        }
    return false;
}

static struct term report_unknown(struct builder *b, const char *name)
{
    const char *known[MODEL_MAX_NAMES + MODEL_MAX_SIZES + 8];
    int n = 0;
    for (int i = b->body; i < b->nbindings; i++)
        known[n++] = b->bindings[i].name;
    for (int i = 0; i < b->sizes->program->nsizes; i++)
        known[n++] = b->sizes->program->sizes[i].name;
    for (int i = 0; input_names[i]; i++)
        known[n++] = input_names[i];
    const char *near = suggest(name, known, n);
    if (near)
        return build_fail(b, "nothing is called %s here: did you mean %s?", name, near);
    return build_fail(b,
                      "nothing is called %s here: it is bound further down, or a parameter "
                      "without its dimensions, %s[…]",
                      name, name);
}

static bool find_name(struct builder *b, const char *name, struct term *out)
{
    const struct term *bound = find_binding(b, name);
    int size = bound ? -1 : model_size_find(b->sizes->program, name);
    if (bound)
        *out = *bound;
    else if (size >= 0)
        *out = make_size_term(b, size);
    else
        return find_given(b, name, out) || input_find(b, name, out);
    return true;
}

static struct term evaluate_name(struct builder *b, const char *name)
{
    struct term out = {0};
    if (!find_name(b, name, &out))
        return report_unknown(b, name);
    if (b->drawing && !b->failed && (out.kind == TERM_VALUE || out.kind == TERM_SUM))
        out = term_value(input_last_rows(b, as_value(b, out)));
    return out;
}

// ---- numbers -----------------------------------------------------------------------------------

struct term evaluate_outside(struct builder *b, const struct expr *e)
{
    bool in_layer = b->in_layer;
    b->in_layer = true;
    struct term t = evaluate(b, e);
    b->in_layer = in_layer;
    return t;
}

double evaluate_number(struct builder *b, const struct expr *e)
{
    struct term t = evaluate_outside(b, e);
    if (!b->failed && !term_has_number(&t)) {
        b->at = e;
        build_fail(b, "a number is wanted here");
    }
    return b->failed ? 0 : t.number.value;
}

static int64_t evaluate_whole(struct builder *b, const struct expr *e)
{
    double v = evaluate_number(b, e);
    if (!b->failed && !number_is_whole(v)) {
        b->at = e;
        build_fail(b, "%g: a whole number is wanted here", v);
    }
    return b->failed ? 1 : (int64_t)v;
}

// ---- parameters --------------------------------------------------------------------------------

const char *path_join(struct builder *b, const char *prefix, const struct path *path)
{
    struct buf text = {0};
    buf_puts(&text, prefix);
    for (int i = 0; i < path->n; i++) {
        const struct path_part *part = &path->part[i];
        if (text.len)
            buf_putc(&text, '/');
        if (part->name)
            buf_puts(&text, part->name);
        else
            buf_printf(&text, "%lld", (long long)evaluate_whole(b, part->number));
    }
    return buf_keep(&text, b->arena);
}

// *open: no size is called so, its extent is the operand's.
static struct dimension evaluate_dimension(struct builder *b, const struct written_dim *w,
                                           bool *open)
{
    struct term t = {0};
    if (!w->name) // a number stacks
        return (struct dimension){.dim = DIM_QKV, .extent = evaluate_whole(b, w->size)};
    if (w->size) { // of a size that is padded: with its padding
        t = evaluate_outside(b, w->size);
        bool whole = t.kind != TERM_SIZE;
        return (struct dimension){.dim = dims_id(b->g->dims, w->name),
                                  .extent = whole ? evaluate_whole(b, w->size) : t.dim.extent,
                                  .limit = whole ? 0 : t.dim.limit};
    }
    *open = !find_name(b, w->name, &t);
    if (*open)
        return (struct dimension){.dim = dims_id(b->g->dims, w->name)};
    if (!b->failed && t.kind != TERM_SIZE)
        build_fail(b, "%s is no size, so no dimension: try %s = SIZE", w->name, w->name);
    return t.dim;
}

static void read_init(struct builder *b, const struct expr *e, struct written_param *to)
{
    bool call = e->kind == EXPR_CALL && e->n == 1;
    to->initial.kind = e->name ? initial_find(e->name, call) : INITIAL_UNSAID;
    if (!to->initial.kind) {
        b->at = e;
        build_fail(b, "initial values are " INITIAL_FORMS);
        return;
    }
    to->initial.number = call ? evaluate_number(b, e->arg[0]) : 0;
    if (to->initial.number < 0)
        build_fail(b, "initial values cannot deviate by less than nothing");
}

// attn.out[heads, head, embed] ~ normal(0.02)
static struct term evaluate_param(struct builder *b, const struct expr *e)
{
    struct written_param *p = arena_new(b->arena, struct written_param);
    p->path = path_join(b, b->prefix, &e->path);
    p->n = e->has_dims ? e->ndims : -1;
    p->at = e;
    if (p->n > MAX_DIMS)
        return build_fail(b, "%d dimensions: try at most %d", p->n, MAX_DIMS);
    for (int d = 0; d < p->n && !b->failed; d++) {
        const struct written_dim *w = &e->dims[d];
        p->star[d] = w->star;
        p->last[d] = w->name && !w->size && strcmp(w->name, "_") == 0;
        if (!p->last[d])
            p->dims[d] = evaluate_dimension(b, w, &p->open[d]);
        if (!b->failed && !p->last[d] && !p->open[d] &&
            (p->dims[d].extent < 1 || p->dims[d].extent > 1 << 30))
            build_fail(b, "a dimension of %lld: try 1 to %d", (long long)p->dims[d].extent,
                       1 << 30);
    }
    if (e->init && !b->failed)
        read_init(b, e->init, p);
    return b->failed ? (struct term){0} : (struct term){.kind = TERM_PARAM, .param = p};
}

// ---- calls -------------------------------------------------------------------------------------

// The path that a draw over this expression takes its name from: of its outermost product's weight.
static const char *find_drawn(struct builder *b, const struct expr *e)
{
    bool product = e->kind == EXPR_CALL || (e->kind == EXPR_OPERATOR && e->sign == SIGN_CONTRACT);
    for (int i = 0; product && i < e->n; i++)
        if (e->arg[i]->kind == EXPR_PATH && e->arg[i]->has_dims && e->arg[i]->path.n)
            return path_join(b, b->prefix, &e->arg[i]->path);
    return NULL;
}

// The path of attn: f(x), or null.
static const char *find_dropped(struct builder *b, const struct expr *e)
{
    const char *path = NULL;
    for (; e->kind == EXPR_SCOPE; e = e->arg[0])
        path = path_join(b, path ? path : b->prefix, &e->path);
    return path;
}

static struct term evaluate_argument(struct builder *b, const struct expr *e, enum want want)
{
    struct term t;
    b->at = e;
    if (want == WANT_DIM) {
        const struct term *bound = e->name ? find_binding(b, e->name) : NULL;
        if (e->kind != EXPR_PATH || !e->name || e->has_dims)
            return build_fail(b, "the name of a dimension is wanted here");
        if (bound && (bound->kind == TERM_SIZE || bound->kind == TERM_DIM))
            return (struct term){.kind = TERM_DIM, .dim = bound->dim};
        return (struct term){.kind = TERM_DIM, .dim = {.dim = dims_id(b->g->dims, e->name)}};
    }
    if (want == WANT_PATH) {
        if (e->kind != EXPR_PATH || e->has_dims)
            return build_fail(b, "the path of a parameter is wanted here, such as norm1");
        return evaluate_param(b, e);
    }
    t = evaluate(b, e);
    b->at = e;
    if (!b->failed && want == WANT_NUMBER && !term_has_number(&t))
        return build_fail(b, "a number is wanted here");
    if (!b->failed && want == WANT_WEIGHT && t.kind != TERM_PARAM)
        return build_fail(b, "a parameter is wanted here, such as mlp.in[embed, mlp]");
    return t;
}

// The place of the call's argument i among the function's; −1: it has none such.
static int place_argument(struct builder *b, const struct function *f, const struct expr *e, int i)
{
    const char *keyword = e->keyword[i];
    for (int k = 0; k < FUNCTION_ARGS && f->arg[k].name; k++)
        if (keyword ? strcmp(f->arg[k].name, keyword) == 0 : k == i)
            return k;
    b->at = e->arg[i];
    if (keyword)
        build_fail(b, "%s has no argument called %s", f->name, keyword);
    else
        build_fail(b, "%s has fewer arguments than %d", f->name, e->n);
    return -1;
}

// An elementwise op of one operand has no function of its own.
static struct term apply_function(struct builder *b, const struct function *f,
                                  const struct term *arg)
{
    return f->call ? f->call(b, arg) : algebra_apply(b, f->op, arg[0]);
}

static struct term call_function(struct builder *b, const struct function *f, const struct expr *e,
                                 const char *scope)
{
    struct term arg[FUNCTION_ARGS] = {0};
    const char *prefix = b->prefix;
    for (int i = 0; i < e->n && !b->failed; i++) {
        int k = place_argument(b, f, e, i);
        if (k >= 0 && arg[k].kind)
            return build_fail(b, "%s is given twice", f->arg[k].name);
        if (k >= 0)
            arg[k] = evaluate_argument(b, e->arg[i], f->arg[k].want);
    }
    b->at = e;
    for (int k = 0; k < FUNCTION_ARGS && f->arg[k].name && !b->failed; k++)
        if (!f->arg[k].optional && !arg[k].kind)
            return build_fail(b, "%s lacks its argument %s", f->name, f->arg[k].name);
    if (b->failed)
        return (struct term){0};
    b->prefix = scope ? scope : prefix;
    b->drawn = scope || !e->n ? NULL : find_drawn(b, e->arg[0]);
    b->dropped = scope || !e->n ? NULL : find_dropped(b, e->arg[0]);
    struct term out = apply_function(b, f, arg);
    build_check(b);
    b->prefix = prefix;
    b->drawn = b->dropped = NULL;
    return out;
}

static struct term call_number_function(struct builder *b, const struct number_function *f,
                                        const struct expr *e)
{
    struct number arg[LET_ARGS] = {0};
    const char *fault;
    for (int i = 0; i < e->n && i < LET_ARGS && !b->failed; i++) {
        struct term t = evaluate(b, e->arg[i]);
        b->at = e;
        if (!b->failed && !term_has_number(&t) && t.kind != TERM_LIST)
            build_fail(b, "%s is a function of numbers", f->name);
        arg[i] = t.number;
    }
    if (b->failed)
        return (struct term){0};
    struct number n = number_call(b->arena, f, arg, e->n, &fault);
    if (fault)
        return build_fail(b, "%s: %s", f->name, fault);
    return n.list ? (struct term){.kind = TERM_LIST, .number = n} : term_number(n.value, n.whole);
}

static struct term call_let(struct builder *b, const struct let *let, const struct expr *e,
                            const char *scope)
{
    struct term arg[LET_ARGS];
    const char *prefix = b->prefix;
    if (e->n != let->n || e->n > LET_ARGS)
        return build_fail(b, "%s takes %d arguments, and %d are given", let->name, let->n, e->n);
    for (int i = 0; i < e->n && !b->failed; i++) {
        b->at = e->arg[i];
        if (e->keyword[i])
            return build_fail(b, "arguments of a `let` have no names where it is called");
        arg[i] = evaluate(b, e->arg[i]);
    }
    b->at = e;
    if (b->failed)
        return (struct term){0};
    b->prefix = scope ? scope : prefix;
    struct term out = b->run_let(b, let, arg);
    b->prefix = prefix;
    return out;
}

// Functions of other languages, and what there is in their place.
static const struct {
    const char *words[12], *what;
} missing[] = {
    {{"conv", "conv1d", "conv2d", "conv3d", "convolution"},
     "there is no convolution yet: patches of an image are a product, linear(images, "
     "patches[inputs, patch, embed])"},
    {{"reshape", "view", "flatten", "split", "rearrange", "unsqueeze", "squeeze"},
     "dimensions are not split or joined yet: a weight brings several at once, x @ w[embed, heads, "
     "head], and x{old as new} names one otherwise"},
    {{"slice", "gather", "take", "index", "roll", "shift"},
     "a part of a dimension cannot be read yet"},
    {{"concat", "concatenate", "cat", "stack", "pad"},
     "values are not put together yet: a weight's number stacks, q, k, v = linear(x, w[3, "
     "...]), and two products are added up"},
    {{"where", "equal", "greater", "less", "maximum", "minimum", "clip", "clamp", "mask"},
     "values are not compared yet: relu, causal() and the `if` of sizes are there"},
    {{"scan", "cumsum", "cumprod", "lstm", "gru", "rnn"},
     "there is no scan yet: nothing is carried along a sequence but by attention"},
    {{"abs", "sin", "cos", "pow", "square", "rsqrt"},
     "there is none yet: x * x, sqrt, exp and log are there"},
    {{"transpose", "permute", "swapaxes"},
     "dimensions go by their names, so that their order does not matter; swap(x) exchanges the "
     "first two"},
    {{"matmul", "dot", "bmm", "einsum", "dense"},
     "a product is x @ w, which sums over the names that both have, or linear(x, w[...])"},
};

static struct term report_unknown_function(struct builder *b, const char *name)
{
    const char *known[MODEL_MAX_NAMES] = {0};
    const struct syntax *s = b->sizes->program->syntax;
    int n = 0;
    for (const struct function *f = functions; f->name && n < MODEL_MAX_NAMES; f++)
        known[n++] = f->name;
    for (int i = 0; i < s->nlets && n < MODEL_MAX_NAMES; i++)
        known[n++] = s->let[i].name;
    const char *near = suggest(name, known, n), *lacking = NULL;
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        for (const char *const *w = missing[i].words; *w && !lacking; w++)
            lacking = strcmp(*w, name) == 0 ? missing[i].what : NULL;
    struct buf all = {0};
    for (int i = 0; i < n; i++)
        buf_printf(&all, "%s%s", i ? ", " : "", known[i]);
    if (lacking)
        build_fail(b, "no function is called %s: %s", name, lacking);
    else if (near)
        build_fail(b, "no function is called %s: did you mean %s? There are %s", name, near,
                   buf_str(&all));
    else
        build_fail(b, "no function is called %s: there are %s", name, buf_str(&all));
    buf_clear(&all);
    return (struct term){0};
}

// A program's own functions stand before weft's, and a value's before a number's.
static struct term evaluate_call(struct builder *b, const struct expr *e)
{
    const char *scope = b->scope;
    const struct let *let = let_find(b->sizes->program->syntax, e->name);
    const struct function *f = let ? NULL : function_find(e->name);
    const struct number_function *of_numbers = let ? NULL : number_function(e->name);
    b->scope = NULL;
    if (let)
        return call_let(b, let, e, scope);
    if (f && of_numbers && e->n == 1) { // sqrt is of either
        struct term t = evaluate(b, e->arg[0]);
        b->at = e;
        if (b->failed || !term_has_number(&t))
            return b->failed ? t : apply_function(b, f, &t);
        return call_number_function(b, of_numbers, e);
    }
    if (f)
        return call_function(b, f, e, scope);
    return of_numbers ? call_number_function(b, of_numbers, e)
                      : report_unknown_function(b, e->name);
}

// attn: f(x)
static struct term evaluate_scope(struct builder *b, const struct expr *e)
{
    const struct expr *call = e->arg[0];
    b->scope = path_join(b, b->scope ? b->scope : b->prefix, &e->path);
    if (call->kind == EXPR_CALL || call->kind == EXPR_SCOPE)
        return evaluate(b, call);
    return build_fail(b, "NAME: is of a call, as in attn: f(x)");
}

// ---- operators ---------------------------------------------------------------------------------

static struct term evaluate_operator(struct builder *b, const struct expr *e)
{
    struct term x = evaluate(b, e->arg[0]), y;
    b->at = e;
    if (b->failed)
        return x;
    if (x.kind == TERM_WORD && e->n == 2) {
        // activation == relu: a choice and a word of it.
        const struct model_size *s = &b->sizes->program->sizes[x.size];
        const char *word = e->arg[1]->name;
        if (e->sign != SIGN_EQ && e->sign != SIGN_NE)
            return build_fail(b, "a choice of words is compared with == or !=");
        for (int i = 0; word && s->words[i]; i++)
            if (strcmp(s->words[i], word) == 0)
                return term_number((x.number.value == i) == (e->sign == SIGN_EQ), true);
        b->at = e->arg[1];
        return build_fail(b, "%s is no word of %s", word ? word : "this", s->name);
    }
    if (e->sign == SIGN_NEGATE && !term_has_number(&x))
        return algebra_operator(b, SIGN_MUL, x, term_number(-1, true));
    if (e->n == 1)
        y = term_number(0, true);
    else
        y = evaluate(b, e->arg[1]);
    b->at = e;
    return b->failed ? y : algebra_operator(b, e->sign, x, y);
}

struct term evaluate(struct builder *b, const struct expr *e)
{
    struct term t;
    b->at = e;
    if (!b->failed && ++b->steps > MODEL_MAX_STEPS)
        build_fail(b, "building the model takes more than %d steps", MODEL_MAX_STEPS);
    if (b->failed)
        return (struct term){0};
    switch (e->kind) {
    case EXPR_NUMBER:
        return term_number(e->number, e->whole);
    case EXPR_PATH:
        return e->has_dims || e->init || !e->name ? evaluate_param(b, e)
                                                  : evaluate_name(b, e->name);
    case EXPR_CALL:
        return evaluate_call(b, e);
    case EXPR_OPERATOR:
        return evaluate_operator(b, e);
    case EXPR_CHOOSE:
        return evaluate(b, e->arg[evaluate_number(b, e->arg[1]) != 0 ? 0 : 2]);
    case EXPR_RENAME:
        t = evaluate(b, e->arg[0]);
        b->at = e;
        return algebra_rename(b, t, e);
    case EXPR_SCOPE:
        return evaluate_scope(b, e);
    case EXPR_LIST:
    case EXPR_BY:
    case EXPR_TEXT:
        break;
    }
    return build_fail(b, "lists are for the sizes section");
}
