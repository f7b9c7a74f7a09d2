// SPDX-License-Identifier: Apache-2.0
// A cuDNN for tests: descriptors are held and checked, heuristics name several engines, and a plan
// runs its graph operation by operation in double, whatever the graph says. So a graph that does
// not mean attention gives numbers that are not attention's.
//
// Engines: the first gives other bits each time and says so; the second wants more scratch than
// anybody has; the third does it. Its scratch is written over, so that nobody counts on it.
//
// WEFT_FAKE_CUDA (fake_runtime.c) may say dnn_unbuilt (no plan can be made) or dnn_stuck (none
// starts). Either leaves an error with the runtime, as a launch or a load that it refused does.
#include "tests/cuda/fake.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/cuda/cudnn.h"

enum { ENGINES = 3, MOST_ATTRS = 16, MOST_OPS = 32, SCRATCH = 512 };

struct attr {
    cudnnBackendAttributeName_t name;
    int64_t n;
    void *values;
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    int64_t engine; // of an engine, a configuration, a plan
    int nattrs;
    struct attr attr[MOST_ATTRS];
};

static struct descriptor *of(cudnnBackendDescriptor_t d)
{
    return (struct descriptor *)d;
}

static size_t size_of(cudnnBackendAttributeType_t t)
{
    static const struct {
        cudnnBackendAttributeType_t type;
        size_t size;
    } sizes[] = {
        {CUDNN_TYPE_INT64, sizeof(int64_t)},
        {CUDNN_TYPE_BOOLEAN, sizeof(bool)},
        {CUDNN_TYPE_DATA_TYPE, sizeof(cudnnDataType_t)},
        {CUDNN_TYPE_POINTWISE_MODE, sizeof(cudnnPointwiseMode_t)},
        {CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, sizeof(cudnnReduceTensorOp_t)},
        {CUDNN_TYPE_HEUR_MODE, sizeof(cudnnBackendHeurMode_t)},
        {CUDNN_TYPE_BACKEND_DESCRIPTOR, sizeof(cudnnBackendDescriptor_t)},
        {CUDNN_TYPE_HANDLE, sizeof(cudnnHandle_t)},
        {CUDNN_TYPE_VOID_PTR, sizeof(void *)},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].type == t)
            return sizes[i].size;
    return 0;
}

static const struct attr *find(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->nattrs; i++)
        if (d->attr[i].name == name)
            return &d->attr[i];
    return NULL;
}

// The first value; a test that gets here without one has a graph that is not whole.
static int64_t int_of(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct attr *a = find(d, name);
    PRE(a);
    return *(const int *)a->values; // of enums
}

static struct descriptor *operand(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct attr *a = find(d, name);
    return a ? of(*(cudnnBackendDescriptor_t *)a->values) : NULL;
}

// ---- descriptors -------------------------------------------------------------------------------

static cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    struct descriptor *d = calloc(1, sizeof *d);
    PRE(d);
    d->type = type;
    d->engine = -1;
    *out = (cudnnBackendDescriptor_t)d;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(cudnnBackendDescriptor_t b)
{
    struct descriptor *d = of(b);
    while (d->nattrs)
        free(d->attr[--d->nattrs].values);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set(cudnnBackendDescriptor_t b, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    struct descriptor *d = of(b);
    size_t size = size_of(type);
    if (!d || d->final || !size || n < 1 || !values || find(d, name) || d->nattrs == MOST_ATTRS)
        return CUDNN_STATUS_BAD_PARAM;
    const cudnnBackendDescriptor_t *other = values;
    for (int64_t i = 0; i < n && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++)
        if (!other[i] || !of(other[i])->final)
            return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    struct attr *a = &d->attr[d->nattrs++];
    *a = (struct attr){.name = name, .n = n, .values = malloc((size_t)n * size)};
    PRE(a->values);
    memcpy(a->values, values, (size_t)n * size);
    return CUDNN_STATUS_SUCCESS;
}

static int64_t *ints(const struct descriptor *t, cudnnBackendAttributeName_t name)
{
    const struct attr *a = find(t, name);
    PRE(a && a->n == 4);
    return a->values;
}

static bool whole(const struct descriptor *d)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t name[5];
    } needs[] = {
        {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
         {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS,
          CUDNN_ATTR_TENSOR_STRIDES, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT}},
        {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
          CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_DESC}},
        {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
         {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_HANDLE}},
        {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
         {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE}},
        {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
         {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_ATTR_EXECUTION_PLAN_HANDLE}},
        {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
         {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
          CUDNN_ATTR_VARIANT_PACK_WORKSPACE}},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        for (int k = 0; k < 5 && needs[i].type == d->type; k++)
            if (needs[i].name[k] && !find(d, needs[i].name[k]))
                return false;
    return true;
}

