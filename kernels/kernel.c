// SPDX-License-Identifier: Apache-2.0
// How kernels refuse what they do not serve. See kernel.h.
#include "kernels/kernel.h"

#include "common/op/slots.h"

extern const struct backend weft_backend; // the one that this is linked into

int op_refuse(const struct op_call *c, struct err *e, const char *what)
{
    return err_set(e, ERR_UNSUPPORTED, "%s: %s: %s", weft_backend.name, op_name(c->op), what);
}

int op_want(const struct op_call *c, const struct tensor *t, enum dtype want, struct err *e)
{
    if (t->dtype == want)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: %s: an operand is %s, not %s", weft_backend.name,
                   op_name(c->op), dtype_name(t->dtype), dtype_name(want));
}

int op_want_float(const struct op_call *c, const struct tensor *t, struct err *e)
{
    return t->dtype == DT_BF16 ? 0 : op_want(c, t, DT_F32, e);
}

int op_want_update(const struct op_call *c, struct err *e)
{
    int64_t n = shape_count(&c->in[0].shape);
    for (int k = 0; k < c->nin; k++) {
        int rc = op_want(c, &c->in[k], DT_F32, e);
        if (rc)
            return rc;
        if (k < c->nin - 2 && shape_count(&c->in[k].shape) != n)
            return op_refuse(c, e, "operands differ in size");
    }
    for (int k = 0; k < c->nout; k++) {
        int rc = op_want(c, &c->out[k], k < op_outputs(c->op) ? DT_F32 : DT_BF16, e);
        if (rc)
            return rc;
        if (shape_count(&c->out[k].shape) != n)
            return op_refuse(c, e, "results differ in size");
    }
    if (shape_count(&c->in[c->nin - 2].shape) < CLIP_SLOTS ||
        shape_count(&c->in[c->nin - 1].shape) < HYPER_SLOTS)
        return op_refuse(c, e, "clip or hyper vector is too short");
    return 0;
}

int64_t op_unpadded(const struct op_call *c, int64_t n)
{
    int64_t left = c->attr->limit - c->attr->start;
    if (!c->attr->limit || left >= n)
        return n;
    return left > 0 ? left : 0;
}
