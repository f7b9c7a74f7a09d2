// SPDX-License-Identifier: Apache-2.0
// Reshards: known ways, and every step of random ones carried out on numbers by a plain model of
// the collectives, which knows only the step's kind, dimensions and axes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/compile/layout/reshard.h"
#include "tests/unit/unit.h"

static const struct mesh two = {.n = 2, .axis = {{"dp", 2}, {"tp", 4}}};
enum { DP, TP };

static struct reshard way(const struct mesh *m, struct shape s, const struct spec *from,
                          const struct spec *to)
{
    struct arena a;
    struct reshard r;
    struct err e = {0};
    arena_init(&a);
    if (reshard_find(m, &s, 4, from, to, &a, &r, &e))
        fail_msg("%s", e.text);
    arena_clear(&a);
    return r;
}

static struct spec cut(int d0, int d1, axis_set partial)
{
    struct spec s = {.partial_sum = partial};
    if (d0 >= 0)
        dim_append(&s.dim[0], d0);
    if (d1 >= 0)
        dim_append(&s.dim[1], d1);
    return s;
}

static const struct shape square = {2, {16, 16}};

static void expect(const struct reshard *r, int n, const enum reshard_kind *kinds, uint64_t bytes)
{
    assert_int_equal(r->n, n);
    for (int i = 0; i < n; i++)
        assert_string_equal(reshard_kind_name(r->step[i].kind), reshard_kind_name(kinds[i]));
    assert_int_equal(r->bytes, bytes);
}

#define EXPECT(r, bytes, ...)                             \
    do {                                                  \
        const enum reshard_kind k[] = {__VA_ARGS__};      \
        expect(r, (int)(sizeof k / sizeof *k), k, bytes); \
    } while (0)

static void a_partial_sum_goes_straight_into_a_cut(void **state)
{
    (void)state;
    struct spec from = cut(-1, -1, 1 << TP), to = cut(TP, -1, 0);
    struct reshard r = way(&two, square, &from, &to);
    EXPECT(&r, 3 * 1024 / 4, RESHARD_REDUCE_SCATTER);
}

static void a_partial_sum_that_is_wanted_whole_is_all_reduced(void **state)
{
    (void)state;
    struct spec from = cut(-1, -1, 1 << TP), to = cut(-1, -1, 0);
    struct reshard r = way(&two, square, &from, &to);
    EXPECT(&r, 2 * 3 * 1024 / 4, RESHARD_ALL_REDUCE);
}

static void a_cut_moves_to_another_dimension_by_an_exchange(void **state)
{
    (void)state;
    struct spec from = cut(TP, -1, 0), to = cut(-1, TP, 0);
    struct reshard r = way(&two, square, &from, &to);
    EXPECT(&r, 3 * 256 / 4, RESHARD_ALL_TO_ALL);
}

// The part over tp is dp's half: reducing over tp after cutting on dp halves what travels.
static void what_is_cut_first_travels_less(void **state)
{
    (void)state;
    struct spec from = cut(-1, -1, 1 << TP), to = cut(DP, -1, 0);
    struct reshard r = way(&two, square, &from, &to);
    EXPECT(&r, 2 * 3 * 512 / 4, RESHARD_SLICE, RESHARD_ALL_REDUCE);
}

static void axes_of_one_dimension_in_the_wrong_order_are_gathered_and_cut_again(void **state)
{
    (void)state;
    struct spec from = {0}, to = {0};
    dim_append(&from.dim[0], DP);
    dim_append(&from.dim[0], TP);
    dim_append(&to.dim[0], TP);
    dim_append(&to.dim[0], DP);
    struct reshard r = way(&two, square, &from, &to);
    EXPECT(&r, 7 * 1024 / 8, RESHARD_ALL_GATHER, RESHARD_SLICE);
}

static void nothing_is_done_where_nothing_differs(void **state)
{
    (void)state;
    struct spec s = cut(DP, TP, 0);
    struct reshard r = way(&two, square, &s, &s);
    assert_int_equal(r.n, 0);
}

