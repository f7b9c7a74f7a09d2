// SPDX-License-Identifier: Apache-2.0
// The number of layers. See layer_count.h.
#include "common/model/language/layer_count.h"

#include <string.h>

enum { MOST_ARGS = 16 };

// What an expression comes to.
enum known_kind { UNKNOWN, KNOWN_NUMBER, KNOWN_WORD };
struct known {
    enum known_kind kind;
    struct number number; // NUMBER; WORD: its index
    int size;             // WORD: of the choice
    const char *fault;    // UNKNOWN: why a number is none, or null
};

struct known_name {
    const char *name;
    struct known is;
};

struct counter {
    const struct model_sizes *sizes;
    const struct syntax *syntax;
    struct model_errors *errs;
    bool failed;
    // The first line on whose unknown condition or count the number of layers depends; 0: none.
    int unclear;
    int64_t layers;
    bool blocks, in_layer;
    bool drawn;               // `logits` has been bound
    int skips;                // the first line with layers that sampling leaves out
    int behind;               // that line, once layers that sampling needs have come after it
    struct known_name *names; // of the bodies at work, the innermost from `body` on
    int body, nnames, names_cap;
    int calls, steps;
    bool returned; // a `return` ended the body: what it gives
    struct known result;
    // The unknown condition on which a body at work has returned, or null.
    const struct expr *perhaps;
    int doubts; // such conditions met
};

static struct known evaluate_expr(struct counter *c, const struct expr *e);
static void count_block(struct counter *c, const struct stmt *s);

// ---- faults ------------------------------------------------------------------------------------

static bool is_bound(const struct counter *c, const char *name)
{
    bool any = false;
    for (int i = c->body; i < c->nnames && !any; i++)
        any = strcmp(c->names[i].name, name) == 0;
    return any;
}

// Layers depend on what sizes do not tell: on a fault or a misspelt size, which is told, or on what
// the builder alone may know, which is wrong only where a pipeline is cut.
static void note_unknown(struct counter *c, const struct expr *e, const char *fault)
{
    const char *near = e->kind == EXPR_PATH && !e->has_dims && e->name && !is_bound(c, e->name)
                           ? model_size_suggest(c->sizes->program, e->name)
                           : NULL;
    if (fault)
        model_error_at(c->errs, e->at, "%s", fault);
    else if (near)
        model_error_at(c->errs, e->at, "no size is called %s: %s would do", e->name, near);
    else if (!c->unclear)
        c->unclear = e->at.line;
    c->failed |= fault || near;
}

// False: that is enough, which has been told.
static bool take_step(struct counter *c, struct text_place at)
{
    if (!c->failed && ++c->steps > MODEL_MAX_STEPS)
        c->failed = model_error_at(c->errs, at, "counting the model's layers takes over %d steps",
                                   MODEL_MAX_STEPS) != 0;
    return !c->failed;
}

static void add_layers(struct counter *c, struct text_place at, double n)
{
    if (c->in_layer || n == 0)
        return;
    if (c->perhaps)
        note_unknown(c, c->perhaps, NULL);
    if ((double)c->layers + n > MODEL_MAX_LAYERS)
        c->failed = model_error_at(c->errs, at, "%.6g layers: 0 to %d of a model would do",
                                   (double)c->layers + n, MODEL_MAX_LAYERS) != 0;
    else
        c->layers += (int64_t)n;
    if (c->skips && !c->drawn && !c->behind)
        c->behind = c->skips;
}

// ---- names -------------------------------------------------------------------------------------

static struct known know_number(struct number n)
{
    return (struct known){.kind = KNOWN_NUMBER, .number = n};
}

static void bind_name(struct counter *c, const char *name, struct known is)
{
    for (int i = c->body; i < c->nnames; i++)
        if (strcmp(c->names[i].name, name) == 0) {
            c->names[i].is = is;
            return;
        }
    if (c->nnames - c->body == MODEL_MAX_NAMES)
        return;
    c->names = arena_grow(c->errs->arena, c->names, sizeof *c->names, c->nnames, &c->names_cap);
    c->names[c->nnames++] = (struct known_name){name, is};
}

