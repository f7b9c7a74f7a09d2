// SPDX-License-Identifier: Apache-2.0
// The tensors that outlive a step. See model_state.h.
#include "worker/rank/exec/model_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"
#include "worker/rank/exec/initial_values.h"

enum { CHUNK = 1 << 20 }; // elements drawn and copied at a time

static bool outlives_step(const struct buffer *b)
{
    return b->kind == BUFFER_PARAM || b->kind == BUFFER_OPTIMIZER;
}

static struct box find_box(const struct value *v, const struct mesh *m, int rank)
{
    struct box b = {.shape = spec_local(&v->spec, m, &v->shape)};
    spec_start(&v->spec, m, &v->shape, rank, b.start);
    return b;
}

// The spec as the manifest has it: [null, "tp", ["dp", "fsdp"]].
static const char *format_spec(struct arena *a, const struct value *v, const struct mesh *m)
{
    struct buf text = {0};
    struct json_out w;
    json_out_init(&w, &text);
    spec_json(&v->spec, m, v->shape.n, NULL, &w);
    json_out_clear(&w);
    return buf_keep(&text, a);
}

// The stages that hold each value of the graph, a bit each; 0 for what does not outlive a step.
static uint64_t *find_holders(struct arena *a, const struct compiled *c, int *tensors)
{
    const struct graph *g = compiled_program(c, c->holder, 0)->graph;
    uint64_t *stages = arena_array(a, uint64_t, g->nvalues);
    for (int k = 0; k < c->nstages; k++) {
        const struct program *p = compiled_program(c, c->holder, k);
        for (int b = 0; b < p->nbuffers; b++)
            if (outlives_step(&p->buffers[b])) {
                *tensors += !stages[p->buffers[b].value];
                stages[p->buffers[b].value] |= (uint64_t)1 << k;
            }
    }
    return stages;
}

// Finds the ranks that agree with `r` on all axes but these and belong to one of the stages. Returns
// how many they are.
static int find_replicas(const struct compiled *c, int r, axis_set axes, uint64_t stages, int *out)
{
    int n = mesh_group(&c->mesh, r, axes, out), kept = 0;
    for (int i = 0; i < n; i++)
        if (stages >> compiled_stage(c, out[i]) & 1)
            out[kept++] = out[i];
    return kept;
}

// Adds one part for each distinct box of the tensor, at the first rank that holds it.
static void add_parts(struct state *s, struct arena *a, const struct compiled *c,
                      const struct value *v, uint64_t stages, void *device, int rank)
{
    const struct mesh *m = &c->mesh;
    const struct graph *g = compiled_program(c, c->holder, 0)->graph;
    const int64_t *limit = v->kind == VALUE_STATE ? g->values[v->of].limit : v->limit;
    axis_set free_axes = (axis_set)(mesh_all(m) & ~spec_axes(&v->spec));
    for (int r = 0; r < mesh_ranks(m); r++) {
        int *ranks = arena_array(a, int, mesh_product(m, free_axes));
        int n = find_replicas(c, r, free_axes, stages, ranks);
        if (!n || ranks[0] != r)
            continue;
        struct deal_part *p = &s->parts[s->nparts];
        *p = (struct deal_part){.name = v->name,
                                .dtype = v->dtype,
                                .global = v->shape,
                                .box = find_box(v, m, r),
                                .nranks = n,
                                .ranks = ranks};
        for (int i = 0; i < n; i++)
            if (ranks[i] == rank)
                s->local[s->nparts] = device;
        memcpy(p->limit, limit, sizeof p->limit);
        s->values[s->nparts] = v;
        s->specs[s->nparts++] = format_spec(a, v, m);
    }
}

int state_open(struct state *s, struct arena *a, const struct compiled *c, struct exec *exec,
               int rank, struct err *e)
{
    const struct graph *g = compiled_program(c, c->holder, 0)->graph;
    int tensors = 0;
    uint64_t *stages = find_holders(a, c, &tensors);
    size_t most = (size_t)tensors * (size_t)mesh_ranks(&c->mesh);
    *s = (struct state){.exec = exec};
    s->parts = arena_array(a, struct deal_part, most);
    s->specs = arena_array(a, const char *, most);
    s->values = arena_array(a, const struct value *, most);
    s->local = arena_array(a, void *, most);
    for (int v = 0; v < g->nvalues; v++) {
        const char *name = g->values[v].name;
        void *device = NULL;
        if (!stages[v])
            continue;
        if (stages[v] >> compiled_stage(c, rank) & 1 &&
            !exec_buffer(exec, c->holder, name, &device))
            return err_set(e, ERR_INTERNAL, "%s is not loaded", name);
        add_parts(s, a, c, &g->values[v], stages[v], device, rank);
    }
    return 0;
}

static int draw_part(struct state *s, int part, uint64_t seed, int threads, float *chunk,
                     struct err *e)
{
    const struct deal_part *p = &s->parts[part];
    int64_t n = shape_count(&p->box.shape);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t len = n - at < CHUNK ? n - at : CHUNK;
        initial_values(p, s->values[part], seed, at, len, threads, chunk);
        int rc =
            exec_put(s->exec, (float *)s->local[part] + at, chunk, (size_t)len * sizeof *chunk, e);
        if (rc)
            return rc;
    }
    return 0;
}

