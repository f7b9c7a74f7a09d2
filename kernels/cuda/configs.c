// SPDX-License-Identifier: Apache-2.0
// Configurations of cuBLASLt's algorithms. See configs.h.
#include "kernels/cuda/configs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/map.h"

// The attributes that are set. PARTS holds two of the library's in one number: into how many parts
// a sum is split, and how these are added.
enum attribute { TILE, CLUSTER, STAGES, PARTS, SWIZZLE, OPTION, ATTRIBUTES };
enum { IDS = 256, OPTIONS = 32, NAME_SIZE = 128, SCHEME_SHIFT = 16 };

struct space { // one algorithm's configurations
    cublasLtMatmulAlgo_t algo;
    uint32_t *value[ATTRIBUTES];
    int n[ATTRIBUTES];
    uint64_t count;
};

struct configs {
    struct arena arena;
    struct map noted;
    struct space *space;
    int spaces;
    uint64_t count;              // how many configurations there are
    uint64_t step, drawn, at;    // configs_draw's step, how many it has drawn, and where it is
    cublasLtMatmulAlgo_t middle; // of configs_near
    int attribute, value;        // which configs_near tries next
    bool begun;
};

// ---- one configuration -------------------------------------------------------------------------

static size_t config_width(cublasLtMatmulAlgoConfigAttributes_t of)
{
    return of == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID || of == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID
               ? sizeof(uint16_t)
               : sizeof(uint32_t);
}

uint32_t config_read(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t of)
{
    uint32_t value = 0;
    size_t n = 0;
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, of, &value, config_width(of), &n);
    return value;
}

static bool set_config(cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t of,
                       uint32_t value)
{
    return cublasLtMatmulAlgoConfigSetAttribute(a, of, &value, config_width(of)) ==
           CUBLAS_STATUS_SUCCESS;
}

static const cublasLtMatmulAlgoConfigAttributes_t config_of[ATTRIBUTES] = {
    [TILE] = CUBLASLT_ALGO_CONFIG_TILE_ID,
    [CLUSTER] = CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
    [STAGES] = CUBLASLT_ALGO_CONFIG_STAGES_ID,
    [PARTS] = CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
    [SWIZZLE] = CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
    [OPTION] = CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
};

static uint32_t get_attribute(const cublasLtMatmulAlgo_t *a, int of)
{
    uint32_t value = config_read(a, config_of[of]);
    if (of != PARTS)
        return value;
    return value | config_read(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) << SCHEME_SHIFT;
}

static bool set_attribute(cublasLtMatmulAlgo_t *a, int of, uint32_t value)
{
    if (of != PARTS)
        return set_config(a, config_of[of], value);
    return set_config(a, config_of[of], value & ((1u << SCHEME_SHIFT) - 1)) &&
           set_config(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, value >> SCHEME_SHIFT);
}

static void print_name(const cublasLtMatmulAlgo_t *a, char name[NAME_SIZE])
{
    int n = snprintf(name, NAME_SIZE, "%u.%u", config_read(a, CUBLASLT_ALGO_CONFIG_ID),
                     config_read(a, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID));
    for (int i = 0; i < ATTRIBUTES; i++)
        n += snprintf(name + n, (size_t)(NAME_SIZE - n), ".%x", get_attribute(a, i));
}

void configs_note(struct configs *c, const cublasLtMatmulAlgo_t *algo)
{
    char name[NAME_SIZE];
    print_name(algo, name);
    map_put(&c->noted, name, c);
}

static bool is_noted(const struct configs *c, const cublasLtMatmulAlgo_t *algo)
{
    char name[NAME_SIZE];
    print_name(algo, name);
    return map_get(&c->noted, name) != NULL;
}

// ---- what an algorithm can be set to -----------------------------------------------------------

static uint32_t read_cap(const cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoCapAttributes_t of)
{
    uint32_t value = 0;
    size_t n = 0;
    (void)cublasLtMatmulAlgoCapGetAttribute(a, of, &value, sizeof value, &n);
    return value;
}

