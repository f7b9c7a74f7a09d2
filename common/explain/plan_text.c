// SPDX-License-Identifier: Apache-2.0
// A compiled plan as text: what one asks first on a screen, and all that it holds. See plan_report.h.
#include <string.h>

#include "common/base/plain.h"
#include "common/explain/fit.h"
#include "common/explain/picture_draw.h"
#include "common/explain/plan_report.h"
#include "common/explain/plan_table.h"
#include "common/job/threads.h"
#include "common/language/model_facts.h"

// "25.6 of 139.0 GiB": the unit once where both have the same.
static void put_bytes_of(struct buf *out, uint64_t bytes, uint64_t of)
{
    struct buf part = {0}, whole = {0};
    buf_bytes(&part, bytes);
    buf_bytes(&whole, of);
    char *unit = strchr(part.data, ' ');
    if (strcmp(unit, strchr(whole.data, ' ')) == 0)
        *unit = 0;
    buf_printf(out, "%s of %s", part.data, whole.data);
    buf_clear(&part);
    buf_clear(&whole);
}

// "70.6 B": as people name so many.
static void put_count(struct buf *out, double n)
{
    static const char *const units[] = {"", " k", " M", " B", " T"};
    enum { LARGEST = sizeof units / sizeof *units - 1 };
    int u = 0;
    for (; n >= 999.5 && u < LARGEST; u++)
        n /= 1000;
    buf_printf(out, u ? "%.3g%s" : "%.0f%s", n, units[u]);
}

static void put_seconds(struct buf *out, double s)
{
    buf_printf(out,
               s < 1e-3 ? "%.3g µs"
               : s < 1  ? "%.3g ms"
                        : "%.3g s",
               s < 1e-3 ? s * 1e6
               : s < 1  ? s * 1e3
                        : s);
}