static void a_partial_maximum_is_only_all_reduced(void **state)
{
    (void)state;
    struct spec from = {.partial_max = 1 << TP}, to = cut(TP, -1, 0);
    struct reshard r = way(&two, square, &from, &to);
    EXPECT(&r, 2 * 3 * 1024 / 4, RESHARD_ALL_REDUCE, RESHARD_SLICE);
}

static void a_cut_that_does_not_divide_is_refused(void **state)
{
    (void)state;
    struct arena a;
    struct reshard r;
    struct err e = {0};
    struct shape odd = {2, {6, 16}};
    struct spec from = {0}, to = cut(TP, -1, 0);
    arena_init(&a);
    assert_int_equal(reshard_find(&two, &odd, 4, &from, &to, &a, &r, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "6"));
    arena_clear(&a);
}

// ---- random ways, carried out ------------------------------------------------------------------

enum { RANKS = 12, COUNT = 6 * 12 * 12 };

struct model {
    struct mesh mesh;
    struct shape shape; // global
    struct spec spec;
    int ranks;
    double *local[RANKS];
};

static int64_t local_count(const struct model *m)
{
    struct shape s = spec_local(&m->spec, &m->mesh, &m->shape);
    return shape_count(&s);
}

// The place of a local element in the whole tensor.
static int64_t global_index(const struct model *m, int rank, int64_t i)
{
    int64_t start[MAX_DIMS], at[MAX_DIMS], out = 0;
    struct shape s = spec_local(&m->spec, &m->mesh, &m->shape);
    spec_start(&m->spec, &m->mesh, &m->shape, rank, start);
    for (int d = s.n - 1; d >= 0; d--) {
        at[d] = i % s.dim[d] + start[d];
        i /= s.dim[d];
    }
    for (int d = 0; d < s.n; d++)
        out = out * m->shape.dim[d] + at[d];
    return out;
}

// What each rank holds, as a cover of the whole tensor: NaN where it has nothing.
static void spread(const struct model *m, int rank, double *whole)
{
    for (int64_t i = 0; i < shape_count(&m->shape); i++)
        whole[i] = __builtin_nan("");
    for (int64_t i = 0; i < local_count(m); i++)
        whole[global_index(m, rank, i)] = m->local[rank][i];
}

static bool same_but(const struct mesh *m, int a, int b, const struct dim_cut *axes)
{
    for (int axis = 0; axis < m->n; axis++)
        if (!(dim_axes(axes) >> axis & 1) && mesh_coord(m, a, axis) != mesh_coord(m, b, axis))
            return false;
    return true;
}

// A device may only use what devices of its group on the step's axes hold.
static void carry_out(struct model *m, const struct reshard_step *step)
{
    static double cover[RANKS][COUNT];
    double *fresh[RANKS];
    struct model next = *m;
    next.spec = step->after;
    bool sums = step->kind == RESHARD_REDUCE_SCATTER || step->kind == RESHARD_ALL_REDUCE;
    for (int r = 0; r < m->ranks; r++)
        spread(m, r, cover[r]);
    for (int r = 0; r < m->ranks; r++) {
        int64_t n = local_count(&next);
        fresh[r] = calloc((size_t)n, sizeof(double));
        for (int64_t i = 0; i < n; i++) {
            int64_t at = global_index(&next, r, i);
            double got = 0;
            bool any = false;
            for (int p = 0; p < m->ranks; p++) {
                bool mine =
                    step->kind == RESHARD_SLICE ? p == r : same_but(&m->mesh, r, p, &step->cut);
                if (!mine || cover[p][at] != cover[p][at])
                    continue;
                got = sums ? got + cover[p][at] : cover[p][at];
                any = true;
            }
            assert_true(any); // else the device cannot know the element
            fresh[r][i] = got;
        }
    }
    for (int r = 0; r < m->ranks; r++) {
        free(m->local[r]);
        m->local[r] = fresh[r];
    }
    m->spec = step->after;
}

