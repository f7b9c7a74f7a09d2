// SPDX-License-Identifier: Apache-2.0
// Parity with JAX: weft's models on one device against goldens that JAX and optax wrote
// (jax_mlp.py, jax_decoder.py, jax_vae.py and jax_jaxformer.py say how), and that transformers
// wrote of published models (transformers_models.py). Everything from the job's text to the
// updated parameters is weft's own path: job, compiler, exec, CPU backend. Only the step loop is
// the test's.
//
// Every run is made with one and with two microbatches. $WEFT_GOLDEN names another folder of
// goldens (check_peers.sh makes fresh ones).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/ckpt/shard_file.h"
#include "common/job/lr.h"
#include "common/language/model_facts.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"
#include "tests/support/find_slice.h"
#include "tests/unit/unit.h"
#include "worker/rank/exec/model_state.h"

enum { STEPS = 20, SCHEDULES = 7, SCHEDULE_STEPS = 26 };

static void must(int rc, const struct err *e)
{
    if (rc)
        fail_msg("error %d: %s", rc, e->text);
}

// ---- goldens -----------------------------------------------------------------------------------

struct golden {
    struct arena arena;
    struct buf bytes;
    struct shard_plan plan;
};

static void golden_open(struct golden *g, const char *name)
{
    char path[4096], chunk[4096];
    struct err e = {0};
    const char *dir = getenv("WEFT_GOLDEN");
    snprintf(path, sizeof path, "%s/%s.safetensors", dir ? dir : "tests/parity/golden", name);
    *g = (struct golden){0};
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s (run from the root of the source)", path);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        buf_append(&g->bytes, chunk, n);
    fclose(f);
    must(
        shard_parse(&g->arena, g->bytes.data, g->bytes.len, g->bytes.len, SHARD_OURS, &g->plan, &e),
        &e);
}

static void golden_close(struct golden *g)
{
    shard_plan_clear(&g->plan);
    buf_clear(&g->bytes);
    arena_clear(&g->arena);
}

