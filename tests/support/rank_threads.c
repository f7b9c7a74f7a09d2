// SPDX-License-Identifier: Apache-2.0
// Ranks as threads. See rank_threads.h.
#include "tests/support/rank_threads.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/rig.h"
#include "tests/support/fake_world.h"

struct actor {
    const struct rank_threads *ranks;
    int rank, rc;
    struct err e;
    struct exec *x;
    float **got;                 // of each call
    void **after[PROGRAM_KINDS]; // buffers as they ended, null for what nobody asks for
};

static const struct program *program_of(const struct rank_threads *c, enum program_kind kind,
                                        int rank)
{
    return compiled_program(c->compiled, kind, compiled_stage(c->compiled, rank));
}

static const struct value *value_of(const struct program *p, int b)
{
    return &p->graph->values[p->buffers[b].value];
}

// ---- parts and wholes --------------------------------------------------------------------------

// What a rank holds of a buffer: where it begins in the whole, and in which order columns come.
struct part {
    const struct shape *whole, *local;
    const struct zigzag *order; // of dimension 1, or null
    int64_t start[MAX_DIMS];
};

static struct part part_of(const struct program *p, int b, int rank)
{
    const struct value *v = value_of(p, b);
    bool ordered = v->kind == VALUE_INPUT && v->shape.n > 1 && v->dims[1] == DIM_SEQ;
    struct part part = {&v->shape, &p->buffers[b].shape, ordered ? &p->zigzag : NULL, {0}};
    spec_start(&v->spec, &p->mesh, &v->shape, rank, part.start);
    return part;
}

// Element i of a part, as an index into the whole tensor.
static int64_t index_of(const struct part *p, int64_t i)
{
    int64_t index = 0, stride = 1;
    for (int d = p->whole->n - 1; d >= 0; d--) {
        int64_t at = p->start[d] + i % p->local->dim[d];
        index += (d == 1 && p->order ? zigzag_position(p->order, at) : at) * stride;
        i /= p->local->dim[d];
        stride *= p->whole->dim[d];
    }
    return index;
}

static void store(enum dtype t, void *to, int64_t i, double v)
{
    if (t == DT_F32)
        ((float *)to)[i] = (float)v;
    else if (t == DT_I32)
        ((int32_t *)to)[i] = (int32_t)v;
    else
        ((uint8_t *)to)[i] = (uint8_t)v;
}

// A rank's part of a whole tensor, or of each microbatch of the data, into its buffer.
static void put(struct actor *a, const struct program *p, int b, const double *whole)
{
    const struct buffer *buf = &p->buffers[b];
    const struct part part = part_of(p, b, a->rank);
    int64_t n = shape_count(part.local), all = shape_count(part.whole);
    void *device, *host = malloc(buf->bytes + 1);
    for (int m = 0; m < buf->copies; m++)
        for (int64_t i = 0; i < n; i++)
            store(buf->dtype, host, m * n + i, whole[m * all + index_of(&part, i)]);
    exec_buffer(a->x, p->kind, buf->name, &device);
    a->rc = a->rc ? a->rc : exec_put(a->x, device, host, buf->bytes, &a->e);
    free(host);
}

// ---- a rank ------------------------------------------------------------------------------------

static const double *data_called(const struct whole_tensor *d, const char *name)
{
    while (d->name && strcmp(d->name, name) != 0)
        d++;
    return d->whole;
}

static void put_all(struct actor *a, enum program_kind kind, const struct whole_tensor *from,
                    int step)
{
    const struct program *p = program_of(a->ranks, kind, a->rank);
    const double count = step;
    for (int b = 0; b < p->nbuffers && !a->rc; b++) {
        const struct buffer *buf = &p->buffers[b];
        bool data = buf->source == VALUE_INPUT || buf->source == VALUE_SCALAR;
        if (!data && (buf->source != VALUE_PARAM || kind != PROGRAM_TRAIN || step))
            continue;
        const char *name = value_of(p, b)->name;
        const double *whole = !data ? a->ranks->start->value[interp_find(a->ranks->start, name)]
                                    : (!strcmp(name, "step") ? &count : data_called(from, name));
        if (whole)
            put(a, p, b, whole);
        else if (strcmp(name, "one") != 0) // which the executor sets
            a->rc = err_set(&a->e, ERR_NOTFOUND, "no data for %s", name);
    }
}

