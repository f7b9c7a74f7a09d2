// SPDX-License-Identifier: Apache-2.0
// A named grid of devices. See mesh.h.
#include "common/compile/layout/mesh.h"

int mesh_ranks(const struct mesh *m)
{
    int n = 1;
    for (int i = 0; i < m->n; i++)
        n *= m->axis[i].size;
    return n;
}

int mesh_coord(const struct mesh *m, int rank, int axis)
{
    for (int i = m->n - 1; i > axis; i--)
        rank /= m->axis[i].size;
    return rank % m->axis[axis].size;
}

axis_set mesh_all(const struct mesh *m)
{
    axis_set all = 0;
    for (int i = 0; i < m->n; i++)
        if (m->axis[i].size > 1)
            all |= (axis_set)(1u << i);
    return all;
}

axis_set mesh_cuts(const struct mesh *m)
{
    return mesh_all(m) & (axis_set)~m->stages;
}

int mesh_product(const struct mesh *m, axis_set axes)
{
    int n = 1;
    for (int i = 0; i < m->n; i++)
        if (axes >> i & 1)
            n *= m->axis[i].size;
    return n;
}

int mesh_group(const struct mesh *m, int rank, axis_set axes, int *out)
{
    int n = 0, all = mesh_ranks(m);
    for (int r = 0; r < all; r++) {
        bool same = true;
        for (int i = 0; i < m->n && same; i++)
            same = axes >> i & 1 || mesh_coord(m, r, i) == mesh_coord(m, rank, i);
        if (same)
            out[n++] = r;
    }
    return n;
}

void mesh_print(const struct mesh *m, struct buf *out)
{
    buf_putc(out, '{');
    for (int i = 0; i < m->n; i++)
        buf_printf(out, "%s%s: %d", i ? ", " : "", m->axis[i].name, m->axis[i].size);
    buf_putc(out, '}');
}

void axis_set_print(const struct mesh *m, axis_set axes, struct buf *out)
{
    const char *sep = "";
    for (int i = 0; i < m->n; i++) {
        if (!(axes >> i & 1))
            continue;
        buf_printf(out, "%s%s", sep, m->axis[i].name);
        sep = ",";
    }
}

const char *axis_set_text(const struct mesh *m, axis_set axes, struct arena *a)
{
    struct buf b = {0};
    axis_set_print(m, axes, &b);
    return buf_keep(&b, a);
}
