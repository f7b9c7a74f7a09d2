// SPDX-License-Identifier: Apache-2.0
// Prints a compiled plan, as text and as JSON. See plan_report.h.
#include "common/explain/plan_report.h"

#include <string.h>

#include "common/base/plain.h"
#include "common/explain/fit.h"
#include "common/explain/picture.h"
#include "common/explain/plan_table.h"
#include "common/job/threads.h"
#include "common/language/model_facts.h"

static bool is_param(const struct buffer *b)
{
    return b->kind == BUFFER_PARAM;
}

static const struct value *get_value(const struct compiled *c, const struct buffer *b)
{
    return &compiled_program(c, PROGRAM_TRAIN, 0)->graph->values[b->value];
}

// How many bytes of a checkpoint one device writes: devices that hold the same part of a tensor
// divide it among themselves, and so do stages that share a parameter.
static uint64_t checkpoint_share(const struct compiled *c, int stage)
{
    const struct program *p = compiled_program(c, PROGRAM_TRAIN, stage);
    uint64_t bytes = 0;
    for (int i = 0; i < p->nbuffers; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->kind != BUFFER_PARAM && b->kind != BUFFER_OPTIMIZER)
            continue;
        axis_set cut = spec_axes(&get_value(c, b)->spec);
        uint64_t replicas =
            (uint64_t)mesh_product(&c->mesh, (axis_set)(mesh_cuts(&c->mesh) & ~cut)) *
            (uint64_t)__builtin_popcountll(get_value(c, b)->stages);
        bytes += (b->bytes + replicas - 1) / replicas;
    }
    return bytes;
}

void report_make(struct report *r, const struct job *job, const struct compiled *c,
                 const struct findings *found, const struct device_model *d, struct arena *a)
{
    *r = (struct report){.job = job, .compiled = c, .findings = found, .device = d};
    cost_count(c, a, &r->cost);
    r->staging = arena_array(a, uint64_t, c->nstages);
    for (int s = 0; s < c->nstages; s++) {
        r->staging[s] =
            2 * cost_batch_bytes(compiled_program(c, PROGRAM_TRAIN, s)) + checkpoint_share(c, s);
        if (c->by_stage[s].arena > c->by_stage[r->fullest].arena)
            r->fullest = s;
    }
    r->fits = fit_fits(c, d);
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

// Stages may share a parameter: it is listed once, with the first of them.
static bool is_first_with(const struct value *v, int stage)
{
    return v->stages >> stage & 1 && !(v->stages & (((uint64_t)1 << stage) - 1));
}

static int64_t print_params_json(const struct report *r, struct json_out *w)
{
    int64_t count = 0;
    json_array(w, "params");
    for (int s = 0; s < r->compiled->nstages; s++) {
        const struct program *p = compiled_program(r->compiled, PROGRAM_TRAIN, s);
        for (int i = 0; i < p->nbuffers; i++) {
            const struct buffer *b = &p->buffers[i];
            if (!is_param(b) || !is_first_with(get_value(r->compiled, b), s))
                continue;
            const struct value *v = &p->graph->values[b->value];
            json_object(w, NULL);
            json_str(w, "name", v->name);
            print_shape_json(w, "shape", &v->shape);
            json_str(w, "dtype", dtype_name(v->dtype));
            spec_json(&v->spec, &p->mesh, v->shape.n, "spec", w);
            print_shape_json(w, "shard", &b->shape);
            json_uint(w, "bytes", b->bytes);
            print_stages_json(w, v->stages);
            json_end(w);
            count += shape_count(&get_value(r->compiled, b)->shape);
        }
    }
    json_end(w);
    return count;
}

static void print_memory_json(const struct report *r, struct json_out *w, const char *key,
                              int stage)
{
    const struct memory *m = compiled_memory(r->compiled, stage);
    json_object(w, key);
    json_uint(w, "params", m->params);
    json_uint(w, "grads", m->grads);
    json_uint(w, "optimizer", m->optimizer);
    json_uint(w, "copies", m->copies);
    json_uint(w, "stash", m->stash);
    json_uint(w, "transient", m->transient);
    json_uint(w, "workspace", m->workspace);
    json_uint(w, "arena", m->arena);
    json_uint(w, "staging", r->staging[stage]);
    json_uint(w, "libraries", r->device->libraries);
    json_end(w);
}

static void print_collectives_json(const struct report *r, struct json_out *w)
{
    json_array(w, "collectives");
    for (int i = 0; i < r->cost.ncollectives; i++) {
        const struct collective_row *c = &r->cost.collectives[i];
        json_object(w, NULL);
        json_str(w, "op", collective_row_name(c));
        print_axes_json(w, &r->compiled->mesh, c->axes);
        json_int(w, "group", c->group);
        print_stages_json(w, c->stages);
        json_str(w, "phase", phase_name(c->phase));
        json_str(w, "tensor", c->tensor);
        json_str(w, "dtype", dtype_name(c->dtype));
        json_int(w, "count", c->count);
        json_uint(w, "tensor_bytes", c->tensor_bytes);
        json_uint(w, "bytes", c->bytes);
        json_end(w);
    }
    json_end(w);
}

static const char *schedule_name(const struct report *r)
{
    return r->compiled->nstages > 1 ? job_schedule_names[r->job->pipeline.schedule] : NULL;
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
        if (one->code == FINDING_REDUNDANT)
            json_double(w, "utilisation", one->utilisation);
        else
            json_null(w, "utilisation");
        json_str(w, "message", one->message);
        json_str(w, "fix", one->fix);
        json_end(w);
    }
    json_end(w);
}