static struct spec random_spec(const struct mesh *m, const struct shape *s, unsigned *seed,
                               axis_set partial)
{
    struct spec out = {.partial_sum = partial};
    int order[MESH_MAX_AXES];
    for (int i = 0; i < m->n; i++)
        order[i] = i;
    for (int i = m->n - 1; i > 0; i--) {
        int j = rand_r(seed) % (i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (int i = 0; i < m->n; i++)
        if (!(partial >> order[i] & 1) && m->axis[order[i]].size > 1 && rand_r(seed) % 4)
            dim_append(&out.dim[rand_r(seed) % s->n], order[i]);
    return out;
}

// The value x at every place, in shares that sum to it over the partial axes.
static void fill(struct model *m)
{
    for (int r = 0; r < m->ranks; r++) {
        int64_t n = local_count(m);
        m->local[r] = calloc((size_t)n, sizeof(double));
        int parts = mesh_product(&m->mesh, m->spec.partial_sum);
        for (int64_t i = 0; i < n; i++)
            m->local[r][i] = (double)global_index(m, r, i) / parts;
    }
}

static void check(const struct model *m)
{
    int parts = mesh_product(&m->mesh, m->spec.partial_sum);
    for (int r = 0; r < m->ranks; r++)
        for (int64_t i = 0; i < local_count(m); i++)
            if (m->local[r][i] * parts - (double)global_index(m, r, i) > 1e-9 ||
                m->local[r][i] * parts - (double)global_index(m, r, i) < -1e-9)
                fail_msg("rank %d, element %lld: %g", r, (long long)i, m->local[r][i]);
}

static void random_ways_arrive_with_the_right_numbers(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 600; seed++) {
        unsigned s = seed;
        struct model m = {.mesh = {.n = 3, .axis = {{"a", 2}, {"b", 3}, {"c", 2}}},
                          .shape = {3, {6, 12, 12}},
                          .ranks = 12};
        axis_set partial = (axis_set)(rand_r(&s) % 8), kept = (axis_set)(partial & rand_r(&s));
        m.spec = random_spec(&m.mesh, &m.shape, &s, partial);
        struct spec to = random_spec(&m.mesh, &m.shape, &s, kept);
        int bad;
        if (!spec_divides(&m.spec, &m.mesh, &m.shape, &bad) ||
            !spec_divides(&to, &m.mesh, &m.shape, &bad))
            continue;
        fill(&m);
        struct reshard r = way(&m.mesh, m.shape, &m.spec, &to);
        for (int i = 0; i < r.n; i++) {
            carry_out(&m, &r.step[i]);
            check(&m);
        }
        assert_true(spec_equal(&m.spec, &to));
        for (int i = 0; i < m.ranks; i++)
            free(m.local[i]);
    }
}

// 65536 ranks that share 2^56 bytes: (n − 1)/n of it is 2^56 − 2^40, although 2 · 65535 · 2^56 is
// no 64-bit number.
static void a_rings_bytes_are_exact_of_the_largest_tensors(void **state)
{
    (void)state;
    uint64_t s = (uint64_t)1 << 56, less = s - ((uint64_t)1 << 40);
    assert_true(reshard_ring_bytes(RESHARD_ALL_GATHER, s, 65536) == less);
    assert_true(reshard_ring_bytes(RESHARD_ALL_REDUCE, s, 65536) == 2 * less);
    assert_true(reshard_ring_bytes(RESHARD_ALL_GATHER, 10, 4) == 8); // 7.5
    assert_true(reshard_ring_bytes(RESHARD_ALL_REDUCE, 10, 4) == 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_partial_sum_goes_straight_into_a_cut),
        cmocka_unit_test(a_partial_sum_that_is_wanted_whole_is_all_reduced),
        cmocka_unit_test(a_cut_moves_to_another_dimension_by_an_exchange),
        cmocka_unit_test(what_is_cut_first_travels_less),
        cmocka_unit_test(axes_of_one_dimension_in_the_wrong_order_are_gathered_and_cut_again),
        cmocka_unit_test(nothing_is_done_where_nothing_differs),
        cmocka_unit_test(a_partial_maximum_is_only_all_reduced),
        cmocka_unit_test(a_cut_that_does_not_divide_is_refused),
        cmocka_unit_test(random_ways_arrive_with_the_right_numbers),
        cmocka_unit_test(a_rings_bytes_are_exact_of_the_largest_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
