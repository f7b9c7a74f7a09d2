// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN: finds, compiles and runs engines. See sdpa.h.
//
// The scratch has these parts, each aligned to 256 bytes. Forward has only the last:
//   mean | dq in f32, unless deterministic | the engine's own
// Engines are tried in the order in which cuDNN's heuristics name them; the first that may be used
// is taken. That order depends on nothing but the shape, the device and the library, which are in
// the numerics record: the same three give the same engine.
#include "kernels/cuda/sdpa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"

enum { ALIGN = 256, MOST_ENGINES = 16, MOST_NOTES = 16 };

struct sdpa {
    struct sdpa_on on;
    struct sdpa_shape shape;
    struct sdpa_made made;
    cudnnBackendDescriptor_t plan;
    bool varies;           // the engine says that its bits may change from run to run
    size_t dq, own, bytes; // where the parts of the scratch begin; all of it
};

// ---- plans -------------------------------------------------------------------------------------

// Whether this engine may serve the shape. *varies: its results may differ in bits from run to run.
static bool is_usable(const struct sdpa_on *on, struct sdpa_made *m,
                      cudnnBackendDescriptor_t config, bool deterministic, bool *varies)
{
    cudnnBackendNumericalNote_t note[MOST_NOTES];
    int64_t n = 0;
    cudnnBackendDescriptor_t engine = made_new(m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (m->status != CUDNN_STATUS_SUCCESS ||
        on->api->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                     &engine) != CUDNN_STATUS_SUCCESS)
        return false;
    *varies = on->api->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                           CUDNN_TYPE_NUMERICAL_NOTE, MOST_NOTES, &n,
                                           note) != CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < n && i < MOST_NOTES && !*varies; i++)
        *varies = note[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return !deterministic || !*varies;
}

// Returns null if the engine refuses the graph or needs more than `most` bytes of scratch.
static cudnnBackendDescriptor_t plan_with(const struct sdpa_on *on, struct sdpa_made *m,
                                          cudnnBackendDescriptor_t config, size_t most,
                                          size_t *bytes)
{
    int64_t n = 0, size = -1;
    cudnnBackendDescriptor_t d = made_new(m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made_set(m, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
             &config);
    if (on->handle)
        made_set(m, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &on->handle);
    else
        made_set(m, d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                 &on->device);
    made_end(m, d);
    if (m->status == CUDNN_STATUS_SUCCESS &&
        on->api->BackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                     1, &n, &size) == CUDNN_STATUS_SUCCESS &&
        size >= 0 && (uint64_t)size <= most) {
        *bytes = (size_t)size;
        return d;
    }
    return NULL;
}

