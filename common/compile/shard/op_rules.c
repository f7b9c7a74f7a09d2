// SPDX-License-Identifier: Apache-2.0
// The sharding rules: given the specs of the inputs and the wanted spec of the output, which specs
// an op needs and which it makes. A rule never inserts a collective; partition.c does, where what
// is there differs from what is needed.
//
// The contraction rule places each mesh axis on one loop of the op, or nowhere; the cases and their
// order are in the README of common/compile.
#include "common/compile/shard/op_rules.h"

#include "common/compile/graph/operand.h"
#include "common/compile/layout/reshard.h"
#include "common/op/attention.h"

// Where the rule puts each axis: the loop (label) it cuts.
enum { NO_LABEL = -1, UNPLACED = -2, MAX_LABELS = MAX_DIMS * 4 };
struct placement {
    int8_t label[MESH_MAX_AXES];
};

static const struct value *get_input(const struct shard_query *q, int k)
{
    return &q->graph->values[q->node->in[k]];
}

static const struct value *get_output(const struct shard_query *q)
{
    return &q->graph->values[q->node->out[0]];
}

static const int8_t *get_output_labels(const struct shard_query *q)
{
    return q->node->attr.label[q->node->nin];
}

// The dimension of operand k that runs over `label`, −1 for none.
static int find_dim(const struct shard_query *q, int k, int label)
{
    return operand_find_loop(q->graph, q->node, k, label);
}

static bool is_in_output(const struct shard_query *q, int label)
{
    return find_dim(q, q->node->nin, label) >= 0;
}

// The label that `axis` cuts in operand k, NO_LABEL for none or for data.
static int label_cut(const struct shard_query *q, int k, int axis)
{
    for (int d = 0; q->in[k] && d < get_input(q, k)->shape.n; d++)
        if (dim_axes(&q->in[k]->dim[d]) >> axis & 1)
            return q->node->attr.label[k][d];
    return NO_LABEL;
}

// Rule 0: every operand that has the contracted dimension is cut on the axis there.
static int rule_kept(const struct shard_query *q, int axis)
{
    for (int k = 0; k < q->node->nin; k++) {
        int label = label_cut(q, k, axis);
        if (label == NO_LABEL || is_in_output(q, label))
            continue;
        bool all = true;
        for (int j = 0; j < q->node->nin && all; j++)
            all = !q->in[j] || find_dim(q, j, label) < 0 || label_cut(q, j, axis) == label;
        if (all)
            return label;
    }
    return NO_LABEL;
}

// Rule 1: the wanted output cuts one of its dimensions on the axis.
static int rule_wanted(const struct shard_query *q, int axis)
{
    for (int d = 0; q->has_want && d < get_output(q)->shape.n; d++)
        if (dim_axes(&q->want->dim[d]) >> axis & 1)
            return get_output_labels(q)[d];
    return NO_LABEL;
}

static int64_t operand_bytes(const struct shard_query *q, int k)
{
    return shape_count(&get_input(q, k)->shape) * (int64_t)dtype_size(get_input(q, k)->dtype);
}

// Rule 2: the axis cuts a contracted dimension of an operand, the largest if several.
static int rule_contracted(const struct shard_query *q, int axis)
{
    int best = NO_LABEL;
    int64_t bytes = -1;
    for (int k = 0; k < q->node->nin; k++) {
        int label = label_cut(q, k, axis);
        if (label == NO_LABEL || is_in_output(q, label) || operand_bytes(q, k) <= bytes)
            continue;
        best = label;
        bytes = operand_bytes(q, k);
    }
    return best;
}

static int64_t label_size(const struct shard_query *q, int label)
{
    for (int k = 0; k < q->node->nin; k++)
        if (find_dim(q, k, label) >= 0)
            return get_input(q, k)->shape.dim[find_dim(q, k, label)];
    for (int d = 0; d < get_output(q)->shape.n; d++)
        if (get_output_labels(q)[d] == label)
            return get_output(q)->shape.dim[d];
    return 1;
}

// Whether `label` can take `axis` besides the axes it has already.
static bool can_divide_further(const struct shard_query *q, const struct placement *p, int label,
                               int axis)
{
    int64_t parts = q->mesh->axis[axis].size;
    for (int a = 0; a < q->mesh->n; a++)
        if (p->label[a] == label)
            parts *= q->mesh->axis[a].size;
    return label_size(q, label) % parts == 0;
}

