// SPDX-License-Identifier: Apache-2.0
// Checks after every pass. See verify.h.
#include "common/compile/program/verify.h"

#include <stdlib.h>
#include <string.h>

#include "common/compile/graph/operand.h"
#include "common/compile/graph/optable.h"
#include "common/compile/program/contents.h"
#include "common/op/gemm.h"

#define BAD(...) err_set(e, ERR_INTERNAL, __VA_ARGS__)

static const char *get_name(const struct graph *g, int value)
{
    return g->values[value].name ? g->values[value].name : "unnamed";
}

// Checks that each label has one size over all operands that carry it.
static int check_labels(const struct graph *g, int at, struct err *e)
{
    const struct node *n = &g->nodes[at];
    int64_t size[MAX_DIMS * 4] = {0};
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = get_operand(g, n, k);
        for (int d = 0; d < v->shape.n; d++) {
            int l = n->attr.label[k][d];
            if (l < 0 || l >= n->attr.labels)
                return BAD("node %d %s: operand %d has label %d", at, op_name(n->op), k, l);
            if (size[l] && size[l] != v->shape.dim[d])
                return BAD("node %d %s: label %d is %lld and %lld", at, op_name(n->op), l,
                           (long long)size[l], (long long)v->shape.dim[d]);
            size[l] = v->shape.dim[d];
        }
    }
    return 0;
}

// A cache is read by the APPEND that changes it, once, and nothing moves it or what that makes of it:
// whoever reads the rows reads them behind it.
static int check_cache(const struct graph *g, int at, int k, struct err *e)
{
    const struct node *n = &g->nodes[at];
    const struct value *v = &g->values[n->in[k]];
    bool cache = v->kind == VALUE_CACHE,
         made = v->alias >= 0 && g->values[v->alias].kind == VALUE_CACHE;
    bool appends = n->kind == NODE_OP && n->op == OP_APPEND && k == 0;
    if (n->kind != NODE_OP && (cache || made))
        return BAD("node %d moves %s", at, get_name(g, n->in[k]));
    if (cache != appends || (cache && g->values[n->out[0]].alias != n->in[0]))
        return BAD("node %d %s: %s is no cache that it appends to", at, op_name(n->op),
                   get_name(g, n->in[k]));
    for (int i = 0; i < at && cache; i++)
        if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_APPEND &&
            g->nodes[i].in[0] == n->in[0])
            return BAD("node %d appends to %s once more", at, get_name(g, n->in[0]));
    return 0;
}

static int check_node(const struct graph *g, int at, struct err *e)
{
    const struct node *n = &g->nodes[at];
    if (n->scope < 0 || n->scope >= g->nscopes)
        return BAD("node %d has no scope", at);
    for (int k = 0; k < n->nin; k++) {
        int v = n->in[k];
        if (v < 0 || v >= g->nvalues)
            return BAD("node %d reads value %d of %d", at, v, g->nvalues);
        if (g->values[v].producer >= at ||
            (g->values[v].producer < 0 && g->values[v].kind == VALUE_TEMP))
            return BAD("node %d reads %s (value %d) before it is made", at, get_name(g, v), v);
        int rc = check_cache(g, at, k, e);
        if (rc)
            return rc;
    }
    for (int k = 0; k < n->nout; k++)
        if (g->values[n->out[k]].producer != at)
            return BAD("node %d: output %d has another producer", at, n->out[k]);
    if (n->kind != NODE_OP)
        return 0;
    int rc = check_labels(g, at, e);
    return rc ? rc : op_infer(g, n, e);
}

int verify_graph(const struct graph *g, struct err *e)
{
    enum phase phase = PHASE_FORWARD;
    for (int i = 0; i < g->nnodes; i++) {
        if (g->nodes[i].phase < phase)
            return BAD("node %d goes back to %s", i, phase_name(g->nodes[i].phase));
        phase = g->nodes[i].phase;
        int rc = check_node(g, i, e);
        if (rc)
            return rc;
    }
    for (int s = 0; s < g->nsums; s++)
        for (int c = 0; c < g->sums[s].n; c++) {
            int v = g->sums[s].contrib[c];
            if (!shape_equal(&g->values[v].shape, &g->values[g->sums[s].value].shape))
                return BAD("%s: a contribution of another shape", get_name(g, g->sums[s].value));
        }
    return g->metrics >= 0 && g->loss >= 0 ? 0 : BAD("no loss or no metrics");
}