// A tensor's elements, aligned, with a zero byte behind them; *count is set unless null.
static const void *golden_get(struct golden *g, enum dtype t, int64_t *count, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static const void *golden_get(struct golden *g, enum dtype t, int64_t *count, const char *fmt, ...)
{
    char name[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const struct shard_slice *s = find_slice(&g->plan, name);
    if (!s || s->dtype != t)
        fail_msg("the golden has no %s of that type", name);
    char *copy = arena_alloc(&g->arena, s->bytes + 1);
    memcpy(copy, g->bytes.data + s->at, s->bytes);
    if (count)
        *count = shape_count(&s->shape);
    return copy;
}

// As for the op tests (tests/ops/rig.h).
static const char *backend_under_test(void)
{
    const char *set = getenv("WEFT_RIG");
    return set && set[0] ? set : "cpu";
}

static void job_of(struct golden *g, const char *which, int microbatches, const char *compute,
                   struct job *job)
{
    const char *precision = arena_printf(&g->arena, "precision.compute=%s", compute);
    const char *text = golden_get(g, DT_U8, NULL, "job/%s", which);
    const char *kind = arena_printf(&g->arena, "resources.kind=%s", backend_under_test());
    const char *micro = arena_printf(&g->arena, "train.microbatches=%d", microbatches);
    struct job_errors errors = {0};
    struct err e = {0};
    int rc =
        job_parse(&g->arena, &weft_schema, which, NULL, text, strlen(text),
                  (const char *[]){micro, "resources.threads=2", precision, kind}, 4, job, &errors);
    if (rc)
        job_errors_err(&errors, &e);
    must(rc, &e);
}

// ---- comparing ---------------------------------------------------------------------------------

static double norm(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

static double distance(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sqrt(sum);
}

// Written so that a NaN fails.
static void expect_near(const char *what, double off, double allowed)
{
    if (!(off <= allowed))
        fail_msg("%s: off by %.3e, allowed %.3e", what, off, allowed);
}

// ---- a training --------------------------------------------------------------------------------

struct rig {
    struct arena arena;
    struct job job;
    struct compiled compiled;
    const struct backend *backend;
    struct device *device;
    struct exec *exec;
    struct state state;
};

static void rig_open_as(struct rig *r, struct golden *g, const char *which, int microbatches,
                        const char *compute)
{
    struct err e = {0};
    *r = (struct rig){0};
    job_of(g, which, microbatches, compute, &r->job);
    must(plan_compile(&r->job, NULL, &r->arena, &r->compiled, NULL, &e), &e);
    must(backend_load(backend_under_test(), &r->backend, &e), &e);
    struct device_options d = {.threads = (int)r->job.resources.threads, .deterministic = true};
    must(r->backend->device.open(&d, &r->device, &e), &e);
    struct exec_options o = {.compiled = &r->compiled, .backend = r->backend, .device = r->device};
    must(exec_open(&o, &r->exec, &e), &e);
    must(state_open(&r->state, &r->arena, &r->compiled, r->exec, 0, &e), &e);
    must(state_init(&r->state, (uint64_t)r->job.train.seed, 1, &e), &e);
}

static void rig_open(struct rig *r, struct golden *g, const char *which, int microbatches)
{
    rig_open_as(r, g, which, microbatches, "f32");
}

static void rig_close(struct rig *r)
{
    exec_close(r->exec);
    r->backend->device.close(r->device);
    arena_clear(&r->arena);
}

// A named buffer of the step, as floats the arena owns.
static const float *rig_get(struct rig *r, const char *name, int64_t *count)
{
    struct err e = {0};
    void *device;
    const struct buffer *b = exec_buffer(r->exec, PROGRAM_TRAIN, name, &device);
    if (!b)
        fail_msg("the program has no %s", name);
    *count = shape_count(&b->shape);
    float *out = arena_array(&r->arena, float, *count);
    must(exec_get(r->exec, out, device, sizeof *out * (size_t)*count, &e), &e);
    return out;
}

static bool rig_has(const struct rig *r, const char *name)
{
    void *device;
    return exec_buffer(r->exec, PROGRAM_TRAIN, name, &device);
}

static void rig_put(struct rig *r, const char *name, const void *from, size_t bytes)
{
    struct err e = {0};
    void *device;
    const struct buffer *b = exec_buffer(r->exec, PROGRAM_TRAIN, name, &device);
    if (!b)
        fail_msg("the program has no %s", name);
    size_t room = dtype_size(b->dtype) * (size_t)(shape_count(&b->shape) * b->copies);
    assert_int_equal(bytes, room);
    must(exec_put(r->exec, device, from, bytes, &e), &e);
}

// Calls `f` with each parameter's name; returns how many there are.
typedef void (*param_fn)(struct rig *r, struct golden *g, const char *name, void *ctx);
static int each_param(struct rig *r, struct golden *g, param_fn f, void *ctx)
{
    const struct program *p = r->compiled.program[PROGRAM_TRAIN];
    int n = 0;
    for (int b = 0; b < p->nbuffers; b++)
        if (p->buffers[b].kind == BUFFER_PARAM) {
            f(r, g, p->buffers[b].name, ctx);
            n++;
        }
    return n;
}

// Starts where JAX started, to the bit.
static void put_initial(struct rig *r, struct golden *g, const char *name, void *ctx)
{
    (void)ctx;
    int64_t n;
    const float *from = golden_get(g, DT_F32, &n, "init/%s", name);
    rig_put(r, name, from, sizeof *from * (size_t)n);
}

static void put_all_initial(struct rig *r, struct golden *g)
{
    struct err e = {0};
    each_param(r, g, put_initial, NULL);
    must(exec_copies(r->exec, &e), &e);
}

// What the step loop of a rank gives a step: optax counts updates from one.
static void put_scalars(struct rig *r, int step)
{
    float hyper[HYPER_SLOTS];
    hyper_at(&r->job, step, step, hyper);
    const float control[CONTROL_SLOTS] = {0};
    rig_put(r, "hyper", hyper, sizeof hyper);
    rig_put(r, "control", control, sizeof control);
    if (rig_has(r, "step"))
        rig_put(r, "step", &(int32_t){step}, sizeof(int32_t));
}

static void put_images(struct rig *r, struct golden *g, int step)
{
    size_t batch = (size_t)r->job.data.batch, features = (size_t)r->job.model.facts->features;
    const uint8_t *images = golden_get(g, DT_U8, NULL, "images");
    rig_put(r, "images", images + (size_t)step * batch * features, batch * features);
    if (!rig_has(r, "labels"))
        return;
    const int32_t *labels = golden_get(g, DT_I32, NULL, "labels");
    rig_put(r, "labels", labels + (size_t)step * batch, batch * sizeof *labels);
}

static void put_tokens(struct rig *r, struct golden *g, int step)
{
    size_t seq = (size_t)r->job.model.facts->seq, ids = (size_t)r->job.data.batch * seq;
    static const char *const names[] = {"tokens", "targets"};
    int32_t *positions = arena_array(&r->arena, int32_t, ids);
    for (int k = 0; k < 2; k++) {
        const int32_t *from = golden_get(g, DT_I32, NULL, "%s", names[k]);
        rig_put(r, names[k], from + (size_t)step * ids, ids * sizeof *from);
    }
    for (size_t i = 0; i < ids; i++)
        positions[i] = (int32_t)(i % seq);
    rig_put(r, "positions", positions, ids * sizeof *positions);
}

static void run_step(struct rig *r, struct golden *g, int step, double *loss, double *grad_norm)
{
    struct err e = {0};
    if (r->job.model.facts->tokens)
        put_tokens(r, g, step);
    else
        put_images(r, g, step);
    put_scalars(r, step);
    must(exec_run(r->exec, PROGRAM_TRAIN, &e), &e);
    int64_t n;
    const float *metrics = rig_get(r, "metrics", &n);
    *loss = metrics[METRIC_LOSS];
    *grad_norm = sqrt((double)metrics[METRIC_SQNORM]);
}

// ---- tests -------------------------------------------------------------------------------------

struct param {
    const char *golden, *run;
    int microbatches;
    double weights; // tolerance after the steps
};

// The two programs' logarithms and cosines may differ in the last place.
static void expect_drawn(struct rig *r, struct golden *g, const char *name, void *ctx)
{
    (void)ctx;
    int64_t n, golden_n;
    const float *got = rig_get(r, name, &n);
    const float *want = golden_get(g, DT_F32, &golden_n, "init/%s", name);
    assert_int_equal(n, golden_n);
    for (int64_t i = 0; i < n; i++)
        expect_near(name, fabs((double)got[i] - want[i]), 0x1p-22 * fabs((double)want[i]));
}

static void initial_weights_are_the_ones_numpys_philox_draws(void **state)
{
    const struct param *p = *state;
    struct golden g;
    struct rig r;
    golden_open(&g, p->golden);
    rig_open(&r, &g, p->run, p->microbatches);
    int layers = (int)r.job.pipeline.layers;
    assert_int_equal(each_param(&r, &g, expect_drawn, NULL), 2 * layers);
    rig_close(&r);
    golden_close(&g);
}

static void expect_gradient(struct rig *r, struct golden *g, const char *name, void *ctx)
{
    const double *whole = ctx;
    int64_t n, golden_n;
    const float *want = golden_get(g, DT_F32, &golden_n, "grad/%s", name);
    const float *got = rig_get(r, arena_printf(&r->arena, "grad/%s", name), &n);
    assert_int_equal(n, golden_n);
    expect_near(name, distance(got, want, n), 1e-4 * fmax(norm(want, n), 1e-6 * *whole));
}

static void first_loss_and_gradients_are_jaxs(void **state)
{
    const struct param *p = *state;
    struct golden g;
    struct rig r;
    double loss, grad_norm;
    golden_open(&g, p->golden);
    rig_open(&r, &g, p->run, p->microbatches);
    put_all_initial(&r, &g);
    run_step(&r, &g, 0, &loss, &grad_norm);
    double want = ((const float *)golden_get(&g, DT_F32, NULL, "%s/losses", p->run))[0];
    double whole = ((const float *)golden_get(&g, DT_F32, NULL, "%s/norms", p->run))[0];
    expect_near("loss", fabs(loss - want), 1e-5 * want);
    expect_near("norm", fabs(grad_norm - whole), 1e-4 * whole);
    each_param(&r, &g, expect_gradient, &whole);
    rig_close(&r);
    golden_close(&g);
}

static void expect_rounded_gradient(struct rig *r, struct golden *g, const char *name, void *ctx)
{
    const double *whole = ctx;
    int64_t n;
    const float *want = golden_get(g, DT_F32, NULL, "grad/%s", name);
    const float *got = rig_get(r, arena_printf(&r->arena, "grad/%s", name), &n);
    expect_near(name, distance(got, want, n), 0.04 * fmax(norm(want, n), 0.02 * *whole));
}

// In bf16 against JAX in f64: a number is rounded by 2^-9 of itself some ten times on its way.
static void in_bf16_loss_and_gradients_are_jaxs_rounded(void **state)
{
    const struct param *p = *state;
    struct golden g;
    struct rig r;
    double loss, grad_norm;
    golden_open(&g, p->golden);
    rig_open_as(&r, &g, p->run, p->microbatches, "bf16");
    put_all_initial(&r, &g);
    const float *losses = golden_get(&g, DT_F32, NULL, "%s/losses", p->run);
    double whole = ((const float *)golden_get(&g, DT_F32, NULL, "%s/norms", p->run))[0];
    for (int step = 0; step < STEPS; step++) {
        run_step(&r, &g, step, &loss, &grad_norm);
        expect_near("loss", fabs(loss - losses[step]), 0.02 * losses[step]);
        if (step == 0)
            each_param(&r, &g, expect_rounded_gradient, &whole);
    }
    rig_close(&r);
    golden_close(&g);
}

static void expect_trained(struct rig *r, struct golden *g, const char *name, void *ctx)
{
    const struct param *p = ctx;
    int64_t n, golden_n;
    const float *got = rig_get(r, name, &n);
    const float *start = golden_get(g, DT_F32, NULL, "init/%s", name);
    const float *want = golden_get(g, DT_F32, &golden_n, "%s/%s", p->run, name);
    assert_int_equal(n, golden_n);
    const struct job_param_group *group = job_group_of(&r->job.optimizer, name);
    if (group && group->freeze) {
        assert_memory_equal(got, start, sizeof *got * (size_t)n);
        return;
    }
    // What moves all scores of a query alike has no gradient: Adam makes steps of its rounding.
    bool adam = r->job.optimizer.kind == JOB_ADAMW;
    int parts = adam && strstr(name, "/qkv/bias") ? 3 : adam && strstr(name, "/kv/bias") ? 2 : 1;
    for (int piece = 0, keys = parts - 2; piece < parts; piece++) {
        int64_t part = n / parts, at = piece * part;
        double moved = distance(want + at, start + at, part);
        if (piece == keys)
            continue;
        assert_true(moved > 0);
        expect_near(name, distance(got + at, want + at, part),
                    p->weights * fmax(norm(want + at, part), moved));
    }
}

static void twenty_steps_end_where_optax_ends(void **state)
{
    struct param p = *(const struct param *)*state;
    struct golden g;
    struct rig r;
    double loss, grad_norm;
    golden_open(&g, p.golden);
    rig_open(&r, &g, p.run, p.microbatches);
    put_all_initial(&r, &g);
    const float *losses = golden_get(&g, DT_F32, NULL, "%s/losses", p.run);
    const float *norms = golden_get(&g, DT_F32, NULL, "%s/norms", p.run);
    for (int step = 0; step < STEPS; step++) {
        char what[40];
        snprintf(what, sizeof what, "step %d", step);
        run_step(&r, &g, step, &loss, &grad_norm);
        expect_near(what, fabs(loss - losses[step]), 1e-5 * losses[step]);
        expect_near(what, fabs(grad_norm - norms[step]), 1e-4 * norms[step]);
    }
    each_param(&r, &g, expect_trained, &p);
    rig_close(&r);
    golden_close(&g);
}

// The values have been rounded to f32, which takes 6e-8 of the 1e-7.
static void schedules_are_optaxs(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "schedules");
    for (int i = 0; i < SCHEDULES; i++) {
        struct job job;
        char which[12], what[40];
        int64_t n;
        snprintf(which, sizeof which, "%d", i);
        job_of(&g, which, 1, "f32", &job);
        const float *want = golden_get(&g, DT_F32, &n, "values/%d", i);
        assert_int_equal(n, SCHEDULE_STEPS);
        for (int step = 0; step < SCHEDULE_STEPS; step++) {
            double v = want[step];
            snprintf(what, sizeof what, "schedule %d at step %d", i, step);
            expect_near(what, fabs(lr_at(&job.schedule, step) - v),
                        1e-7 * v + 1e-15 * fmax(job.schedule.peak, job.schedule.init));
        }
    }
    golden_close(&g);
}

// Adam divides by a gradient's own size, so that rounding of a small one counts in full.
static struct param params[] = {
    {"relu", "default", 1, 1e-4},  {"relu", "default", 2, 1e-4},  {"gelu", "default", 1, 1e-4},
    {"relu", "slow", 1, 1e-4},     {"gelu", "slow", 1, 1e-4},     {"gelu", "slow", 2, 1e-4},
    {"relu", "adamw", 1, 1e-4},    {"relu", "adamw", 2, 1e-4},    {"gelu", "adamw", 1, 1e-4},
    {"gelu", "adamw", 2, 1e-4},    {"relu", "sgd", 1, 1e-5},      {"relu", "sgd", 2, 1e-5},
    {"gelu", "sgd", 1, 1e-5},      {"gelu", "sgd", 2, 1e-5},      {"relu", "momentum", 1, 1e-5},
    {"relu", "momentum", 2, 1e-5}, {"gelu", "momentum", 1, 1e-5}, {"gelu", "momentum", 2, 1e-5},
    {"relu", "frozen", 1, 1e-4},   {"relu", "frozen", 2, 1e-4},   {"gelu", "frozen", 1, 1e-4},
};
static struct param decoders[] = {
    {"gpt2", "adamw", 1, 1e-4},  {"gpt2", "adamw", 2, 1e-4},     {"llama", "adamw", 1, 1e-4},
    {"llama", "adamw", 2, 1e-4}, {"cookbook", "adamw", 1, 1e-4}, {"cookbook", "adamw", 2, 1e-4},
    {"gpt2", "sgd", 1, 1e-5},    {"gpt2", "sgd", 2, 1e-5},       {"llama", "sgd", 1, 1e-5},
    {"llama", "sgd", 2, 1e-5},   {"cookbook", "sgd", 1, 1e-5},   {"cookbook", "sgd", 2, 1e-5},
    {"gpt2", "frozen", 1, 1e-4}, {"llama", "frozen", 2, 1e-4},   {"cookbook", "frozen", 1, 1e-4},
};
static struct param experts[] = {
    {"jaxformer", "adamw", 1, 1e-4},
    {"jaxformer", "adamw", 2, 1e-4},
    {"jaxformer_hidden", "adamw", 1, 1e-4},
};
enum { EXPERTS = sizeof experts / sizeof *experts };
// By transformers_models.py: the first step alone.
static struct param published[] = {
    {"hf_gpt2", "sgd", 1, 0},
    {"hf_gpt3", "sgd", 1, 0},
    {"hf_llama2", "sgd", 1, 0},
    {"hf_llama3", "sgd", 1, 0},
    {"hf_llama32", "sgd", 1, 0},
    {"hf_mistral", "sgd", 1, 0},
    {"hf_qwen2", "sgd", 1, 0},
    {"hf_qwen3", "sgd", 1, 0},
    {"hf_gemma2", "sgd", 1, 0},
    {"hf_nanochat", "sgd", 1, 0},
    {"hf_palm", "sgd", 1, 0},
    {"hf_mixtral", "sgd", 1, 0},
    {"hf_deepseek-v2-lite", "sgd", 1, 0},
    {"hf_deepseek-v2-lite", "sgd", 2, 0},
    {"hf_gemma2", "sgd", 2, 0},
    {"hf_qwen2", "sgd", 2, 0},
};
enum { PUBLISHED = sizeof published / sizeof *published };
static struct param drawing[] = {
    {"vae", "adamw", 1, 1e-4},     {"vae", "adamw", 2, 1e-4},   {"dropout", "adamw", 1, 1e-4},
    {"dropout", "adamw", 2, 1e-4}, {"vae", "sgd", 1, 1e-5},     {"vae", "sgd", 2, 1e-5},
    {"dropout", "sgd", 1, 1e-5},   {"dropout", "sgd", 2, 1e-5},
};
enum { DRAWING = sizeof drawing / sizeof *drawing, DRAWING_CASES = 4 };
enum { DECODERS = sizeof decoders / sizeof *decoders, DECODER_CASES = 6 };
enum { PARAMS = sizeof params / sizeof *params, CASES = 4 }; // the first CASES: one run a golden

int main(void)
{
    enum {
        TESTS = 3 * CASES + PARAMS + 2 * DECODER_CASES + DECODERS + DRAWING_CASES + DRAWING +
                PUBLISHED + 2 * EXPERTS
    };
    struct CMUnitTest tests[TESTS + 1];
    char names[TESTS][120];
    int n = 0;
    static const struct {
        const char *name;
        CMUnitTestFunction f;
        struct param *params;
        int over;
    } kinds[] = {
        {"initial weights are the ones numpy's philox draws",
         initial_weights_are_the_ones_numpys_philox_draws, params, CASES},
        {"first loss and gradients are JAX's", first_loss_and_gradients_are_jaxs, params, CASES},
        {"twenty steps end where optax ends", twenty_steps_end_where_optax_ends, params, PARAMS},
        {"first loss and gradients are JAX's", first_loss_and_gradients_are_jaxs, decoders,
         DECODER_CASES},
        {"twenty steps end where optax ends", twenty_steps_end_where_optax_ends, decoders,
         DECODERS},
        {"first loss and gradients are JAX's", first_loss_and_gradients_are_jaxs, drawing,
         DRAWING_CASES},
        {"first loss and gradients are transformers'", first_loss_and_gradients_are_jaxs, published,
         PUBLISHED},
        {"twenty steps end where optax ends", twenty_steps_end_where_optax_ends, drawing, DRAWING},
        {"first loss and gradients are JAX's", first_loss_and_gradients_are_jaxs, experts, EXPERTS},
        {"twenty steps end where optax ends", twenty_steps_end_where_optax_ends, experts, EXPERTS},
        {"in bf16 loss and gradients are JAX's, rounded",
         in_bf16_loss_and_gradients_are_jaxs_rounded, params, CASES},
        {"in bf16 loss and gradients are JAX's, rounded",
         in_bf16_loss_and_gradients_are_jaxs_rounded, decoders, DECODER_CASES},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        // Twenty steps take the emulated device long: its trainings are tests/e2e/test_cuda.py's too.
        if (getenv("WEFT_QUICK") && kinds[k].f == twenty_steps_end_where_optax_ends &&
            kinds[k].params != params)
            continue;
        for (int i = 0; i < kinds[k].over; i++, n++) {
            snprintf(names[n], sizeof names[n], "%s: %s, %s, %d microbatches", kinds[k].name,
                     kinds[k].params[i].golden, kinds[k].params[i].run,
                     kinds[k].params[i].microbatches);
            tests[n] = (struct CMUnitTest){
                .name = names[n], .test_func = kinds[k].f, .initial_state = &kinds[k].params[i]};
        }
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(schedules_are_optaxs);
    return _cmocka_run_group_tests("parity with JAX", tests, (size_t)n, NULL, NULL);
}
