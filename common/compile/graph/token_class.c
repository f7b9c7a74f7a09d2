// SPDX-License-Identifier: Apache-2.0
// Classes of values. See token_class.h.
#include "common/compile/graph/token_class.h"

#include <string.h>

#include "common/base/buf.h"
#include "common/base/path.h"
#include "common/compile/graph/carry.h"
#include "common/compile/graph/operand.h"
#include "common/op/attention.h"

static const char *const BEHIND = "a token would see those behind it";

struct search {
    const struct graph *g;
    struct arena *arena;
    struct token_classes *c;
    struct err *err;
};

// What a node's loops run along, as its operands have them.
struct loops {
    enum along along[CARRY_LOOPS];
    int group[CARRY_LOOPS];
    bool made[CARRY_LOOPS]; // an output has it
};

static struct value_class *get_class(const struct search *s, int value)
{
    return &s->c->value[value];
}

static const char *name_dim(const struct search *s, enum dim dim)
{
    return dims_name(s->g->dims, dim);
}

int refuse_line(const struct node *n, struct err *e, const char *fmt, ...)
{
    struct buf why = {0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&why, fmt, ap);
    va_end(ap);
    int rc = err_set(e, ERR_UNSUPPORTED, "the model's line %d: %s", n->line, buf_str(&why));
    buf_clear(&why);
    return rc;
}
// A factor of what causal() has hidden: -1e9 times this is still nothing to an exponential.
#define LEAST_SCALE       1e-6
#define REFUSE(s, n, ...) refuse_line(n, (s)->err, __VA_ARGS__)

static void find_wanted(const struct search *s)
{
    const struct graph *g = s->g;
    bool *read = arena_array(s->arena, bool, g->nvalues);
    for (int i = 0; i < g->nsums; i++)
        for (int c = 0; g->sums[i].value == g->loss && c < g->sums[i].n; c++)
            read[g->sums[i].contrib[c]] = true;
    for (int i = g->nnodes - 1; i >= 0; i--) {
        const struct node *n = &g->nodes[i];
        for (int k = 0; k < n->nout; k++)
            s->c->wanted[i] |= read[n->out[k]];
        for (int k = 0; k < n->nin && s->c->wanted[i]; k++)
            read[n->in[k]] = true;
    }
}

// ---- groups of keys ----------------------------------------------------------------------------

static int find_group(const struct token_classes *c, int group)
{
    while (c->group[group].joined != group)
        group = c->group[group].joined;
    return group;
}

static int new_group(struct search *s)
{
    struct token_classes *c = s->c;
    c->group = arena_grow(s->arena, c->group, sizeof *c->group, c->ngroups, &c->groups_cap);
    c->group[c->ngroups] = (struct key_group){.joined = c->ngroups};
    return c->ngroups++;
}

static int join_groups(const struct search *s, int a, int b)
{
    a = find_group(s->c, a);
    b = find_group(s->c, b);
    struct key_group *to = &s->c->group[a], *from = &s->c->group[b];
    to->fixed |= from->fixed;
    to->all |= from->all;
    to->sees = to->sees > from->sees ? to->sees : from->sees;
    from->joined = a;
    return a;
}

// A sum over the keys that a window shows.
static void read_group(const struct search *s, int group, int64_t window)
{
    struct key_group *to = &s->c->group[find_group(s->c, group)];
    to->all |= window == 0;
    to->sees = window > to->sees ? window : to->sees;
}

const struct key_group *token_classes_group(const struct token_classes *c, int value, int d)
{
    return &c->group[find_group(c, c->value[value].dim[d].group)];
}

// ---- leaves ------------------------------------------------------------------------------------

static const char *name_input(const struct value *v)
{
    return v->kind == VALUE_INPUT && v->name ? path_name(v->name) : "";
}

bool token_is_last(const struct value *v)
{
    return strcmp(name_input(v), "last") == 0;
}

bool token_is_positions(const struct value *v)
{
    return strcmp(name_input(v), "positions") == 0;
}

