// SPDX-License-Identifier: Apache-2.0
// Operators on values. See algebra.h.
#include "common/model/algebra.h"

#include <math.h>
#include <string.h>

#include "common/compile/graph/build.h"
#include "common/model/parameter.h"

// ---- values ------------------------------------------------------------------------------------

int as_value(struct builder *b, struct term t)
{
    static const char *const what[] = {[TERM_NUMBER] = "a number",
                                       [TERM_SIZE] = "a number",
                                       [TERM_LIST] = "a list",
                                       [TERM_WORD] = "a choice of words",
                                       [TERM_DIM] = "a dimension"};
    if (b->failed)
        return 0;
    if (t.kind == TERM_PARAM) {
        struct written_param p = param_fill(b, t.param, -1);
        int id = b->failed ? 0 : param_weight(b, &p, "", NULL);
        return id < 0 ? 0 : id;
    }
    // A sum is made as late as it is read, so that numbers it is multiplied by become part of it.
    if (t.kind == TERM_SUM) {
        build_at(b, t.nkeep, t.keep);
        t.value = sum(b->g, t.value, t.nkeep, t.keep, (float)t.by, DT_NONE);
    } else if (t.kind != TERM_VALUE) {
        build_fail(b, "a value is wanted here, not %s", t.kind ? what[t.kind] : "nothing");
    }
    build_check(b);
    return b->failed ? 0 : t.value;
}

int as_real(struct builder *b, struct term t)
{
    int x = as_value(b, t);
    enum dtype of = b->failed ? DT_F32 : b->g->values[x].dtype;
    if (of != DT_F32 && of != DT_BF16)
        build_fail(b, "%s are ids, which have no arithmetic: try f32(x)", dims_of(b, x));
    return b->failed ? 0 : x;
}

// by · x.
static int scale_value(struct builder *b, int x, double by)
{
    if (b->failed || by == 1)
        return x;
    build_at_like(b, x);
    return scale(b->g, x, (float)by);
}

struct term algebra_apply(struct builder *b, enum op op, struct term x)
{
    int v = as_real(b, x);
    if (b->failed)
        return (struct term){0};
    build_at_like(b, v);
    return term_value(apply(b->g, op, v));
}

// ---- + - * / -----------------------------------------------------------------------------------

// Returns the dtype that a value has when ops read it.
static enum dtype read_dtype(const struct builder *b, int x)
{
    const struct value *v = &b->g->values[x];
    bool leaf = v->kind == VALUE_PARAM || v->kind == VALUE_INPUT;
    return leaf && v->dtype == DT_F32 && b->g->compute ? b->g->compute : v->dtype;
}

// A number as a scalar that ops read beside x.
static int make_constant(struct builder *b, double c, int x)
{
    struct graph *g = b->g;
    int one = graph_one(g);
    graph_at(g, POINT_NONE);
    if (read_dtype(b, x) == DT_F32)
        return c == 1 ? one : scale(g, one, (float)c);
    return graph_shaped(g, OP_CAST, 1, &one, one, &(struct op_attr){.scale = (float)c},
                        read_dtype(b, x));
}

// Makes both values f32 if one of them is.
static void match_dtypes(struct builder *b, int *x, int *y)
{
    struct graph *g = b->g;
    if (b->failed || g->values[*x].kind != VALUE_TEMP || g->values[*y].kind != VALUE_TEMP ||
        g->values[*x].dtype == g->values[*y].dtype)
        return;
    int *low = g->values[*x].dtype == DT_F32 ? y : x;
    build_at_like(b, *low);
    *low = cast(g, *low, DT_F32);
}

// Returns x as what is added to y reads it: where y is a sum over a microbatch's samples, a share of
// the step's, and x is the same in all microbatches, a share of x.
static int take_share(struct builder *b, int x, int y)
{
    const struct value *v = b->g->values;
    if (microbatch_share(b) == 1 || !v[y].share || v[x].share || has_samples(b, x))
        return x;
    build_at_like(b, x);
    int share = scale(b->g, x, (float)microbatch_share(b));
    b->g->values[share].share = true;
    return share;
}