static void take_all(struct actor *a, enum program_kind kind)
{
    const struct program *p = program_of(a->ranks, kind, a->rank);
    a->after[kind] = calloc((size_t)p->nbuffers, sizeof *a->after[kind]);
    for (int b = 0; b < p->nbuffers && !a->rc; b++) {
        const struct buffer *buf = &p->buffers[b];
        void *device;
        if (buf->source != VALUE_PARAM && buf->source != VALUE_STATE && b != p->metrics)
            continue;
        a->after[kind][b] = malloc(buf->bytes);
        exec_buffer(a->x, kind, buf->name, &device);
        a->rc = exec_get(a->x, a->after[kind][b], device, buf->bytes, &a->e);
    }
}

// To the nearest, ties to even; of finite numbers.
static uint16_t bf16_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void check_copy(struct actor *a, const struct program *p, const struct buffer *copy)
{
    const char *name = p->graph->values[p->graph->values[copy->value].of].name;
    void *device = NULL, *device_copy = NULL;
    const struct buffer *param = exec_buffer(a->x, p->kind, name, &device);
    PRE(param && param->bytes == 2 * copy->bytes);
    float *want = malloc(param->bytes);
    uint16_t *got = malloc(copy->bytes);
    exec_buffer(a->x, p->kind, copy->name, &device_copy);
    a->rc = exec_get(a->x, want, device, param->bytes, &a->e);
    a->rc = a->rc ? a->rc : exec_get(a->x, got, device_copy, copy->bytes, &a->e);
    for (int64_t i = 0; i < shape_count(&copy->shape) && !a->rc; i++)
        if (got[i] != bf16_of(want[i]))
            a->rc = err_set(&a->e, ERR_DATA, "%s[%lld] is %04x, of %a", copy->name, (long long)i,
                            got[i], (double)want[i]);
    free(want);
    free(got);
}

static void check_copies(struct actor *a)
{
    const struct program *p = program_of(a->ranks, PROGRAM_TRAIN, a->rank);
    for (int b = 0; b < p->nbuffers && !a->rc; b++)
        if (p->buffers[b].source == VALUE_COPY)
            check_copy(a, p, &p->buffers[b]);
}

// What FILL and STEP share: parameters, and caches with junk in them.
static void put_shared(struct actor *a)
{
    const struct program *p = program_of(a->ranks, PROGRAM_FILL, a->rank);
    const struct interp *start = a->ranks->start;
    for (int b = 0; b < p->nbuffers && !a->rc; b++) {
        const struct buffer *buf = &p->buffers[b];
        if (buf->source == VALUE_PARAM)
            put(a, p, b, start->value[interp_find(start, value_of(p, b)->name)]);
        if (buf->source != VALUE_CACHE)
            continue;
        const int64_t n = shape_count(&buf->shape);
        void *device = NULL, *host = malloc(buf->bytes);
        for (int64_t i = 0; i < n; i++)
            if (buf->dtype == DT_BF16)
                ((uint16_t *)host)[i] = bf16_of((float)interp_junk(p->graph, buf->value, i));
            else
                store(buf->dtype, host, i, interp_junk(p->graph, buf->value, i));
        exec_buffer(a->x, p->kind, buf->name, &device);
        a->rc = exec_put(a->x, device, host, buf->bytes, &a->e);
        free(host);
    }
}

static void play_calls(struct actor *a)
{
    const struct rank_threads *c = a->ranks;
    a->got = calloc((size_t)c->ncalls, sizeof *a->got);
    put_shared(a);
    a->rc = a->rc ? a->rc : exec_copies(a->x, &a->e);
    for (int i = 0; i < c->ncalls && !a->rc; i++) {
        const struct rank_call *call = &c->calls[i];
        const struct program *p = program_of(c, call->kind, a->rank);
        const size_t bytes = p->buffers[p->metrics].bytes;
        void *device = NULL;
        put_all(a, call->kind, call->data, i);
        a->rc = a->rc ? a->rc : exec_run(a->x, call->kind, &a->e);
        a->got[i] = malloc(bytes);
        exec_buffer(a->x, call->kind, "metrics", &device);
        a->rc = a->rc ? a->rc : exec_get(a->x, a->got[i], device, bytes, &a->e);
    }
}