// A text is its tokens and their places: what else a model reads of a sample has no rows of its own.
static int classify_inputs(struct search *s, const struct node *n)
{
    for (int k = 0; k < n->nin; k++) {
        const struct value *v = get_operand(s->g, n, k);
        struct value_class *c = get_class(s, n->in[k]);
        const char *name = name_input(v);
        if (v->kind != VALUE_INPUT)
            continue;
        if (strcmp(name, "tokens") != 0 && !token_is_positions(v) && !token_is_last(v))
            return REFUSE(s, n, "%s are read, which are no row for each token", name);
        c->kind = CLASS_QUERIES;
        c->dim[0].along = ALONG_BATCH;
        if (v->shape.n > 1)
            c->dim[1].along = ALONG_ROWS;
    }
    return 0;
}

static int check_padding(const struct search *s, const struct node *n)
{
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = get_operand(s->g, n, k);
        for (int d = 0; d < v->shape.n; d++)
            if (v->born[d] && v->limit[d])
                return REFUSE(s, n, "%s is padded", name_dim(s, v->dims[d]));
    }
    return 0;
}

// Whether a value is made, by casts alone, of a comparison with the input `last`: 1 at the row that
// the logits are of, else 0.
static bool picks_last(const struct search *s, int value)
{
    const struct graph *g = s->g;
    int at = g->values[value].producer;
    while (at >= 0 && g->nodes[at].op == OP_CAST)
        at = g->values[g->nodes[at].in[0]].producer;
    return at >= 0 && g->nodes[at].op == OP_EQUAL &&
           token_is_last(get_operand(s->g, &g->nodes[at], 1));
}

// ---- what a node is of -------------------------------------------------------------------------

static int join_kinds(const struct search *s, const struct node *n, struct value_class *out)
{
    bool has[CLASS_PLACES + 1] = {false};
    for (int k = 0; k < n->nin; k++) {
        const struct value_class *c = get_class(s, n->in[k]);
        const int by = get_operand(s->g, n, k)->producer;
        if (by >= 0 && s->g->nodes[by].op == OP_SLOTS)
            return REFUSE(s, n, "how often experts were chosen is read: %s", BEHIND);
        if (c->kind == CLASS_PLACES && has[CLASS_PLACES] && out->slots != c->slots)
            return REFUSE(s, n, "rows that two slots() have dealt are read together");
        if (c->kind == CLASS_PLACES)
            out->slots = c->slots;
        has[c->kind] = true;
    }
    if (has[CLASS_PLACES] && (has[CLASS_QUERIES] || has[CLASS_KEYS]))
        return REFUSE(s, n, "rows in experts' places are read with rows that are not");
    out->kind = has[CLASS_PLACES]    ? CLASS_PLACES
                : has[CLASS_QUERIES] ? CLASS_QUERIES
                : has[CLASS_KEYS]    ? CLASS_KEYS
                                     : CLASS_WEIGHTS;
    return 0;
}

static int read_loops(const struct search *s, const struct node *n, struct loops *l)
{
    for (int k = 0; k < n->nin; k++) {
        const struct value_class *c = get_class(s, n->in[k]);
        for (int d = 0; d < get_operand(s->g, n, k)->shape.n; d++) {
            const int at = n->attr.label[k][d];
            const enum along along = c->dim[d].along;
            if (!along)
                continue;
            if (l->along[at] && l->along[at] != along)
                return REFUSE(s, n, "%s is tied with another dimension of the data",
                              name_dim(s, get_operand(s->g, n, k)->dims[d]));
            if (along == ALONG_KEYS)
                l->group[at] =
                    l->along[at] ? join_groups(s, l->group[at], c->dim[d].group) : c->dim[d].group;
            l->along[at] = along;
        }
    }
    for (int k = 0; k < n->nout; k++)
        for (int d = 0; d < s->g->values[n->out[k]].shape.n; d++)
            l->made[n->attr.label[n->nin + k][d]] = true;
    return 0;
}