static struct term add_number(struct builder *b, int x, double c)
{
    if (b->failed || c == 0)
        return term_value(x);
    int k = take_share(b, make_constant(b, fabs(c), x), x);
    build_at_like(b, x);
    return term_value(c < 0 ? sub(b->g, x, k) : add(b->g, x, k));
}

static struct term multiply_by(struct builder *b, struct term x, double c)
{
    if (c == 0)
        return term_number(0, true);
    if (x.kind == TERM_SUM) {
        x.by = (double)(float)(x.by * c);
        return x;
    }
    return term_value(scale_value(b, as_real(b, x), c));
}

static struct term operate_on_number(struct builder *b, enum sign sign, struct term x, double c)
{
    switch (sign) {
    case SIGN_ADD:
        return add_number(b, as_real(b, x), c);
    case SIGN_SUB:
        return add_number(b, as_real(b, x), -c);
    case SIGN_MUL:
        return multiply_by(b, x, c);
    case SIGN_DIV:
        return c == 0 ? build_fail(b, "a division by zero") : multiply_by(b, x, 1 / c);
    default:
        return build_fail(b, "values have + - * / and @ only");
    }
}

static struct term operate_number_on(struct builder *b, enum sign sign, double c, struct term x)
{
    switch (sign) {
    case SIGN_ADD:
        return add_number(b, as_real(b, x), c);
    case SIGN_SUB:
        return add_number(b, scale_value(b, as_real(b, x), -1), c);
    case SIGN_MUL:
        return multiply_by(b, x, c);
    case SIGN_DIV: { // c / x
        int v = as_real(b, x);
        if (b->failed)
            return (struct term){0};
        int k = make_constant(b, c, v);
        build_at_like(b, v);
        return term_value(graph_like(b->g, OP_DIV, 2, (int[]){k, v}, v));
    }
    default:
        return build_fail(b, "values have + - * / and @ only");
    }
}

static bool is_among(const struct value *few, const struct value *many)
{
    for (int d = 0; d < few->shape.n; d++)
        if (value_find_dim(many, few->dims[d]) < 0)
            return false;
    return true;
}

static struct term operate_values(struct builder *b, enum sign sign, int x, int y)
{
    static const enum op ops[] = {
        [SIGN_ADD] = OP_ADD, [SIGN_SUB] = OP_SUB, [SIGN_MUL] = OP_MUL, [SIGN_DIV] = OP_DIV};
    if (b->failed)
        return (struct term){0};
    const struct value *vx = &b->g->values[x], *vy = &b->g->values[y];
    bool narrow = is_among(vy, vx);
    if (sign > SIGN_DIV)
        return build_fail(b, "values have + - * / and @ only");
    if (!narrow && !is_among(vx, vy))
        return build_fail(
            b, "%s and %s do not broadcast: one side's dimensions must be among the other's",
            dims_of(b, x), dims_of(b, y));
    if (sign <= SIGN_SUB) {
        x = take_share(b, x, y);
        y = take_share(b, y, x);
    }
    match_dtypes(b, &x, &y);
    build_at_like(b, narrow ? x : y);
    return term_value(graph_like(b->g, ops[sign], 2, (int[]){x, y}, narrow ? x : y));
}

// ---- products ----------------------------------------------------------------------------------

static bool has_star(const struct term *t, enum dim dim)
{
    for (int i = 0; i < t->nstars; i++)
        if (t->star[i] == dim)
            return true;
    return false;
}

static int report_no_shared(struct builder *b, int x, const char *path, const char *dims)
{
    build_fail(b, "%s and %s%s share no dimension: a product sums over shared ones", dims_of(b, x),
               path, dims);
    return 0;
}