static void play(struct actor *a, const struct exec_options *o)
{
    a->rc = exec_open(o, &a->x, &a->e);
    if (a->rc)
        return;
    if (a->ranks->ncalls)
        play_calls(a);
    for (int s = 0; s < a->ranks->steps && !a->rc; s++) {
        put_all(a, PROGRAM_TRAIN, a->ranks->data, s);
        if (!s && !a->rc)
            a->rc = exec_copies(a->x, &a->e);
        a->rc = a->rc ? a->rc : exec_run(a->x, PROGRAM_TRAIN, &a->e);
    }
    if (compiled_has(a->ranks->compiled, PROGRAM_TRAIN))
        take_all(a, PROGRAM_TRAIN);
    if (compiled_has(a->ranks->compiled, PROGRAM_EVAL)) {
        put_all(a, PROGRAM_EVAL, a->ranks->data, 0);
        a->rc = a->rc ? a->rc : exec_run(a->x, PROGRAM_EVAL, &a->e);
        take_all(a, PROGRAM_EVAL);
    }
    if (compiled_has(a->ranks->compiled, PROGRAM_TRAIN))
        check_copies(a);
    a->rc = a->rc ? a->rc : exec_check_memory(a->x, &a->e);
    if (a->rc) // ends the others' waits
        world_abort(o->world, "a rank failed");
    exec_close(a->x);
}

static void *act(void *arg)
{
    struct actor *a = arg;
    struct exec_options o = {.compiled = a->ranks->compiled,
                             .backend = a->ranks->backend,
                             .transport = a->ranks->transport,
                             .rank = a->rank};
    a->rc = o.backend->device.open(&(struct device_options){.threads = 1}, &o.device, &a->e);
    o.world = fake_world(a->ranks->fake, a->rank);
    if (!a->rc)
        play(a, &o);
    if (a->rc)
        world_abort(o.world, "a rank failed");
    o.backend->device.close(o.device); // it may have pinned the world's window
    world_close(o.world);
    return NULL;
}

// ---- all of them --------------------------------------------------------------------------------

static int find_backend(struct rank_threads *c, struct err *e)
{
    char built[4000], late[4100];
    rig_find_backend();
    snprintf(built, sizeof built, "%s", getenv("WEFT_BACKEND_DIR"));
    if (!c->late)
        return backend_load(rig_backend(), &c->backend, e);
    snprintf(late, sizeof late, "%s/tests/late", built);
    setenv("WEFT_BACKEND_DIR", late, 1);
    int rc = backend_load("cuda", &c->backend, e);
    setenv("WEFT_BACKEND_DIR", built, 1);
    return rc;
}

// Each rank has the logits of its rows: those that have the same agree to the bit.
static int join_logits(const struct rank_threads *c, int call, struct err *e)
{
    const struct rank_call *to = &c->calls[call];
    for (int r = 0; r < c->ranks; r++) {
        const struct program *p = program_of(c, to->kind, r);
        const struct part part = part_of(p, p->metrics, r);
        for (int64_t i = 0, all = shape_count(part.whole); r == 0 && i < all; i++)
            to->got[i] = NAN;
        for (int64_t i = 0; i < shape_count(part.local); i++) {
            double *at = &to->got[index_of(&part, i)], x = (double)c->actors[r].got[call][i];
            if (!isnan(*at) && *at != x)
                return err_set(e, ERR_DATA, "call %d: logits of rank %d are not another's", call,
                               r);
            *at = x;
        }
    }
    return 0;
}

