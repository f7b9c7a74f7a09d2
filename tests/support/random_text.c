// SPDX-License-Identifier: Apache-2.0
// Random programs of the language of models. See random_text.h.
#include "tests/support/random_text.h"

#include <string.h>

#include "common/base/err.h"
#include "tests/support/random_graph.h"

static const struct {
    const char *name;
    int64_t size;
} sizes[] = {{"embed", 12}, {"heads", 4},        {"kv_heads", 2},   {"head", 2},
             {"mlp", 12},   {"wide", 24},        {"seq", TEXT_SEQ}, {"batch", TEXT_BATCH},
             {"gate", 6},   {"rest", TEXT_REST}, {"experts", 4}};
static const char sizes_text[] =
    "  embed = 12\n  heads = 4\n  kv_heads = 2\n  head = 2 like head_dim\n  mlp = 12\n"
    "  wide = 24 like mlp\n  seq = 12\n  gate = 6\n  rest = 5 padded 8\n  experts = 4\n";

// ---- making ------------------------------------------------------------------------------------

static int ask(struct random_text *t, int n)
{
    return random_pick(t->seed, 300, t->asked++, n);
}

static const char *name_of(struct random_text *t, const char *kind)
{
    return arena_printf(t->a, "%s%d", kind, t->n);
}

static int64_t size_of(const char *dim)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, dim))
            return sizes[i].size;
    return !strcmp(dim, "vocab") ? 24 : !strcmp(dim, "3") ? 3 : TEXT_SEQ;
}

static struct named shape_of(const char *const *dims)
{
    struct named s = {0};
    for (; *dims; dims++) {
        s.dim[s.n] = *dims;
        s.size[s.n++] = size_of(*dims);
    }
    return s;
}
#define SHAPE(...) shape_of((const char *const[]){__VA_ARGS__, NULL})

static int new_var(struct random_text *t, struct named shape)
{
    PRE(t->nvars < TEXT_VARS);
    t->vars[t->nvars] = shape;
    return t->nvars++;
}

static struct text_line *add_line(struct random_text *t, enum line_kind kind, int in,
                                  struct named out)
{
    PRE(t->n < TEXT_LINES);
    struct text_line *l = &t->lines[t->n++];
    *l = (struct text_line){.kind = kind, .in = {in}, .out = {new_var(t, out)}};
    return l;
}

static struct named joined(struct named x, const struct named *y)
{
    for (int d = 0; d < y->n; d++)
        if (named_find(&x, y->dim[d]) < 0) {
            x.dim[x.n] = y->dim[d];
            x.size[x.n++] = y->size[d];
        }
    return x;
}

// x @ name[shape]: over what both have.
static int weigh(struct random_text *t, int x, const char *name, struct named shape, bool bias)
{
    struct named out = t->vars[x], added = {0};
    for (int d = 0; d < shape.n; d++)
        if (named_find(&t->vars[x], shape.dim[d]) >= 0)
            out = named_without(&out, shape.dim[d]);
    for (int d = 0; d < shape.n; d++)
        if (named_find(&t->vars[x], shape.dim[d]) < 0) {
            added.dim[added.n] = shape.dim[d];
            added.size[added.n++] = shape.size[d];
        }
    struct text_line *l = add_line(t, LINE_WEIGH, x, joined(out, &added));
    l->param = (struct text_param){name, "/weight", shape};
    if (bias)
        l->bias = (struct text_param){name, "/bias", added};
    return l->out[0];
}
#define WEIGH(t, x, bias, ...) weigh(t, x, name_of(t, "w"), SHAPE(__VA_ARGS__), bias)

static int map(struct random_text *t, int x, int choice)
{
    struct text_line *l = add_line(t, LINE_MAP, x, t->vars[x]);
    l->choice = choice;
    return l->out[0];
}

static int operate(struct random_text *t, char sign, int x, int y)
{
    struct text_line *l = add_line(t, LINE_OPERATE, x, joined(t->vars[x], &t->vars[y]));
    l->in[1] = y;
    l->sign = sign;
    return l->out[0];
}

static int beside(struct random_text *t, char sign, int x, struct named shape)
{
    struct text_line *l = add_line(t, LINE_BESIDE, x, t->vars[x]);
    l->sign = sign;
    l->param = (struct text_param){arena_printf(t->a, "p%d", t->n), "", shape};
    return l->out[0];
}