// The arena was zeroed when it was made: only what is drawn is written.
int state_init(struct state *s, uint64_t seed, int threads, struct err *e)
{
    float *chunk = malloc(CHUNK * sizeof *chunk);
    if (!chunk)
        return err_set(e, ERR_NOMEM, "no memory to draw parameters");
    int rc = 0;
    for (int i = 0; i < s->nparts && !rc; i++) {
        const struct value *v = s->values[i];
        if (s->local[i] && v->kind == VALUE_PARAM && v->init != INIT_ZERO)
            rc = draw_part(s, i, seed, threads, chunk, e);
    }
    free(chunk);
    return rc ? rc : exec_copies(s->exec, e);
}

// The tensor that a part is taken from, or null.
static const struct manifest_tensor *
find_source_tensor(const struct state_source *x, const struct map *index, const struct value *v)
{
    const char *param = v->name, *slash = strchr(v->name, '/');
    char kind[16] = "";
    if (v->kind == VALUE_STATE) { // "m/PARAM"
        snprintf(kind, sizeof kind, "%.*s", (int)(slash - v->name), v->name);
        param = slash + 1;
    }
    const struct match_param *p = map_get(index, param);
    const struct manifest_tensor *from = p ? x->match->from[p - x->params] : NULL;
    if (!from || !*kind)
        return from;
    return x->optimizer ? match_state(&x->from->manifest, kind, from) : NULL;
}

static int take_part(struct state *s, int part, const struct state_source *x,
                     const struct manifest_tensor *from, uint64_t seed, int threads, struct err *e)
{
    const struct deal_part *p = &s->parts[part];
    const struct value *v = s->values[part];
    int64_t unpadded[MAX_DIMS];
    struct box there;
    for (int d = 0; d < p->global.n; d++)
        unpadded[d] = p->limit[d] ? p->limit[d] : p->global.dim[d];
    bool is_float = from->dtype == DT_F32 || from->dtype == DT_BF16;
    if (p->dtype != DT_F32 || !is_float || from->shape.n != p->global.n)
        return err_set(e, ERR_DATA, "%s: tensor '%s' is not as its parameter", x->from->name,
                       from->name);
    if (!match_clip(from, unpadded, &p->box, &there))
        return 0;
    uint64_t bytes = box_bytes(&p->box, p->dtype);
    void *read = malloc(box_bytes(&there, p->dtype)), *whole = calloc(1, bytes);
    int rc = read && whole ? 0 : err_set(e, ERR_NOMEM, "no memory to read %s", p->name);
    rc = rc ? rc : load_read_within(x->from, from, &there, read, e);
    if (!rc && v->kind == VALUE_PARAM && v->init != INIT_ZERO &&
        !shape_equal(&there.shape, &p->box.shape))
        initial_values(p, v, seed, 0, shape_count(&p->box.shape), threads, whole);
    if (!rc) {
        match_widen(from, shape_count(&there.shape), read);
        box_copy(&p->box, whole, &there, read, 0, box_bytes(&there, p->dtype),
                 dtype_size(p->dtype));
        rc = exec_put(s->exec, s->local[part], whole, bytes, e);
    }
    free(read);
    free(whole);
    return rc;
}

int state_take(struct state *s, const struct state_source *source, uint64_t seed, int threads,
               struct err *e)
{
    struct map index = {0};
    int rc = 0;
    for (int i = 0; i < source->nparams; i++)
        map_put(&index, source->params[i].name, (void *)(uintptr_t)&source->params[i]);
    for (int i = 0; i < s->nparts && !rc; i++) {
        const struct manifest_tensor *from =
            s->local[i] ? find_source_tensor(source, &index, s->values[i]) : NULL;
        if (from)
            rc = take_part(s, i, source, from, seed, threads, e);
    }
    map_clear(&index);
    return rc ? rc : exec_copies(s->exec, e);
}

int state_restore(struct state *s, struct load *from, bool optimizer, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < s->nparts && !rc; i++) {
        const struct deal_part *p = &s->parts[i];
        if (!s->local[i] || (s->values[i]->kind == VALUE_STATE && !optimizer))
            continue;
        uint64_t bytes = box_bytes(&p->box, p->dtype);
        void *host = malloc(bytes);
        if (!host)
            return err_set(e, ERR_NOMEM, "no memory to read %s", p->name);
        rc = load_read(from, p->name, p->dtype, &p->global, &p->box, host, e);
        if (!rc)
            rc = exec_put(s->exec, s->local[i], host, bytes, e);
        free(host);
    }
    return rc ? rc : exec_copies(s->exec, e);
}

int state_copy(void *state, int part, uint64_t at, void *to, uint64_t bytes, struct err *e)
{
    struct state *s = state;
    PRE(s->local[part]);
    return exec_save(s->exec, to, (char *)s->local[part] + at, bytes, e);
}