// Operands that lack the data in a loop along it: numbers for each position.
static int check_ties(const struct search *s, const struct node *n, enum token_class kind,
                      const struct loops *l)
{
    for (int k = 0; k < n->nin; k++) {
        const struct value_class *c = get_class(s, n->in[k]);
        const struct value *v = get_operand(s->g, n, k);
        int indexed = 0;
        for (int d = 0; d < v->shape.n; d++) {
            const int at = n->attr.label[k][d];
            if (c->dim[d].along == l->along[at] || l->along[at] == ALONG_EXPERTS)
                continue;
            if (l->along[at] == ALONG_KEYS && kind == CLASS_QUERIES) {
                s->c->group[find_group(s->c, l->group[at])].fixed = true;
                continue;
            }
            bool step = op_is(n->op, OP_IS_STEP) || n->op == OP_MATMUL;
            bool rows = l->along[at] == ALONG_ROWS || l->along[at] == ALONG_KEYS;
            if (!rows || !step || c->kind != CLASS_WEIGHTS || indexed++)
                return REFUSE(s, n, "a number for each place of %s is read by its place",
                              name_dim(s, v->dims[d]));
        }
    }
    return 0;
}

// ---- what a value holds of keys that are not seen ----------------------------------------------

struct sight {
    bool has; // the dimension
    enum unseen holds;
    int64_t window;
};

static struct sight get_sight(const struct search *s, const struct node *n, int k, int label)
{
    const struct value_class *c = get_class(s, n->in[k]);
    const int d = operand_find_loop(s->g, n, k, label);
    return d < 0 ? (struct sight){0} : (struct sight){true, c->dim[d].holds, c->dim[d].window};
}

// 0 is no window.
static int64_t find_narrower(int64_t a, int64_t b)
{
    return !a ? b : !b ? a : a < b ? a : b;
}

static int64_t find_wider(int64_t a, int64_t b)
{
    return !a || !b ? 0 : a > b ? a : b;
}

static struct sight add_sights(struct sight a, struct sight b, bool subtracts)
{
    struct sight out = {.has = true};
    const bool low_a = a.holds == UNSEEN_LOW, low_b = b.holds == UNSEEN_LOW;
    if (a.has && b.has && a.holds == UNSEEN_ZERO && b.holds == UNSEEN_ZERO) {
        out.holds = UNSEEN_ZERO;
        out.window = find_wider(a.window, b.window);
    } else if (subtracts ? low_a && !low_b : low_a || low_b) {
        out.holds = UNSEEN_LOW;
        out.window = low_a && low_b ? find_narrower(a.window, b.window)
                     : low_a        ? a.window
                                    : b.window;
    }
    return out;
}

static struct sight multiply_sights(struct sight a, struct sight b)
{
    const bool zero_a = a.holds == UNSEEN_ZERO, zero_b = b.holds == UNSEEN_ZERO;
    struct sight out = {.has = true};
    if (!zero_a && !zero_b)
        return out;
    out.holds = UNSEEN_ZERO;
    out.window = zero_a && zero_b ? find_narrower(a.window, b.window)
                 : zero_a         ? a.window
                                  : b.window;
    return out;
}

// Of a function of one value: what it makes of low numbers, and of 0.
static struct sight map_sight(const struct node *n, struct sight x)
{
    const bool low = x.holds == UNSEEN_LOW, zero = x.holds == UNSEEN_ZERO;
    enum unseen holds = UNSEEN_ANY;
    switch (n->op) {
    case OP_EXP:
    case OP_SIGMOID:
    case OP_SOFTPLUS:
        holds = low ? UNSEEN_ZERO : UNSEEN_ANY;
        break;
    case OP_RELU:
    case OP_SILU:
    case OP_GELU:
        holds = low || zero ? UNSEEN_ZERO : UNSEEN_ANY;
        break;
    case OP_TANH:
        holds = zero ? UNSEEN_ZERO : UNSEEN_ANY;
        break;
    case OP_SCALE:
    case OP_CAST:
    case OP_SUM:
        holds = zero ? UNSEEN_ZERO : low && n->attr.scale >= LEAST_SCALE ? UNSEEN_LOW : UNSEEN_ANY;
        break;
    case OP_SPLIT:
    case OP_PAD:
        holds = x.holds;
        break;
    case OP_LOG:
        holds = UNSEEN_WILD;
        break;
    default:
        break;
    }
    return (struct sight){true, holds, x.window};
}