static int scaled(struct random_text *t, int x, double by)
{
    struct text_line *l = add_line(t, LINE_SCALE, x, t->vars[x]);
    l->number = by;
    return l->out[0];
}

static int norm(struct random_text *t, int x)
{
    struct named along = {0};
    const struct named *v = &t->vars[x];
    along.dim[0] = v->dim[v->n - 1];
    along.size[0] = v->size[v->n - 1];
    along.n = 1;
    struct text_line *l = add_line(t, LINE_NORM, x, t->vars[x]);
    l->choice = ask(t, 4); // layernorm, rmsnorm; with parameters and without
    const char *name = arena_printf(t->a, "n%d", t->n);
    if (l->choice % 2)
        l->param = (struct text_param){name, "/weight", along};
    if (l->choice == 1)
        l->bias = (struct text_param){name, "/bias", along};
    return l->out[0];
}

static int over(struct random_text *t, enum line_kind kind, int x, const char *dim)
{
    bool keeps = kind == LINE_SOFTMAX;
    struct text_line *l =
        add_line(t, kind, x, keeps ? t->vars[x] : named_without(&t->vars[x], dim));
    l->dim = dim;
    return l->out[0];
}

static int renamed(struct random_text *t, int x, const char *from, const char *to)
{
    struct text_line *l = add_line(t, LINE_RENAME, x, named_rename(&t->vars[x], from, to));
    l->dim = from;
    l->to = to;
    return l->out[0];
}

// Of two values: over what both have but the batch and `kept`. In memory what is kept comes first, then
// what the left has, then the right's: draws are numbered so.
static int product(struct random_text *t, int x, int y, const char *kept)
{
    struct named out = {0}, left = t->vars[x], right = t->vars[y];
    for (int d = 0; d < t->vars[x].n; d++) {
        const char *dim = t->vars[x].dim[d];
        bool shared = named_find(&t->vars[y], dim) >= 0;
        if (shared)
            left = named_without(&left, dim);
        if (shared && (!strcmp(dim, "batch") || !strcmp(dim, kept))) {
            out.dim[out.n] = dim;
            out.size[out.n++] = t->vars[x].size[d];
        }
        right = named_without(&right, dim);
    }
    struct text_line *l = add_line(t, LINE_PRODUCT, x, joined(joined(out, &left), &right));
    l->in[1] = y;
    l->dim = kept;
    return l->out[0];
}

static int dropped(struct random_text *t, int x)
{
    struct text_line *l = add_line(t, LINE_DROPOUT, x, t->vars[x]);
    l->number = 0.2;
    l->param.name = arena_printf(t->a, "d%d", t->n);
    return l->out[0];
}

// ---- blocks: what a layer adds, of [batch, seq, embed] -----------------------------------------

static int block_mlp(struct random_text *t, int h)
{
    static const char *const inners[] = {"mlp", "mlp", "wide", "rest"};
    const char *inner = inners[ask(t, 4)];
    int up = WEIGH(t, h, ask(t, 2), "embed", inner);
    int y = map(t, ask(t, 4) ? up : norm(t, up), ask(t, MAPS));
    if (ask(t, 5) == 0) // in memory alone
        y = add_line(t, LINE_SWAP, y, SHAPE("seq", "batch", inner))->out[0];
    if (ask(t, 3) == 0)
        y = operate(t, '*', y, WEIGH(t, h, false, "embed", inner));
    return WEIGH(t, y, ask(t, 2), inner, "embed");
}

// Two dimensions at once, and a gain along one or both.
static int block_heads(struct random_text *t, int h)
{
    int y = WEIGH(t, h, ask(t, 2), "embed", "heads", "head");
    y = beside(t, "*+-"[ask(t, 3)], y, ask(t, 2) ? SHAPE("heads", "head") : SHAPE("head"));
    if (ask(t, 2))
        y = over(t, LINE_SOFTMAX, y, ask(t, 2) ? "heads" : "head");
    if (ask(t, 3) == 0)
        return WEIGH(t, over(t, LINE_SUM, y, "heads"), false, "head", "embed");
    return WEIGH(t, y, ask(t, 2), "heads", "head", "embed");
}

