// SPDX-License-Identifier: Apache-2.0
// The mesh, and who holds what on it. See picture.h.
//
// A grid has two directions: the last axis (or cut dimension) runs to the right, the one before it
// downwards. If there are more, a mesh is drawn as several grids, one for each coordinate on the
// other axes; of a tensor the other dimensions make more rows of one grid.
#include <stdlib.h>
#include <string.h>

#include "common/explain/fixes.h"
#include "common/explain/picture_draw.h"

enum { GRIDS_SHOWN = 4, MESH_ROWS = 16, BLOCK_ROWS = 8, CELL_COLUMNS = 12, LINE_COLUMNS = 48 };

// ---- mesh ---------------------------------------------------------------------------------------

struct mesh_grid {
    const struct mesh *m;
    int down, right; // axes, −1 for none
    int first;       // rank at the grid's top left
    int stride[MESH_MAX_AXES];
};

static const char *mesh_cell(const struct grid *g, int row, int col)
{
    const struct mesh_grid *at = g->of;
    int rank = at->first + (at->down >= 0 ? row * at->stride[at->down] : 0) +
               (at->right >= 0 ? col * at->stride[at->right] : 0);
    return arena_printf(g->arena, "%d", rank);
}

static const char *axis_label(const struct grid *g, int axis, int i)
{
    const struct mesh_grid *at = g->of;
    return axis < 0 ? "" : arena_printf(g->arena, "%s=%d", at->m->axis[axis].name, i);
}

static const char *mesh_row(const struct grid *g, int row)
{
    return axis_label(g, ((const struct mesh_grid *)g->of)->down, row);
}

static const char *mesh_col(const struct grid *g, int col)
{
    return axis_label(g, ((const struct mesh_grid *)g->of)->right, col);
}

// The title of grid `at`: its coordinates on the axes that are neither down nor
// right.
static void grid_title(struct mesh_grid *x, axis_set outer, int at, struct buf *out)
{
    int left = at;
    struct buf text = {0};
    x->first = 0;
    for (int a = x->m->n - 1; a >= 0; a--) {
        if (!(outer >> a & 1))
            continue;
        int size = x->m->axis[a].size;
        x->first += left % size * x->stride[a];
        struct buf before = {0};
        buf_printf(&before, "%s=%d%s%s", x->m->axis[a].name, left % size, text.len ? ", " : "",
                   buf_str(&text));
        buf_clear(&text);
        text = before;
        left /= size;
    }
    if (text.len)
        buf_printf(out, "%s\n", buf_str(&text));
    buf_clear(&text);
}

void picture_mesh(const struct compiled *c, int width, struct buf *out)
{
    const struct mesh *m = &c->mesh;
    struct arena a = {0};
    struct mesh_grid x = {.m = m, .down = -1, .right = -1};
    axis_set outer = mesh_all(m);
    for (int i = m->n - 1, stride = 1; i >= 0; stride *= m->axis[i].size, i--)
        x.stride[i] = stride;
    for (int i = m->n - 1; i >= 0 && x.down < 0; i--) {
        if (!(outer >> i & 1))
            continue;
        *(x.right < 0 ? &x.right : &x.down) = i;
        outer &= (axis_set) ~(1u << i);
    }
    struct grid g = {.rows = x.down < 0 ? 1 : m->axis[x.down].size,
                     .cols = x.right < 0 ? 1 : m->axis[x.right].size,
                     .cell = mesh_cell,
                     .row_label = mesh_row,
                     .col_label = mesh_col,
                     .of = &x,
                     .most = MESH_ROWS,
                     .arena = &a};
    buf_puts(out, "mesh ");
    mesh_print(m, out);
    buf_printf(out, ": %d device%s, each by its rank\n", mesh_ranks(m),
               mesh_ranks(m) > 1 ? "s" : "");
    int grids = mesh_product(m, outer);
    for (int i = 0; i < grids; i++) {
        if (i == GRIDS_SHOWN - 1 && grids > GRIDS_SHOWN) {
            buf_printf(out, "… %d more\n", grids - GRIDS_SHOWN);
            i = grids - 1;
        }
        grid_title(&x, outer, i, out);
        grid_print(&g, width, out);
    }
    arena_clear(&a);
}

// ---- sharding -----------------------------------------------------------------------------------

struct tensor_grid {
    const struct mesh *m;
    const struct value *v;
    int dims[MAX_DIMS], n; // that are cut; the last runs to the right
    int parts[MAX_DIMS];
    int *ranks;      // scratch
    int stage_axis;  // of the mesh, −1 for none
    uint64_t stages; // that hold the tensor, a bit each
};