// Of what a node makes along a loop over keys that it keeps. `rows`: it is a softmax over them.
static struct sight find_sight(const struct search *s, const struct node *n, int label, bool over)
{
    struct sight in[2] = {{0}}, out = {.has = true};
    bool wild = false;
    for (int k = 0; k < n->nin; k++) {
        struct sight x = get_sight(s, n, k, label);
        wild |= x.holds == UNSEEN_WILD;
        if (k < 2)
            in[k] = x;
    }
    wild |= n->op == OP_DIV && in[1].has;
    if (wild)
        return (struct sight){true, UNSEEN_WILD, 0};
    switch (n->op) {
    case OP_ADD:
    case OP_SUB:
        out = add_sights(in[0], in[1], n->op == OP_SUB);
        break;
    case OP_MUL:
    case OP_MATMUL:
        out = multiply_sights(in[0], in[1]);
        break;
    case OP_DIV:
        out.holds = in[0].holds == UNSEEN_ZERO ? UNSEEN_ZERO : UNSEEN_ANY;
        out.window = in[0].window;
        break;
    case OP_SOFTMAX:
        out.holds = over ? UNSEEN_ZERO : UNSEEN_ANY;
        out.window = in[0].window;
        break;
    default:
        if (n->nin == 1)
            out = map_sight(n, in[0]);
        break;
    }
    return out;
}

// ---- refusals ----------------------------------------------------------------------------------

static int refuse_sum(const struct search *s, const struct node *n, enum along along, enum dim dim,
                      enum unseen holds)
{
    if (holds == UNSEEN_WILD)
        return REFUSE(s, n,
                      "%s over %s of what log, sqrt or a division by keys made: in a place that "
                      "has no key yet that may be no number",
                      op_name(n->op), name_dim(s, dim));
    if (along == ALONG_KEYS)
        return REFUSE(s, n, "%s over %s, which has not been through causal(): %s", op_name(n->op),
                      name_dim(s, dim), BEHIND);
    if (along == ALONG_EXPERTS || along == ALONG_PLACES)
        return REFUSE(s, n, "%s over %s: tokens come to experts in places that hang on others",
                      op_name(n->op), name_dim(s, dim));
    return REFUSE(s, n, "%s over %s: %s", op_name(n->op), name_dim(s, dim), BEHIND);
}

// A loop along the data that no output has is summed: over keys of which those are 0 that a token does
// not see, or over the rows of which one alone is picked.
static int check_sums(const struct search *s, const struct node *n, enum token_class kind,
                      const struct loops *l)
{
    for (int k = 0; k < n->nin; k++)
        for (int d = 0; d < get_operand(s->g, n, k)->shape.n; d++) {
            const int at = n->attr.label[k][d];
            if (!l->along[at] || l->made[at])
                continue;
            if (l->along[at] == ALONG_ROWS && n->op == OP_MATMUL && picks_last(s, n->in[0]))
                continue;
            struct sight a = get_sight(s, n, 0, at),
                         b = n->nin > 1 ? get_sight(s, n, 1, at) : (struct sight){0};
            bool adds = n->op == OP_SUM || n->op == OP_MATMUL;
            struct sight both = multiply_sights(a, b);
            if (a.holds == UNSEEN_WILD || b.holds == UNSEEN_WILD)
                both.holds = UNSEEN_WILD;
            if (!adds || l->along[at] != ALONG_KEYS || kind != CLASS_QUERIES ||
                both.holds != UNSEEN_ZERO)
                return refuse_sum(s, n, l->along[at], get_operand(s->g, n, k)->dims[d], both.holds);
            read_group(s, l->group[at], both.window);
        }
    return 0;
}