static void add_value(struct space *s, int of, uint32_t value)
{
    s->value[of][s->n[of]++] = value;
}

// Lists the ids that the library knows for an attribute; where it knows none, 0 for "undefined".
static void list_ids(struct arena *mem, struct space *s, int of,
                     cublasLtMatmulAlgoCapAttributes_t cap)
{
    size_t bytes = 0, n = 0;
    (void)cublasLtMatmulAlgoCapGetAttribute(&s->algo, cap, NULL, 0, &bytes);
    s->value[of] = arena_array(mem, uint32_t, bytes / sizeof(uint32_t) + 1);
    if (bytes && cublasLtMatmulAlgoCapGetAttribute(&s->algo, cap, s->value[of], bytes, &n) ==
                     CUBLAS_STATUS_SUCCESS)
        s->n[of] = (int)(n / sizeof(uint32_t));
    if (!s->n[of])
        add_value(s, of, 0);
}

// Lists one part, and several parts with each of the allowed schemes to add them.
static void list_parts(struct arena *mem, struct space *s, uint32_t allowed)
{
    static const uint32_t parts[] = {2, 3, 4, 5, 6, 8, 12, 16, 32};
    static const uint32_t schemes[] = {CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                       CUBLASLT_REDUCTION_SCHEME_INPLACE,
                                       CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE};
    enum { MOST = sizeof parts / sizeof *parts, WAYS = sizeof schemes / sizeof *schemes };
    bool splits = read_cap(&s->algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) != 0;
    allowed &= read_cap(&s->algo, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK);
    s->value[PARTS] = arena_array(mem, uint32_t, 1 + MOST * WAYS);
    add_value(s, PARTS, 1);
    for (int i = 0; i < MOST && splits; i++)
        for (int k = 0; k < WAYS; k++)
            if (allowed & schemes[k])
                add_value(s, PARTS, parts[i] | schemes[k] << SCHEME_SHIFT);
}

// Lists 0 to `most`.
static void list_numbers(struct arena *mem, struct space *s, int of, uint32_t most)
{
    s->value[of] = arena_array(mem, uint32_t, most + 1);
    for (uint32_t i = 0; i <= most; i++)
        add_value(s, of, i);
}

// Lists all clusters: only the library's check of a configuration tells which ones an algorithm
// has.
static void list_clusters(struct arena *mem, struct space *s, bool clusters)
{
    s->value[CLUSTER] = arena_array(mem, uint32_t, CUBLASLT_CLUSTER_SHAPE_END);
    add_value(s, CLUSTER, CUBLASLT_CLUSTER_SHAPE_AUTO);
    for (uint32_t i = CUBLASLT_CLUSTER_SHAPE_1x1x1; clusters && i < CUBLASLT_CLUSTER_SHAPE_END; i++)
        add_value(s, CLUSTER, i);
}

static void make_space(struct arena *mem, struct space *s, const struct product *p,
                       bool reproducible, bool clusters)
{
    uint32_t most = read_cap(&s->algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX);
    list_ids(mem, s, TILE, CUBLASLT_ALGO_CAP_TILE_IDS);
    list_clusters(mem, s, clusters);
    list_ids(mem, s, STAGES, CUBLASLT_ALGO_CAP_STAGES_IDS);
    list_parts(mem, s, layout_split_sums(p, reproducible));
    list_numbers(mem, s, SWIZZLE, read_cap(&s->algo, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) != 0);
    list_numbers(mem, s, OPTION, reproducible ? 0 : most < OPTIONS ? most : OPTIONS - 1);
    s->count = 1;
    for (int i = 0; i < ATTRIBUTES; i++)
        s->count *= (uint64_t)s->n[i];
}

// Whether the product's pointers are aligned as the algorithm wants them; the library's check of a
// configuration is shown no pointers.
static bool is_aligned(const cublasLtMatmulAlgo_t *a, const struct product *p)
{
    unsigned c = layout_alignment(p->c ? p->c : p->out);
    return read_cap(a, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES) <= layout_alignment(p->b) &&
           read_cap(a, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES) <= layout_alignment(p->a) &&
           read_cap(a, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES) <= c &&
           read_cap(a, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES) <= layout_alignment(p->out);
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    return b ? greatest_common_divisor(b, a % b) : a;
}