static struct text_line *stack(struct random_text *t, int h, int *q, int *k, int *v)
{
    struct named of = SHAPE("batch", "seq", "heads", "head");
    const char *name = name_of(t, "w");
    struct text_line *l = add_line(t, LINE_STACK, h, of);
    l->param = (struct text_param){name, "/weight", SHAPE("3", "embed", "heads", "head")};
    l->out[1] = new_var(t, of);
    l->out[2] = new_var(t, of);
    *q = l->out[0], *k = l->out[1], *v = l->out[2];
    return l;
}

static int turned(struct random_text *t, int x)
{
    struct text_line *l = add_line(t, LINE_ROTARY, x, t->vars[x]);
    l->number = 50;
    return l->out[0];
}

static int block_attention(struct random_text *t, int h)
{
    int q, k, v;
    if (ask(t, 3)) {
        stack(t, h, &q, &k, &v);
    } else { // two queries' heads share a key's
        q = WEIGH(t, h, false, "embed", "heads", "head");
        k = WEIGH(t, h, true, "embed", "kv_heads", "head");
        v = WEIGH(t, h, false, "embed", "kv_heads", "head");
    }
    if (ask(t, 2)) {
        q = turned(t, q);
        k = turned(t, k);
    }
    struct text_line *l = add_line(t, LINE_ATTENTION, q, t->vars[q]);
    l->in[1] = k;
    l->in[2] = v;
    l->choice = ask(t, 3) == 0 ? 5 : 0;       // the window
    l->number = ask(t, 3) == 0 ? 2 : 0;       // the cap
    l->more = ask(t, 3) == 0 ? 0.2 : 0;       // what dropout drops
    l->sign = l->choice || ask(t, 3) ? 1 : 0; // keys ahead are not seen
    l->param.name = arena_printf(t->a, "a%d", t->n);
    return WEIGH(t, l->out[0], ask(t, 2), "heads", "head", "embed");
}

static int block_by_hand(struct random_text *t, int h)
{
    int q, k, v;
    stack(t, h, &q, &k, &v);
    int s = scaled(t, product(t, q, renamed(t, k, "seq", "key"), "heads"), 0.7);
    if (ask(t, 4)) {
        struct text_line *l = add_line(t, LINE_CAUSAL, s, t->vars[s]);
        l->choice = ask(t, 3) == 0 ? 5 : 0;
        s = l->out[0];
    }
    s = over(t, LINE_SOFTMAX, s, "key");
    if (ask(t, 3) == 0)
        s = dropped(t, s);
    int y = product(t, s, renamed(t, v, "seq", "key"), "heads");
    return WEIGH(t, y, ask(t, 2), "heads", "head", "embed");
}

// A mean over the sequence, or over features, that comes back by broadcasting.
static int block_squeeze(struct random_text *t, int h)
{
    if (ask(t, 2)) {
        int m = over(t, LINE_MEAN, h, "seq");
        int g = map(t, WEIGH(t, m, ask(t, 2), "embed", "gate"), MAP_SIGMOID);
        int back = WEIGH(t, g, false, "gate", "embed");
        return operate(t, '*', h, back);
    }
    const char *inner = ask(t, 2) ? "mlp" : "rest";
    int y = WEIGH(t, h, true, "embed", inner);
    int m = over(t, LINE_MEAN, y, inner);
    return WEIGH(t, operate(t, ask(t, 2) ? '-' : '*', y, m), false, inner, "embed");
}

// Over a dimension that a mesh may cut.
static int block_softmax(struct random_text *t, int h)
{
    const char *dim = ask(t, 3) == 0 ? "mlp" : ask(t, 2) ? "gate" : "rest";
    int y = WEIGH(t, h, false, "embed", dim);
    y = over(t, LINE_SOFTMAX, y, ask(t, 3) ? dim : "seq");
    return WEIGH(t, y, ask(t, 2), dim, "embed");
}

// Heads mixed with heads, position by position.
static int block_bilinear(struct random_text *t, int h)
{
    int q, k, v;
    stack(t, h, &q, &k, &v);
    int s = product(t, renamed(t, q, "heads", "other"), k, "seq");
    int y = product(t, map(t, s, MAP_TANH), v, "seq");
    return WEIGH(t, renamed(t, y, "other", "heads"), false, "heads", "head", "embed");
}