// Returns what a step makes of a spec, worked out again from the step's kind alone.
static struct spec apply_step(const struct reshard_step *m, struct spec s)
{
    axis_set axes = dim_axes(&m->cut);
    int to = m->kind == RESHARD_ALL_TO_ALL ? m->to : m->dim;
    bool takes = m->kind == RESHARD_ALL_GATHER || m->kind == RESHARD_ALL_TO_ALL;
    bool adds = m->kind != RESHARD_ALL_GATHER && m->kind != RESHARD_ALL_REDUCE;
    for (int i = m->cut.n; takes && i > 0 && s.dim[m->dim].n > 0; i--)
        if (s.dim[m->dim].axis[s.dim[m->dim].n - 1] == m->cut.axis[i - 1])
            s.dim[m->dim].axis[--s.dim[m->dim].n] = 0;
    for (int i = 0; adds && i < m->cut.n; i++)
        dim_append(&s.dim[to], m->cut.axis[i]);
    if (m->kind == RESHARD_ALL_REDUCE || m->kind == RESHARD_REDUCE_SCATTER) {
        s.partial_sum &= (axis_set)~axes;
        s.partial_max &= (axis_set)~axes;
    }
    return s;
}

// Whether a node may read a value that is still a partial sum. A SUM may, if its output is partial
// over the same axes; so may an addition whose operands all have the output's spec, and the
// metrics, which are summed over all devices later. A gradient's part may also be rounded to bf16
// before it is reduced in bf16.
static bool reads_partial(const struct graph *g, const struct node *n, axis_set partial)
{
    const struct spec *made = &g->values[n->out[0]].spec;
    bool backward = n->phase == PHASE_BACKWARD || n->phase == PHASE_WEIGHTS;
    bool rounded = n->op == OP_CAST && backward && g->reduce == DT_BF16 &&
                   g->values[n->out[0]].dtype == DT_BF16;
    bool alike = n->op == OP_ADD;
    for (int k = 0; k < n->nin; k++)
        alike = alike && spec_equal(&g->values[n->in[k]].spec, made);
    return op_is(n->op, OP_READS_PARTIAL) || alike ||
           ((n->op == OP_SUM || rounded) && (partial & ~made->partial_sum) == 0);
}

// A stage may read only what it has: leaves, what it made itself, and what was sent to it before.
static int check_stages(const struct graph *g, const struct mesh *m, struct err *e)
{
    int nstages = mesh_product(m, m->stages);
    uint64_t *has = arena_array(g->arena, uint64_t, g->nvalues);
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        uint64_t needs = n->kind == NODE_SEND ? (uint64_t)1 << n->stage : n->stages;
        for (int k = 0; k < n->nin; k++) {
            const struct value *v = &g->values[n->in[k]];
            uint64_t have = v->producer < 0 ? v->stages : has[n->in[k]];
            if (needs & ~have)
                return BAD("node %d reads %s on a stage that does not have it", i,
                           get_name(g, n->in[k]));
        }
        for (int k = 0; k < n->nout; k++)
            has[n->out[k]] = n->stages;
        if (n->kind != NODE_SEND)
            continue;
        int up = (n->stage + 1) % nstages, down = (n->stage + nstages - 1) % nstages;
        if (n->nin != 1 || n->nout || (n->peer != up && n->peer != down))
            return BAD("node %d sends from stage %d to stage %d", i, n->stage, n->peer);
        has[n->in[0]] |= (uint64_t)1 << n->peer;
    }
    return 0;
}

// A loop that several operands share is cut alike in all of them, else a device would run it over
// parts that do not belong together. Attention's keys are whole where its queries are cut.
static int check_cuts(const struct graph *g, int at, struct err *e)
{
    const struct node *n = &g->nodes[at];
    const struct dim_cut *cut[MAX_DIMS * 4] = {0};
    for (int k = 0; k < n->nin + n->nout && !op_is(n->op, OP_OWN_LOOPS); k++) {
        const struct value *v = get_operand(g, n, k);
        for (int d = 0; d < v->shape.n; d++) {
            int l = n->attr.label[k][d];
            if (cut[l] && memcmp(cut[l], &v->spec.dim[d], sizeof *cut[l]) != 0)
                return BAD("node %d %s: operands are cut differently on %s", at, op_name(n->op),
                           dims_name(g->dims, v->dims[d]));
            cut[l] = &v->spec.dim[d];
        }
    }
    return 0;
}