// Bytes of an operand's shard (k = nin: of the output's), as cut by the axes placed so far and,
// where an axis is not placed yet, as the operand is cut now; `without` counts as uncut.
static uint64_t shard_bytes(const struct shard_query *q, const struct placement *p, int k,
                            int without)
{
    const struct value *v = get_operand(q->graph, q->node, k);
    int64_t n = shape_count(&v->shape) * (int64_t)dtype_size(v->dtype);
    for (int axis = 0; axis < q->mesh->n; axis++) {
        if (axis == without || q->mesh->axis[axis].size < 2)
            continue;
        int label = p->label[axis];
        bool cut = label == UNPLACED ? k < q->node->nin && label_cut(q, k, axis) != NO_LABEL
                                     : label != NO_LABEL && find_dim(q, k, label) >= 0;
        n /= cut ? q->mesh->axis[axis].size : 1;
    }
    return (uint64_t)n;
}

static uint64_t gather_bytes(const struct shard_query *q, const struct placement *p, int k,
                             int axis)
{
    return reshard_ring_bytes(RESHARD_ALL_GATHER, shard_bytes(q, p, k, axis),
                              q->mesh->axis[axis].size);
}

// Rule 3: the axis cuts a free dimension. Kept, the operands cut elsewhere and the output are
// gathered over it; else all operands are. The fewer bytes win, a tie keeps.
static int rule_free(const struct shard_query *q, const struct placement *p, int axis)
{
    uint64_t best = 0;
    int choice = NO_LABEL;
    for (int k = 0; k < q->node->nin; k++)
        best += label_cut(q, k, axis) != NO_LABEL ? gather_bytes(q, p, k, axis) : 0;
    for (int k = 0; k < q->node->nin; k++) {
        int label = label_cut(q, k, axis);
        if (label == NO_LABEL || label == choice || !can_divide_further(q, p, label, axis))
            continue;
        uint64_t gathered = q->has_want ? gather_bytes(q, p, q->node->nin, axis) : 0;
        for (int j = 0; j < q->node->nin; j++)
            if (label_cut(q, j, axis) != NO_LABEL && label_cut(q, j, axis) != label)
                gathered += gather_bytes(q, p, j, axis);
        if (gathered > best || (gathered == best && choice != NO_LABEL))
            continue;
        best = gathered;
        choice = label;
    }
    return choice;
}

static void place_rest(const struct shard_query *q, struct placement *p)
{
    for (int axis = 0; axis < q->mesh->n; axis++) {
        if (p->label[axis] != UNPLACED)
            continue;
        int label = rule_contracted(q, axis);
        if (label != NO_LABEL && !can_divide_further(q, p, label, axis))
            label = NO_LABEL;
        else if (label == NO_LABEL && !q->uncut)
            label = rule_free(q, p, axis);
        p->label[axis] = (int8_t)label;
    }
}

// Puts the numbers of the operands in order, the largest operand first, and returns how many.
static int sort_operands(const struct shard_query *q, int order[OP_MAX_IN])
{
    for (int k = 0; k < q->node->nin; k++) {
        int at = k;
        while (at > 0 && operand_bytes(q, order[at - 1]) < operand_bytes(q, k)) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = k;
    }
    return q->node->nin;
}

// Orders the axes of a dimension alike for all operands: first as the wanted output has them, then
// as the largest operand does, then as the next.
static void order_axes(const struct shard_query *q, const struct placement *p,
                       struct dim_cut cut[MAX_LABELS])
{
    axis_set done = 0;
    for (int d = 0; q->has_want && d < get_output(q)->shape.n; d++)
        for (int i = 0; i < q->want->dim[d].n; i++) {
            int axis = q->want->dim[d].axis[i], label = get_output_labels(q)[d];
            if (p->label[axis] != label)
                continue;
            dim_append(&cut[label], axis);
            done |= (axis_set)(1u << axis);
        }
    int order[OP_MAX_IN], n = sort_operands(q, order);
    for (int o = 0; o < n; o++) {
        int k = order[o];
        for (int d = 0; q->in[k] && d < get_input(q, k)->shape.n; d++)
            for (int i = 0; i < q->in[k]->dim[d].n; i++) {
                int axis = q->in[k]->dim[d].axis[i];
                if (done >> axis & 1 || p->label[axis] == NO_LABEL)
                    continue;
                dim_append(&cut[p->label[axis]], axis);
                done |= (axis_set)(1u << axis);
            }
    }
}

