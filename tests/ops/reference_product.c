// SPDX-License-Identifier: Apache-2.0
// Products and sums in plain f64: most of what a suite computes, so the loops step through operands by
// their strides, and the longest over the output, or the last over what is contracted, is the innermost.
// Of what is added to one element the order is that of the contracted labels, whichever loop is the
// innermost. See reference.h.
#include <stdlib.h>

#include "common/base/err.h"
#include "tests/ops/reference.h"

enum { LOOPS = 2 * MAX_DIMS };

// A loop over a label: how far a step leads in each operand.
struct loop {
    int label;
    int64_t steps, at, a, b, to;
};

int64_t ref_stride(int label, const struct ref_tensor *t, const int8_t *labels)
{
    int64_t stride = 0, behind = 1;
    for (int d = t->shape.n - 1; d >= 0; d--) {
        stride += labels[d] == label ? behind : 0;
        behind *= t->shape.dim[d];
    }
    return stride;
}

// One loop for each label, whoever has it: they all say the same of its extent.
static int add_loops(struct loop *loop, int n, const struct ref_tensor *t, const int8_t *labels)
{
    for (int d = 0; d < t->shape.n; d++) {
        int i = 0;
        while (i < n && loop[i].label != labels[d])
            i++;
        PRE(i < LOOPS);
        if (i == n)
            loop[n++] = (struct loop){.label = labels[d], .steps = t->shape.dim[d]};
        PRE(loop[i].steps == t->shape.dim[d]);
    }
    return n;
}

// A multiple of one operand's elements side by side.
static bool is_run(const struct loop *l)
{
    return l->to == 1 && l->a <= 1 && l->b <= 1 && l->a + l->b == 1;
}

// to[] += a[] * b[], or += a[] where b is null.
static void add_products(const struct loop *l, double *restrict to, const double *a,
                         const double *b)
{
    if (!b)
        for (int64_t i = 0; i < l->steps; i++)
            to[i * l->to] += a[i * l->a];
    else if (!l->to) {
        double sum = *to;
        for (int64_t i = 0; i < l->steps; i++)
            sum += a[i * l->a] * b[i * l->b];
        *to = sum;
    } else if (is_run(l)) {
        const double one = l->a ? *b : *a, *each = l->a ? a : b;
        for (int64_t i = 0; i < l->steps; i++)
            to[i] += one * each[i];
    } else
        for (int64_t i = 0; i < l->steps; i++)
            to[i * l->to] += a[i * l->a] * b[i * l->b];
}

// The last of `n` loops that has a step left takes it, those behind it begin again; false: none has.
static bool step_loops(struct loop *loop, int n, const struct loop *inner, const double **a,
                       const double **b, double **to)
{
    for (struct loop *l = loop + n - 1; l >= loop; l--) {
        if (l == inner)
            continue;
        const bool more = ++l->at < l->steps;
        const int64_t by = more ? 1 : 1 - l->steps;
        *a += by * l->a;
        *b = *b ? *b + by * l->b : NULL;
        *to += by * l->to;
        if (more)
            return true;
        l->at = 0;
    }
    return false;
}

void ref_product(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
                 struct ref_tensor *out, bool accumulate)
{
    struct loop loop[LOOPS], *inner = loop;
    const int kept = add_loops(loop, 0, out, attr->label[nin]);
    int n = kept;
    for (int k = 0; k < nin; k++)
        n = add_loops(loop, n, &in[k], attr->label[k]);
    if (!n)
        loop[n++] = (struct loop){.label = -1, .steps = 1};
    int64_t most = 0, count = shape_count(&out->shape);
    for (int i = 0; i < n; i++) {
        struct loop *l = &loop[i];
        l->a = ref_stride(l->label, &in[0], attr->label[0]);
        l->b = nin > 1 ? ref_stride(l->label, &in[1], attr->label[1]) : 0;
        l->to = ref_stride(l->label, out, attr->label[nin]);
        const int64_t gain = l->steps * (is_run(l) ? 4 : 1);
        if ((i < kept || i == n - 1) && gain > most) {
            inner = l;
            most = gain;
        }
    }
    double *sum = calloc((size_t)count, sizeof *sum), *to = sum;
    PRE(sum);
    const double *a = in[0].v, *b = nin > 1 ? in[1].v : NULL;
    do
        add_products(inner, to, a, b);
    while (step_loops(loop, n, inner, &a, &b, &to));
    double scale = op == OP_SUM ? (double)attr->scale : 1;
    for (int64_t i = 0; i < count; i++)
        out->v[i] = (accumulate ? out->v[i] : 0) + scale * sum[i];
    free(sum);
}