// An op that sees a dimension as one, or reads it by index, does so with none along the data, but for a
// softmax over scores that causal() has hidden; that one's label is *over.
static int check_order(const struct search *s, const struct node *n, int *over)
{
    const enum op_order order = op_order(n->op);
    int k = operand_ordered(s->g, n);
    const struct value *v = get_operand(s->g, n, k);
    int d = order == ORDER_FIRST ? 0 : v->shape.n - 1;
    *over = -1;
    if (order == ORDER_ALL)
        return REFUSE(s, n, "%s has no cached keys", op_name(n->op));
    if (order == ORDER_NONE || d < 0 || (order == ORDER_POSITIONS && n->op != OP_ROTARY))
        return 0;
    const struct value_class *c = get_class(s, n->in[k]);
    if (!c->dim[d].along)
        return 0;
    if (n->op != OP_SOFTMAX || c->dim[d].holds != UNSEEN_LOW)
        return refuse_sum(s, n, c->dim[d].along, v->dims[d], c->dim[d].holds);
    *over = n->attr.label[k][d];
    read_group(s, c->dim[d].group, c->dim[d].window);
    return 0;
}

// ---- nodes -------------------------------------------------------------------------------------

// The names of what a node makes: rows that are renamed are keys.
static int name_loops(struct search *s, const struct node *n, int out, const struct loops *l,
                      struct value_class *c)
{
    const struct value *v = &s->g->values[n->out[out]];
    int keys = 0;
    bool turns = false;
    for (int d = 0; d < v->shape.n; d++) {
        const int at = n->attr.label[n->nin + out][d];
        c->dim[d].along = l->along[at];
        if (l->along[at] == ALONG_KEYS) {
            c->dim[d].group = l->group[at];
            keys++;
        }
        if (l->along[at] == ALONG_KEYS && v->dims[d] == DIM_SEQ)
            return REFUSE(s, n, "keys are read as seq once more");
        if (l->along[at] == ALONG_BATCH && c->kind != CLASS_PLACES && v->dims[d] != DIM_BATCH)
            return REFUSE(s, n, "batch is read as %s: a sample would see others",
                          name_dim(s, v->dims[d]));
        if (l->along[at] == ALONG_ROWS && v->dims[d] != DIM_SEQ) {
            c->dim[d].along = ALONG_KEYS;
            c->dim[d].group = new_group(s);
            turns = true;
        }
    }
    if (turns && keys)
        return REFUSE(s, n, "seq is renamed where there is a number for each pair of tokens");
    if (c->kind == CLASS_KEYS && keys > 1)
        return REFUSE(s, n, "a number for each pair of keys");
    c->kind = turns ? CLASS_KEYS : c->kind;
    return 0;
}

static int classify_plain(struct search *s, const struct node *n)
{
    struct loops l = {.made = {false}};
    struct value_class c = {0};
    int over;
    int rc = join_kinds(s, n, &c);
    rc = rc ? rc : read_loops(s, n, &l);
    rc = rc ? rc : check_ties(s, n, c.kind, &l);
    rc = rc ? rc : check_order(s, n, &over);
    rc = rc ? rc : check_sums(s, n, c.kind, &l);
    bool moves = n->op == OP_SCALE || n->op == OP_CAST;
    for (int k = 0; k < n->nout && !rc; k++) {
        struct value_class made = c;
        const struct value *v = &s->g->values[n->out[k]];
        rc = name_loops(s, n, k, &l, &made);
        made.positions = moves && (token_is_positions(get_operand(s->g, n, 0)) ||
                                   get_class(s, n->in[0])->positions);
        for (int d = 0; d < v->shape.n && made.kind == CLASS_QUERIES; d++) {
            if (made.dim[d].along != ALONG_KEYS)
                continue;
            const int at = n->attr.label[n->nin + k][d];
            struct sight sight = find_sight(s, n, at, at == over);
            if (n->hides && n->hides == (int64_t)v->dims[d] && sight.holds != UNSEEN_WILD)
                sight = (struct sight){
                    true, UNSEEN_LOW,
                    sight.holds == UNSEEN_LOW ? find_narrower(sight.window, n->from) : n->from};
            made.dim[d].holds = sight.holds;
            made.dim[d].window = sight.window;
        }
        *get_class(s, n->out[k]) = made;
    }
    return rc;
}

// Whether an operand has a row for each token and no keys: batch, seq, and others.
static bool is_of_rows(const struct search *s, int value)
{
    const struct value_class *c = get_class(s, value);
    if (c->kind != CLASS_QUERIES || c->dim[0].along != ALONG_BATCH || c->dim[1].along != ALONG_ROWS)
        return false;
    for (int d = 2; d < s->g->values[value].shape.n; d++)
        if (c->dim[d].along)
            return false;
    return true;
}