static const char *print_written(struct builder *b, const struct written_param *w)
{
    struct buf text = {0};
    for (int d = 0; d < w->n; d++)
        buf_printf(&text, "%s%s", d ? ", " : "[", dims_name(b->g->dims, w->dims[d].dim));
    buf_puts(&text, w->n > 0 ? "]" : "");
    return buf_keep(&text, b->arena);
}

int permute_value(struct builder *b, int x, const enum dim *order)
{
    const struct value v = b->g->values[x];
    if (b->failed || memcmp(order, v.dims, sizeof *order * (size_t)v.shape.n) == 0)
        return x;
    build_at(b, v.shape.n, order);
    return graph_permute(b->g, x, order, NULL, DT_NONE);
}

// x as a product reads it: what is summed over lies side by side in the weight's order. Elsewhere,
// as heads do behind attention that is written out by hand, it is brought to the end.
static int gather_summed(struct builder *b, int x, const struct written_param *w,
                         const bool *summed)
{
    const struct value v = b->g->values[x];
    enum dim order[MAX_DIMS];
    int n = 0, next = -1;
    bool beside = true;
    for (int d = 0; d < w->n; d++) {
        int at = summed[d] ? value_find_dim(&v, w->dims[d].dim) : -1;
        if (at < 0)
            continue;
        beside = beside && (next < 0 || at == next);
        next = at + 1;
    }
    if (beside)
        return x;
    for (int d = 0; d < v.shape.n; d++) {
        bool over = false;
        for (int i = 0; i < w->n; i++)
            over = over || (summed[i] && w->dims[i].dim == v.dims[d]);
        if (!over)
            order[n++] = v.dims[d];
    }
    for (int d = 0; d < w->n; d++)
        if (summed[d])
            order[n++] = w->dims[d].dim;
    return permute_value(b, x, order);
}

// x with the names that are starred in the weight in front: they number the products.
static int lead_with_kept(struct builder *b, int x, const struct written_param *w)
{
    const struct value v = b->g->values[x];
    enum dim order[MAX_DIMS];
    int n = 0;
    for (int d = 0; d < w->n; d++)
        if (w->star[d])
            order[n++] = w->dims[d].dim;
    int kept = n;
    for (int d = 0; d < v.shape.n; d++) {
        bool starred = false;
        for (int i = 0; i < kept; i++)
            starred = starred || order[i] == v.dims[d];
        if (!starred)
            order[n++] = v.dims[d];
    }
    return permute_value(b, x, order);
}

// Brings the dimensions of y, a product of operand x, into the order that its reader expects: those
// that it has from x in x's order, then all others.
static int follow_operand(struct builder *b, int y, int x)
{
    const struct value v = b->g->values[x], made = b->g->values[y];
    enum dim order[MAX_DIMS];
    int n = 0;
    if (made.dims[0] == DIM_QKV)
        return y; // a stack, soon taken apart
    for (int d = 0; d < v.shape.n; d++)
        if (value_find_dim(&made, v.dims[d]) >= 0)
            order[n++] = v.dims[d];
    for (int d = 0; d < made.shape.n; d++)
        if (value_find_dim(&v, made.dims[d]) < 0)
            order[n++] = made.dims[d];
    return permute_value(b, y, order);
}

