// SPDX-License-Identifier: Apache-2.0
// A program's inputs on this rank. See inputs.h.
#include "worker/rank/inputs.h"

#include <string.h>

static int check_format(const struct array *a, int format, struct err *e)
{
    static const char *const names[] = {[JOB_DATA_IDX] = "idx", [JOB_DATA_NPY] = "npy"};
    if (strcmp(a->format, names[format]) == 0)
        return 0;
    return err_set(e, ERR_DATA, "%s: byte 0: an %s file, the job says data.format: %s", a->path,
                   a->format, names[format]);
}

int inputs_open_set(const struct job *job, const char *root, const struct job_data_files *files,
                    struct dataset *set, struct err *e)
{
    struct arena paths = {0};
    int rc = dataset_open_beneath(set, root, job_path(job, &paths, files->images),
                                  job_path(job, &paths, files->labels), job->model.classes, e);
    if (!rc) {
        rc = check_format(&set->images, job->data.format, e);
        rc = rc ? rc : check_format(&set->labels, job->data.format, e);
        if (rc)
            dataset_close(set);
    }
    arena_clear(&paths);
    if (rc == ERR_NOTFOUND)
        rc = e->code = ERR_DATA; // to the job, data that is not there is bad data (exit 65)
    return rc;
}

static int check_set(const struct dataset *set, const struct buffer *images, struct err *e)
{
    if (set->dtype != images->dtype)
        return err_set(e, ERR_DATA, "%s: the images are %s, the job says data.dtype: %s",
                       set->images.path, dtype_name(set->dtype), dtype_name(images->dtype));
    if ((int64_t)set->features != images->shape.dim[1])
        return err_set(e, ERR_DATA, "%s: an image has %llu values, the job says model.inputs: %lld",
                       set->images.path, (unsigned long long)set->features,
                       (long long)images->shape.dim[1]);
    return 0;
}

int inputs_open(struct inputs *in, const struct exec_options *o, struct exec *x,
                enum program_kind kind, const struct dataset *set, struct err *e)
{
    const struct program *p = &o->compiled->program[kind];
    *in = (struct inputs){.exec = x, .backend = o->backend, .device = o->device};
    const struct buffer *images = exec_buffer(x, kind, "images", &in->images);
    const struct buffer *labels = exec_buffer(x, kind, "labels", &in->labels);
    if (!images || !labels)
        return err_set(e, ERR_INTERNAL, "the %s program reads no images", program_name(kind));
    int rc = check_set(set, images, e);
    if (rc)
        return rc;
    const struct value *v = &p->graph->values[images->value];
    int64_t start[MAX_DIMS];
    spec_start(&v->spec, &p->mesh, &v->shape, o->rank, start);
    in->microbatches = images->copies;
    in->microbatch = v->shape.dim[0];
    in->start = start[0];
    in->local = images->shape.dim[0];
    size_t bytes = feed_bytes(set, in->microbatches, in->local);
    for (int i = 0; i < 2 && !rc; i++)
        rc = o->backend->host_alloc(o->device, bytes, &in->host[i], e);
    return rc;
}

void inputs_close(struct inputs *in)
{
    for (int i = 0; i < 2; i++)
        if (in->host[i])
            in->backend->host_free(in->device, in->host[i]);
    *in = (struct inputs){0};
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
                                            .host = {in->host[0], in->host[1]}},
                     out, e);
}

int inputs_put(struct inputs *in, const struct batch *b, struct err *e)
{
    struct stream_q *q = exec_stream(in->exec);
    int rc = in->backend->copy(q, in->images, b->images, b->image_bytes, e);
    return rc ? rc : in->backend->copy(q, in->labels, b->labels, b->label_bytes, e);
}