static void put_stages(const struct report *r, uint64_t stages, struct buf *out)
{
    const char *sep = stages & (stages - 1) ? " on stages " : " on stage ";
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

static void add_param(const struct report *r, const struct report_param *one, struct plan_table *t)
{
    const struct value *v = one->value;
    struct buf shape = {0}, spec = {0}, tail = {0};
    for (int d = 0; d < v->shape.n; d++)
        buf_printf(&shape, "%s%lld", d ? "×" : "", (long long)v->shape.dim[d]);
    spec_print(&v->spec, &one->program->mesh, v->shape.n, &spec);
    buf_bytes(&tail, one->buffer->bytes);
    buf_puts(&tail, " a device");
    put_stages(r, v->stages, &tail);
    plan_table_add(t, (const char *[PLAN_CELLS]){v->name, buf_str(&shape), buf_str(&spec)},
                   buf_str(&tail));
    buf_clear(&shape);
    buf_clear(&spec);
    buf_clear(&tail);
}

static void print_params_text(const struct report *r, bool full, struct buf *out)
{
    struct arena a = {0};
    struct plan_table t = {.arena = &a, .name = 0};
    const struct cost *c = &r->cost;
    buf_puts(out, "parameters: ");
    if (c->params >= 10000) {
        put_count(out, (double)c->params);
        buf_printf(out, " (%lld)", (long long)c->params);
    } else {
        buf_printf(out, "%lld", (long long)c->params);
    }
    // Where a token does not need all of them: those that it needs, which is MFU's N.
    if (c->params_active != c->params) {
        buf_puts(out, ", of which ");
        put_count(out, (double)c->params_active);
        buf_puts(out, " serve a token");
    }
    buf_putc(out, '\n');
    for (int i = 0; full && i < r->nparams; i++)
        add_param(r, &r->params[i], &t);
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
    buf_printf(out, "  %s: ", kind == BUFFER_GRAD ? "grads" : "optimizer");
    buf_bytes(out, saved);
    buf_puts(out, " less than cut as the parameters\n");
}

void report_beside_text(const struct memory *m, const struct device_model *d, uint64_t of,
                        int width, struct buf *out)
{
    picture_bar("libraries", d->libraries, of, width, out);
    if (!fit_nccl(m, d))
        return;
    picture_bar("NCCL", fit_nccl(m, d), of, width, out);
    buf_printf(out, "  NCCL: %d communicator%s of about ", m->communicators,
               m->communicators == 1 ? "" : "s");
    buf_bytes(out, d->communicator);
    buf_printf(out, "%s: %s\n", m->communicators == 1 ? "" : " each",
               d->measured ? "measured on this host"
                           : "an estimate, until a run on this host has measured it");
}

static void print_memory_text(const struct report *r, int stage, int width, struct buf *out)
{
    const struct memory *m = compiled_memory(r->compiled, stage);
    uint64_t all = fit_need(m, r->device), has = r->device->memory;
    uint64_t of = has > all ? has : all;
    buf_puts(out, "memory of a device");
    put_stages(r, (uint64_t)1 << stage, out);
    buf_puts(out, ": ");
    if (has)
        put_bytes_of(out, all, has);
    else
        buf_bytes(out, all);
    buf_putc(out, '\n');
    picture_categories(m, of, width, out);
    report_beside_text(m, r->device, of, width, out);
    if (has > all) {
        buf_puts(out, "  free        ");
        buf_bytes(out, has - all);
        buf_putc(out, '\n');
    }
    print_saved_text(r, stage, BUFFER_GRAD, out);
    print_saved_text(r, stage, BUFFER_OPTIMIZER, out);
    buf_puts(out, "  staging     ");
    buf_bytes(out, r->staging[stage]);
    buf_puts(out, " of the host's memory, beside it\n");
}

static void print_pipeline_text(const struct report *r, struct buf *out)
{
    const struct compiled *c = r->compiled;
    if (c->nstages == 1)
        return;
    buf_printf(out, "pipeline: %s over %d stages of ", r->schedule, c->nstages);
    if (c->nchunks > 1)
        buf_printf(out, "%d chunks of ", c->nchunks);
    for (int s = 0; s < c->nstages * c->nchunks; s++)
        buf_printf(out, "%s%lld", s ? ", " : "", (long long)c->layers[s]);
    const int most = c->schedule_cost.peak_stash;
    buf_printf(out, " layers; bubble %.3g; at most %d %s%s under way on a stage\n",
               c->schedule_cost.bubble, most,
               c->nchunks == 1 ? "microbatch"
               : most == 1     ? "chunk of microbatches"
                               : "chunks of microbatches",
               c->nchunks == 1 && most != 1 ? "es" : "");
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

// Adds the n rows of one bucket, under the names of the first and the last: of the latter what it has not
// in common with the former.
static void add_bucket(const struct report *r, const struct collective_row *c, int n,
                       struct plan_table *t)
{
    struct buf axes = {0}, name = {0}, tail = {0};
    const char *last = c[n - 1].tensor;
    uint64_t bytes = 0;
    for (int i = 0; c->tensor[i] && c->tensor[i] == c[n - 1].tensor[i]; i++)
        last = c->tensor[i] == '/' ? c[n - 1].tensor + i + 1 : last;
    for (int i = 0; i < n; i++)
        bytes += c[i].bytes;
    axis_set_print(&r->compiled->mesh, c->axes, &axes);
    buf_printf(&name, "%s … %s", c->tensor, last);
    buf_printf(&tail, "%d tensors, ×%lld sends ", n, (long long)c->count);
    buf_bytes(&tail, bytes);
    put_stages(r, c->stages, &tail);
    plan_table_add(t,
                   (const char *[PLAN_CELLS]){collective_row_name(c), buf_str(&axes),
                                              phase_name(c->phase), buf_str(&name)},
                   buf_str(&tail));
    buf_clear(&axes);
    buf_clear(&name);
    buf_clear(&tail);
}

static void print_buckets_text(const struct report *r, struct buf *out)
{
    struct arena a = {0};
    struct plan_table t = {.arena = &a, .name = 3};
    const struct collective_row *rows = r->cost.collectives;
    for (int i = 0, end; i < r->cost.ncollectives; i = end) {
        for (end = i + 1; end < r->cost.ncollectives && rows[i].bucket >= 0; end++)
            if (rows[end].bucket != rows[i].bucket || rows[end].stages != rows[i].stages)
                break;
        if (end > i + 1)
            add_bucket(r, &rows[i], end - i, &t);
    }
    if (t.n)
        buf_puts(out, "of these, moved together by one launch\n");
    plan_table_print(&t, out);
    plan_table_clear(&t);
    arena_clear(&a);
}

static void print_sent_text(const struct report *r, bool full, int width, struct buf *out)
{
    struct arena a = {0};
    struct plan_table t = {.arena = &a, .name = 3};
    const struct cost *c = &r->cost;
    buf_puts(out, "communication: ");
    if (c->sent) {
        buf_puts(out, "a device sends ");
        buf_bytes(out, c->sent);
        buf_printf(out, " a step, %lld tensor%s in %lld launch%s, along\n", (long long)c->nsent,
                   c->nsent == 1 ? "" : "s", (long long)c->launches, c->launches == 1 ? "" : "es");
    } else {
        buf_puts(out, "none\n");
    }
    for (int i = 0; i < c->nalong; i++) {
        struct buf axes = {0};
        axis_set_print(&r->compiled->mesh, c->along[i].axes, &axes);
        picture_bar(buf_str(&axes), c->along[i].bytes, c->sent, width, out);
        buf_clear(&axes);
    }
    if (full && c->ncollectives)
        buf_puts(out, "collectives a step, a device\n");
    for (int i = 0; full && i < c->ncollectives; i++)
        add_collective(r, &c->collectives[i], &t);
    plan_table_print(&t, out);
    plan_table_clear(&t);
    arena_clear(&a);
    if (full)
        print_buckets_text(r, out);
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

// Errors all, and of the others as many as a screen holds beside the rest.
static void print_findings_text(const struct report *r, bool full, struct buf *out)
{
    enum { SHOWN = 5 };
    const struct findings *f = r->findings;
    int others = 0;
    for (int i = 0; i < f->n; i++) {
        const struct finding *one = &f->items[i];
        if (!full && !finding_is_error(one->code) && ++others > SHOWN)
            continue;
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
    if (others > SHOWN)
        buf_printf(out, "and %d more like that: --full\n", others - SHOWN);
}

// MFU, the share of the device's peak that a number of tokens a second is: the formula by which weft
// counts it, with this job's numbers.
static void print_mfu_text(const struct report *r, struct buf *out)
{
    const struct job_model *m = &r->job->model;
    if (!r->token_flops)
        return;
    buf_printf(out, "MFU counts 6N + 6LCT FLOPs a token: N %lld, L %lld, C %lld, T %lld: %.4g",
               (long long)r->cost.params_active, (long long)r->job->pipeline.layers,
               (long long)model_sizes_whole(m->sizes, "embed", 0), (long long)m->facts->seq,
               r->token_flops);
    if (r->device->flops > 0)
        buf_printf(out, "; 100 %% of %s's %.4g FLOP/s is %.4g tokens/s a device", r->device->name,
                   r->device->flops, r->device->flops / r->token_flops);
    buf_putc(out, '\n');
}

// How long a step takes: between all of its communication hidden behind the compute, and none.
static void print_estimate_text(const struct report *r, struct buf *out)
{
    static const char *const precisions[] = {
        [JOB_F32] = "f32", [JOB_BF16] = "bf16", [JOB_TF32] = "tf32"};
    const struct estimate *e = &r->estimate;
    if (e->unknown) {
        buf_printf(out, "time of a step: not estimated for %s: %s\n", r->device->name, e->unknown);
        return;
    }
    double least = e->compute_s > e->send_s ? e->compute_s : e->send_s;
    double most = e->compute_s + e->send_s, mfu = report_mfu(r, least);
    bool one = most < 1.01 * least;
    buf_puts(out, "time of a step: estimated ");
    put_seconds(out, least);
    if (!one) {
        buf_puts(out, " to ");
        put_seconds(out, most);
    }
    if (mfu >= 0) {
        double tokens = (double)r->job->data.batch * (double)r->job->model.facts->seq;
        buf_puts(out, ", ");
        if (!one) {
            put_count(out, tokens / most);
            buf_puts(out, " to ");
        }
        put_count(out, tokens / least);
        buf_puts(out, " tokens/s, MFU ");
        if (!one)
            buf_printf(out, "%.2g to ", 100 * report_mfu(r, most));
        buf_printf(out, "%.2g %%", 100 * mfu);
    }
    buf_puts(out, "\n  ");
    put_seconds(out, e->compute_s);
    buf_printf(out, " of compute in %s, by what kernels reach on %s",
               precisions[r->job->precision.compute], r->device->name);
    if (e->send_s > 0) {
        buf_puts(out, "; ");
        put_seconds(out, e->send_s);
        buf_puts(out, " of sending at ");
        buf_printf(out, "%.3g GB/s, hidden behind it or not", r->device->link / 1e9);
    }
    buf_putc(out, '\n');
}

static void print_threads_text(const struct report *r, struct buf *out)
{
    int64_t threads = r->job->resources.threads;
    if (r->leaves_threads)
        buf_puts(out, "threads of a device: " THREADS_LATER "\n");
    else if (r->job->resources.kind == JOB_CPU)
        buf_printf(out, "a device uses %lld thread%s: resources.threads of the job\n",
                   (long long)threads, threads == 1 ? "" : "s");
}

static void print_verdict(const struct report *r, bool full, struct buf *out)
{
    buf_printf(out, "plan %.16s: %s%s\n", r->compiled->hash,
               !r->fits                          ? "it does not fit, see above"
               : r->findings->errors             ? "refused, see above"
               : job_check_devices(r->job, NULL) ? "it fits, but no job runs on so many devices"
                                                 : "it would run",
               full ? "" : "; --full lists its parameters and collectives");
    if (r->source)
        plain_line(out, "checkpoint.from %s", r->source);
    if (r->fits && !r->findings->errors && r->absent)
        plain_line(
            out,
            "its data was not looked at: cannot open %s (paths are relative to the job file, "
            "or for `weft submit` to the workers' --data-root)",
            r->absent);
}

void report_text(const struct report *r, bool full, int width, struct buf *out)
{
    const struct cost *c = &r->cost;
    int micro = compiled_program(r->compiled, PROGRAM_TRAIN, 0)->microbatches;
    buf_printf(out, "%s on mesh ", r->job->name);
    mesh_print(&r->compiled->mesh, out);
    buf_printf(out, ", %d device%s (%s)\n", mesh_ranks(&r->compiled->mesh),
               mesh_ranks(&r->compiled->mesh) == 1 ? "" : "s", r->device->name);
    print_params_text(r, full, out);
    for (int s = 0; s < r->compiled->nstages; s++)
        if (full || s == r->fullest)
            print_memory_text(r, s, width, out);
    print_sent_text(r, full, width, out);
    if (mesh_ranks(&r->compiled->mesh) > 1 && (full || r->job->resources.network == JOB_TRUSTED))
        buf_puts(out, r->job->resources.network == JOB_TRUSTED
                          ? "between hosts tensors travel plain: resources.network is trusted, so "
                            "nobody else may reach that network\n"
                          : "between hosts tensors travel encrypted and authenticated "
                            "(resources.network: trusted sends them plain)\n");
    print_pipeline_text(r, out);
    print_estimate_text(r, out);
    buf_printf(
        out, "a step: %.4g FLOPs, utilisation %.3g, %d microbatch%s; each device reads and writes ",
        c->flops_per_step, c->utilisation, micro, micro == 1 ? "" : "es");
    buf_bytes(out, (uint64_t)c->traffic);
    buf_putc(out, '\n');
    if (c->params_active != c->params)
        buf_printf(out, "experts: %.4g of the FLOPs are for places that choices can fill\n",
                   c->flops_active);
    if (full) {
        print_threads_text(r, out);
        print_mfu_text(r, out);
    }
    print_findings_text(r, full, out);
    print_verdict(r, full, out);
}