// The output has the dimension of a stack first, then the operand's dimensions, then the weight's.
int product_with_weight(struct builder *b, int x, const struct written_param *written,
                        struct written_param *made, bool *over)
{
    bool summed[MAX_DIMS] = {false};
    enum dim out[MAX_DIMS * 2];
    int n = 0, shared = 0, kept = 0;
    if (b->failed)
        return 0;
    struct written_param w = param_fill(b, written, x);
    const struct value given = b->g->values[x];
    for (int d = 0; d < w.n; d++) {
        bool has = value_find_dim(&given, w.dims[d].dim) >= 0;
        if (w.star[d] && !has)
            build_fail(b, "%s is starred in %s and %s lacks it",
                       dims_name(b->g->dims, w.dims[d].dim), w.path, dims_of(b, x));
        if (w.star[d] && d > kept)
            build_fail(b, "starred dimensions lead a weight: try %s[%s*, …]", w.path,
                       dims_name(b->g->dims, w.dims[d].dim));
        summed[d] = has && !w.star[d];
        shared += summed[d];
        kept += has && w.star[d];
        if (w.dims[d].dim == DIM_QKV && !has)
            out[n++] = DIM_QKV;
    }
    if (!shared && !kept && !b->failed)
        return report_no_shared(b, x, w.path, print_written(b, &w));
    if (b->failed)
        return 0;
    int weight = param_weight(b, &w, "weight", summed), operand = x;
    x = lead_with_kept(b, x, &w);
    const struct value v = b->g->values[x];
    for (int d = 0; d < v.shape.n && weight >= 0; d++) {
        int of = -1;
        for (int i = 0; i < w.n; i++)
            of = w.dims[i].dim == v.dims[d] ? i : of;
        if (of < 0 || w.star[of])
            out[n++] = v.dims[d];
    }
    for (int d = 0; d < w.n && weight >= 0; d++)
        if (value_find_dim(&v, w.dims[d].dim) < 0 && w.dims[d].dim != DIM_QKV)
            out[n++] = w.dims[d].dim;
    if (n > MAX_DIMS)
        build_fail(b, "a product of %d dimensions: try at most %d", n, MAX_DIMS);
    if (b->failed)
        return 0;
    if (made)
        *made = w;
    if (over)
        memcpy(over, summed, sizeof summed);
    x = gather_summed(b, x, &w, summed);
    build_at(b, n, out);
    int y = graph_matmul_as(b->g, x, weight, n, out, b->drawing ? DT_F32 : DT_NONE);
    build_check(b);
    return b->failed || !kept ? y : follow_operand(b, y, operand);
}

// Multiplies two values. The dimensions that are kept lead both, so that they are a batch of
// products.
static struct term multiply_values(struct builder *b, const struct term *x, const struct term *y,
                                   int vx, int vy)
{
    const struct value a = b->g->values[vx], c = b->g->values[vy];
    enum dim kept[MAX_DIMS], summed[MAX_DIMS], left[MAX_DIMS], right[MAX_DIMS];
    enum dim pa[MAX_DIMS], pc[MAX_DIMS], out[MAX_DIMS * 2];
    int nk = 0, ns = 0, nl = 0, nr = 0, n = 0;
    for (int d = 0; d < a.shape.n; d++) {
        bool shared = value_find_dim(&c, a.dims[d]) >= 0;
        bool keep =
            shared && (a.dims[d] == DIM_BATCH || has_star(x, a.dims[d]) || has_star(y, a.dims[d]));
        if (keep)
            kept[nk++] = a.dims[d];
        else if (shared)
            summed[ns++] = a.dims[d];
        else
            left[nl++] = a.dims[d];
    }
    for (int d = 0; d < c.shape.n; d++)
        if (value_find_dim(&a, c.dims[d]) < 0)
            right[nr++] = c.dims[d];
    if (!ns)
        report_no_shared(b, vx, "", dims_of(b, vy));
    if (nk + nl + nr > MAX_DIMS)
        build_fail(b, "a product of %d dimensions: try at most %d", nk + nl + nr, MAX_DIMS);
    if (b->failed)
        return (struct term){0};
    memcpy(pa, kept, sizeof *kept * (size_t)nk);
    memcpy(pa + nk, left, sizeof *left * (size_t)nl);
    memcpy(pa + nk + nl, summed, sizeof *summed * (size_t)ns);
    memcpy(pc, kept, sizeof *kept * (size_t)nk);
    memcpy(pc + nk, right, sizeof *right * (size_t)nr);
    memcpy(pc + nk + nr, summed, sizeof *summed * (size_t)ns);
    memcpy(out, kept, sizeof *kept * (size_t)nk);
    memcpy(out + nk, left, sizeof *left * (size_t)nl);
    memcpy(out + nk + nl, right, sizeof *right * (size_t)nr);
    n = nk + nl + nr;
    int p = permute_value(b, vx, pa), q = permute_value(b, vy, pc);
    build_at(b, n, out);
    return term_value(graph_matmul_as(b->g, p, q, n, out, b->drawing ? DT_F32 : DT_NONE));
}

