// SPDX-License-Identifier: Apache-2.0
// The groups of a SLOTS and their scratch. See route.h.
#include "common/op/route.h"

bool route_of(const struct op_call *c, struct route *out)
{
    const struct shape *ids = &c->in[0].shape, *positions = &c->in[2].shape;
    const struct shape *chosen = &c->out[1].shape;
    const struct op_slots *s = &c->attr->slots;
    if (ids->n != 3 || positions->n != 2 || chosen->n != 2 || s->group < 1 ||
        ids->dim[0] % s->group || !shape_equal(ids, &c->in[1].shape) ||
        !shape_equal(ids, &c->out[0].shape) || chosen->dim[0] != ids->dim[0] ||
        chosen->dim[1] != s->experts || positions->dim[0] != ids->dim[0] ||
        positions->dim[1] != ids->dim[1])
        return false;
    *out = (struct route){.groups = ids->dim[0] / s->group,
                          .samples = s->group,
                          .seq = ids->dim[1],
                          .tokens = s->group * ids->dim[1],
                          .choices = ids->dim[2],
                          .experts = s->experts,
                          .capacity = s->capacity};
    return true;
}

// A count of each key, the tokens in order, and these in the order before or a count of each expert.
size_t route_scratch_cpu(const struct route *r)
{
    int64_t more = r->tokens > r->experts ? r->tokens : r->experts;
    return sizeof(int32_t) * (size_t)(ROUTE_KEYS + 1 + r->tokens + more);
}

// Room for the tokens in two orders, between which a sort goes to and fro.
size_t route_scratch_cuda(const struct route *r)
{
    return sizeof(int32_t) * (size_t)(2 * r->tokens);
}
