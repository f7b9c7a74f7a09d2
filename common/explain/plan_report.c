// SPDX-License-Identifier: Apache-2.0
// Collects what is said of a compiled plan, and prints it as JSON. See plan_report.h.
#include "common/explain/plan_report.h"

#include "common/explain/fit.h"
#include "common/job/threads.h"
#include "common/language/model_facts.h"

static const struct value *get_value(const struct compiled *c, const struct buffer *b)
{
    return &compiled_program(c, PROGRAM_TRAIN, 0)->graph->values[b->value];
}

// How many bytes of a checkpoint, or of its parameters, one device writes: devices that hold the same
// part of a tensor divide it among themselves, and so do stages that share a parameter.
static uint64_t checkpoint_share(const struct compiled *c, int stage, bool params_alone)
{
    const struct program *p = compiled_program(c, PROGRAM_TRAIN, stage);
    uint64_t bytes = 0;
    for (int i = 0; i < p->nbuffers; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->kind != BUFFER_PARAM && (b->kind != BUFFER_OPTIMIZER || params_alone))
            continue;
        axis_set cut = spec_axes(&get_value(c, b)->spec);
        uint64_t replicas =
            (uint64_t)mesh_product(&c->mesh, (axis_set)(mesh_cuts(&c->mesh) & ~cut)) *
            (uint64_t)__builtin_popcountll(get_value(c, b)->stages);
        bytes += (b->bytes + replicas - 1) / replicas;
    }
    return bytes;
}

// Stages may share a parameter: it is listed once, with the first of them.
static void list_params(struct report *r, struct arena *a)
{
    int cap = 0;
    for (int s = 0; s < r->compiled->nstages; s++) {
        const struct program *p = compiled_program(r->compiled, PROGRAM_TRAIN, s);
        for (int i = 0; i < p->nbuffers; i++) {
            const struct buffer *b = &p->buffers[i];
            const struct value *v = &p->graph->values[b->value];
            if (b->kind != BUFFER_PARAM || !(v->stages >> s & 1) ||
                v->stages & (((uint64_t)1 << s) - 1))
                continue;
            r->params = arena_grow(a, r->params, sizeof *r->params, r->nparams, &cap);
            r->params[r->nparams++] = (struct report_param){p, b, v};
        }
    }
}

static double count_token_flops(const struct report *r)
{
    const struct job_model *m = &r->job->model;
    int64_t embed = model_sizes_whole(m->sizes, "embed", 0);
    if (!m->facts->samples || !m->facts->seq || !embed)
        return 0;
    return 6 * (double)r->cost.params_active +
           6 * (double)r->job->pipeline.layers * (double)embed * (double)m->facts->seq;
}

double report_mfu(const struct report *r, double seconds)
{
    const struct job *job = r->job;
    double useful = r->token_flops * (double)job->data.batch * (double)job->model.facts->seq;
    if (r->device->flops <= 0 || useful <= 0 || seconds <= 0)
        return -1;
    return useful / seconds / r->device->flops / mesh_ranks(&r->compiled->mesh);
}

void report_make(struct report *r, const struct job *job, const struct compiled *c,
                 const struct findings *found, const struct device_model *d, struct arena *a)
{
    *r = (struct report){.job = job, .compiled = c, .findings = found, .device = d};
    cost_count(c, a, &r->cost);
    r->estimate = cost_estimate(job, c, &r->cost, d);
    r->token_flops = count_token_flops(r);
    list_params(r, a);
    r->staging = arena_array(a, uint64_t, c->nstages);
    for (int s = 0; s < c->nstages; s++) {
        r->staging[s] = 2 * cost_batch_bytes(compiled_program(c, PROGRAM_TRAIN, s)) +
                        checkpoint_share(c, s, false) +
                        (job->metrics.detail ? checkpoint_share(c, s, true) : 0);
        r->checkpoint +=
            checkpoint_share(c, s, false) * (uint64_t)(mesh_ranks(&c->mesh) / c->nstages);
        if (fit_need(&c->by_stage[s], d) > fit_need(&c->by_stage[r->fullest], d))
            r->fullest = s;
    }
    r->fits = fit_fits(c, d);
    r->schedule = c->nstages > 1 ? job_schedule_names[job->pipeline.schedule] : NULL;
    r->leaves_threads = job->resources.kind == JOB_CPU && !job->resources.threads;
}