int rank_threads_run(struct rank_threads *c, struct err *e)
{
    pthread_t threads[RANK_THREADS];
    int rc = find_backend(c, e);
    if (rc)
        return rc;
    c->ranks = mesh_ranks(&c->compiled->mesh);
    PRE(c->ranks >= 1 && c->ranks <= RANK_THREADS);
    c->fake = fake_new(c->ranks);
    c->actors = calloc((size_t)c->ranks, sizeof *c->actors);
    for (int r = 0; r < c->ranks; r++) {
        c->actors[r] = (struct actor){.ranks = c, .rank = r};
        if (pthread_create(&threads[r], NULL, act, &c->actors[r]))
            abort();
    }
    for (int r = 0; r < c->ranks; r++)
        pthread_join(threads[r], NULL);
    fake_free(c->fake);
    for (int r = 0; r < c->ranks; r++)
        if (c->actors[r].rc)
            return err_set(e, c->actors[r].rc, "rank %d: %s", r, c->actors[r].e.text);
    for (int i = 0; i < c->ncalls && !rc; i++)
        rc = join_logits(c, i, e);
    return rc;
}

void rank_threads_clear(struct rank_threads *c)
{
    for (int r = 0; r < c->ranks; r++) {
        for (int i = 0; i < c->ncalls; i++)
            free(c->actors[r].got[i]);
        free(c->actors[r].got);
    }
    for (int r = 0; r < c->ranks; r++)
        for (int k = 0; k < PROGRAM_KINDS; k++) {
            void **after = c->actors[r].after[k];
            for (int b = 0; after && b < program_of(c, (enum program_kind)k, r)->nbuffers; b++)
                free(after[b]);
            free(after);
        }
    free(c->actors);
}

// A rank's part into `seen`, the whole as the ranks before have it.
static int compare_part(const struct rank_threads *c, enum program_kind kind, int rank, int b,
                        float *seen, const double *want, double rtol, double slack, struct err *e)
{
    const struct program *p = program_of(c, kind, rank);
    const struct part part = part_of(p, b, rank);
    const float *got = c->actors[rank].after[kind][b];
    for (int64_t i = 0; i < shape_count(part.local); i++) {
        int64_t at = index_of(&part, i);
        if (!isnan(seen[at]) && seen[at] != got[i])
            return err_set(e, ERR_DATA, "%s[%lld]: replicas differ", p->buffers[b].name,
                           (long long)at);
        seen[at] = got[i];
        if (!(fabs((double)got[i] - want[at]) <= slack + rtol * fabs(want[at])))
            return err_set(e, ERR_DATA, "%s[%lld] of rank %d is %.9g, not %.9g", p->buffers[b].name,
                           (long long)at, rank, (double)got[i], want[at]);
    }
    return 0;
}

static float *nowhere(int64_t n)
{
    float *seen = malloc(sizeof *seen * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        seen[i] = NAN;
    return seen;
}

int rank_threads_compare(const struct rank_threads *c, enum program_kind kind, const char *name,
                         const double *want, double rtol, double slack, struct err *e)
{
    float *seen = NULL;
    int64_t whole = 0;
    int rc = 0;
    for (int r = 0; r < c->ranks && !rc; r++) {
        const struct program *p = program_of(c, kind, r);
        int b = program_find(p, name);
        if (b < 0) // another stage's
            continue;
        whole = shape_count(&value_of(p, b)->shape);
        seen = seen ? seen : nowhere(whole);
        rc = compare_part(c, kind, r, b, seen, want, rtol, slack, e);
    }
    if (!rc && !seen)
        rc = err_set(e, ERR_DATA, "no rank has %s", name);
    for (int64_t i = 0; i < whole && !rc; i++)
        if (isnan(seen[i]))
            rc = err_set(e, ERR_DATA, "no rank has %s[%lld]", name, (long long)i);
    free(seen);
    return rc;
}

int rank_threads_same(const struct rank_threads *a, const struct rank_threads *b, struct err *e)
{
    for (int r = 0; r < a->ranks; r++) {
        const struct program *p = program_of(a, PROGRAM_TRAIN, r);
        for (int k = 0; k < p->nbuffers; k++) {
            const struct buffer *buf = &p->buffers[k];
            if (buf->kind != BUFFER_PARAM && buf->kind != BUFFER_OPTIMIZER && k != p->metrics)
                continue;
            int other = program_find(program_of(b, PROGRAM_TRAIN, r), buf->name);
            if (other < 0 || memcmp(a->actors[r].after[PROGRAM_TRAIN][k],
                                    b->actors[r].after[PROGRAM_TRAIN][other], buf->bytes) != 0)
                return err_set(e, ERR_DATA, "%s of rank %d has other bits", buf->name, r);
        }
    }
    return 0;
}