static struct known find_name(const struct counter *c, const char *name)
{
    const struct model_program *p = c->sizes->program;
    for (int i = c->body; i < c->nnames; i++)
        if (strcmp(c->names[i].name, name) == 0)
            return c->names[i].is;
    int size = model_size_find(p, name);
    if (size < 0)
        return (struct known){0};
    return (struct known){
        .kind = p->sizes[size].kind == MODEL_CHOICE ? KNOWN_WORD : KNOWN_NUMBER,
        .number = c->sizes->value[size].number,
        .size = size,
    };
}

// What a block that was not walked, or that may not have been, binds.
static void forget_block(struct counter *c, const struct stmt *s)
{
    for (; s && take_step(c, s->at); s = s->next) {
        bool binds = s->kind == STMT_BIND || s->kind == STMT_REPEAT;
        for (int i = 0; i < s->nnames && binds; i++)
            bind_name(c, s->name[i], (struct known){0});
        forget_block(c, s->body);
        forget_block(c, s->otherwise);
    }
}

// ---- expressions -------------------------------------------------------------------------------

static bool is_condition(const struct known *k)
{
    return k->kind == KNOWN_NUMBER && !k->number.list;
}

static struct known compare_word(const struct counter *c, const struct expr *e,
                                 const struct known *choice)
{
    const struct model_size *s = &c->sizes->program->sizes[choice->size];
    for (int i = 0; e->arg[1]->name && s->words[i]; i++)
        if (strcmp(s->words[i], e->arg[1]->name) == 0)
            return know_number(
                number_of((choice->number.value == i) == (e->sign == SIGN_EQ), true));
    return (struct known){0};
}

static struct known apply_sign(enum sign sign, const struct known *x, const struct known *y)
{
    struct known out = {.kind = KNOWN_NUMBER};
    if (x->kind != KNOWN_NUMBER || y->kind != KNOWN_NUMBER)
        return (struct known){.fault = x->fault ? x->fault : y->fault};
    out.number = number_apply(sign, x->number, y->number, &out.fault);
    out.kind = out.fault ? UNKNOWN : KNOWN_NUMBER;
    return out;
}

static struct known evaluate_operator(struct counter *c, const struct expr *e)
{
    struct known x = evaluate_expr(c, e->arg[0]), y = know_number(number_of(0, true));
    if (x.kind == KNOWN_WORD && e->n == 2 && (e->sign == SIGN_EQ || e->sign == SIGN_NE))
        return compare_word(c, e, &x);
    if (e->n == 2)
        y = evaluate_expr(c, e->arg[1]);
    return apply_sign(e->sign, &x, &y);
}

// No layers are opened for what is a number and no more.
static struct known evaluate_number(struct counter *c, const struct expr *e)
{
    bool in_layer = c->in_layer;
    c->in_layer = true;
    struct known k = evaluate_expr(c, e);
    c->in_layer = in_layer;
    return k;
}

// A body sees its arguments and the sizes, and no other body's names.
static struct known call_let(struct counter *c, const struct let *let, const struct known *arg,
                             int n)
{
    struct counter outer = *c;
    if (c->calls == MODEL_MAX_CALLS) // the builder refuses it
        return (struct known){0};
    c->calls++;
    c->body = c->nnames;
    for (int i = 0; i < let->n; i++)
        bind_name(c, let->param[i], i < n ? arg[i] : (struct known){0});
    c->result = (struct known){0};
    count_block(c, let->body);
    struct known result = c->doubts == outer.doubts ? c->result : (struct known){0};
    c->calls = outer.calls;
    c->body = outer.body;
    c->nnames = outer.nnames;
    c->returned = false;
    c->perhaps = outer.perhaps;
    return result;
}