static void shard_contract(struct shard_query *q)
{
    struct placement p;
    struct dim_cut cut[MAX_LABELS] = {0};
    axis_set partial = 0;
    // Rules 0 and 1 for every axis first: what they take decides whether more still divides.
    for (int axis = 0; axis < q->mesh->n; axis++) {
        p.label[axis] = UNPLACED;
        if (q->mesh->axis[axis].size < 2) {
            p.label[axis] = NO_LABEL;
            continue;
        }
        int label = rule_kept(q, axis);
        if (label == NO_LABEL)
            label = rule_wanted(q, axis);
        if (label != NO_LABEL)
            p.label[axis] = (int8_t)label;
    }
    place_rest(q, &p);
    for (int axis = 0; axis < q->mesh->n; axis++)
        if (p.label[axis] != NO_LABEL && !is_in_output(q, p.label[axis]))
            partial |= (axis_set)(1u << axis);
    order_axes(q, &p, cut);
    for (int k = 0; k < q->node->nin; k++)
        for (int d = 0; d < get_input(q, k)->shape.n; d++)
            q->need[k].dim[d] = cut[q->node->attr.label[k][d]];
    for (int d = 0; d < get_output(q)->shape.n; d++)
        q->out[0].dim[d] = cut[get_output_labels(q)[d]];
    if (op_is(q->node->op, OP_MAKES_MAX))
        q->out[0].partial_max = partial;
    else
        q->out[0].partial_sum = partial;
}

// Every other op computes at its output's wanted cuts; each operand is brought there, whole, on the
// dimensions it has.
static void shard_pointwise(struct shard_query *q)
{
    for (int k = 0; k < q->node->nin; k++)
        for (int d = 0; d < get_input(q, k)->shape.n; d++)
            for (int o = 0; o < get_output(q)->shape.n; o++)
                if (get_output_labels(q)[o] == q->node->attr.label[k][d])
                    q->need[k].dim[d] = q->want->dim[o];
    q->out[0] = *q->want;
}

// As shard_pointwise, but one dimension of the output, which the op cannot split, is left whole.
static void shard_pointwise_except(struct shard_query *q, int dim)
{
    const struct spec *want = q->want;
    struct spec less = *want;
    less.dim[dim] = (struct dim_cut){0};
    q->want = &less;
    shard_pointwise(q);
    q->want = want;
}

static void shard_last_whole(struct shard_query *q)
{
    shard_pointwise_except(q, get_output(q)->shape.n - 1);
}

static void shard_split(struct shard_query *q)
{
    shard_pointwise(q);
    for (int k = 1; k < q->node->nout; k++)
        q->out[k] = q->out[0];
}

static void shard_topk(struct shard_query *q)
{
    shard_last_whole(q);
    q->out[1] = q->out[0];
}

static void shard_stack(struct shard_query *q)
{
    shard_pointwise_except(q, 0);
}

// An embedding is the product of a one-hot matrix (of the ids) and the table. Where an axis cuts
// the table's rows but not the ids, each device looks up its own rows and the output is a partial
// sum over that axis. Over an axis that cuts both, the table is gathered.
static void shard_embed(struct shard_query *q)
{
    const struct spec *table = q->in[1];
    struct spec rows = *table;
    axis_set ids = spec_axes(q->in[0] ? q->in[0] : &q->asked[0]);
    rows.dim[0] = (struct dim_cut){0};
    for (int i = 0; i < table->dim[0].n; i++)
        if (!(ids >> table->dim[0].axis[i] & 1))
            dim_append(&rows.dim[0], table->dim[0].axis[i]);
    q->in[1] = &rows;
    shard_contract(q);
    q->in[1] = table;
}

// The table's gradient contracts the one-hot matrix of the ids with the cotangent. Ids from data
// have no cut yet: they count with the one that they are asked to have. Where an axis cuts the
// cotangent, not the ids, and the table's rows too, the cotangent is gathered, as it is for the
// gradient of a product's weight.
static void shard_embed_grad(struct shard_query *q)
{
    const struct spec *ids = q->in[0];
    struct spec asked = q->asked[0];
    q->in[0] = ids ? ids : &asked;
    shard_contract(q);
    q->in[0] = ids;
}

// The gradient of a norm's weight is a contraction over the rows. A row itself is never cut, since
// its norm is over all of its elements.
static void shard_norm_weight(struct shard_query *q)
{
    shard_contract(q);
    for (int k = 0; k < q->node->nin; k++)
        q->need[k].dim[get_input(q, k)->shape.n - 1] = (struct dim_cut){0};
    q->out[0].dim[0] = (struct dim_cut){0};
}