// Whether output k is made of input i: of MATMUL_SUM's the second is of one input alone.
static bool is_made_of(const struct graph *g, const struct node *n, int k, int i)
{
    return n->op != OP_MATMUL_SUM || k != 1 ||
           gemm_summed(&n->attr, &g->values[n->in[0]].shape) == i;
}

// The axes that cut loops which output k lacks. A single operand's first loop is the vector's outermost.
static axis_set find_summed(const struct graph *g, const struct node *n, int k)
{
    axis_set summed = 0;
    bool kept[MAX_DIMS * 4] = {false};
    for (int d = 0; d < g->values[n->out[k]].shape.n; d++)
        kept[n->attr.label[n->nin + k][d]] = true;
    for (int i = 0; i < n->nin; i++) {
        const struct value *v = &g->values[n->in[i]];
        for (int d = 0; d < v->shape.n && is_made_of(g, n, k, i); d++)
            if (!kept[n->attr.label[i][d]])
                summed |= dim_axes(&v->spec.dim[d]);
    }
    const struct dim_cut *rows = &g->values[n->in[0]].spec.dim[0],
                         *vector = &g->values[n->out[k]].spec.dim[0];
    if (n->op == OP_METRICS && n->nin == 1 && memcmp(rows, vector, sizeof *rows) == 0)
        summed &= (axis_set)~dim_axes(rows);
    return summed;
}

// An axis that cuts a loop which an output lacks makes the output a partial sum (or maximum).
static int check_sums(const struct graph *g, int at, struct err *e)
{
    const struct node *n = &g->nodes[at];
    for (int k = 0; k < n->nout && !op_is(n->op, OP_OWN_LOOPS); k++)
        if (find_summed(g, n, k) & ~spec_partial(&g->values[n->out[k]].spec))
            return BAD("node %d %s: its output is a part of a sum and does not say so", at,
                       op_name(n->op));
    return 0;
}

// A fused node's output must not be a partial sum: its steps are not linear, so steps on the parts
// would not add up to steps on the sum. Only what is summed last may be.
static int check_fused(const struct graph *g, int at, struct err *e)
{
    const struct node *n = &g->nodes[at];
    int end = op_is(n->op, OP_ACCUMULATES) ? op_first_sum(n->op) : n->nout;
    for (int k = 0; k < end && op_is(n->op, OP_IS_FUSED); k++)
        if (spec_partial(&g->values[n->out[k]].spec))
            return BAD("node %d %s: it was fused and makes a part of a sum", at, op_name(n->op));
    return 0;
}

int verify_partitioned(const struct graph *g, const struct mesh *m, struct err *e)
{
    int rc = verify_graph(g, e), bad;
    for (int v = 0; v < g->nvalues && !rc; v++)
        if (!spec_divides(&g->values[v].spec, m, &g->values[v].shape, &bad))
            rc = BAD("%s: dimension %d does not divide", get_name(g, v), bad);
    for (int i = 0; i < g->nnodes && !rc; i++) {
        const struct node *n = &g->nodes[i];
        for (int k = 0; k < n->nin && !rc; k++) {
            axis_set partial = spec_partial(&g->values[n->in[k]].spec);
            struct spec after = apply_step(&n->step, g->values[n->in[k]].spec);
            if (n->kind == NODE_RESHARD && !spec_equal(&after, &g->values[n->out[0]].spec))
                rc = BAD("node %d does not move its value to where it is", i);
            if (n->kind == NODE_OP && partial && !reads_partial(g, n, partial))
                rc = BAD("node %d %s reads %s, which is partial", i, op_name(n->op),
                         get_name(g, n->in[k]));
        }
        if (n->kind == NODE_OP && !rc)
            rc = check_fused(g, i, e);
        if (n->kind == NODE_OP && !rc)
            rc = check_cuts(g, i, e);
        if (n->kind == NODE_OP && !rc)
            rc = check_sums(g, i, e);
    }
    return rc ? rc : check_stages(g, m, e);
}

// ---- programs ----------------------------------------------------------------------------------

static int compare_first(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a < b ? -1 : a > b);
}

static int compare_last(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    return a->last != b->last ? (a->last < b->last ? -1 : 1) : (a < b ? -1 : a > b);
}