// Tokens mixed with tokens, by their positions.
static int block_mixed(struct random_text *t, int h)
{
    int y = WEIGH(t, renamed(t, h, "seq", "from"), false, "from", "to");
    if (ask(t, 2))
        y = dropped(t, y);
    return renamed(t, y, "to", "seq");
}

// A number for each position.
static int block_places(struct random_text *t, int h)
{
    int y = beside(t, ask(t, 2) ? '*' : '+', h, SHAPE("seq", "embed"));
    y = WEIGH(t, y, false, "embed", "gate");
    return WEIGH(t, y, false, "gate", "embed");
}

// One weight, read there and back.
static int block_tied(struct random_text *t, int h)
{
    const char *name = name_of(t, "w");
    struct named shape = SHAPE("embed", "mlp");
    int y = map(t, weigh(t, h, name, shape, false), ask(t, MAPS));
    return weigh(t, y, name, shape, false);
}

// Noise for each sample, or each token.
static int block_noise(struct random_text *t, int h)
{
    int m = ask(t, 2) ? h : over(t, LINE_MEAN, h, "seq");
    struct text_line *l = add_line(t, LINE_NORMAL, m, t->vars[m]);
    l->param.name = arena_printf(t->a, "r%d", t->n);
    l->number = 0.3;
    int y = operate(t, '*', h, l->out[0]);
    y = WEIGH(t, y, true, "embed", "gate");
    return WEIGH(t, y, false, "gate", "embed");
}

static int block_experts(struct random_text *t, int h)
{
    int64_t choices = 1 + ask(t, 2), places = TEXT_SEQ * (choices + ask(t, 2)) / 4;
    t->has |= TEXT_EXPERTS;
    struct named router = t->vars[h], choice, slots, room;
    router.dim[2] = "router";
    router.size[2] = 4;
    struct text_line *l = add_line(t, LINE_WEIGH, h, router);
    struct named weight = SHAPE("embed");
    weight.dim[weight.n] = "router";
    weight.size[weight.n++] = 4;
    l->param = (struct text_param){arena_printf(t->a, "e%d", t->n), "/weight", weight};
    l->choice = 1; // in f32
    int s = ask(t, 2) ? map(t, l->out[0], MAP_SIGMOID) : over(t, LINE_SOFTMAX, l->out[0], "router");
    choice = router;
    choice.dim[2] = "choice";
    choice.size[2] = choices;
    l = add_line(t, LINE_TOP, s, choice);
    l->choice = (int)choices;
    l->out[1] = new_var(t, choice);
    int w = l->out[0], id = l->out[1];
    slots = (struct named){3, {"group", "expert", "capacity"}, {TEXT_BATCH, 4, places}, NULL};
    l = add_line(t, LINE_SLOTS, id, slots);
    l->in[1] = w;
    l->choice = (int)places;
    l->number = 4.0 * (double)places / TEXT_SEQ;
    int slot = l->out[0];
    room = slots;
    room.dim[room.n] = "embed";
    room.size[room.n++] = size_of("embed");
    l = add_line(t, LINE_DISPATCH, h, room);
    l->in[1] = slot;
    int e = l->out[0];
    // A weight of each expert: starred, so that it is kept.
    for (int k = 0; k < 2; k++) {
        struct named of = {
            3, {"expert", k ? "mlp" : "embed", k ? "embed" : "mlp"}, {4, 12, 12}, NULL};
        room = named_without(&room, "embed");
        room = named_without(&room, "mlp");
        room.dim[room.n] = of.dim[2];
        room.size[room.n++] = of.size[2];
        l = add_line(t, LINE_WEIGH, e, room);
        l->dim = "expert";
        l->param = (struct text_param){arena_printf(t->a, "e%d", t->n), "/weight", of};
        e = k ? l->out[0] : map(t, l->out[0], ask(t, MAPS));
    }
    l = add_line(t, LINE_COMBINE, e, t->vars[h]);
    l->in[1] = slot;
    l->in[2] = w;
    l->choice = id; // whose they are, for the meaning
    return l->out[0];
}

static void carry(struct random_text *t, int x)
{
    t->lines[t->n++] = (struct text_line){.kind = LINE_CARRY, .in = {x}};
}

// loss += a little of the mean of the squares: gradients come from the middle too.
static void tax(struct random_text *t, int x)
{
    t->lines[t->n++] = (struct text_line){.kind = LINE_SQUARES, .in = {x}, .number = 0.125};
}