static struct known call_number(struct counter *c, const struct number_function *f,
                                const struct known *arg, int n)
{
    struct number number[MOST_ARGS];
    struct known out = {.kind = KNOWN_NUMBER};
    for (int i = 0; i < n; i++) {
        if (arg[i].kind != KNOWN_NUMBER)
            return (struct known){.fault = arg[i].fault};
        number[i] = arg[i].number;
    }
    out.number = number_call(c->errs->arena, f, number, n, &out.fault);
    out.kind = out.fault ? UNKNOWN : KNOWN_NUMBER;
    return out;
}

static struct known evaluate_call(struct counter *c, const struct expr *e)
{
    struct known arg[MOST_ARGS] = {0};
    const struct let *let = let_find(c->syntax, e->name);
    const struct number_function *f = let ? NULL : number_function(e->name);
    int n = e->n < MOST_ARGS ? e->n : MOST_ARGS;
    for (int i = 0; i < e->n && !c->failed; i++) {
        struct known k = evaluate_expr(c, e->arg[i]);
        if (i < n)
            arg[i] = k;
    }
    if (let && !c->failed)
        return call_let(c, let, arg, n);
    return f && !c->failed ? call_number(c, f, arg, n) : (struct known){0};
}

// Either of two may be read: that is right where they have as many layers.
static struct known evaluate_either(struct counter *c, const struct expr *e, const char *fault)
{
    int64_t before = c->layers;
    evaluate_expr(c, e->arg[0]);
    int64_t first = c->layers;
    c->layers = before;
    evaluate_expr(c, e->arg[2]);
    if (!c->failed && c->layers != first)
        note_unknown(c, e->arg[1], fault);
    return (struct known){0};
}

static struct known evaluate_expr(struct counter *c, const struct expr *e)
{
    struct known k = {0};
    if (!take_step(c, e->at))
        return k;
    switch (e->kind) {
    case EXPR_NUMBER:
        return know_number(number_of(e->number, e->whole));
    case EXPR_PATH:
        return e->has_dims || e->init || !e->name ? k : find_name(c, e->name);
    case EXPR_CALL:
        return evaluate_call(c, e);
    case EXPR_OPERATOR:
        return evaluate_operator(c, e);
    case EXPR_CHOOSE:
        k = evaluate_number(c, e->arg[1]);
        if (!is_condition(&k))
            return evaluate_either(c, e, k.fault);
        return evaluate_expr(c, e->arg[k.number.value != 0 ? 0 : 2]);
    case EXPR_SCOPE:
        return evaluate_expr(c, e->arg[0]);
    case EXPR_RENAME:
        evaluate_expr(c, e->arg[0]);
        return k;
    case EXPR_LIST:
    case EXPR_BY:
        break;
    }
    return k;
}

// ---- statements --------------------------------------------------------------------------------

// After a line that sampling leaves out.
static void note_skipped(struct counter *c, const struct stmt *s, int64_t layers_before)
{
    if (c->layers > layers_before && !c->skips)
        c->skips = s->at.line;
}

static void count_bind(struct counter *c, const struct stmt *s)
{
    struct known k[MODEL_MAX_LIST] = {0};
    int64_t before = c->layers;
    for (int i = 0; i < s->n && i < MODEL_MAX_LIST; i++)
        k[i] = evaluate_expr(c, s->value[i]);
    if (strcmp(s->name[0], "loss") == 0)
        note_skipped(c, s, before);
    c->drawn |= c->calls == 0 && strcmp(s->name[0], "logits") == 0;
    for (int i = 0; i < s->nnames && i < MODEL_MAX_LIST; i++) {
        const struct known old = find_name(c, s->name[i]);
        bind_name(c, s->name[i], s->adds ? apply_sign(SIGN_ADD, &old, &k[i]) : k[i]);
    }
}

static void count_report(struct counter *c, const struct stmt *s)
{
    int64_t before = c->layers;
    for (int i = 0; i < s->n; i++)
        evaluate_expr(c, s->value[i]);
    note_skipped(c, s, before);
}

static bool block_returns(struct counter *c, const struct stmt *s)
{
    bool any = false;
    for (; s && !any && take_step(c, s->at); s = s->next)
        any = s->kind == STMT_RETURN || block_returns(c, s->body) || block_returns(c, s->otherwise);
    return any;
}