static uint64_t scratch_of(int64_t engine)
{
    return engine == 1 ? UINT64_C(1) << 50 : SCRATCH;
}

static cudnnStatus_t finalize(cudnnBackendDescriptor_t b)
{
    struct descriptor *d = of(b);
    if (!d || d->final || !whole(d))
        return CUDNN_STATUS_BAD_PARAM;
    bool plan = d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    if (plan && fake_refused_in_capture()) // a real one loads code
        return CUDNN_STATUS_INTERNAL_ERROR;
    if (plan && fake_scene("dnn_unbuilt", NULL)) {
        fake_error(cudaErrorInvalidDeviceFunction);
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
    if (plan)
        d->engine = operand(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->engine;
    d->final = true;
    return CUDNN_STATUS_SUCCESS;
}

// A configuration, or its engine, knows the graph and the engine's number.
static void name_engine(struct descriptor *d, cudnnBackendDescriptor_t graph, int64_t engine)
{
    set((cudnnBackendDescriptor_t)d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    d->engine = engine;
    d->final = true;
}

static cudnnStatus_t get(cudnnBackendDescriptor_t b, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t room, int64_t *n, void *values)
{
    struct descriptor *d = of(b);
    cudnnBackendDescriptor_t *to = values;
    (void)type;
    if (!d->final || room < 1)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    *n = 1;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        cudnnBackendDescriptor_t g =
            (cudnnBackendDescriptor_t)operand(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        for (*n = 0; *n < ENGINES && *n < room; (*n)++)
            name_engine(of(to[*n]), g, *n);
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        name_engine(of(*to),
                    (cudnnBackendDescriptor_t)operand(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH),
                    d->engine);
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        cudnnBackendNumericalNote_t *note = values;
        note[0] = d->engine == 0 ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
                                 : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = (int64_t)scratch_of(d->engine);
    } else {
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}

// ---- a run -------------------------------------------------------------------------------------

// A tensor of the graph: memory of the call, a number, or doubles between operations. All are
// indexed by strides.
struct view {
    const struct descriptor *t;
    int64_t dim[4], stride[4];
    cudnnDataType_t type;
    void *memory;
    double *between;
    double number;
    bool is_number;
};

enum { MOST_VIEWS = 64 };
struct work {
    int nops, nviews;
    const struct descriptor *op[MOST_OPS];
    struct view view[MOST_VIEWS];
    unsigned wobble; // of the engine that gives other bits each time
    void *scratch;
};

static int64_t offset(const struct view *v, const int64_t at[4])
{
    int64_t o = 0;
    for (int k = 0; k < 4; k++)
        o += (v->dim[k] == 1 ? 0 : at[k]) * v->stride[k];
    return o;
}

static int64_t extent(const struct view *v)
{
    int64_t last = 0;
    for (int k = 0; k < 4; k++)
        last += (v->dim[k] - 1) * v->stride[k];
    return last + 1;
}

static float bf16_to(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static double load_at(const struct view *v, int64_t o)
{
    if (v->is_number)
        return v->number;
    if (v->between)
        return v->between[o];
    return v->type == CUDNN_DATA_BFLOAT16 ? (double)bf16_to(((uint16_t *)v->memory)[o])
                                          : (double)((float *)v->memory)[o];
}

static void store_at(const struct view *v, int64_t o, double x)
{
    bool half = v->type == CUDNN_DATA_BFLOAT16;
    if (v->between)
        v->between[o] = half ? (double)bf16_to(to_bf16((float)x)) : (double)(float)x;
    else if (half)
        ((uint16_t *)v->memory)[o] = to_bf16((float)x);
    else
        ((float *)v->memory)[o] = (float)x;
}

static struct view *view_of(struct work *w, const struct descriptor *op,
                            cudnnBackendAttributeName_t name)
{
    const struct descriptor *t = operand(op, name);
    for (int i = 0; i < w->nviews; i++)
        if (w->view[i].t == t)
            return &w->view[i];
    PRE(!t);
    return NULL;
}

// Every index of v, the last dimension fastest.
static bool next(const struct view *v, int64_t at[4])
{
    for (int k = 3; k >= 0; k--) {
        if (++at[k] < v->dim[k])
            return true;
        at[k] = 0;
    }
    return false;
}

static double point(cudnnPointwiseMode_t mode, double x, double b, double t)
{
    switch ((int)mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_TANH_FWD:
        return tanh(x);
    case CUDNN_POINTWISE_TANH_BWD: // b: of y
        return b * (1 - tanh(x) * tanh(x));
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_CMP_GT:
        return x > b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        PRE(!"a mode that attention has no use for");
        return 0;
    }
}

static void run_pointwise(struct work *w, const struct descriptor *op)
{
    const struct descriptor *how = operand(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)int_of(how, CUDNN_ATTR_POINTWISE_MODE);
    const struct view *x = view_of(w, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    bool back = find(op, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC);
    const struct view *b = view_of(
        w, op, back ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC : CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const struct view *t = view_of(w, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const struct view *y = view_of(
        w, op, back ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const struct attr *axis = find(how, CUDNN_ATTR_POINTWISE_AXIS);
    int64_t at[4] = {0};
    do {
        double r = axis ? (double)at[*(int64_t *)axis->values]
                        : point(mode, load_at(x, offset(x, at)), b ? load_at(b, offset(b, at)) : 0,
                                t ? load_at(t, offset(t, at)) : 0);
        store_at(y, offset(y, at), r);
    } while (next(y, at));
}

// Elements side by side in a dimension are reduced to one; of heads, those that share one.
static void run_reduction(struct work *w, const struct descriptor *op)
{
    const struct descriptor *how = operand(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    bool max = int_of(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const struct view *x = view_of(w, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    const struct view *y = view_of(w, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    double *sum = calloc((size_t)extent(y), sizeof *sum);
    int64_t at[4] = {0}, to[4] = {0};
    PRE(sum);
    for (int64_t i = 0; i < extent(y) && max; i++)
        sum[i] = -INFINITY;
    do {
        for (int k = 0; k < 4; k++)
            to[k] = at[k] * y->dim[k] / x->dim[k];
        double v = load_at(x, offset(x, at)), *s = &sum[offset(y, to)];
        *s = max ? fmax(*s, v) : *s + v;
    } while (next(x, at));
    memset(to, 0, sizeof to);
    do
        store_at(y, offset(y, to), sum[offset(y, to)]);
    while (next(y, to));
    free(sum);
}

static void run_product(struct work *w, const struct descriptor *op)
{
    const struct view *a = view_of(w, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    const struct view *b = view_of(w, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    const struct view *c = view_of(w, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    int64_t at[4] = {0};
    PRE(a->dim[3] == b->dim[2] && a->dim[2] == c->dim[2] && b->dim[3] == c->dim[3]);
    do {
        double sum = 0;
        for (int64_t k = 0; k < a->dim[3]; k++) {
            const int64_t of_a[4] = {at[0], at[1] * a->dim[1] / c->dim[1], at[2], k};
            const int64_t of_b[4] = {at[0], at[1] * b->dim[1] / c->dim[1], k, at[3]};
            sum += load_at(a, offset(a, of_a)) * load_at(b, offset(b, of_b));
        }
        store_at(c, offset(c, at), sum * (1 + 0x1p-10 * w->wobble));
    } while (next(c, at));
}

// The same memory, read another way.
static void run_reshape(struct work *w, const struct descriptor *op)
{
    const struct view *x = view_of(w, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    const struct view *y = view_of(w, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    int64_t at[4] = {0};
    PRE(extent(x) == extent(y));
    do
        store_at(y, offset(y, at), load_at(x, offset(y, at)));
    while (next(y, at));
}

static void run_work(const void *args)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        void (*run)(struct work *w, const struct descriptor *op);
    } kinds[] = {{CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, run_pointwise},
                 {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, run_reduction},
                 {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, run_product},
                 {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, run_reshape}};
    struct work w;
    memcpy(&w, args, sizeof w);
    memset(w.scratch, 0xff, SCRATCH);
    for (int i = 0; i < w.nviews; i++)
        if (!w.view[i].memory && !w.view[i].is_number) {
            w.view[i].between = malloc((size_t)extent(&w.view[i]) * sizeof(double));
            PRE(w.view[i].between);
        }
    for (int i = 0; i < w.nops; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (w.op[i]->type == kinds[k].type)
                kinds[k].run(&w, w.op[i]);
    for (int i = 0; i < w.nviews; i++)
        free(w.view[i].between);
}

// What the call's pack has for the tensor, or that it lies between operations. False: neither.
static bool bind(struct view *v, const struct descriptor *pack)
{
    const struct attr *id = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attr *data = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const int64_t *name = find(v->t, CUDNN_ATTR_TENSOR_UNIQUE_ID)->values;
    bool virtual = find(v->t, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    v->is_number = find(v->t, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    for (int64_t i = 0; i < id->n; i++) {
        void *p = ((void **)data->values)[i];
        if (((int64_t *)id->values)[i] != *name)
            continue;
        if (v->is_number)
            v->number = v->type == CUDNN_DATA_INT32 ? *(int32_t *)p : (double)*(float *)p;
        else
            v->memory = p;
        return !virtual && (v->is_number || (p && (uintptr_t)p % 16 == 0));
    }
    return virtual;
}

static bool add_views(struct work *w, const struct descriptor *op, const struct descriptor *pack)
{
    for (int k = 0; k < op->nattrs; k++) {
        const struct descriptor *t = of(*(cudnnBackendDescriptor_t *)op->attr[k].values);
        bool known = t->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR;
        for (int i = 0; i < w->nviews; i++)
            known = known || w->view[i].t == t;
        if (known)
            continue;
        PRE(w->nviews < MOST_VIEWS);
        struct view *v = &w->view[w->nviews++];
        *v = (struct view){.t = t, .type = (cudnnDataType_t)int_of(t, CUDNN_ATTR_TENSOR_DATA_TYPE)};
        memcpy(v->dim, ints(t, CUDNN_ATTR_TENSOR_DIMENSIONS), sizeof v->dim);
        memcpy(v->stride, ints(t, CUDNN_ATTR_TENSOR_STRIDES), sizeof v->stride);
        if (!bind(v, pack))
            return false;
    }
    return true;
}

static cudaStream_t on_stream;

static cudnnStatus_t execute(cudnnHandle_t h, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack)
{
    static unsigned runs;
    const struct descriptor *p = of(plan), *v = of(pack);
    const struct descriptor *g = operand(operand(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG),
                                         CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    const struct attr *ops = find(g, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct work w = {.nops = (int)ops->n, .wobble = p->engine == 0 ? ++runs % 7 : 0};
    if (!h || !p->final || !v->final || ops->n > MOST_OPS)
        return CUDNN_STATUS_BAD_PARAM;
    w.scratch = *(void **)find(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->values;
    for (int i = 0; i < w.nops; i++) {
        w.op[i] = of(((cudnnBackendDescriptor_t *)ops->values)[i]);
        if (!add_views(&w, w.op[i], v))
            return CUDNN_STATUS_BAD_PARAM;
    }
    if (fake_scene("dnn_stuck", NULL)) {
        fake_error(cudaErrorInvalidConfiguration);
        return CUDNN_STATUS_EXECUTION_FAILED;
    }
    return fake_enqueue(on_stream, run_work, &w, sizeof w, "cudnn") == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

// ---- the library -------------------------------------------------------------------------------

static size_t get_version(void)
{
    return CUDNN_OLDEST;
}

static cudnnStatus_t open_handle(cudnnHandle_t *out)
{
    static int there;
    *out = (cudnnHandle_t)(void *)&there;
    if (fake_refused_in_capture()) // a real one takes memory of the device
        return CUDNN_STATUS_INTERNAL_ERROR;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t close_handle(cudnnHandle_t h)
{
    (void)h;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t h, cudaStream_t s)
{
    (void)h;
    on_stream = s;
    return CUDNN_STATUS_SUCCESS;
}

static const char *error_string(cudnnStatus_t s)
{
    return s == CUDNN_STATUS_SUCCESS ? "success" : "a fault of the fake's";
}

static void last_error(char *to, size_t room)
{
    snprintf(to, room, "nothing more");
}

const char *cudnn_load(struct cudnn *out)
{
    *out = (struct cudnn){.GetVersion = get_version,
                          .Create = open_handle,
                          .Destroy = close_handle,
                          .SetStream = set_stream,
                          .GetErrorString = error_string,
                          .GetLastErrorString = last_error,
                          .BackendCreateDescriptor = create,
                          .BackendDestroyDescriptor = destroy,
                          .BackendSetAttribute = set,
                          .BackendGetAttribute = get,
                          .BackendFinalize = finalize,
                          .BackendExecute = execute};
    return NULL;
}