// Whether the job leaves it to its first start how many threads it has. On devices that are no CPUs
// that does not matter: the host's threads only draw the first parameters.
static bool leaves_threads(const struct job *job)
{
    return job->resources.kind == JOB_CPU && !job->resources.threads;
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
    json_str(w, "threads_why", leaves_threads(r->job) ? THREADS_LATER : NULL);
    json_str(w, "network", job_networks[r->job->resources.network]);
    int64_t count = print_params_json(r, w);
    json_int(w, "param_count", count);
    json_int(w, "param_count_active", r->cost.params_active);
    print_memory_json(r, w, "memory", r->fullest);
    json_array(w, "memory_by_stage");
    for (int i = 0; i < r->compiled->nstages; i++)
        print_memory_json(r, w, NULL, i);
    json_end(w);
    print_collectives_json(r, w);
    json_double(w, "flops_per_step", r->cost.flops_per_step);
    json_double(w, "flops_active", r->cost.flops_active);
    json_double(w, "utilisation", r->cost.utilisation);
    const struct compiled *c = r->compiled;
    json_object(w, "pipeline");
    json_str(w, "schedule", schedule_name(r));
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

// ---- text --------------------------------------------------------------------------------------

static void put_line(struct buf *out, const char *what, uint64_t bytes)
{
    buf_printf(out, "  %-12s", what);
    buf_bytes(out, bytes);
    buf_putc(out, '\n');
}

static void put_stages(const struct report *r, uint64_t stages, struct buf *out)
{
    const char *sep = stages & (stages - 1) ? " stages " : " stage ";
    for (int i = 0; r->compiled->nstages > 1 && i < r->compiled->nstages; i++) {
        if (!(stages >> i & 1))
            continue;
        buf_printf(out, "%s%d", sep, i);
        sep = ",";
    }
}

void report_params(const struct graph *g, struct buf *out)
{
    struct arena a = {0};
    struct plan_table t = {.arena = &a, .name = 0};
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        struct buf dims = {0}, tail = {0};
        if (v->kind != VALUE_PARAM || v->alias >= 0)
            continue;
        for (int d = 0; d < v->shape.n; d++)
            buf_printf(&dims, "%s%s %lld", d ? ", " : "[", dims_name(g->dims, v->dims[d]),
                       (long long)v->shape.dim[d]);
        buf_puts(&dims, v->shape.n ? "]" : "[]");
        buf_printf(&tail, "%lld", (long long)shape_count(&v->shape));
        plan_table_add(&t, (const char *[PLAN_CELLS]){v->name, buf_str(&dims)}, buf_str(&tail));
        buf_clear(&dims);
        buf_clear(&tail);
    }
    plan_table_print(&t, out);
    plan_table_clear(&t);
    arena_clear(&a);
}

static void add_param(const struct report *r, const struct program *p, const struct buffer *b,
                      struct plan_table *t)
{
    const struct value *v = &p->graph->values[b->value];
    struct buf shape = {0}, spec = {0}, tail = {0};
    for (int d = 0; d < v->shape.n; d++)
        buf_printf(&shape, "%s%lld", d ? "×" : "", (long long)v->shape.dim[d]);
    spec_print(&v->spec, &p->mesh, v->shape.n, &spec);
    buf_bytes(&tail, b->bytes);
    buf_puts(&tail, " a device");
    put_stages(r, v->stages, &tail);
    plan_table_add(t, (const char *[PLAN_CELLS]){v->name, buf_str(&shape), buf_str(&spec)},
                   buf_str(&tail));
    buf_clear(&shape);
    buf_clear(&spec);
    buf_clear(&tail);
}