static void make_block(struct random_text *t)
{
    static int (*const blocks[])(struct random_text *, int) = {
        block_mlp,     block_heads,   block_attention, block_attention, block_by_hand,
        block_by_hand, block_squeeze, block_softmax,   block_bilinear,  block_tied,
        block_mixed,   block_places,  block_noise,     block_experts,   block_experts};
    int h = ask(t, 5) ? norm(t, t->x) : t->x;
    int y = blocks[ask(t, (int)(sizeof blocks / sizeof *blocks))](t, h);
    if (ask(t, 4) == 0)
        y = dropped(t, y);
    if (ask(t, 4) == 0)
        tax(t, y);
    y = operate(t, '+', t->x, y);
    carry(t, ask(t, 4) == 0 ? norm(t, y) : y);
}

// ---- as text -----------------------------------------------------------------------------------

static void print_param(struct random_text *t, const struct text_line *l)
{
    buf_printf(&t->text, "%s[", l->param.name);
    for (int d = 0; d < l->param.shape.n; d++) {
        const char *dim = l->param.shape.dim[d];
        bool of_experts = !strcmp(dim, "router") || !strcmp(dim, "expert");
        bool of_seq = !strcmp(dim, "from") || !strcmp(dim, "to");
        buf_printf(&t->text, "%s%s%s%s", d ? ", " : "", dim,
                   l->dim && !strcmp(l->dim, dim) ? "*" : "",
                   of_experts ? " = experts"
                   : of_seq   ? " = seq"
                              : "");
    }
    buf_puts(&t->text, "]");
}

static void print_line(struct random_text *t, const struct text_line *l)
{
    struct buf *b = &t->text;
    int x = l->in[0], y = l->in[1];
    switch (l->kind) {
    case LINE_TOKENS:
    case LINE_POSITIONS:
        buf_printf(b, "v%d = embed(%s, ", l->out[0],
                   l->kind == LINE_TOKENS ? "tokens" : "positions");
        buf_puts(b,
                 l->kind == LINE_TOKENS ? "table[vocab, embed])" : "place[position = seq, embed])");
        break;
    case LINE_WEIGH:
        buf_printf(b, "v%d = ", l->out[0]);
        buf_printf(b, l->bias.shape.n ? "linear(v%d, " : l->choice ? "f32(v%d) @ " : "v%d @ ", x);
        print_param(t, l);
        buf_puts(b, l->bias.shape.n ? ")" : "");
        break;
    case LINE_STACK:
        buf_printf(b, "v%d, v%d, v%d = v%d @ ", l->out[0], l->out[1], l->out[2], x);
        print_param(t, l);
        break;
    case LINE_PRODUCT:
        buf_printf(b, "v%d = v%d @ v%d{%s*}", l->out[0], x, y, l->dim);
        break;
    case LINE_MAP:
        buf_printf(b, "v%d = %s(v%d)", l->out[0], text_maps[l->choice].name, x);
        break;
    case LINE_OPERATE:
        buf_printf(b, "v%d = v%d %c v%d", l->out[0], x, l->sign, y);
        break;
    case LINE_BESIDE:
        buf_printf(b, "v%d = v%d %c ", l->out[0], x, l->sign);
        print_param(t, l);
        break;
    case LINE_SCALE:
        buf_printf(b, "v%d = v%d * %g", l->out[0], x, l->number);
        break;
    case LINE_NORM:
        buf_printf(b, "v%d = %s(v%d%s%s)", l->out[0], l->choice < 2 ? "layernorm" : "rmsnorm", x,
                   l->param.name ? ", " : "", l->param.name ? l->param.name : "");
        break;
    case LINE_SOFTMAX:
    case LINE_SUM:
    case LINE_MEAN:
        buf_printf(b, "v%d = %s(v%d, %s)", l->out[0],
                   l->kind == LINE_SOFTMAX ? "softmax"
                   : l->kind == LINE_SUM   ? "sum"
                                           : "mean",
                   x, l->dim);
        break;
    case LINE_RENAME:
        buf_printf(b, "v%d = v%d{%s as %s}", l->out[0], x, l->dim, l->to);
        break;
    case LINE_SWAP:
        buf_printf(b, "v%d = swap(v%d)", l->out[0], x);
        break;
    case LINE_CAUSAL:
        buf_printf(b, "v%d = causal(v%d", l->out[0], x);
        buf_printf(b, l->choice ? ", %d)" : ")", l->choice);
        break;
    case LINE_ROTARY:
        buf_printf(b, "v%d = rotary(v%d, %g)", l->out[0], x, l->number);
        break;
    case LINE_ATTENTION:
        buf_printf(b, "v%d = %s: attention(v%d, v%d, v%d, %g", l->out[0], l->param.name, x, y,
                   l->in[2], l->more);
        if (l->choice)
            buf_printf(b, ", window = %d", l->choice);
        if (l->number != 0)
            buf_printf(b, ", cap = %g", l->number);
        buf_puts(b, l->sign ? ")" : ", causal = 0)");
        break;
    case LINE_DROPOUT:
        buf_printf(b, "v%d = %s: dropout(v%d, %g)", l->out[0], l->param.name, x, l->number);
        break;
    case LINE_NORMAL:
        buf_printf(b, "v%d = v%d + %g * normal(v%d, %s)", l->out[0], x, l->number, x,
                   l->param.name);
        break;
    case LINE_TOP:
        buf_printf(b, "v%d, v%d = top(v%d, %d)", l->out[0], l->out[1], x, l->choice);
        break;
    case LINE_SLOTS:
        buf_printf(b, "v%d, c%d = slots(v%d, v%d, experts, %.6g)", l->out[0], l->out[0], x, y,
                   l->number);
        break;
    case LINE_DISPATCH:
        buf_printf(b, "v%d = swap(dispatch(v%d, v%d))", l->out[0], x, y);
        break;
    case LINE_COMBINE:
        buf_printf(b, "v%d = combine(swap(v%d), v%d, v%d)", l->out[0], x, y, l->in[2]);
        break;
    case LINE_CARRY:
        buf_printf(b, "v%d = v%d", t->x, x);
        break;
    case LINE_LOSS:
        buf_printf(b, "logits = v%d\n  loss += cross_entropy(logits, targets)", x);
        break;
    case LINE_SQUARES:
        buf_printf(b, "loss += %g * mean(v%d * v%d)", l->number, x, x);
        break;
    }
}

