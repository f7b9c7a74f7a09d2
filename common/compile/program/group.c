// SPDX-License-Identifier: Apache-2.0
// The groups of instructions. See group.h.
#include "common/compile/program/group.h"

static bool is_boundary(const struct instr *i)
{
    return i->kind == INSTR_SEND || i->kind == INSTR_RECV;
}

struct group group_of(const struct instr *i, int stage)
{
    bool sends = i->kind == INSTR_SEND;
    int from = sends ? stage : i->peer, to = sends ? i->peer : stage;
    if (is_boundary(i))
        return (struct group){.kind = GROUP_BOUNDARY,
                              .axis = i->axis,
                              .stages = (uint64_t)1 << from | (uint64_t)1 << to,
                              .up = from < to,
                              .closing = (from < to) != (i->phase == PHASE_FORWARD)};
    if (i->stages)
        return (struct group){.kind = GROUP_STAGES, .axis = i->axis, .stages = i->stages};
    return (struct group){.kind = GROUP_AXES, .axes = i->group};
}

bool group_equal(const struct group *a, const struct group *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == GROUP_AXES)
        return dim_equal(&a->axes, &b->axes);
    return a->axis == b->axis && a->stages == b->stages && a->up == b->up &&
           a->closing == b->closing;
}

int group_size(const struct group *g, const struct mesh *m)
{
    return g->kind == GROUP_AXES ? dim_parts(m, &g->axes) : __builtin_popcountll(g->stages);
}

int group_ranks(const struct group *g, const struct mesh *m, int rank, int *out)
{
    if (g->kind == GROUP_AXES)
        return cut_group(m, rank, &g->axes, out);
    int stride = 1, n = 0;
    for (int a = m->n - 1; a > g->axis; a--)
        stride *= m->axis[a].size;
    int first = rank - mesh_coord(m, rank, g->axis) * stride;
    for (int s = 0; s < m->axis[g->axis].size; s++)
        if (g->stages >> s & 1)
            out[n++] = first + s * stride;
    return n;
}

void group_print(const struct group *g, const struct mesh *m, struct buf *out)
{
    if (g->kind == GROUP_AXES) {
        dim_cut_print(&g->axes, m, out);
        return;
    }
    buf_printf(out, "%s ", m->axis[g->axis].name);
    if (g->kind == GROUP_BOUNDARY) {
        int low = __builtin_ctzll(g->stages), high = 63 - __builtin_clzll(g->stages);
        buf_printf(out, "%d>%d%s", g->up ? low : high, g->up ? high : low,
                   g->closing ? " closing" : "");
        return;
    }
    const char *sep = "";
    for (int s = 0; s < 64; s++)
        if (g->stages >> s & 1) {
            buf_printf(out, "%s%d", sep, s);
            sep = ",";
        }
}

int group_count(struct program *const *programs, int n, int *count, struct err *e)
{
    struct group known[COMMUNICATORS];
    int nknown = 0;
    for (int p = 0; p < n; p++)
        for (int i = 0; i < programs[p]->ninstrs; i++) {
            const struct instr *in = &programs[p]->instrs[i];
            if (in->kind != INSTR_START && !is_boundary(in))
                continue;
            struct group g = group_of(in, programs[p]->stage);
            int k = 0;
            while (k < nknown && !group_equal(&known[k], &g))
                k++;
            if (k == COMMUNICATORS)
                return err_set(
                    e, ERR_LIMIT,
                    "a rank takes part in over %d groups: try fewer axes of the mesh, or "
                    "fewer stages",
                    COMMUNICATORS);
            known[k] = g;
            nknown += k == nknown;
        }
    *count = nknown;
    return 0;
}
