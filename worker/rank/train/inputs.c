// SPDX-License-Identifier: Apache-2.0
// A program's inputs on this rank. See inputs.h.
#include "worker/rank/train/inputs.h"

#include <string.h>

// Where a program's input comes from, by its name. A sample of tokens has one token more than the
// model reads: targets skip the first.
static const struct input_kind {
    const char *name;
    enum input_source source;
    int64_t skip;
} kinds[] = {{"images", INPUT_SAMPLES, 0},      {"labels", INPUT_LABELS, 0},
             {"tokens", INPUT_SAMPLES, 0},      {"targets", INPUT_SAMPLES, 1},
             {"positions", INPUT_POSITIONS, 0}, {"sample/tokens", INPUT_SAMPLES, 0},
             {"sample/last", INPUT_LABELS, 0},  {"sample/positions", INPUT_POSITIONS, 0},
             {"fill/tokens", INPUT_SAMPLES, 0}, {"fill/positions", INPUT_PLACES, 0},
             {"fill/last", INPUT_LABELS, 0},    {"step/tokens", INPUT_SAMPLES, 0},
             {"step/last", INPUT_LABELS, 0},    {"step/positions", INPUT_PLACES, 0}};

static const struct input_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    err_bug(__FILE__, __LINE__, name);
}

static int make_positions(struct inputs *in, const struct zigzag *z, struct err *e)
{
    void *host;
    int rc = in->backend->memory.host_alloc(in->device, (size_t)z->seq * sizeof(int32_t), &host, e);
    if (rc)
        return rc;
    in->positions = host;
    for (int64_t i = 0; i < z->seq; i++)
        in->positions[i] = (int32_t)zigzag_position(z, i);
    return 0;
}

static int add_input(struct inputs *in, const struct exec_options *o, const struct program *p,
                     const struct buffer *b, const struct dataset *set, struct err *e)
{
    const struct value *v = &p->graph->values[b->value];
    int64_t start[MAX_DIMS];
    size_t elem = dtype_size(b->dtype);
    const struct input_kind *kind = find_kind(v->name);
    if (in->n == INPUTS_MAX)
        return err_set(e, ERR_LIMIT, "the %s program cuts its input data in more than %d ways",
                       program_name(p->kind), INPUTS_MAX);
    spec_start(&v->spec, &p->mesh, &v->shape, o->rank, start);
    struct input *i = &in->input[in->n++];
    bool wide = v->shape.n > 1, ordered = set->seq && kind->source == INPUT_SAMPLES;
    *i = (struct input){.source = kind->source,
                        .row = start[0] - in->start,
                        .rows = b->shape.dim[0],
                        .column = wide ? start[1] : 0,
                        .columns = wide ? b->shape.dim[1] : 1,
                        .skip = kind->skip,
                        .elem = elem,
                        .zigzag =
                            ordered ? p->zigzag : (struct zigzag){wide ? v->shape.dim[1] : 1, 1},
                        .pitch = kind->source == INPUT_POSITIONS ? 0
                                 : kind->source == INPUT_LABELS  ? elem
                                 : kind->source == INPUT_PLACES  ? elem * (size_t)v->shape.dim[1]
                                                                 : dataset_sample_bytes(set)};
    int rc = 0;
    if (kind->source == INPUT_POSITIONS && !in->positions)
        rc = make_positions(in, &p->zigzag, e);
    if (rc)
        return rc;
    exec_buffer(in->exec, p->kind, b->name, &i->device);
    return 0;
}

typedef int (*put_fn)(const struct inputs *in, void *to, const void *from, size_t bytes,
                      struct err *e);
enum { PACKED_ALIGN = 256 };

static size_t get_input_bytes(const struct inputs *in, const struct input *i)
{
    return (size_t)(in->microbatches * i->rows * i->columns) * i->elem;
}