static struct term multiply_terms(struct builder *b, struct term x, struct term y)
{
    struct term out;
    if (x.kind == TERM_PARAM && y.kind != TERM_PARAM) {
        struct term other = x;
        x = y;
        y = other;
    }
    int v = as_real(b, x);
    if (y.kind == TERM_PARAM)
        return term_value(product_with_weight(b, v, y.param, NULL, NULL));
    int w = as_real(b, y);
    match_dtypes(b, &v, &w);
    if (b->failed)
        return (struct term){0};
    out = multiply_values(b, &x, &y, v, w);
    build_check(b);
    return out;
}

struct term algebra_operator(struct builder *b, enum sign sign, struct term x, struct term y)
{
    if (b->failed)
        return (struct term){0};
    if (sign == SIGN_CONTRACT)
        return multiply_terms(b, x, y);
    if (term_has_number(&x) && term_has_number(&y)) {
        const char *fault;
        struct number n = number_apply(sign, x.number, y.number, &fault);
        if (fault)
            return build_fail(b, "%s", fault);
        return term_number(n.value, n.whole);
    }
    struct term out;
    if (term_has_number(&y)) {
        out = operate_on_number(b, sign, x, y.number.value);
    } else if (term_has_number(&x)) {
        out = operate_number_on(b, sign, x.number.value, y);
    } else {
        int vx = as_real(b, x), vy = as_real(b, y);
        out = operate_values(b, sign, vx, vy);
    }
    build_check(b);
    return out;
}

// ---- renaming ----------------------------------------------------------------------------------

struct term algebra_rename(struct builder *b, struct term x, const struct expr *e)
{
    int v = as_value(b, x);
    if (!b->failed && b->g->values[v].dtype == DT_I32)
        return build_fail(b,
                          "ids keep the names of their dimensions: try f32(x){%s as NAME}, with "
                          "f32 inside",
                          e->ndims ? e->dims[0].name : "seq");
    v = as_real(b, x);
    struct term out = term_value(v);
    if (b->failed)
        return (struct term){0};
    struct value of = b->g->values[v];
    bool renames = false;
    for (int i = 0; i < e->ndims; i++) {
        enum dim from = dims_id(b->g->dims, e->dims[i].name);
        int d = value_find_dim(&b->g->values[v], from);
        if (d < 0)
            return build_fail(b, "%s has no dimension %s", dims_of(b, v), e->dims[i].name);
        if (e->dims[i].as && x.kind == TERM_PARAM)
            return build_fail(b, "a parameter's dimensions are named where it stands: %s = SIZE",
                              e->dims[i].as);
        if (e->dims[i].as) {
            of.dims[d] = dims_id(b->g->dims, e->dims[i].as);
            renames = true;
        }
        if (e->dims[i].star)
            out.star[out.nstars++] = of.dims[d];
    }
    for (int d = 0; d < of.shape.n; d++)
        for (int i = 0; i < d; i++)
            if (of.dims[i] == of.dims[d])
                return build_fail(b, "two dimensions would be called %s",
                                  dims_name(b->g->dims, of.dims[d]));
    if (renames) {
        build_at(b, of.shape.n, of.dims);
        out.value = graph_permute(b->g, v, of.dims, of.dims, DT_NONE);
    }
    build_check(b);
    return out;
}
