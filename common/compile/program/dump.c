// SPDX-License-Identifier: Apache-2.0
// Graphs and programs as text. See dump.h.
#include "common/compile/program/dump.h"

#include "common/base/json.h"
#include "common/compile/graph/optable.h"
#include "common/op/chain.h"

static void put_value(const struct graph *g, const struct mesh *m, int id, struct buf *out)
{
    const struct value *v = &g->values[id];
    buf_printf(out, " %%%d", id);
    if (v->name)
        buf_printf(out, ":%s", v->name);
    buf_printf(out, " %s[", dtype_name(v->dtype));
    for (int d = 0; d < v->shape.n; d++)
        buf_printf(out, "%s%s=%lld", d ? " " : "", dims_name(g->dims, v->dims[d]),
                   (long long)v->shape.dim[d]);
    buf_putc(out, ']');
    if (m)
        spec_print(&v->spec, m, v->shape.n, out);
}

static void put_float(struct buf *out, const char *key, float v)
{
    char text[32];
    json_format_float(v, text);
    buf_printf(out, " %s=%s", key, text);
}

static void put_double(struct buf *out, const char *key, double v)
{
    char text[32];
    json_format_double(v, text);
    buf_printf(out, " %s=%s", key, text);
}

static void put_chain(const struct op_chain *c, int nout, struct buf *out)
{
    for (int s = 0; s < c->steps; s++) {
        const struct op_step *step = &c->step[s];
        buf_printf(out, " r%d=%s", c->inputs + s, op_name(step->op));
        for (int k = 0; k < op_inputs(step->op); k++)
            buf_printf(out, " r%d", step->in[k]);
        if (op_is(step->op, OP_HAS_SCALE))
            put_float(out, "scale", step->scale);
    }
    buf_puts(out, " out");
    for (int k = 0; k < nout; k++)
        buf_printf(out, " r%d", c->out[k]);
}

void dump_graph(const struct graph *g, const struct mesh *m, struct buf *out)
{
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        const char *const what[] = {
            [NODE_OP] = op_name(n->op),
            [NODE_RESHARD] = reshard_kind_name(n->step.kind),
            [NODE_SEND] = "send",
            [NODE_STAGE_SUM] = "stage_sum",
        };
        buf_printf(out, "%4d %-8s %-12s", i, phase_name(n->phase), what[n->kind]);
        for (int k = 0; k < n->nin; k++)
            put_value(g, m, n->in[k], out);
        if (n->attr.chain)
            put_chain(n->attr.chain, n->nout, out);
        buf_puts(out, " ->");
        for (int k = 0; k < n->nout; k++)
            put_value(g, m, n->out[k], out);
        buf_printf(out, "  (%s", g->scopes[n->scope]);
        if (n->kind == NODE_SEND)
            buf_printf(out, ", stage %d to %d", n->stage, n->peer);
        else if (n->stages > 1)
            buf_printf(out, ", stages %llx", (unsigned long long)n->stages);
        buf_puts(out, ")\n");
    }
}

static void put_hex(struct buf *out, unsigned byte)
{
    static const char digits[] = "0123456789abcdef";
    if (byte > 15)
        buf_putc(out, digits[byte >> 4]);
    buf_putc(out, digits[byte & 15]);
}