// Turn by turn, since one may be the last.
static void count_repeats(struct counter *c, const struct stmt *s, const struct number *over, int n)
{
    bool outermost = !c->in_layer;
    for (int i = 0; i < n && !c->failed && !c->returned; i++) {
        add_layers(c, s->at, 1);
        c->in_layer = true;
        if (over->list && s->nnames)
            bind_name(c, s->name[0], know_number(number_of((double)over->item[i], true)));
        if (s->nnames > over->list)
            bind_name(c, s->name[over->list], know_number(number_of(i, true)));
        count_block(c, s->body);
        c->in_layer = !outermost;
    }
}

// The turns of a repeat alike: what is in a layer is looked at only if it may leave it.
static void count_repeat(struct counter *c, const struct stmt *s)
{
    struct known k = evaluate_number(c, s->value[0]);
    double n = k.number.list ? k.number.n : k.number.value;
    bool returns = block_returns(c, s->body), known = k.kind == KNOWN_NUMBER;
    c->doubts += returns && !known; // it may or may not return
    if (!returns || !known) {
        forget_block(c, s->body);
        for (int i = 0; i < s->nnames; i++)
            bind_name(c, s->name[i], (struct known){0});
    }
    if (c->failed || (c->in_layer && !returns))
        return;
    if (!known) {
        note_unknown(c, s->value[0], k.fault);
    } else if (!number_is_whole(n) || n < 0) {
        model_error_at(c->errs, s->at, "repeat takes a whole number from 0, not %.6g", n);
        c->failed = true;
    } else if (returns && n <= MODEL_MAX_LAYERS) {
        count_repeats(c, s, &k.number, (int)n);
    } else {
        add_layers(c, s->at, n);
    }
}

static void count_if(struct counter *c, const struct stmt *s)
{
    struct known k = evaluate_number(c, s->value[0]);
    if (is_condition(&k)) {
        count_block(c, k.number.value != 0 ? s->body : s->otherwise);
        return;
    }
    int64_t before = c->layers;
    count_block(c, s->body);
    bool returned = c->returned;
    int64_t first = c->layers;
    c->layers = before;
    c->returned = false;
    forget_block(c, s->body);
    count_block(c, s->otherwise);
    forget_block(c, s->otherwise);
    if (!c->failed && c->layers != first)
        note_unknown(c, s->value[0], k.fault);
    if (returned != c->returned) {
        c->perhaps = s->value[0];
        c->doubts++;
    }
    c->returned = returned && c->returned;
    c->result = (struct known){0};
}

static void count_scope(struct counter *c, const struct stmt *s)
{
    bool outermost = !c->in_layer && stmt_is_layer(s);
    c->blocks |= !c->in_layer && !stmt_is_layer(s) && c->calls == 0;
    if (outermost)
        add_layers(c, s->at, 1);
    c->in_layer |= outermost;
    count_block(c, s->body);
    c->in_layer &= !outermost;
}

static void count_block(struct counter *c, const struct stmt *s)
{
    for (; s && !c->failed && !c->returned; s = s->next)
        switch (s->kind) {
        case STMT_BIND:
            count_bind(c, s);
            break;
        case STMT_REPEAT:
            count_repeat(c, s);
            break;
        case STMT_IF:
            count_if(c, s);
            break;
        case STMT_SCOPE:
            count_scope(c, s);
            break;
        case STMT_REPORT:
            count_report(c, s);
            break;
        case STMT_RETURN:
            c->result = evaluate_expr(c, s->value[0]);
            c->returned = true;
            break;
        }
}

int layer_count_find(const struct model_sizes *s, struct layer_count *out,
                     struct model_errors *errs)
{
    struct counter c = {.sizes = s, .syntax = s->program->syntax, .errs = errs};
    count_block(&c, c.syntax->body);
    *out = (struct layer_count){c.unclear ? 0 : c.layers, c.blocks, c.behind, c.unclear};
    return c.failed ? ERR_INVALID : 0;
}