// Asks cuDNN's heuristics for engines that may run the graph; they come in its order, best first.
static int64_t list_engines(const struct sdpa_on *on, struct sdpa_made *m,
                            cudnnBackendDescriptor_t graph, cudnnBackendDescriptor_t *config)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    cudnnBackendDescriptor_t h = made_new(m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    made_set(m, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    made_set(m, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (on->device)
        made_set(m, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                 &on->device);
    made_end(m, h);
    for (int i = 0; i < MOST_ENGINES; i++)
        config[i] = made_new(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (m->status == CUDNN_STATUS_SUCCESS &&
        on->api->BackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_ENGINES, &n,
                                     config) != CUDNN_STATUS_SUCCESS)
        n = 0;
    return n < MOST_ENGINES ? n : MOST_ENGINES;
}

// Takes the first engine that serves the shape with at most `most` bytes of scratch of its own.
static bool make_plan(struct sdpa *p, size_t most)
{
    cudnnBackendDescriptor_t config[MOST_ENGINES];
    size_t own = 0;
    struct sdpa_made *m = &p->made;
    m->api = p->on.api;
    cudnnBackendDescriptor_t graph = sdpa_graph(m, &p->on, &p->shape);
    int64_t n = graph ? list_engines(&p->on, m, graph, config) : 0;
    for (int64_t i = 0; i < n && !p->plan; i++) {
        m->status = CUDNN_STATUS_SUCCESS; // another engine may do what the one before refused
        if (is_usable(&p->on, m, config[i], p->shape.deterministic, &p->varies))
            p->plan = plan_with(&p->on, m, config[i], most, &own);
    }
    p->bytes = p->own + own;
    return p->plan != NULL;
}

// ---- a shape -----------------------------------------------------------------------------------

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

// Lays out all scratch but the engines' own. Returns how much of that is known in advance, so that
// a scratch that is too small is refused without compiling an engine, which takes seconds. Engines
// whose dq is deterministic keep a gradient of each score in bf16, and all engines keep dk and dv
// of each query head where query heads share them.
static size_t lay_out(struct sdpa *p)
{
    const struct sdpa_shape *s = &p->shape;
    size_t rows = (size_t)(s->batch * s->heads * s->seq), elements = rows * (size_t)s->d;
    size_t values = rows * (size_t)s->e;
    p->dq = s->grad ? round_up(4 * rows) : 0;
    p->own = p->dq + (s->grad && !s->deterministic ? round_up(4 * elements) : 0);
    size_t pairs = (size_t)((s->seq + 63) / 64 * 64 * ((s->seq + 127) / 128 * 128));
    size_t shared = s->kv_heads < s->heads ? 2 * (elements + values) : 0;
    return !s->grad ? 0
                    : shared + (s->deterministic ? 2 * (size_t)(s->batch * s->heads) * pairs : 0);
}

struct sdpa *sdpa_new(const struct sdpa_on *on, const struct sdpa_shape *s, size_t most, char *why,
                      size_t room)
{
    struct sdpa *p = calloc(1, sizeof *p);
    PRE(p);
    *p = (struct sdpa){.on = *on, .shape = *s};
    if (lay_out(p) + p->own <= most && make_plan(p, most - p->own))
        return p;
    const char *said = p->made.said;
    snprintf(why, room, "%s", said[0] ? said : "no engine runs within this scratch");
    sdpa_free(p);
    return NULL;
}

void sdpa_free(struct sdpa *p)
{
    if (!p)
        return;
    sdpa_made_clear(&p->made);
    free(p);
}

size_t sdpa_bytes(const struct sdpa *p)
{
    return p->bytes;
}

// Where the graph lets engines add up dq in any order, cuDNN does not mark them as
// nondeterministic, so the engines' marks are not enough: the shape counts too.
bool sdpa_varies(const struct sdpa *p)
{
    bool any_order = p->shape.grad && !p->shape.deterministic;
    return any_order || p->varies;
}

// ---- runs --------------------------------------------------------------------------------------

// The operands of a run by name.
struct sdpa_pack {
    int64_t name[SDPA_NAMES];
    void *data[SDPA_NAMES];
    int n;
};

static void put_pointer(struct sdpa_pack *p, enum sdpa_name name, const void *data)
{
    p->name[p->n] = name;
    p->data[p->n++] = (void *)(uintptr_t)data;
}

static cudnnStatus_t run_plan(const struct sdpa *p, const struct sdpa_pack *pack, void *own)
{
    struct sdpa_made m = {.api = p->on.api};
    cudnnBackendDescriptor_t d = made_new(&m, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    made_set(&m, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, pack->n, pack->name);
    made_set(&m, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pack->n,
             pack->data);
    made_set(&m, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &own);
    made_end(&m, d);
    cudnnStatus_t status = m.status;
    if (status == CUDNN_STATUS_SUCCESS)
        status = p->on.api->BackendExecute(p->on.handle, p->plan, d);
    sdpa_made_clear(&m);
    return status;
}

cudnnStatus_t sdpa_run(const struct sdpa *p, const struct sdpa_operands *o, void *scratch)
{
    const float scale = o->scale, cap = o->cap, hidden = -INFINITY, one = 1;
    const int32_t window = (int32_t)p->shape.window;
    char *at = scratch;
    struct sdpa_pack pack = {.n = 0};
    put_pointer(&pack, SDPA_Q, o->q);
    put_pointer(&pack, SDPA_K, o->k);
    put_pointer(&pack, SDPA_V, o->v);
    put_pointer(&pack, SDPA_Y, o->y);
    put_pointer(&pack, SDPA_LSE, o->lse);
    put_pointer(&pack, SDPA_SCALE, &scale);
    if (!p->shape.ahead)
        put_pointer(&pack, SDPA_HIDDEN, &hidden);
    if (p->shape.window)
        put_pointer(&pack, SDPA_WINDOW, &window);
    if (p->shape.cap)
        put_pointer(&pack, SDPA_CAP, &cap);
    if (p->shape.grad) {
        put_pointer(&pack, SDPA_DY, o->dy);
        put_pointer(&pack, SDPA_DQ, o->dq);
        put_pointer(&pack, SDPA_DK, o->dk);
        put_pointer(&pack, SDPA_DV, o->dv);
        put_pointer(&pack, SDPA_MEAN, at);
        put_pointer(&pack, SDPA_ONE, &one);
    }
    if (p->shape.grad && !p->shape.deterministic)
        put_pointer(&pack, SDPA_DQ_F32, at + p->dq);
    return run_plan(p, &pack, at + p->own);
}
