// SPDX-License-Identifier: Apache-2.0
// Moving elements between parameters and tensors. See move.h.
//
// A chunk is a box of the object: one entry of its first dimensions, a range of the next, all of the
// rest, so that its bytes lie side by side. What lies in it of each piece is read as a box of the other
// side, and then put in order.
#include "common/weights/move.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 32 };

static const struct shape *view_of(const struct mapping *m, enum weight_side side, int object)
{
    return side == OURS ? &m->params.param[object].shape : &m->tensors[object].view;
}

// ---- putting in order ----------------------------------------------------------------------------

// Strides of the loops over a piece's atoms, in elements of the two boxes.
struct loops {
    int n;
    struct loop {
        int64_t n, to, from;
    } loop[2 * MAX_DIMS];
};

static void copy_plane(const struct loop *a, const struct loop *b, float *to, const float *from)
{
    if (b->to == 1 && b->from == 1) {
        for (int64_t i = 0; i < a->n; i++)
            memcpy(to + i * a->to, from + i * a->from, (size_t)b->n * sizeof *to);
        return;
    }
    for (int64_t i0 = 0; i0 < a->n; i0 += TILE)
        for (int64_t j0 = 0; j0 < b->n; j0 += TILE) {
            int64_t i1 = i0 + TILE < a->n ? i0 + TILE : a->n,
                    j1 = j0 + TILE < b->n ? j0 + TILE : b->n;
            for (int64_t i = i0; i < i1; i++)
                for (int64_t j = j0; j < j1; j++)
                    to[i * a->to + j * b->to] = from[i * a->from + j * b->from];
        }
}

// Loops that are one on both sides become one; the last two are those whose strides are least.
static void order_loops(struct loops *l)
{
    int n = 0;
    for (int i = 0; i < l->n; i++)
        for (int k = i + 1; k < l->n; k++)
            if (l->loop[k].to > l->loop[i].to) {
                struct loop t = l->loop[i];
                l->loop[i] = l->loop[k];
                l->loop[k] = t;
            }
    for (int i = 0; i < l->n; i++) {
        struct loop *before = n ? &l->loop[n - 1] : NULL, x = l->loop[i];
        if (x.n == 1)
            continue;
        if (before && before->to == x.to * x.n && before->from == x.from * x.n)
            *before = (struct loop){before->n * x.n, x.to, x.from};
        else
            l->loop[n++] = x;
    }
    if (n < 2) { // a plane has two
        l->loop[1] = n ? l->loop[0] : (struct loop){1, 1, 1};
        l->loop[0] = (struct loop){1, 0, 0};
        n = 2;
    }
    int least = 0; // where `from` moves least, it is the loop before the last
    for (int i = 0; i < n - 1; i++)
        if (l->loop[i].from <= l->loop[least].from)
            least = i;
    struct loop t = l->loop[least];
    memmove(&l->loop[least], &l->loop[least + 1], sizeof t * (size_t)(n - 2 - least));
    l->loop[n - 2] = t;
    l->n = n;
}

static void copy_loops(const struct loops *l, float *to, const float *from)
{
    int64_t index[2 * MAX_DIMS] = {0};
    int outer = l->n - 2, d;
    do {
        int64_t at = 0, of = 0;
        for (int i = 0; i < outer; i++) {
            at += index[i] * l->loop[i].to;
            of += index[i] * l->loop[i].from;
        }
        copy_plane(&l->loop[outer], &l->loop[outer + 1], to + at, from + of);
        for (d = outer - 1; d >= 0 && ++index[d] == l->loop[d].n; d--)
            index[d] = 0;
    } while (d >= 0);
}

// ---- a piece -------------------------------------------------------------------------------------

static void find_strides(const struct box *b, int64_t stride[MAX_DIMS])
{
    int64_t n = 1;
    for (int d = b->shape.n - 1; d >= 0; n *= b->shape.dim[d--])
        stride[d] = n;
}

// The part of a piece that lies in a chunk, and its box on the other side. False: nothing does. Several
// atoms of a dimension are seen whole, so that only those that are one by themselves are cut.
static bool cut_piece(struct weight_piece *p, enum weight_side to, const struct box *chunk,
                      struct box *from)
{
    enum weight_side other = (enum weight_side) !to;
    for (int d = 0; to == OURS && d < chunk->shape.n; d++)
        if (p->fixed[d] >= 0 &&
            (p->fixed[d] < chunk->start[d] || p->fixed[d] >= chunk->start[d] + chunk->shape.dim[d]))
            return false;
    for (int d = 0; d < from->shape.n; d++) {
        from->start[d] = other == OURS && p->fixed[d] >= 0 ? p->fixed[d] : 0;
        from->shape.dim[d] = 1;
    }
    for (int i = 0; i < p->natoms; i++) {
        struct weight_atom *a = &p->atom[i];
        int64_t low = chunk->start[a->dim[to]] - a->at[to];
        int64_t high = low + chunk->shape.dim[a->dim[to]];
        if (a->step[OURS] == 1 && a->step[THEIRS] == 1) {
            low = low > 0 ? low : 0;
            high = high < a->n ? high : a->n;
            if (low >= high)
                return false;
            a->at[to] += low;
            a->at[other] += low;
            a->n = high - low;
        }
        from->start[a->dim[other]] += a->at[other];
        from->shape.dim[a->dim[other]] += (a->n - 1) * a->step[other];
    }
    return true;
}