static int classify_attention(const struct search *s, const struct node *n)
{
    struct attention_operands o;
    if (attention_operands(n->op, n->nin, &o))
        return ERR_INTERNAL;
    const int rows[] = {o.q, o.k, o.v, o.qr, o.kr};
    if (n->attr.ahead)
        return REFUSE(s, n, "attention with causal = 0: %s", BEHIND);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i] >= 0 && !is_of_rows(s, n->in[rows[i]]))
            return REFUSE(s, n, "attention over what is no row for each token");
    for (int k = 0; k < n->nout; k++) {
        const bool y = k == ATTENTION_Y;
        struct value_class c = {.kind = CLASS_QUERIES};
        c.dim[0].along = ALONG_BATCH;
        c.dim[y ? 1 : 2].along = ALONG_ROWS;
        *get_class(s, n->out[k]) = c;
    }
    return 0;
}

// SLOTS, DISPATCH and COMBINE: outside training there is a place for each token, so that rows stay
// independent of each other. Which of an expert's places it is hangs on the others.
static int classify_experts(const struct search *s, const struct node *n)
{
    const struct value_class *x = get_class(s, n->in[0]);
    struct value_class c = {.kind = CLASS_QUERIES};
    const int first_row = n->op == OP_COMBINE; // its first operand lies by places
    for (int k = first_row; k < n->nin; k++)
        if (!is_of_rows(s, n->in[k]))
            return REFUSE(s, n, "%s of what is no row for each token", op_name(n->op));
    if (n->op == OP_COMBINE && (x->kind != CLASS_PLACES || x->slots != n->in[1] ||
                                x->dim[1].along != ALONG_EXPERTS || x->dim[3].along))
        return REFUSE(s, n, "combine of rows that other slots() have dealt");
    c.dim[0].along = ALONG_BATCH;
    c.dim[1].along = ALONG_ROWS;
    if (n->op == OP_DISPATCH) {
        c.kind = CLASS_PLACES;
        c.slots = n->in[1];
        c.dim[1].along = ALONG_EXPERTS;
        c.dim[2].along = ALONG_PLACES;
    }
    *get_class(s, n->out[0]) = c;
    return 0;
}

static int classify_node(struct search *s, const struct node *n)
{
    int rc = check_padding(s, n);
    rc = rc ? rc : classify_inputs(s, n);
    if (rc)
        return rc;
    switch (n->op) {
    case OP_ATTENTION:
        return classify_attention(s, n);
    case OP_SLOTS:
    case OP_DISPATCH:
    case OP_COMBINE:
        return classify_experts(s, n);
    default:
        return op_is(n->op, OP_OWN_LOOPS) ? REFUSE(s, n, "%s has no cached keys", op_name(n->op))
                                          : classify_plain(s, n);
    }
}

// The logits are of one row for each text.
static int check_logits(const struct search *s)
{
    const struct graph *g = s->g;
    for (int i = 0; i < g->nsums; i++)
        for (int k = 0; g->sums[i].value == g->loss && k < g->sums[i].n; k++) {
            int v = g->sums[i].contrib[k];
            const struct value_class *c = get_class(s, v);
            for (int d = 0; d < g->values[v].shape.n; d++)
                if (c->dim[d].along > ALONG_BATCH)
                    return REFUSE(s, &g->nodes[g->values[v].producer], "logits have %s",
                                  name_dim(s, g->values[v].dims[d]));
        }
    return 0;
}

int token_classes_find(const struct graph *sample, struct arena *a, struct token_classes *out,
                       struct err *e)
{
    struct search s = {.g = sample, .arena = a, .c = out, .err = e};
    *out = (struct token_classes){.wanted = arena_array(a, bool, sample->nnodes),
                                  .value = arena_array(a, struct value_class, sample->nvalues)};
    find_wanted(&s);
    int rc = 0;
    for (int i = 0; i < sample->nnodes && !rc; i++)
        rc = out->wanted[i] ? classify_node(&s, &sample->nodes[i]) : 0;
    return rc ? rc : check_logits(&s);
}