// Chooses configs_draw's step: near the golden section of the count, and without a common divisor
// with it, so that each configuration is met once.
static void plan_draws(struct configs *c)
{
    for (int i = 0; i < c->spaces; i++)
        c->count += c->space[i].count;
    c->step = (uint64_t)((double)c->count * 0.6180339887) + 1;
    while (c->count && greatest_common_divisor(c->count, c->step) != 1)
        c->step++;
}

int configs_open(cublasLtHandle_t lt, const struct product *p, bool reproducible, bool clusters,
                 struct configs **out, struct err *e)
{
    const cudaDataType_t in = layout_type(p->in), to = layout_type(p->to);
    const cublasComputeType_t compute = layout_compute(p);
    int id[IDS], n = 0;
    int rc = LT(e, cublasLtMatmulAlgoGetIds(lt, compute, CUDA_R_32F, in, in, to, to, IDS, id, &n));
    struct configs *c = rc ? NULL : calloc(1, sizeof *c);
    if (!c)
        return rc ? rc : err_set(e, ERR_NOMEM, "no memory for the configurations of a product");
    c->space = arena_array(&c->arena, struct space, n + 1);
    for (int i = 0; i < n; i++) {
        struct space *s = &c->space[c->spaces];
        if (cublasLtMatmulAlgoInit(lt, compute, CUDA_R_32F, in, in, to, to, id[i], &s->algo) ||
            !is_aligned(&s->algo, p))
            continue;
        make_space(&c->arena, s, p, reproducible, clusters);
        c->spaces++;
    }
    plan_draws(c);
    *out = c;
    return 0;
}

void configs_close(struct configs *c)
{
    if (!c)
        return;
    map_clear(&c->noted);
    arena_clear(&c->arena);
    free(c);
}

// ---- one after another -------------------------------------------------------------------------

static const struct space *find_space(const struct configs *c, const cublasLtMatmulAlgo_t *of)
{
    const uint32_t id = config_read(of, CUBLASLT_ALGO_CONFIG_ID);
    for (int i = 0; i < c->spaces; i++)
        if (config_read(&c->space[i].algo, CUBLASLT_ALGO_CONFIG_ID) == id)
            return &c->space[i];
    return NULL;
}

bool configs_near(struct configs *c, const cublasLtMatmulAlgo_t *of, cublasLtMatmulAlgo_t *next)
{
    const struct space *s = find_space(c, of);
    if (!c->begun || memcmp(&c->middle, of, sizeof *of)) {
        c->begun = true;
        c->middle = *of;
        c->attribute = c->value = 0;
    }
    for (; s && c->attribute < ATTRIBUTES; c->attribute++, c->value = 0)
        while (c->value < s->n[c->attribute]) {
            *next = c->middle;
            if (set_attribute(next, c->attribute, s->value[c->attribute][c->value++]) &&
                !is_noted(c, next))
                return true;
        }
    return false;
}

// Makes configuration number `at` of all. The digits of the number, each to the base of how many
// values an attribute has, say which value it gets.
static bool make_config(const struct configs *c, uint64_t at, cublasLtMatmulAlgo_t *to)
{
    const struct space *s = c->space;
    bool set = true;
    for (; at >= s->count; s++)
        at -= s->count;
    *to = s->algo;
    for (int i = 0; i < ATTRIBUTES && set; i++) {
        set = set_attribute(to, i, s->value[i][at % (uint64_t)s->n[i]]);
        at /= (uint64_t)s->n[i];
    }
    return set;
}

bool configs_draw(struct configs *c, cublasLtMatmulAlgo_t *next)
{
    while (c->drawn < c->count) {
        c->drawn++;
        c->at = (c->at + c->step) % c->count;
        if (make_config(c, c->at, next) && !is_noted(c, next))
            return true;
    }
    return false;
}