static void print_params_text(const struct report *r, struct buf *out)
{
    struct arena a = {0};
    struct plan_table t = {.arena = &a, .name = 0};
    for (int s = 0; s < r->compiled->nstages; s++) {
        const struct program *p = compiled_program(r->compiled, PROGRAM_TRAIN, s);
        for (int i = 0; i < p->nbuffers; i++)
            if (is_param(&p->buffers[i]) &&
                is_first_with(get_value(r->compiled, &p->buffers[i]), s))
                add_param(r, p, &p->buffers[i], &t);
    }
    buf_printf(out, "parameters: %lld in all\n", (long long)r->cost.params);
    plan_table_print(&t, out);
    plan_table_clear(&t);
    arena_clear(&a);
}

// How many bytes fewer a device holds because gradients or optimiser state are cut further than
// their parameters (ZeRO).
static void print_saved_text(const struct report *r, int stage, enum buffer_kind kind,
                             struct buf *out)
{
    uint64_t saved = cost_saved(compiled_program(r->compiled, PROGRAM_TRAIN, stage), kind);
    if (!saved)
        return;
    buf_puts(out, "              ");
    buf_bytes(out, saved);
    buf_puts(out, " less than cut as the parameters\n");
}

static void print_memory_text(const struct report *r, int stage, struct buf *out)
{
    const struct memory *m = compiled_memory(r->compiled, stage);
    buf_puts(out, "memory of a device");
    put_stages(r, (uint64_t)1 << stage, out);
    buf_putc(out, '\n');
    put_line(out, "params", m->params);
    put_line(out, "grads", m->grads);
    print_saved_text(r, stage, BUFFER_GRAD, out);
    put_line(out, "optimizer", m->optimizer);
    print_saved_text(r, stage, BUFFER_OPTIMIZER, out);
    if (m->copies)
        put_line(out, "copies", m->copies);
    put_line(out, "stash", m->stash);
    put_line(out, "transient", m->transient);
    put_line(out, "workspace", m->workspace);
    put_line(out, "arena", m->arena);
    put_line(out, "staging", r->staging[stage]);
}

static void print_pipeline_text(const struct report *r, struct buf *out)
{
    const struct compiled *c = r->compiled;
    if (c->nstages == 1)
        return;
    buf_printf(out, "pipeline: %s over %d stages of ", schedule_name(r), c->nstages);
    if (c->nchunks > 1)
        buf_printf(out, "%d chunks of ", c->nchunks);
    for (int s = 0; s < c->nstages * c->nchunks; s++)
        buf_printf(out, "%s%lld", s ? ", " : "", (long long)c->layers[s]);
    buf_printf(out, " layers; bubble %.3g; at most %d %smicrobatches under way on a stage\n",
               c->schedule_cost.bubble, c->schedule_cost.peak_stash,
               c->nchunks > 1 ? "chunks of " : "");
}

static void add_collective(const struct report *r, const struct collective_row *c,
                           struct plan_table *t)
{
    struct buf axes = {0}, tail = {0};
    axis_set_print(&r->compiled->mesh, c->axes, &axes);
    buf_printf(&tail, "×%-4lld sends ", (long long)c->count);
    buf_bytes(&tail, c->bytes);
    put_stages(r, c->stages, &tail);
    plan_table_add(t,
                   (const char *[PLAN_CELLS]){collective_row_name(c), buf_str(&axes),
                                              phase_name(c->phase), c->tensor},
                   buf_str(&tail));
    buf_clear(&axes);
    buf_clear(&tail);
}

static void print_collectives_text(const struct report *r, struct buf *out)
{
    struct arena a = {0};
    struct plan_table t = {.arena = &a, .name = 3};
    buf_puts(out, "collectives a step, a device\n");
    if (r->cost.ncollectives == 0)
        buf_puts(out, "  none\n");
    for (int i = 0; i < r->cost.ncollectives; i++)
        add_collective(r, &r->cost.collectives[i], &t);
    plan_table_print(&t, out);
    plan_table_clear(&t);
    arena_clear(&a);
}

static int find_word(const char *text, int n, const char *word)
{
    const char *at = strstr(text, word);
    return at && at - text < n ? (int)(at - text) : n;
}

// A fix for people, a line each way: "A and B or C" are two ways, and the first needs two settings.
static void put_fixes(const char *fix, struct buf *out)
{
    static const char or [] = " or ", and[] = " and ";
    while (fix && *fix) {
        int left = find_word(fix, (int)strlen(fix), or);
        const char *next = fix[left] ? fix + left + strlen(or) : NULL;
        buf_puts(out, "  fix:");
        while (left > 0) {
            int n = find_word(fix, left, and);
            buf_printf(out, " -s '%.*s'", n, fix);
            fix += n < left ? n + (int)strlen(and) : n;
            left -= n < left ? n + (int)strlen(and) : n;
        }
        buf_putc(out, '\n');
        fix = next;
    }
}