// The place of the first living buffer at or above an offset.
static int find_place(const struct buffer *const *alive, int n, uint64_t offset)
{
    int low = 0, high = n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (alive[mid]->offset < offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

// `alive` has the buffers that live at an instruction, sorted by offset. A new one must overlap
// neither of its neighbours there.
static int check_birth(const struct program *p, const struct buffer **alive, int *n,
                       const struct buffer *b, struct err *e)
{
    int at = find_place(alive, *n, b->offset);
    const struct buffer *below = at > 0 ? alive[at - 1] : NULL, *above = at < *n ? alive[at] : NULL;
    if (below && below->offset + below->bytes <= b->offset)
        below = NULL;
    if (above && b->offset + b->bytes <= above->offset)
        above = NULL;
    if (below || above)
        return BAD("%s: buffers %d and %d live together and overlap", program_name(p->kind),
                   (int)((below ? below : above) - p->buffers), (int)(b - p->buffers));
    memmove(alive + at + 1, alive + at, sizeof *alive * (size_t)(*n - at));
    alive[at] = b;
    ++*n;
    return 0;
}

static int check_region(const struct program *p, enum region r, struct arena *scratch,
                        struct err *e)
{
    const struct buffer **born = arena_array(scratch, const struct buffer *, p->nbuffers);
    const struct buffer **dead = arena_array(scratch, const struct buffer *, p->nbuffers);
    const struct buffer **alive = arena_array(scratch, const struct buffer *, p->nbuffers);
    int n = 0, nalive = 0, rc = 0;
    for (int i = 0; i < p->nbuffers && !rc; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->region != r || b->bytes == 0)
            continue;
        if (b->persistent)
            rc = check_birth(p, alive, &nalive, b, e);
        else
            born[n] = dead[n] = b, n++;
    }
    qsort(born, (size_t)n, sizeof *born, compare_first);
    qsort(dead, (size_t)n, sizeof *dead, compare_last);
    for (int i = 0, d = 0; i < n && !rc; i++) {
        for (; dead[d]->last < born[i]->first; d++) {
            int at = find_place(alive, nalive, dead[d]->offset);
            memmove(alive + at, alive + at + 1, sizeof *alive * (size_t)(--nalive - at));
        }
        rc = check_birth(p, alive, &nalive, born[i], e);
    }
    return rc;
}

static int check_overlap(const struct program *p, struct err *e)
{
    struct arena scratch = {0};
    int rc = 0;
    for (int r = 0; r < REGION_COUNT && !rc; r++)
        rc = check_region(p, (enum region)r, &scratch, e);
    arena_clear(&scratch);
    return rc;
}

// An instruction must not touch what a collective still works on, nor write what it reads; what is being
// sent may be read.
static int check_open(const struct program *p, int at, const int *open, int nopen, struct err *e)
{
    const struct instr *i = &p->instrs[at];
    for (int o = 0; o < nopen; o++) {
        const struct instr *s = &p->instrs[open[o]];
        bool sends = s->kind == INSTR_SEND;
        for (int k = sends ? i->nin : 0; k < i->nin + i->nout; k++) {
            int touched = (k < i->nin ? i->in[k] : i->out[k - i->nin]).buffer;
            if ((!sends && touched == s->out[0].buffer) ||
                (k >= i->nin && s->nin && touched == s->in[0].buffer))
                return BAD("%s: instruction %d touches a buffer of the collective at %d",
                           program_name(p->kind), at, open[o]);
        }
    }
    return 0;
}

// Whether two starts must be waited for in the order in which they were started: all collectives,
// and the sends or receives of one direction across one stage boundary.
static bool same_queue(const struct instr *a, const struct instr *b)
{
    if (a->kind != b->kind || a->kind == INSTR_START)
        return a->kind == b->kind;
    return a->phase == b->phase && a->peer == b->peer;
}

static int check_wait(const struct program *p, int at, int *open, int *nopen, struct err *e)
{
    const struct instr *in = &p->instrs[at];
    int o = 0;
    while (o < *nopen && !same_queue(&p->instrs[open[o]], &p->instrs[in->start]))
        o++;
    if (o == *nopen || open[o] != in->start)
        return BAD("%s: wait at %d is out of order", program_name(p->kind), at);
    for (--*nopen; o < *nopen; o++)
        open[o] = open[o + 1];
    return 0;
}

// Whether a buffer is a sum to which this stage adds nothing: it was zeroed once and stays zero.
static bool stays_zero(const struct program *p, int buffer)
{
    if (p->buffers[buffer].source != VALUE_SUM)
        return false;
    for (int i = 0; i < p->ninstrs; i++)
        for (int k = 0; k < p->instrs[i].nout; k++)
            if (p->instrs[i].out[k].buffer == buffer)
                return false;
    return true;
}

static int check_order(const struct program *p, struct err *e)
{
    int nopen = 0, rc = 0;
    struct arena scratch = {0};
    int *open = arena_array(&scratch, int, p->ninstrs);
    bool *written = arena_array(&scratch, bool, p->nbuffers);
    for (int i = 0; i < p->ninstrs && !rc; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind == INSTR_WAIT) {
            rc = check_wait(p, i, open, &nopen, e);
            continue;
        }
        rc = check_open(p, i, open, nopen, e);
        for (int k = 0; k < in->nin && !rc; k++) {
            const struct buffer *b = &p->buffers[in->in[k].buffer];
            if (!written[in->in[k].buffer] && (!b->persistent || b->source == VALUE_SUM) &&
                !stays_zero(p, in->in[k].buffer))
                rc =
                    BAD("%s: instruction %d reads a buffer nobody wrote", program_name(p->kind), i);
        }
        for (int k = op_first_sum(in->op); in->accumulate && k < in->nout && !rc; k++)
            if (!written[in->out[k].buffer])
                rc = BAD("%s: instruction %d adds to a buffer nobody wrote", program_name(p->kind),
                         i);
        for (int k = 0; k < in->nout; k++)
            written[in->out[k].buffer] = true;
        if (in->kind != INSTR_OP && in->kind != INSTR_MARK)
            open[nopen++] = i;
    }
    if (!rc && nopen)
        rc = BAD("%s: %d collectives are never waited for", program_name(p->kind), nopen);
    arena_clear(&scratch);
    return rc;
}