// ---- JSON --------------------------------------------------------------------------------------

static void print_axes_json(struct json_out *w, const struct mesh *m, axis_set axes)
{
    json_array(w, "axes");
    for (int i = 0; i < m->n; i++)
        if (axes >> i & 1)
            json_str(w, NULL, m->axis[i].name);
    json_end(w);
}

static void print_shape_json(struct json_out *w, const char *key, const struct shape *s)
{
    json_array(w, key);
    for (int d = 0; d < s->n; d++)
        json_int(w, NULL, s->dim[d]);
    json_end(w);
}

static void print_stages_json(struct json_out *w, uint64_t stages)
{
    json_array(w, "stages");
    for (int i = 0; stages >> i; i++) {
        if (stages >> i & 1)
            json_int(w, NULL, i);
        if (i == 63)
            break;
    }
    json_end(w);
}

static int64_t print_params_json(const struct report *r, struct json_out *w)
{
    int64_t count = 0;
    json_array(w, "params");
    for (int i = 0; i < r->nparams; i++) {
        const struct report_param *one = &r->params[i];
        const struct value *v = one->value;
        json_object(w, NULL);
        json_str(w, "name", v->name);
        print_shape_json(w, "shape", &v->shape);
        json_str(w, "dtype", dtype_name(v->dtype));
        spec_json(&v->spec, &one->program->mesh, v->shape.n, "spec", w);
        print_shape_json(w, "shard", &one->buffer->shape);
        json_uint(w, "bytes", one->buffer->bytes);
        print_stages_json(w, v->stages);
        json_end(w);
        count += shape_count(&v->shape);
    }
    json_end(w);
    return count;
}

void report_memory_json(const struct memory *m, const struct device_model *d, struct json_out *w)
{
    json_uint(w, "params", m->params);
    json_uint(w, "grads", m->grads);
    json_uint(w, "optimizer", m->optimizer);
    json_uint(w, "copies", m->copies);
    json_uint(w, "cache", m->cache);
    json_uint(w, "stash", m->stash);
    json_uint(w, "transient", m->transient);
    json_uint(w, "workspace", m->workspace);
    json_uint(w, "arena", m->arena);
    json_uint(w, "libraries", d->libraries);
    json_uint(w, "nccl", fit_nccl(m, d));
}

static void print_stage_json(const struct report *r, struct json_out *w, const char *key, int stage)
{
    json_object(w, key);
    report_memory_json(compiled_memory(r->compiled, stage), r->device, w);
    json_uint(w, "staging", r->staging[stage]);
    json_end(w);
}

static void print_collectives_json(const struct cost *cost, const struct compiled *of,
                                   struct json_out *w)
{
    json_array(w, "collectives");
    for (int i = 0; i < cost->ncollectives; i++) {
        const struct collective_row *c = &cost->collectives[i];
        json_object(w, NULL);
        json_str(w, "op", collective_row_name(c));
        print_axes_json(w, &of->mesh, c->axes);
        json_int(w, "group", c->group);
        print_stages_json(w, c->stages);
        json_str(w, "phase", phase_name(c->phase));
        json_str(w, "tensor", c->tensor);
        json_str(w, "dtype", dtype_name(c->dtype));
        json_known_int(w, "bucket", c->bucket >= 0, c->bucket);
        json_int(w, "count", c->count);
        json_uint(w, "tensor_bytes", c->tensor_bytes);
        json_uint(w, "bytes", c->bytes);
        json_end(w);
    }
    json_end(w);
}