void dump_attr(const struct op_attr *a, const struct instr *i, struct buf *out)
{
    buf_puts(out, " labels=");
    for (int k = 0; k < i->nin + i->nout; k++) // the most of the text: a printf each was too slow
        for (int d = 0; d < MAX_DIMS; d++)
            put_hex(out, (unsigned)a->label[k][d] & 0xff);
    put_float(out, "scale", a->scale);
    put_float(out, "clip", a->clip_norm);
    put_double(out, "b1", a->beta1);
    put_double(out, "b2", a->beta2);
    put_float(out, "eps", a->eps);
    put_float(out, "decay", a->decay);
    put_float(out, "lr", a->lr_scale);
    buf_printf(out, " nesterov=%d%s%s%s", a->nesterov, a->tf32 ? " tf32" : "",
               a->streams ? " streams" : "", a->in_order ? " in_order" : "");
    if (a->limit)
        buf_printf(out, " limit=%lld along=%d", (long long)a->limit, a->along);
    if (a->center)
        buf_puts(out, " center");
    if (a->slots.experts)
        buf_printf(out, " slots=%lld:%lld:%lld", (long long)a->slots.group,
                   (long long)a->slots.experts, (long long)a->slots.capacity);
    if (op_is(i->op, OP_HAS_ROTARY)) {
        put_float(out, "theta", a->rotary.theta);
        put_float(out, "gain", a->rotary.gain);
        put_float(out, "factor", a->rotary.factor);
        put_float(out, "slow", a->rotary.slow);
        put_float(out, "fast", a->rotary.fast);
        buf_printf(out, " scaling=%d length=%lld offset=%lld%s%s", (int)a->rotary.scaling,
                   (long long)a->rotary.length, (long long)a->rotary.offset,
                   a->rotary.pairs ? " pairs" : "", a->rotary.sweep ? " sweep" : "");
    }
    if (op_is(i->op, OP_IS_ATTENTION)) {
        buf_printf(out, " group=%lld window=%lld%s", (long long)a->group, (long long)a->window,
                   a->ahead ? " ahead" : "");
        put_float(out, "cap", a->cap);
    }
    if (a->draw.stream) {
        put_float(out, "rate", a->draw.rate);
        buf_printf(out, " draw=%llx/%x batch=%d place=%d", (unsigned long long)a->draw.seed,
                   a->draw.stream, a->draw.batch, a->draw.place);
    }
    if (a->chain)
        put_chain(a->chain, i->nout, out);
    for (int k = 0; k < 3 && op_is(i->op, OP_HAS_BLOCK); k++)
        buf_printf(out, " %lld:%lld:%lld", (long long)a->block.extent[k],
                   (long long)a->block.from[k], (long long)a->block.to[k]);
}

static void put_views(const struct program *p, const struct view *v, int n, struct buf *out)
{
    for (int k = 0; k < n; k++) {
        buf_printf(out, " b%d+%llu", v[k].buffer, (unsigned long long)v[k].offset);
        if (!v[k].step)
            continue;
        buf_printf(out, "+%llu·", (unsigned long long)v[k].step);
        dim_cut_print(&v[k].by, &p->mesh, out);
    }
}

static void put_instr(const struct program *p, const struct instr *i, struct buf *out)
{
    static const char *const kinds[] = {"op", "start", "wait", "mark", "send", "recv"};
    buf_printf(out, "%s %s m%d", kinds[i->kind], phase_name(i->phase), i->microbatch);
    if (i->kind == INSTR_OP) {
        buf_printf(out, " %s%s owner=%x", op_name(i->op), i->accumulate ? "+" : "", i->owner);
        dump_attr(program_attr(p, i), i, out);
        if (i->with)
            buf_printf(out, " with %d", i->with);
    }
    if (i->kind == INSTR_START || i->kind == INSTR_WAIT) {
        buf_printf(out, " %s%s over ", reshard_kind_name(i->collective), i->max ? "_max" : "");
        dim_cut_print(&i->group, &p->mesh, out);
        if (i->stages)
            buf_printf(out, "stages %llx of %s", (unsigned long long)i->stages,
                       p->mesh.axis[i->axis].name);
        if (i->with)
            buf_printf(out, " with %d", i->with);
    }
    if (i->kind == INSTR_SEND || i->kind == INSTR_RECV)
        buf_printf(out, " %s %d", p->mesh.axis[i->axis].name, i->peer);
    put_views(p, i->in, i->nin, out);
    buf_puts(out, " ->");
    put_views(p, i->out, i->nout, out);
    if (i->workspace >= 0)
        buf_printf(out, " using b%d", i->workspace);
    buf_putc(out, '\n');
}

void dump_program(const struct program *p, struct buf *out)
{
    buf_printf(out, "program %s stage %d mesh ", program_name(p->kind), p->stage);
    mesh_print(&p->mesh, out);
    if (p->zigzag.parts > 1)
        buf_printf(out, " zigzag %d", p->zigzag.parts);
    buf_putc(out, '\n');
    for (int b = 0; b < p->nbuffers; b++) {
        const struct buffer *buf = &p->buffers[b];
        buf_printf(out, "b%d %s %s r%d @%llu %llu bytes", b, buf->name ? buf->name : "-",
                   dtype_name(buf->dtype), buf->region, (unsigned long long)buf->offset,
                   (unsigned long long)buf->bytes);
        for (int d = 0; d < buf->shape.n; d++)
            buf_printf(out, " %lld", (long long)buf->shape.dim[d]);
        buf_putc(out, '\n');
    }
    for (int i = 0; i < p->ninstrs; i++)
        put_instr(p, &p->instrs[i], out);
}