// Whether a START may be of one bucket with the one before it: they do the same with the same ranks. Those
// of a flat one do it in place, and its buffer is the next.
static bool goes_with_before(const struct program *p, const struct instr *in)
{
    const struct instr *before = in - 1;
    if (in->kind != INSTR_START || in->with || before->collective != in->collective || in->stages ||
        before->stages || !dim_equal(&in->group, &before->group))
        return false;
    if (in->collective != RESHARD_ALL_REDUCE)
        return true;
    if (in->max != before->max)
        return false;
    for (int k = 0; k < 2; k++)
        if (in[-k].in->buffer != in[-k].out->buffer || in[-k].in->offset || in[-k].out->offset)
            return false;
    const struct buffer *b = &p->buffers[in->out->buffer], *a = &p->buffers[before->out->buffer];
    uint64_t end = (a->offset + a->bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    return b->dtype == a->dtype && b->region == a->region && b->persistent == a->persistent &&
           b->offset == end;
}

// Instructions that run in one call must be of one op, and write only persistent buffers, so that
// none writes what another reads.
static int check_together(const struct program *p, struct err *e)
{
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *first = &p->instrs[i];
        if (first->with < 0 || first->with >= p->ninstrs - i)
            return BAD("%s: instruction %d goes with %d", program_name(p->kind), i, first->with);
        for (int k = i; k <= i + first->with && first->with; k++) {
            const struct instr *in = &p->instrs[k];
            if (first->kind == INSTR_START && (k == i || goes_with_before(p, in)))
                continue;
            bool lasts = in->kind == INSTR_OP && in->op == first->op && (k == i || !in->with);
            for (int o = 0; o < in->nout && lasts; o++)
                lasts = p->buffers[in->out[o].buffer].persistent;
            if (!lasts)
                return BAD("%s: instruction %d cannot go with %d", program_name(p->kind), k, i);
        }
    }
    return 0;
}

int verify_program(const struct program *p, const struct memory *m, struct err *e)
{
    for (int b = 0; b < p->nbuffers; b++) {
        const struct buffer *buf = &p->buffers[b];
        if (buf->offset % PLAN_ALIGN || buf->offset + buf->bytes > m->region[buf->region])
            return BAD("%s: buffer %d lies outside its region", program_name(p->kind), b);
    }
    int rc = check_overlap(p, e);
    rc = rc ? rc : check_together(p, e);
    rc = rc ? rc : check_order(p, e);
    return rc ? rc : contents_check(p, e);
}

// ---- stages against each other ------------------------------------------------------------------

// The starts of a stage are a row, in their order: collectives of its own, sums over stages, sends and
// receives. What stands first in the rows of all its members is done and leaves them. If that empties all
// rows, nothing waits for ever even where a device does one start after the other: a wait is for a start
// before it, so it holds up nothing that stands before that start. Stages stand for their ranks: all ranks
// of a stage run its program, and where its row comes to an end each rank's does, in the same order.
struct meeting {
    const struct program *stages;
    int n;
    int *first; // stage → the first start of its row; none left: ninstrs
};

