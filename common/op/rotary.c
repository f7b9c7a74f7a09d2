// SPDX-License-Identifier: Apache-2.0
// Frequencies of ROTARY. See rotary.h.
#include "common/op/rotary.h"

#include <math.h>

static const double FULL_TURN = 6.283185307179586477;

// The pair, with a fraction, that turns so many times over the length.
static double find_pair(const struct op_rotary *r, double width, double times)
{
    return width * log((double)r->length / (times * FULL_TURN)) / (2 * log((double)r->theta));
}

struct rotary_row rotary_row_of(const struct op_call *c)
{
    const struct shape *x = &c->in[0].shape, *positions = &c->in[1].shape;
    const int more = op_is(c->op, OP_IS_PACKED) ? 3 : x->n > positions->n + 1 ? 2 : 1;
    struct rotary_row r = {1, 1};
    if (x->n < more)
        return (struct rotary_row){0};
    for (int d = x->n - more; d < x->n; d++)
        r.pitch *= x->dim[d];
    if (more > 1)
        r.heads = x->dim[x->n - 2];
    if (more > 2)
        r.heads *= x->dim[x->n - 3] - 1;
    return r.pitch * shape_count(positions) == shape_count(x) ? r : (struct rotary_row){0};
}

struct rotary_series rotary_series_of(const struct op_rotary *r, int64_t width)
{
    double elements = (double)(r->sweep ? width * r->heads : width);
    double slow = (double)r->slow, fast = (double)r->fast;
    struct rotary_series s = {.theta = (double)r->theta, .elements = elements, .factor = 1};
    s.octaves = log2(s.theta) * 2 / elements;
    if (r->scaling == ROTARY_PLAIN)
        return s;
    s.factor = (double)r->factor;
    if (r->scaling == ROTARY_LLAMA3) {
        s.by_speed = (double)r->length / FULL_TURN / (fast - slow);
        s.share = -slow / (fast - slow);
    } else if (r->scaling == ROTARY_YARN) {
        double first = floor(find_pair(r, elements, fast));
        double last = ceil(find_pair(r, elements, slow));
        first = first > 0 ? first : 0;
        last = last < elements - 1 ? last : elements - 1;
        last += last == first ? 0.001 : 0;
        s.by_pair = -1 / (last - first);
        s.share = last / (last - first);
    }
    return s;
}

double rotary_speed(const struct rotary_series *s, int64_t pair)
{
    double f = pow(s->theta, -2.0 * (double)pair / s->elements);
    double share = s->share + s->by_pair * (double)pair + s->by_speed * f;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    return f * (share + (1 - share) / s->factor);
}