static void print_text(struct random_text *t)
{
    buf_printf(&t->text, "sizes\n  layers = %d\n%s  vocab = %d%s\nmodel\n", t->layers, sizes_text,
               (int)t->vocab, t->vocab == 24 ? "" : " padded 24");
    for (int i = 0; i < t->n; i++) {
        if (i == t->body)
            buf_puts(&t->text, "  repeat layers\n");
        buf_puts(&t->text, i >= t->body && i < t->tail ? "    " : "  ");
        print_line(t, &t->lines[i]);
        buf_puts(&t->text, "\n");
    }
}

void random_text_make(struct random_text *t, uint64_t seed, struct arena *a)
{
    *t = (struct random_text){.seed = seed, .a = a};
    t->layers = 2 + 2 * (ask(t, 4) == 0);
    t->vocab = ask(t, 2) ? 24 : TEXT_VOCAB;
    struct named seen = SHAPE("batch", "seq", "embed"), table = SHAPE("vocab", "embed");
    struct named place = {2, {"position", "embed"}, {TEXT_SEQ, 12}, NULL};
    struct text_line *l = add_line(t, LINE_TOKENS, 0, seen);
    l->param = (struct text_param){"table", "", table};
    t->x = l->out[0];
    if (ask(t, 2)) {
        l = add_line(t, LINE_POSITIONS, 0, seen);
        l->param = (struct text_param){"place", "", place};
        carry(t, operate(t, '+', t->x, l->out[0]));
    }
    t->body = t->n;
    for (int blocks = 1 + ask(t, 3); blocks > 0; blocks--)
        make_block(t);
    t->tail = t->n;
    int h = norm(t, t->x);
    if (ask(t, 2)) {
        l = add_line(t, LINE_WEIGH, h, SHAPE("batch", "seq", "vocab"));
        l->param = (struct text_param){"table", "", table};
        h = l->out[0];
    } else {
        h = weigh(t, h, "head", SHAPE("embed", "vocab"), ask(t, 2));
    }
    t->lines[t->n++] = (struct text_line){.kind = LINE_LOSS, .in = {h}};
    print_text(t);
}