static int move_piece(struct mover *m, const struct weight_piece *of, const struct box *chunk,
                      struct err *e)
{
    enum weight_side other = (enum weight_side) !m->to;
    struct weight_piece p = *of;
    struct box from = {.shape.n = view_of(m->map, other, p.object[other])->n};
    int64_t to_stride[MAX_DIMS], from_stride[MAX_DIMS], at = 0;
    struct loops loops = {.n = p.natoms};
    if (!cut_piece(&p, m->to, chunk, &from))
        return 0;
    int64_t n = (int64_t)box_bytes(&from, DT_U8);
    if (n > m->room)
        return err_set(e, ERR_LIMIT, "%lld elements at once are more than %lld", (long long)n,
                       (long long)m->room);
    find_strides(chunk, to_stride);
    find_strides(&from, from_stride);
    for (int d = 0; d < chunk->shape.n; d++)
        at +=
            ((m->to == OURS && p.fixed[d] >= 0 ? p.fixed[d] : 0) - chunk->start[d]) * to_stride[d];
    for (int i = 0; i < p.natoms; i++) {
        const struct weight_atom *a = &p.atom[i];
        at += a->at[m->to] * to_stride[a->dim[m->to]];
        loops.loop[i] = (struct loop){a->n, a->step[m->to] * to_stride[a->dim[m->to]],
                                      a->step[other] * from_stride[a->dim[other]]};
    }
    int rc = m->read(m->ctx, p.object[other], &from, m->box, e);
    if (rc)
        return rc;
    float plus = m->to == OURS ? 1.0f : -1.0f;
    for (int64_t i = 0; p.plus_one && i < n; i++)
        m->box[i] += plus;
    order_loops(&loops);
    copy_loops(&loops, m->chunk + at, m->box);
    return 0;
}

// ---- an object -----------------------------------------------------------------------------------

// The first dimension that has to be seen whole: several atoms make it, or one with another step.
static int first_whole(const struct mover *m, int object, int dims)
{
    const struct mapping *map = m->map;
    const int *first = map->first[m->to], *piece = map->piece[m->to];
    int least = dims;
    for (int k = first[object]; k < first[object + 1]; k++)
        for (int i = 0; i < map->pieces[piece[k]].natoms; i++) {
            const struct weight_atom *a = &map->pieces[piece[k]].atom[i];
            bool plain = a->step[OURS] == 1 && a->step[THEIRS] == 1;
            for (int j = 0; j < map->pieces[piece[k]].natoms && plain; j++)
                plain = j == i || map->pieces[piece[k]].atom[j].dim[m->to] != a->dim[m->to];
            if (!plain && a->dim[m->to] < least)
                least = a->dim[m->to];
        }
    return least;
}

static int take_room(struct mover *m, int64_t elements, struct err *e)
{
    if (elements > 4 * (int64_t)MOVE_CHUNK)
        return err_set(e, ERR_LIMIT, "%lld elements must be seen at once, more than %d",
                       (long long)elements, 4 * MOVE_CHUNK);
    if (elements <= m->room)
        return 0;
    free(m->chunk);
    free(m->box);
    m->chunk = malloc((size_t)elements * sizeof *m->chunk);
    m->box = malloc((size_t)elements * sizeof *m->box);
    m->room = m->chunk && m->box ? elements : 0;
    return m->room ? 0 : err_set(e, ERR_NOMEM, "no memory for %lld elements", (long long)elements);
}

static int move_chunk(struct mover *m, int object, const struct box *chunk, struct err *e)
{
    const struct mapping *map = m->map;
    const int *first = map->first[m->to], *piece = map->piece[m->to];
    int64_t n = (int64_t)(box_bytes(chunk, DT_U8));
    int rc = 0;
    memset(m->chunk, 0, (size_t)n * sizeof *m->chunk);
    for (int k = first[object]; k < first[object + 1] && !rc; k++)
        rc = move_piece(m, &map->pieces[piece[k]], chunk, e);
    return rc ? rc : m->put(m->ctx, m->chunk, n, e);
}

int move_object(struct mover *m, int object, struct err *e)
{
    const struct shape view = *view_of(m->map, m->to, object);
    struct box chunk = {.shape = view};
    int cut = view.n - 1, whole = first_whole(m, object, view.n), d;
    int64_t volume = 1, rows = 1; // of an entry of dimension `cut`; how many entries
    while (cut > 0 && (volume * view.dim[cut] <= MOVE_CHUNK || cut >= whole))
        volume *= view.dim[cut--];
    if (cut >= 0)
        rows = cut >= whole || view.dim[cut] <= MOVE_CHUNK / volume ? view.dim[cut]
               : MOVE_CHUNK / volume > 1                            ? MOVE_CHUNK / volume
                                                                    : 1;
    for (d = 0; d < cut; d++)
        chunk.shape.dim[d] = 1;
    int rc = take_room(m, volume * rows, e);
    do {
        if (cut >= 0) {
            int64_t left = view.dim[cut] - chunk.start[cut];
            chunk.shape.dim[cut] = rows < left ? rows : left;
        }
        if (!rc)
            rc = move_chunk(m, object, &chunk, e);
        d = cut;
        if (cut >= 0)
            chunk.start[cut] += chunk.shape.dim[cut];
        for (; d > 0 && chunk.start[d] == view.dim[d]; d--) {
            chunk.start[d] = 0;
            chunk.start[d - 1]++;
        }
    } while (!rc && cut >= 0 && chunk.start[0] < view.dim[0]);
    return rc;
}

void mover_clear(struct mover *m)
{
    free(m->chunk);
    free(m->box);
    m->chunk = m->box = NULL;
    m->room = 0;
}
