// SPDX-License-Identifier: Apache-2.0
// PartitionSpecs. See spec.h.
#include "common/compile/layout/spec.h"

#include "common/base/err.h"

axis_set dim_axes(const struct dim_cut *c)
{
    axis_set s = 0;
    for (int i = 0; i < c->n; i++)
        s |= (axis_set)(1u << c->axis[i]);
    return s;
}

axis_set spec_axes(const struct spec *s)
{
    axis_set all = 0;
    for (int d = 0; d < MAX_DIMS; d++)
        all |= dim_axes(&s->dim[d]);
    return all;
}

axis_set spec_partial(const struct spec *s)
{
    return s->partial_sum | s->partial_max;
}

bool dim_equal(const struct dim_cut *a, const struct dim_cut *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (a->axis[i] != b->axis[i])
            return false;
    return true;
}

bool spec_same_cuts(const struct spec *a, const struct spec *b)
{
    for (int d = 0; d < MAX_DIMS; d++)
        if (!dim_equal(&a->dim[d], &b->dim[d]))
            return false;
    return true;
}

bool spec_equal(const struct spec *a, const struct spec *b)
{
    return spec_same_cuts(a, b) && a->partial_sum == b->partial_sum &&
           a->partial_max == b->partial_max;
}

void dim_append(struct dim_cut *c, int axis)
{
    PRE(c->n < MESH_MAX_AXES);
    c->axis[c->n++] = (uint8_t)axis;
}

int cut_place(const struct mesh *m, int rank, const struct dim_cut *c)
{
    int place = 0;
    for (int i = 0; i < c->n; i++)
        place = place * m->axis[c->axis[i]].size + mesh_coord(m, rank, c->axis[i]);
    return place;
}

int cut_group(const struct mesh *m, int rank, const struct dim_cut *c, int *out)
{
    int *ranks = out, n = mesh_group(m, rank, dim_axes(c), ranks);
    // Row-major over the mesh: each rank is carried to its place, one cycle after the other.
    for (int i = 0; i < n; i++)
        for (int at = cut_place(m, ranks[i], c); at != i; at = cut_place(m, ranks[i], c)) {
            int other = ranks[at];
            ranks[at] = ranks[i];
            ranks[i] = other;
        }
    return n;
}

int dim_parts(const struct mesh *m, const struct dim_cut *c)
{
    return mesh_product(m, dim_axes(c));
}

bool spec_divides(const struct spec *s, const struct mesh *m, const struct shape *shape, int *bad)
{
    for (int d = 0; d < MAX_DIMS; d++) {
        *bad = d;
        int parts = dim_parts(m, &s->dim[d]);
        if (parts > 1 && (d >= shape->n || shape->dim[d] % parts))
            return false;
    }
    return true;
}

struct spec spec_that_divides(const struct spec *s, const struct mesh *m, const struct shape *shape)
{
    struct spec out = *s;
    for (int d = 0; d < shape->n; d++)
        while (shape->dim[d] % dim_parts(m, &out.dim[d]))
            out.dim[d].axis[--out.dim[d].n] = 0;
    return out;
}

struct shape spec_local(const struct spec *s, const struct mesh *m, const struct shape *global)
{
    struct shape local = *global;
    for (int d = 0; d < global->n; d++)
        local.dim[d] /= dim_parts(m, &s->dim[d]);
    return local;
}

void spec_start(const struct spec *s, const struct mesh *m, const struct shape *global, int rank,
                int64_t start[MAX_DIMS])
{
    for (int d = 0; d < MAX_DIMS; d++) {
        int64_t part = cut_place(m, rank, &s->dim[d]), parts = dim_parts(m, &s->dim[d]);
        start[d] = d < global->n ? part * (global->dim[d] / parts) : 0;
    }
}

void dim_cut_print(const struct dim_cut *c, const struct mesh *m, struct buf *out)
{
    if (c->n == 0)
        buf_putc(out, '~');
    if (c->n > 1)
        buf_putc(out, '[');
    for (int i = 0; i < c->n; i++)
        buf_printf(out, "%s%s", i ? ", " : "", m->axis[c->axis[i]].name);
    if (c->n > 1)
        buf_putc(out, ']');
}

void spec_print(const struct spec *s, const struct mesh *m, int n, struct buf *out)
{
    buf_putc(out, '[');
    for (int d = 0; d < n; d++) {
        if (d)
            buf_puts(out, ", ");
        dim_cut_print(&s->dim[d], m, out);
    }
    buf_putc(out, ']');
    if (s->partial_sum) {
        buf_puts(out, " partial(");
        axis_set_print(m, s->partial_sum, out);
        buf_putc(out, ')');
    }
    if (s->partial_max) {
        buf_puts(out, " partial_max(");
        axis_set_print(m, s->partial_max, out);
        buf_putc(out, ')');
    }
}

void spec_json(const struct spec *s, const struct mesh *m, int n, const char *key,
               struct json_out *w)
{
    json_array(w, key);
    for (int d = 0; d < n; d++) {
        const struct dim_cut *c = &s->dim[d];
        if (c->n == 0)
            json_null(w, NULL);
        if (c->n > 1)
            json_array(w, NULL);
        for (int i = 0; i < c->n; i++)
            json_str(w, NULL, m->axis[c->axis[i]].name);
        if (c->n > 1)
            json_end(w);
    }
    json_end(w);
}