// The ranks that hold block (row, col).
static int count_holders(const struct tensor_grid *t, int row, int col)
{
    int want[MAX_DIMS], n = 0, left = row, all = mesh_ranks(t->m);
    for (int i = t->n - 1; i >= 0; i--) {
        want[i] = i == t->n - 1 ? col : left % t->parts[i];
        left /= i == t->n - 1 ? 1 : t->parts[i];
    }
    for (int r = 0; r < all; r++) {
        bool here = t->stage_axis < 0 || t->stages >> mesh_coord(t->m, r, t->stage_axis) & 1;
        for (int i = 0; i < t->n && here; i++)
            here = cut_place(t->m, r, &t->v->spec.dim[t->dims[i]]) == want[i];
        if (here)
            t->ranks[n++] = r;
    }
    return n;
}

// "5", "0,4", "0-7", "0,1,4,5": all of them, three or more in a row as a range; in fewer columns
// than that takes "0,2,…,14".
static const char *print_ranks(struct arena *a, const int *r, int n, size_t most)
{
    if (n == 0)
        return "none";
    const char *tail = arena_printf(a, ",…,%d", r[n - 1]);
    size_t reserve = (size_t)text_columns(tail), keep = 0;
    struct buf b = {0};
    int at = 0;
    while (at < n && (keep == 0 || b.len <= most)) {
        int end = at;
        while (end + 1 < n && r[end + 1] == r[end] + 1)
            end++;
        end = end == at + 1 ? at : end;
        buf_printf(&b, end > at ? "%s%d-%d" : "%s%d", at ? "," : "", r[at], r[end]);
        if (keep == 0 || b.len + reserve <= most)
            keep = b.len;
        at = end + 1;
    }
    bool all = at == n && (b.len <= most || keep == b.len);
    const char *text =
        arena_printf(a, "%.*s%s", (int)(all ? b.len : keep), buf_str(&b), all ? "" : tail);
    buf_clear(&b);
    return text;
}

static const char *block_cell(const struct grid *g, int row, int col)
{
    const struct tensor_grid *t = g->of;
    int n = count_holders(t, row, col);
    return print_ranks(g->arena, t->ranks, n, CELL_COLUMNS);
}

// "384:768", of dimension dims[i].
static const char *print_range(const struct grid *g, int i, int part)
{
    const struct tensor_grid *t = g->of;
    int64_t step = t->v->shape.dim[t->dims[i]] / t->parts[i];
    return arena_printf(g->arena, "%lld:%lld", (long long)(part * step),
                        (long long)((part + 1) * step));
}

static const char *block_row(const struct grid *g, int row)
{
    const struct tensor_grid *t = g->of;
    const char *text = "";
    for (int i = t->n - 2; i >= 0; i--) {
        const char *one = print_range(g, i, row % t->parts[i]);
        text = arena_printf(g->arena, "%s%s%s", one, *text ? ", " : "", text);
        row /= t->parts[i];
    }
    return text;
}

static const char *block_col(const struct grid *g, int col)
{
    const struct tensor_grid *t = g->of;
    return t->n ? print_range(g, t->n - 1, col) : "whole";
}

static void put_shape(const struct shape *s, struct buf *out)
{
    for (int d = 0; d < s->n; d++)
        buf_printf(out, "%s%lld", d ? "×" : "", (long long)s->dim[d]);
}

static void print_tensor(struct tensor_grid *t, const char *name, int width, struct arena *a,
                         struct buf *out)
{
    struct shape block = spec_local(&t->v->spec, t->m, &t->v->shape);
    struct grid g = {.rows = 1,
                     .cols = 1,
                     .cell = block_cell,
                     .row_label = block_row,
                     .col_label = block_col,
                     .of = t,
                     .most = BLOCK_ROWS,
                     .arena = a};
    t->n = 0;
    for (int d = 0; d < t->v->shape.n; d++)
        if (dim_parts(t->m, &t->v->spec.dim[d]) > 1) {
            t->parts[t->n] = dim_parts(t->m, &t->v->spec.dim[d]);
            t->dims[t->n++] = d;
        }
    for (int i = 0; i < t->n; i++)
        *(i == t->n - 1 ? &g.cols : &g.rows) *= t->parts[i];
    buf_printf(out, "\n%s  ", name);
    put_shape(&t->v->shape, out);
    buf_putc(out, ' ');
    spec_print(&t->v->spec, t->m, t->v->shape.n, out);
    int holds = count_holders(t, 0, 0);
    if (g.rows * g.cols == 1)
        buf_printf(out, "\n  whole on %d device%s: %s\n", holds, holds > 1 ? "s, copies" : "",
                   print_ranks(a, t->ranks, holds, LINE_COLUMNS));
    else {
        buf_printf(out, "\n  %d blocks of ", g.rows * g.cols);
        put_shape(&block, out);
        if (holds > 1)
            buf_printf(out, ", each on %d devices, copies", holds);
        buf_putc(out, '\n');
        grid_print(&g, width, out);
    }
}

struct seen {
    const char *name;      // of its family
    int n;                 // members; of one alone the own name is shown
    long long first, last; // number of the last members in a row
    const char *before;    // the numbers before those: "0,2-5,"
    const struct value *v;
    uint64_t stages;
};