void report_sent_json(const struct cost *cost, const struct compiled *of, struct json_out *w)
{
    print_collectives_json(cost, of, w);
    json_object(w, "sent");
    json_uint(w, "bytes", cost->sent);
    json_int(w, "launches", cost->launches);
    json_array(w, "along");
    for (int i = 0; i < cost->nalong; i++) {
        json_object(w, NULL);
        print_axes_json(w, &of->mesh, cost->along[i].axes);
        json_uint(w, "bytes", cost->along[i].bytes);
        json_end(w);
    }
    json_end(w);
    json_end(w);
}

static void print_estimate_json(const struct report *r, struct json_out *w)
{
    const struct estimate *e = &r->estimate;
    if (e->unknown) {
        json_null(w, "estimate");
        return;
    }
    double mfu = report_mfu(r, e->compute_s);
    json_object(w, "estimate");
    json_double(w, "compute_ms", 1000 * e->compute_s);
    json_double(w, "send_ms", 1000 * e->send_s);
    json_known_double(w, "mfu", mfu >= 0, mfu);
    json_end(w);
}

static void print_findings_json(const struct report *r, struct json_out *w)
{
    const struct findings *f = r->findings;
    json_array(w, "findings");
    for (int i = 0; i < f->n; i++) {
        const struct finding *one = &f->items[i];
        json_object(w, NULL);
        json_str(w, "code", finding_name(one->code));
        json_str(w, "severity", finding_severity(one->code));
        json_str(w, "tensor", one->tensor);
        print_axes_json(w, &r->compiled->mesh, one->axes);
        json_uint(w, "waste_bytes", one->waste);
        json_known_double(w, "utilisation", one->code == FINDING_REDUNDANT, one->utilisation);
        json_str(w, "message", one->message);
        json_str(w, "fix", one->fix);
        json_end(w);
    }
    json_end(w);
}

void report_json(const struct report *r, struct json_out *w)
{
    const struct mesh *m = &r->compiled->mesh;
    json_object(w, NULL);
    json_object(w, "mesh");
    for (int i = 0; i < m->n; i++)
        json_int(w, m->axis[i].name, m->axis[i].size);
    json_end(w);
    json_int(w, "devices", mesh_ranks(m));
    json_int(w, "threads", r->job->resources.threads);
    json_str(w, "threads_why", r->leaves_threads ? THREADS_LATER : NULL);
    json_str(w, "network", job_networks[r->job->resources.network]);
    int64_t count = print_params_json(r, w);
    json_int(w, "param_count", count);
    json_int(w, "param_count_active", r->cost.params_active);
    print_stage_json(r, w, "memory", r->fullest);
    json_object(w, "nccl");
    json_int(w, "communicators", r->compiled->by_stage[r->fullest].communicators);
    json_uint(w, "bytes_each", r->device->communicator);
    json_bool(w, "measured", r->device->measured);
    json_end(w);
    json_array(w, "memory_by_stage");
    for (int i = 0; i < r->compiled->nstages; i++)
        print_stage_json(r, w, NULL, i);
    json_end(w);
    report_sent_json(&r->cost, r->compiled, w);
    json_double(w, "flops_per_step", r->cost.flops_per_step);
    json_double(w, "flops_active", r->cost.flops_active);
    json_double(w, "utilisation", r->cost.utilisation);
    print_estimate_json(r, w);
    const struct compiled *c = r->compiled;
    json_object(w, "pipeline");
    json_str(w, "schedule", r->schedule);
    json_int(w, "stages", c->nstages);
    json_int(w, "chunks", c->nchunks);
    json_array(w, "layers");
    for (int s = 0; s < c->nstages * c->nchunks; s++)
        json_int(w, NULL, c->layers[s]);
    json_end(w);
    json_int(w, "microbatches", compiled_program(c, PROGRAM_TRAIN, 0)->microbatches);
    json_double(w, "bubble", c->schedule_cost.bubble);
    json_int(w, "peak_stash", c->schedule_cost.peak_stash);
    json_end(w);
    print_findings_json(r, w);
    json_bool(w, "fits", r->fits);
    json_str(w, "absent", r->absent);
    json_str(w, "source", r->source);
    json_str(w, "device_model", r->device->name);
    json_str(w, "hash", r->compiled->hash);
    json_end(w);
}