static int find_start(const struct program *p, int from)
{
    while (from < p->ninstrs &&
           (p->instrs[from].kind == INSTR_OP || p->instrs[from].kind == INSTR_WAIT ||
            p->instrs[from].kind == INSTR_MARK))
        from++;
    return from;
}

static const struct instr *get_first(const struct meeting *m, int stage)
{
    const struct program *p = &m->stages[stage];
    return m->first[stage] < p->ninstrs ? &p->instrs[m->first[stage]] : NULL;
}

// Whether stage o takes part in what a stage starts.
static bool takes_part(const struct meeting *m, int stage, const struct instr *in, int o)
{
    if (in->kind != INSTR_START)
        return o == stage || o == in->peer;
    bool all = (dim_axes(&in->group) & m->stages->mesh.stages) != 0;
    return o == stage || all || (in->stages >> o & 1);
}

static uint64_t count_bytes(const struct program *p, const struct instr *in)
{
    return p->buffers[(in->nin ? in->in : in->out)[0].buffer].bytes;
}

// Whether the first starts of two stages are two sides of one thing.
static bool are_one(const struct meeting *m, int stage, int o)
{
    const struct instr *a = get_first(m, stage), *b = get_first(m, o);
    if (!b || a->node != b->node || a->microbatch != b->microbatch || a->with != b->with ||
        count_bytes(&m->stages[stage], a) != count_bytes(&m->stages[o], b))
        return false;
    if (a->kind == INSTR_START)
        return b->kind == INSTR_START;
    return a->kind != b->kind && a->peer == o && b->peer == stage;
}

// Returns a stage for which the first start of this one waits; −1: none.
static int find_awaited(const struct meeting *m, int stage)
{
    const struct instr *in = get_first(m, stage);
    for (int o = 0; o < m->n; o++)
        if (o != stage && takes_part(m, stage, in, o) && !are_one(m, stage, o))
            return o;
    return -1;
}

// All that take part are done with it.
static void leave_rows(const struct meeting *m, int stage)
{
    const struct instr *in = get_first(m, stage);
    for (int o = 0; o < m->n; o++)
        if (takes_part(m, stage, in, o))
            m->first[o] = find_start(&m->stages[o], m->first[o] + 1 + get_first(m, o)->with);
}

static void print_first(const struct meeting *m, int stage, struct buf *out)
{
    static const char *const names[] = {
        [INSTR_START] = "collective", [INSTR_SEND] = "send", [INSTR_RECV] = "receive"};
    const struct instr *in = get_first(m, stage);
    buf_printf(out, "stage %d ", stage);
    if (!in) {
        buf_printf(out, "has none left");
        return;
    }
    const struct program *p = &m->stages[stage];
    buf_printf(out, "has the %s %s of microbatch %d first, instruction %d", names[in->kind],
               p->graph->nodes[in->node].what, in->microbatch, m->first[stage]);
    if (in->kind != INSTR_START)
        buf_printf(out, " with stage %d", in->peer);
}

static int report_waiting(const struct meeting *m, int stage, struct err *e)
{
    struct buf text = {0};
    print_first(m, stage, &text);
    buf_printf(&text, ", ");
    print_first(m, find_awaited(m, stage), &text);
    int rc = BAD("%s: starts wait for each other for ever: %s", program_name(m->stages->kind),
                 buf_str(&text));
    buf_clear(&text);
    return rc;
}

int verify_stages(const struct program *stages, int n, struct err *e)
{
    struct arena scratch = {0};
    struct meeting m = {stages, n, arena_array(&scratch, int, n)};
    int rc = 0;
    for (int s = 0; s < n; s++) {
        for (int i = 0; i < stages[s].ninstrs && !rc; i++) {
            const struct instr *in = &stages[s].instrs[i];
            bool message = in->kind == INSTR_SEND || in->kind == INSTR_RECV;
            if (message && (in->peer < 0 || in->peer >= n || in->peer == s))
                rc = BAD("stage %d has a message with stage %d of %d", s, in->peer, n);
        }
        m.first[s] = find_start(&stages[s], 0);
    }
    for (bool moved = n > 1; moved && !rc;) {
        moved = false;
        for (int s = 0; s < n; s++)
            while (get_first(&m, s) && find_awaited(&m, s) < 0) {
                leave_rows(&m, s);
                moved = true;
            }
    }
    for (int s = 0; s < n && n > 1 && !rc; s++)
        if (get_first(&m, s))
            rc = report_waiting(&m, s, e);
    arena_clear(&scratch);
    return rc;
}