void report_errors(const char *file, const struct findings *found, const struct err *e,
                   struct buf *out)
{
    for (int i = 0; i < found->n; i++) {
        const struct finding *one = &found->items[i];
        if (!finding_is_error(one->code))
            continue;
        buf_printf(out, "%s: %s\n", file, one->message);
        put_fixes(one->fix, out);
    }
    if (!found->errors)
        buf_printf(out, "%s: %s\n", file, e->text);
}

static void print_findings_text(const struct report *r, struct buf *out)
{
    const struct findings *f = r->findings;
    for (int i = 0; i < f->n; i++) {
        const struct finding *one = &f->items[i];
        buf_printf(out, "%s %s: %s", finding_severity(one->code), finding_name(one->code),
                   one->message);
        if (one->waste) {
            buf_puts(out, " (");
            buf_bytes(out, one->waste);
            buf_puts(out, " a device and step)");
        }
        buf_putc(out, '\n');
        put_fixes(one->fix, out);
    }
}

// MFU, the share of the device's peak that a number of tokens a second is: the formula by which weft
// counts it, with this job's numbers.
static void print_mfu_text(const struct report *r, struct buf *out)
{
    const struct model_facts *m = r->job->model.facts;
    int64_t embed = model_sizes_whole(r->job->model.sizes, "embed", 0);
    if (!m->samples || !m->seq || !embed)
        return;
    int64_t n = r->cost.params_active;
    double token =
        6 * (double)n + 6 * (double)r->job->pipeline.layers * (double)embed * (double)m->seq;
    buf_printf(out, "MFU counts 6N + 6LCT FLOPs a token: N %lld, L %lld, C %lld, T %lld: %.4g",
               (long long)n, (long long)r->job->pipeline.layers, (long long)embed,
               (long long)m->seq, token);
    if (r->device->flops > 0)
        buf_printf(out, "; 100 %% of %s's %.4g FLOP/s is %.4g tokens/s a device", r->device->name,
                   r->device->flops, r->device->flops / token);
    buf_putc(out, '\n');
}

void report_text(const struct report *r, struct buf *out)
{
    int micro = compiled_program(r->compiled, PROGRAM_TRAIN, 0)->microbatches;
    buf_printf(out, "%s on mesh ", r->job->name);
    mesh_print(&r->compiled->mesh, out);
    buf_printf(out, ", %d devices (%s)\n", mesh_ranks(&r->compiled->mesh), r->device->name);
    print_params_text(r, out);
    for (int i = 0; i < r->compiled->nstages; i++)
        print_memory_text(r, i, out);
    buf_puts(out, "  libraries   about ");
    buf_bytes(out, r->device->libraries);
    buf_putc(out, '\n');
    print_collectives_text(r, out);
    print_pipeline_text(r, out);
    buf_printf(
        out, "a step: %.4g FLOPs, utilisation %.3g, %d microbatch%s; each device reads and writes ",
        r->cost.flops_per_step, r->cost.utilisation, micro, micro == 1 ? "" : "es");
    buf_bytes(out, (uint64_t)r->cost.traffic);
    buf_putc(out, '\n');
    int64_t threads = r->job->resources.threads;
    if (leaves_threads(r->job))
        buf_puts(out, "threads of a device: " THREADS_LATER "\n");
    else if (r->job->resources.kind == JOB_CPU)
        buf_printf(out, "a device uses %lld thread%s: resources.threads of the job\n",
                   (long long)threads, threads == 1 ? "" : "s");
    if (mesh_ranks(&r->compiled->mesh) > 1)
        buf_puts(out, r->job->resources.network == JOB_TRUSTED
                          ? "between hosts tensors travel plain: resources.network is trusted, so "
                            "nobody else may reach that network\n"
                          : "between hosts tensors travel encrypted and authenticated "
                            "(resources.network: trusted sends them plain)\n");
    // Where a token does not need all parameters: those it needs, and the FLOPs that choices can fill.
    const struct cost *c = &r->cost;
    if (c->params_active != c->params)
        buf_printf(out,
                   "experts: %.4g of %.4g parameters serve a token, which is N below; %.4g of the "
                   "FLOPs are for places that choices can fill\n",
                   (double)c->params_active, (double)c->params, c->flops_active);
    print_mfu_text(r, out);
    print_findings_text(r, out);
    buf_printf(out, "plan %.16s: %s\n", r->compiled->hash,
               !r->fits                          ? "it does not fit, see above"
               : r->findings->errors             ? "refused, see above"
               : job_check_devices(r->job, NULL) ? "it fits, but no job runs on so many devices"
                                                 : "it would run");
    if (r->source)
        plain_line(out, "checkpoint.from %s", r->source);
    if (r->fits && !r->findings->errors && r->absent)
        plain_line(
            out,
            "its data was not looked at: cannot open %s (paths are relative to the job file, "
            "or for `weft submit` to the workers' --data-root)",
            r->absent);
}
