// SPDX-License-Identifier: Apache-2.0
// The ranks that an instruction brings together. See crew.h.
#include "worker/rank/exec/crew.h"

struct crew crew_of_axes(const struct dim_cut *axes)
{
    return (struct crew){.kind = CREW_AXES, .axes = *axes};
}

struct crew crew_of_stages(const struct instr *start)
{
    return (struct crew){.kind = CREW_STAGES, .axis = start->axis, .stages = start->stages};
}

struct crew crew_of_message(const struct instr *i, int stage)
{
    bool sends = i->kind == INSTR_SEND;
    int from = sends ? stage : i->peer, to = sends ? i->peer : stage;
    return (struct crew){.kind = CREW_MESSAGE,
                         .axis = i->axis,
                         .stages = (uint64_t)1 << from | (uint64_t)1 << to,
                         .up = from < to};
}

bool crew_equal(const struct crew *a, const struct crew *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == CREW_AXES)
        return dim_equal(&a->axes, &b->axes);
    return a->axis == b->axis && a->stages == b->stages && a->up == b->up;
}

int crew_size(const struct crew *c, const struct mesh *m)
{
    return c->kind == CREW_AXES ? dim_parts(m, &c->axes) : __builtin_popcountll(c->stages);
}

int crew_ranks(const struct crew *c, const struct mesh *m, int rank, int *out)
{
    if (c->kind == CREW_AXES)
        return cut_group(m, rank, &c->axes, out);
    int stride = 1, n = 0;
    for (int a = m->n - 1; a > c->axis; a--)
        stride *= m->axis[a].size;
    int first = rank - mesh_coord(m, rank, c->axis) * stride;
    for (int s = 0; s < m->axis[c->axis].size; s++)
        if (c->stages >> s & 1)
            out[n++] = first + s * stride;
    return n;
}

void crew_print(const struct crew *c, const struct mesh *m, struct buf *out)
{
    if (c->kind == CREW_AXES) {
        dim_cut_print(&c->axes, m, out);
        return;
    }
    buf_printf(out, "%s ", m->axis[c->axis].name);
    if (c->kind == CREW_MESSAGE) {
        int low = __builtin_ctzll(c->stages), high = 63 - __builtin_clzll(c->stages);
        buf_printf(out, "%d>%d", c->up ? low : high, c->up ? high : low);
        return;
    }
    const char *sep = "";
    for (int s = 0; s < 64; s++)
        if (c->stages >> s & 1) {
            buf_printf(out, "%s%d", sep, s);
            sep = ",";
        }
}