// The same, rounded up to where the next packed input begins.
static size_t get_packed_bytes(const struct inputs *in, const struct input *i)
{
    return (get_input_bytes(in, i) + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}

static int open_packed(struct inputs *in, struct err *e)
{
    struct device_info info;
    size_t bytes = 0;
    int rc = 0;
    in->backend->device.info(in->device, &info);
    for (int k = 0; k < in->n; k++)
        bytes += get_packed_bytes(in, &in->input[k]);
    for (int i = 0; i < 2 && !info.shares_host && bytes && !rc; i++) {
        void *host = NULL;
        rc = in->backend->memory.host_alloc(in->device, bytes, &host, e);
        in->packed[i] = host;
    }
    return rc;
}

int inputs_open(struct inputs *in, const struct exec_options *o, struct exec *x,
                enum program_kind kind, const struct dataset *set, struct err *e)
{
    const struct program *p =
        compiled_program(o->compiled, kind, compiled_stage(o->compiled, o->rank));
    int rc = 0;
    *in = (struct inputs){.exec = x,
                          .backend = o->backend,
                          .device = o->device,
                          .kind = kind,
                          .microbatches = p->microbatches};
    program_rows(p, o->rank, &in->start, &in->local);
    for (int b = 0; b < p->nbuffers && !rc; b++) {
        if (p->buffers[b].source != VALUE_INPUT)
            continue;
        in->microbatch = p->graph->values[p->buffers[b].value].shape.dim[0];
        rc = add_input(in, o, p, &p->buffers[b], set, e);
    }
    if (rc)
        return rc;
    if (!in->n)
        in->start = in->local = 0; // a stage without inputs reads nothing
    size_t bytes = feed_bytes(set, in->microbatches, in->local);
    for (int i = 0; i < 2 && !rc; i++)
        rc = o->backend->memory.host_alloc(o->device, bytes ? bytes : 1, &in->host[i], e);
    return rc ? rc : open_packed(in, e);
}

void inputs_close(struct inputs *in)
{
    for (int i = 0; i < 2; i++)
        if (in->host[i])
            in->backend->memory.host_free(in->device, in->host[i]);
    for (int i = 0; i < 2; i++)
        if (in->packed[i])
            in->backend->memory.host_free(in->device, in->packed[i]);
    if (in->positions)
        in->backend->memory.host_free(in->device, in->positions);
    *in = (struct inputs){0};
}

// Copies the columns of one sample: as many at once as follow each other in the sample too.
static int put_row(const struct inputs *in, const struct input *i, const char *from, char *to,
                   put_fn put, struct err *e)
{
    int64_t end = i->column + i->columns;
    int rc = 0;
    for (int64_t c = i->column, run; c < end && !rc; c += run) {
        run = zigzag_run(&i->zigzag, c) < end - c ? zigzag_run(&i->zigzag, c) : end - c;
        rc = put(in, to + (size_t)(c - i->column) * i->elem,
                 from + (size_t)(zigzag_position(&i->zigzag, c) + i->skip) * i->elem,
                 (size_t)run * i->elem, e);
    }
    return rc;
}

// Copies the rows of one microbatch: whole samples all at once, parts of samples one by one.
static int put_rows(const struct inputs *in, const struct input *i, const char *from, char *to,
                    put_fn put, struct err *e)
{
    size_t width = (size_t)i->columns * i->elem;
    int rc = 0;
    if (width == i->pitch)
        return put(in, to, from, (size_t)i->rows * width, e);
    for (int64_t r = 0; r < i->rows && !rc; r++)
        rc = put_row(in, i, from + (size_t)r * i->pitch, to + (size_t)r * width, put, e);
    return rc;
}

// Copies one input: its microbatches, which lie one after the other.
static int put_input(const struct inputs *in, const struct input *i, const struct batch *b,
                     char *to, put_fn put, struct err *e)
{
    const char *const from[] = {[INPUT_SAMPLES] = b->images,
                                [INPUT_LABELS] = (const char *)b->labels,
                                [INPUT_POSITIONS] = (const char *)in->positions,
                                [INPUT_PLACES] = (const char *)b->positions};
    const char *host = from[i->source];
    int rc = 0;
    for (int m = 0; m < in->microbatches && !rc; m++)
        rc = put_rows(in, i, host + (size_t)(m * in->local + i->row) * i->pitch,
                      to + (size_t)(m * i->rows * i->columns) * i->elem, put, e);
    return rc;
}

static int put_on_device(const struct inputs *in, void *to, const void *from, size_t bytes,
                         struct err *e)
{
    return in->backend->stream.copy(exec_inputs(in->exec)->q, to, from, bytes, e);
}

static int put_on_host(const struct inputs *in, void *to, const void *from, size_t bytes,
                       struct err *e)
{
    (void)in;
    (void)e;
    memcpy(to, from, bytes);
    return 0;
}

static void pack_batch(const void *inputs, const struct batch *b)
{
    const struct inputs *in = inputs;
    char *at = b->packed;
    for (int k = 0; k < in->n; k++) {
        (void)put_input(in, &in->input[k], b, at, put_on_host, NULL);
        at += get_packed_bytes(in, &in->input[k]);
    }
}

int inputs_feed(struct inputs *in, const struct dataset *set, feed_ids ids, const void *ctx,
                uint64_t first, uint64_t end, struct feed **out, struct err *e)
{
    return feed_open(&(struct feed_options){.set = set,
                                            .ids = ids,
                                            .ctx = ctx,
                                            .microbatches = in->microbatches,
                                            .microbatch = in->microbatch,
                                            .start = in->start,
                                            .local = in->local,
                                            .first = first,
                                            .end = end,
                                            .host = {in->host[0], in->host[1]},
                                            .pack = in->packed[0] ? pack_batch : NULL,
                                            .packer = in,
                                            .packed = {in->packed[0], in->packed[1]}},
                     out, e);
}

int inputs_put(struct inputs *in, const struct batch *b, struct err *e)
{
    struct batch batch = *b;
    if (in->packed[0] && !batch.packed) { // it is no feed's
        batch.packed = in->packed[0];
        pack_batch(in, &batch);
    }
    int rc = exec_inputs_begin(in->exec, in->kind, e);
    for (int k = 0; k < in->n && !rc; k++) {
        const struct input *i = &in->input[k];
        if (!in->packed[0]) {
            rc = put_input(in, i, &batch, i->device, put_on_device, e);
            continue;
        }
        rc = put_on_device(in, i->device, batch.packed, get_input_bytes(in, i), e);
        batch.packed += get_packed_bytes(in, i);
    }
    return rc ? rc : exec_inputs_end(in->exec, e);
}