// Batch, query sequence and heads as wanted, a head's elements whole; keys and values whole on the
// sequence and, where the cut of the heads does not divide theirs, on the heads (explain/heads.h
// makes a finding of it). The second pair of scores lies alike, its key without heads, and the
// log-sum-exp as the output does, without a width. Gradients of what the keys have are partial over
// what cuts the queries alone.
static void shard_attention(struct shard_query *q)
{
    enum { BATCH, SEQ, HEADS, WIDTH };
    struct attention_operands o;
    bool grad = q->node->op == OP_ATTENTION_GRAD;
    int64_t parts = dim_parts(q->mesh, &q->want->dim[HEADS]);
    PRE(!attention_operands(q->node->op, q->node->nin, &o));
    struct spec rows = *q->want, keys, shared = {.dim[BATCH] = rows.dim[BATCH]};
    rows.dim[WIDTH] = (struct dim_cut){0};
    keys = rows;
    keys.dim[SEQ] = (struct dim_cut){0};
    if (get_input(q, o.k)->shape.dim[HEADS] % parts)
        keys.dim[HEADS] = (struct dim_cut){0};
    struct spec lse = {.dim = {rows.dim[BATCH], rows.dim[HEADS], rows.dim[SEQ]}};
    for (int k = 0; k < o.at_q; k++)
        q->need[k] = k == o.kr ? shared : k == o.lse ? lse : k == o.k || k == o.v ? keys : rows;
    q->need[o.at_q] = q->need[o.at_k] = shared;
    q->need[o.at_q].dim[SEQ] = rows.dim[SEQ];
    q->out[0] = rows;
    if (!grad)
        q->out[ATTENTION_LSE] = lse;
    for (int k = 1; k < q->node->nout && grad; k++) {
        q->out[k] = q->need[k];
        q->out[k].partial_sum = (axis_set)(spec_axes(&rows) & ~spec_axes(&q->need[k]));
    }
}

// Where a cache lies, so do its rows, whole on their sequence: they go to places that are all here.
static void shard_append(struct shard_query *q)
{
    q->out[0] = q->need[0] = q->need[1] = *q->in[0];
    for (int k = 2; k < q->node->nin; k++)
        q->need[k].dim[0] = q->in[0]->dim[0];
}

// ---- experts -----------------------------------------------------------------------------------

// Every device of a sample sees all of its tokens and choices, so nothing is summed.
static void shard_slots(struct shard_query *q)
{
    for (int k = 0; k < q->node->nin; k++)
        q->need[k].dim[0] = q->in[0]->dim[0];
    for (int k = 0; k < q->node->nout; k++)
        q->out[k].dim[0] = q->in[0]->dim[0];
}

enum { TOKEN_BATCH, TOKEN_SEQ, TOKEN_WIDTH };                 // dimensions of [batch, seq, width]
enum { PLACE_GROUP, PLACE_EXPERT, PLACE_PLACE, PLACE_WIDTH }; // of [group, expert, capacity, width]

// Computes, as every other op, at the output's wanted cuts, where the output's groups stand for the
// batch. Tokens and slots are brought there whole on the sequence, since a token may fill any place
// of its group.
static void shard_dispatch(struct shard_query *q)
{
    for (int k = 0; k < q->node->nin; k++)
        q->need[k].dim[TOKEN_BATCH] = q->want->dim[PLACE_GROUP];
    q->need[0].dim[TOKEN_WIDTH] = q->want->dim[PLACE_WIDTH];
    q->out[0] = *q->want;
}

// Appends the axes of a cut that are not in `but` to another cut, and returns all that this one has.
static axis_set keep_cut(const struct dim_cut *from, axis_set but, struct dim_cut *to)
{
    for (int i = 0; i < from->n; i++)
        if (!(but >> from->axis[i] & 1))
            dim_append(to, from->axis[i]);
    return dim_axes(to);
}

// COMBINE and SLOT_DOT compute where the places lie: these keep their cuts on experts and places, but
// for axes that the output wants on the batch or the width, and the output is partial over them. Of
// the sequence the output takes the axes before the first of those; the rest is left to a
// reduce-scatter. SLOT_DOT sums over the width, so that it keeps the places' cut of it too.
static void shard_combine(struct shard_query *q)
{
    bool dot = q->node->op == OP_SLOT_DOT;
    const struct spec *y = q->in[0], *want = q->want;
    axis_set taken = dim_axes(&want->dim[TOKEN_BATCH]), partial = 0;
    struct spec tokens = {0}, *places = &q->need[0];
    tokens.dim[TOKEN_BATCH] = places->dim[PLACE_GROUP] = want->dim[TOKEN_BATCH];
    if (dot) {
        partial |= keep_cut(&y->dim[PLACE_WIDTH], taken, &places->dim[PLACE_WIDTH]);
    } else {
        places->dim[PLACE_WIDTH] = want->dim[TOKEN_WIDTH];
        taken |= dim_axes(&want->dim[TOKEN_WIDTH]);
    }
    partial |= keep_cut(&y->dim[PLACE_EXPERT], taken, &places->dim[PLACE_EXPERT]);
    partial |= keep_cut(&y->dim[PLACE_PLACE], taken, &places->dim[PLACE_PLACE]);
    const struct dim_cut *seq = &want->dim[TOKEN_SEQ];
    for (int i = 0; i < seq->n && !(partial >> seq->axis[i] & 1); i++)
        dim_append(&tokens.dim[TOKEN_SEQ], seq->axis[i]);
    for (int k = 1; k < q->node->nin; k++)
        q->need[k] = tokens;
    q->out[0] = tokens;
    (dot ? &q->need[2] : &q->out[0])->dim[TOKEN_WIDTH] = places->dim[PLACE_WIDTH];
    q->out[0].partial_sum = partial;
}