static uint64_t find_stages(const struct compiled *c, const char *param)
{
    uint64_t all = 0;
    for (int s = 0; s < c->nstages; s++)
        all |= (uint64_t)(program_find(compiled_program(c, PROGRAM_TRAIN, s), param) >= 0) << s;
    return all;
}

static const char *print_numbers(struct arena *a, const struct seen *f, const char *end)
{
    return f->first == f->last
               ? arena_printf(a, "%s%lld%s", f->before, f->first, end)
               : arena_printf(a, "%s%lld-%lld%s", f->before, f->first, f->last, end);
}

// Counts one more name of a family: its layer's number stands at the family's first "*".
static void count_in(struct seen *f, const char *name, struct arena *a)
{
    const char *star = strchr(f->name, '*');
    long long number = star ? strtoll(name + (star - f->name), NULL, 10) : 0;
    if (f->n++ == 0) {
        f->first = f->last = number;
        f->before = "";
    } else if (number == f->last + 1) {
        f->last = number;
    } else {
        f->before = print_numbers(a, f, ",");
        f->first = f->last = number;
    }
}

// "layers/*/norm" of all layers, "layers/0-1/norm" of some where others lie or are cut elsewise.
static const char *get_shown_name(const struct seen *list, int n, int at, struct arena *a)
{
    const struct seen *f = &list[at];
    const char *star = strchr(f->name, '*');
    bool others = false;
    for (int i = 0; i < n; i++)
        others |= i != at && strcmp(list[i].name, f->name) == 0;
    if (f->n == 1)
        return f->v->name;
    return others && star ? arena_printf(a, "%.*s%s%s", (int)(star - f->name), f->name,
                                         print_numbers(a, f, ""), star + 1)
                          : f->name;
}

static bool are_alike(const struct value *a, const struct value *b)
{
    return spec_same_cuts(&a->spec, &b->spec) && shape_equal(&a->shape, &b->shape);
}

// What an activation point holds on a stage, as its first layer has it; null: nothing.
static const struct value *point_on(const struct graph *g, enum point p, int stage)
{
    const struct value *best = NULL;
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        const struct node *by = v->producer >= 0 ? &g->nodes[v->producer] : NULL;
        if (v->point == p && v->kind == VALUE_TEMP && by && by->phase == PHASE_FORWARD &&
            by->kind == NODE_OP && by->stage == stage && !spec_partial(&v->spec) &&
            v->shape.n > 1 && v->dims[0] == DIM_BATCH && (!best || v->shape.n > best->shape.n))
            best = v;
    }
    return best;
}

// Layers of another stage are others: a point that several stages have is drawn for each.
static int list_points(const struct compiled *c, const struct graph *g, struct arena *a,
                       struct seen *out)
{
    int n = 0;
    for (int p = POINT_NONE + 1; p < POINT_COUNT; p++) {
        int first = n;
        for (int s = 0; s < c->nstages; s++) {
            const struct value *v = point_on(g, (enum point)p, s);
            if (v)
                out[n++] = (struct seen){
                    .name = arena_printf(a, "%s of stage %d", point_name((enum point)p), s),
                    .n = 2,
                    .v = v,
                    .stages = (uint64_t)1 << s};
        }
        if (n == first + 1)
            out[first].name = point_name((enum point)p);
    }
    return n;
}

// Parameters in their order, layers that are cut alike on the same stages as one, then the
// activation points.
static int list_tensors(const struct compiled *c, const struct graph *g, struct arena *a,
                        struct seen *out)
{
    int n = 0;
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        if (v->kind != VALUE_PARAM || v->alias >= 0)
            continue;
        struct seen one = {
            .name = layers_glob(a, v->name), .v = v, .stages = find_stages(c, v->name)};
        int k = 0;
        while (k < n && (strcmp(out[k].name, one.name) != 0 || out[k].stages != one.stages ||
                         !are_alike(out[k].v, v)))
            k++;
        if (k == n)
            out[n++] = one;
        count_in(&out[k], v->name, a);
    }
    return n + list_points(c, g, a, out + n);
}

void picture_sharding(const struct compiled *c, int width, struct buf *out)
{
    struct arena a = {0};
    const struct graph *g = compiled_program(c, PROGRAM_TRAIN, 0)->graph;
    struct seen *list = arena_array(&a, struct seen, g->nvalues + POINT_COUNT * c->nstages);
    int n = list_tensors(c, g, &a, list);
    struct tensor_grid t = {.m = &c->mesh, .stage_axis = c->axis};
    t.ranks = arena_array(&a, int, mesh_ranks(&c->mesh));
    buf_puts(out, "blocks and the ranks that hold them, on mesh ");
    mesh_print(&c->mesh, out);
    buf_putc(out, '\n');
    for (int i = 0; i < n; i++) {
        t.v = list[i].v;
        t.stages = list[i].stages;
        print_tensor(&t, get_shown_name(list, n, i, &a), width, &a, out);
    }
    arena_clear(&a);
}