// ---- the update --------------------------------------------------------------------------------

// The optimiser works on the cut of its state, to which the gradient has been brought; clip and
// hyper are whole everywhere.
static void shard_update(struct shard_query *q)
{
    for (int k = 0; k < q->node->nin - 2; k++)
        q->need[k] = *q->in[1];
    for (int k = 0; k < q->node->nout; k++)
        q->out[k] = *q->in[1];
}

// Keeps all operands, and the bias that follows the loads, whole on every device.
static void shard_balance(struct shard_query *q)
{
    (void)q;
}

// Takes its operands as they are, which are parts of a sum over some axes, and makes such a part. One
// alone may be cut along its first dimension: so is the vector, then.
static void shard_metrics(struct shard_query *q)
{
    for (int k = 0; k < q->node->nin; k++) {
        q->need[k] = *q->in[k];
        q->out[0].partial_sum |= q->in[k]->partial_sum;
    }
    if (q->node->nin == 1)
        q->out[0].dim[0] = q->in[0]->dim[0];
}

// Takes its operand as it is; every rank makes its part of a sum over all axes.
static void shard_partial_scalar(struct shard_query *q)
{
    q->need[0] = *q->in[0];
    q->out[0].partial_sum = mesh_all(q->mesh);
}

// ---- the table ---------------------------------------------------------------------------------

static void (*const rules[OP_COUNT])(struct shard_query *q) = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits)
#define STEP(id, name, nin, slope, of) [OP_##id] = shard_pointwise,
#include "common/op/ops.def"
    [OP_MATMUL] = shard_contract,
    [OP_SUM] = shard_contract,
    [OP_CAST] = shard_pointwise,
    [OP_SCALE] = shard_pointwise,
    [OP_EQUAL] = shard_pointwise,
    [OP_PAD] = shard_pointwise,
    [OP_ROW_MAX] = shard_contract,
    [OP_ROW_SUM_EXP] = shard_contract,
    [OP_ROW_EXP_MUL] = shard_pointwise,
    [OP_PICK] = shard_contract,
    [OP_PICK_GRAD] = shard_pointwise,
    [OP_SOFTMAX] = shard_last_whole,
    [OP_SOFTMAX_GRAD] = shard_last_whole,
    [OP_ROW_ARGMAX] = shard_pointwise,
    [OP_DROPOUT] = shard_pointwise,
    [OP_NORMAL] = shard_pointwise,
    [OP_SPLIT] = shard_split,
    [OP_STACK] = shard_stack,
    [OP_EMBED] = shard_embed,
    [OP_EMBED_GRAD] = shard_embed_grad,
    [OP_NORM] = shard_last_whole,
    [OP_NORM_GRAD] = shard_last_whole,
    [OP_NORM_WEIGHT_GRAD] = shard_norm_weight,
    [OP_ROTARY] = shard_last_whole,
    [OP_ATTENTION] = shard_attention,
    [OP_ATTENTION_GRAD] = shard_attention,
    [OP_TOPK] = shard_topk,
    [OP_TOPK_GRAD] = shard_last_whole,
    [OP_SLOTS] = shard_slots,
    [OP_DISPATCH] = shard_dispatch,
    [OP_COMBINE] = shard_combine,
    [OP_SLOT_DOT] = shard_combine,
    [OP_APPEND] = shard_append,
    [OP_RING] = shard_pointwise,
    [OP_SQNORM] = shard_partial_scalar,
    [OP_METRICS] = shard_metrics,
    [OP_BALANCE] = shard_balance,
    [OP_CLIP] = shard_pointwise,
    [OP_SGD] = shard_update,
    [OP_MOMENTUM] = shard_update,
    [OP_ADAM] = shard_update,
};

void op_shard(struct shard_query *q)
{
    PRE(rules[q->node->op]);
    rules[q->node->op](q);
}
