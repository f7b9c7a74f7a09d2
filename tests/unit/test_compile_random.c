// SPDX-License-Identifier: Apache-2.0
// Random graphs under random shardings: gradients are the slopes of the loss, and on any mesh of up
// to 8 devices a partitioned graph computes what the whole one does, gradients and update included;
// its programs pass every check and, carried out over a planned arena, compute the same. Some are
// cut into stages, some compute in bf16 (which is never rounded to here), some make values again,
// some cut gradients and state finer than parameters; the whole one does none of it, and takes the
// batch at once.
//
//   test_compile_random                         300 cases; with WEFT_LONG 2,500
//   test_compile_random --case SEED [DROP]      one case, printed; DROP: the deeds left out, in hex
//
// A case runs in a process of its own, so that one that fails, however it does, is made smaller
// deed by deed before it is printed.
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/compile/graph/grad.h"
#include "common/compile/graph/optimiser.h"
#include "common/compile/graph/remat.h"
#include "common/compile/program/bucket.h"
#include "common/compile/program/dump.h"
#include "common/compile/program/fuse.h"
#include "common/compile/program/lower.h"
#include "common/compile/program/memory_plan.h"
#include "common/compile/program/order.h"
#include "common/compile/program/schedule.h"
#include "common/compile/program/verify.h"
#include "common/compile/program/weights.h"
#include "common/compile/shard/partition.h"
#include "common/compile/shard/refine.h"
#include "common/compile/shard/stage.h"
#include "tests/support/how_many.h"
#include "tests/support/normal.h"
#include "tests/support/random_graph.h"
#include "tests/support/replay.h"
#include "tests/unit/compile_case.h"

enum {
    MICROBATCHES = 2,
    PARAMS = 80,
    STAGES_MAX = 4,
    LAYERS = (DEEDS_MAX - 1) / DEEDS_A_LAYER + 1
};

struct random_case {
    struct random_graph r;
    int64_t batch; // of a microbatch
    struct mesh mesh;
    struct sharding sharding;
    struct job_sharding words; // names the parameters that have specs of their own
    struct job_param_spec entries[PARAMS];
    struct spec specs[PARAMS];
    struct job job;         // its pipeline: which stage a layer is on
    int64_t layers[LAYERS]; // of each place
    const char *axis_name;
    int nstages, nchunks;
    struct program programs[STAGES_MAX];
    struct memory memory[STAGES_MAX];
    struct arena a;
};

// ---- a case from its seed ----

static int ask(const struct random_case *c, uint32_t what, int k, int n)
{
    return random_pick(c->r.seed, what, k, n);
}

static void make_mesh(struct random_case *c)
{
    static const int shapes[][3] = {{2},    {3},    {4},       {8},       {2, 2}, {2, 3},
                                    {4, 2}, {2, 4}, {2, 2, 2}, {3, 1, 2}, {6},    {2, 1, 3}};
    const int *sizes = shapes[ask(c, 1, 0, sizeof shapes / sizeof *shapes)];
    for (int i = 0; i < 3 && sizes[i]; i++) {
        struct mesh_axis *x = &c->mesh.axis[c->mesh.n++];
        *x = (struct mesh_axis){.size = sizes[i]};
        snprintf(x->name, sizeof x->name, "%c", 'a' + i);
    }
}

// In one case of three an axis holds the stages, which take turns in any way and have any number of
// layers in each chunk.
static void make_stages(struct random_case *c)
{
    struct job *job = &c->job;
    int axis = ask(c, 5, 0, c->mesh.n), size = c->mesh.axis[axis].size, left = LAYERS;
    job->sharding.n_rules = 1;
    job->sharding.rules[0] = (struct job_rule){.dim = "layers", .axes = {1, &c->axis_name}};
    job->pipeline.layers = LAYERS;
    job->pipeline.schedule = ask(c, 5, 1, JOB_CIRCULAR + 1);
    job->pipeline.chunks = 1 + ask(c, 5, 3, LAYERS / size > 0 ? LAYERS / size : 1);
    c->axis_name = c->mesh.axis[axis].name;
    c->nstages = c->nchunks = 1;
    if (ask(c, 5, 2, 3) || size == 1 || size > STAGES_MAX)
        return;
    if (job->pipeline.schedule == JOB_INTERLEAVED && MICROBATCHES % size) // no job may ask for it
        job->pipeline.schedule = JOB_CIRCULAR;
    c->nstages = size;
    c->mesh.stages = (axis_set)(1u << axis);
    job->mesh = (struct job_mesh){1, {{c->axis_name, size}}};
    c->nchunks = job_chunks(job);
    int places = size * c->nchunks;
    for (int s = 0; s < places; s++) {
        c->layers[s] = 1 + (s < places - 1 ? ask(c, 6, s, left - (places - s) + 1) : left - 1);
        left -= (int)c->layers[s];
    }
    job->pipeline.stages = (struct schema_list){places, c->layers};
}

// Up to two of the axes in any order, each used once over the whole spec.
static void cut_by(struct random_case *c, struct dim_cut *cut, axis_set *used, int64_t size,
                   uint32_t what, int k)
{
    for (int t = 0; t < 2; t++) {
        int axis = ask(c, what, 3 * k + t, 2 * c->mesh.n);
        struct dim_cut more = *cut;
        if (axis >= c->mesh.n || !(mesh_cuts(&c->mesh) >> axis & 1) || (*used >> axis & 1))
            continue;
        more.axis[more.n++] = (uint8_t)axis;
        if (size % dim_parts(&c->mesh, &more))
            continue;
        *cut = more;
        *used |= (axis_set)(1u << axis);
    }
}

static void make_rules(struct random_case *c)
{
    struct rules *rules = &c->sharding.rules;
    rules->dims = arena_new(&c->a, struct dims);
    dims_init(rules->dims, &c->a);
    for (int d = DIM_NONE + 1; d < DIM_KNOWN; d++) {
        struct rule *rule = &rules->rule[rules->n++];
        axis_set used = 0;
        int64_t size = d == DIM_BATCH ? c->batch : random_size((enum dim)d);
        rule->dim = (enum dim)d;
        if (size && d != DIM_QKV)
            cut_by(c, &rule->axes, &used, size, 2, d);
        if (d == DIM_BATCH)
            c->sharding.batch = used;
    }
    c->sharding.gather = mesh_cuts(&c->mesh);
    c->sharding.lenient = true;
}

// Gradients and state are cut further where that divides.
static void make_finer(struct random_case *c)
{
    struct dim_cut *finer[] = {&c->sharding.grads.axes, &c->sharding.optimizer.axes};
    for (int k = 0; k < 2; k++)
        for (int axis = 0; axis < c->mesh.n; axis++)
            if ((mesh_cuts(&c->mesh) >> axis & 1) && !ask(c, 7, 2 * axis + k, 3))
                dim_append(finer[k], axis);
}

// Half of the parameters have a spec of their own.
static void make_specs(struct random_case *c, const struct graph *g)
{
    c->sharding.job = &c->words;
    c->sharding.params = c->specs;
    c->words.params = c->entries;
    for (int v = 0; v < g->nvalues && c->words.n_params < PARAMS; v++) {
        const struct value *val = &g->values[v];
        axis_set used = 0;
        if (val->kind != VALUE_PARAM || ask(c, 3, v, 2))
            continue;
        struct spec *spec = &c->specs[c->words.n_params];
        c->entries[c->words.n_params++] = (struct job_param_spec){.match = val->name};
        for (int d = 0; d < val->shape.n; d++)
            if (val->dims[d] != DIM_QKV)
                cut_by(c, &spec->dim[d], &used, val->shape.dim[d], 4, v * MAX_DIMS + d);
    }
}

// ---- running one ----

static void build(struct random_case *c, struct graph *g, int microbatches, enum job_remat remat,
                  struct err *e)
{
    static const struct job_optimizer optimizer = {
        .kind = JOB_MOMENTUM, .momentum = 0.9, .clip_norm = 0.5};
    graph_init(g, &c->a, c->sharding.rules.dims, e);
    g->compute = ask(c, 9, 0, 3) ? DT_F32 : DT_BF16;
    g->reduce = ask(c, 9, 1, 3) ? DT_F32 : DT_BF16;
    g->backend = g->compute == DT_BF16 || ask(c, 9, 2, 2) ? BACKEND_CUDA : BACKEND_CPU;
    int64_t step_batch = c->batch * MICROBATCHES;
    random_graph_build(&c->r, g, step_batch / microbatches, step_batch);
    stages_assign(g, &c->job);
    grad_build(g);
    remat_build(g, remat);
    optimiser_build(g, &optimizer, false);
}

static double *numbers(int64_t n, uint32_t stream, int below)
{
    struct rand_site site = {.seed = 9, .stream = stream};
    double *out = malloc(sizeof *out * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        out[i] = below ? floor(below * (double)rand_uniform(&site, (uint64_t)i))
                       : (double)draw_normal(&site, (uint64_t)i);
    return out;
}

static bool reads(const struct interp *x, const char *name)
{
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].name && !strcmp(x->g->values[v].name, name))
            return true;
    return false;
}

static void feed(struct interp *x, const struct random_case *c, int microbatch)
{
    static const char *const names[] = {"x", "ids", "targets", "positions"};
    int64_t seq = random_size(DIM_SEQ), rows = c->batch * MICROBATCHES * seq;
    for (uint32_t k = 0; k < 4; k++) {
        // "targets" point into rows of any width: below the narrowest.
        double *whole =
            numbers(k ? rows : rows * random_size(DIM_EMBED), k + 1, k == 1 ? 12 : 4 * (k > 0));
        for (int64_t i = 0; k == 3 && i < rows; i++)
            whole[i] = (double)(i % seq);
        if (reads(x, names[k]))
            interp_feed(x, names[k], whole, microbatch);
        free(whole);
    }
}

// Each parameter goes `far` along a direction of its own; returns the direction's product with the
// gradients, where there are any yet.
static double along(struct interp *x, double far)
{
    double slope = 0;
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        char grad[200];
        if (val->kind != VALUE_PARAM || val->alias >= 0)
            continue;
        snprintf(grad, sizeof grad, "grad/%s", val->name);
        double *w = interp_get(x, val->name), *g = reads(x, grad) ? interp_get(x, grad) : NULL;
        struct rand_site site = {.seed = 5, .stream = (uint32_t)v};
        for (int64_t i = 0; i < shape_count(&val->shape); i++) {
            double d = (double)draw_normal(&site, (uint64_t)i);
            w[i] += far * d;
            slope += g ? g[i] * d : 0;
        }
        interp_set(x, val->name, w);
        free(w);
        free(g);
    }
    return slope;
}

// `far`: how far from where all parameters begin (along()).
static void begin_at(struct interp *x, double far)
{
    const double one = 1, hyper[HYPER_SLOTS] = {0.01, 10, 1000};
    const double control[CONTROL_SLOTS] = {0, 0}, count = 5;
    x->exact = true;
    set_params(x);
    if (far != 0)
        (void)along(x, far);
    interp_set(x, "one", &one);
    interp_set(x, "hyper", hyper);
    interp_set(x, "control", control);
    if (reads(x, "step"))
        interp_set(x, "step", &count);
}

static void run_from(struct interp *x, const struct random_case *c, double far)
{
    begin_at(x, far);
    for (int m = 0; m < x->microbatches; m++) {
        feed(x, c, m);
        interp_phase(x, PHASE_FORWARD, m);
        interp_phase(x, PHASE_BACKWARD, m);
    }
    interp_phase(x, PHASE_UPDATE, x->microbatches - 1);
}

static void run(struct interp *x, const struct random_case *c)
{
    run_from(x, c, 0);
}

static double loss_at(const struct graph *g, const struct random_case *c, double far)
{
    struct interp x;
    interp_init(&x, g, NULL, 1);
    run_from(&x, c, far);
    double *metrics = interp_get(&x, "metrics"), loss = metrics[METRIC_LOSS];
    free(metrics);
    interp_clear(&x);
    return loss;
}

// The gradients of the whole graph are the loss's slope; where a ReLU bends there is none.
static int check_slope(struct interp *whole, const struct random_case *c)
{
    const double step = 1e-6;
    for (int i = 0; i < whole->g->nnodes; i++)
        if (whole->g->nodes[i].op == OP_RELU)
            return 0;
    double said = along(whole, 0);
    double up = loss_at(whole->g, c, step), down = loss_at(whole->g, c, -step);
    double seen = (up - down) / (2 * step);
    if (fabs(said - seen) <= 1e-4 * fabs(said) + 1e-12 * fabs(up) / step)
        return 0;
    printf("the gradients' slope is %.9g, the loss's %.9g\n", said, seen);
    return 1;
}

// The largest difference of a value, in units of its largest element.
static double distance(const struct interp *a, const struct interp *b, const char *name)
{
    double *x = interp_get(a, name), *y = interp_get(b, name), most = 0, far = 0;
    int64_t n = shape_count(&a->g->values[interp_find(a, name)].shape);
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(x[i]));
        far = fmax(far, isfinite(x[i]) && isfinite(y[i]) ? fabs(x[i] - y[i]) : INFINITY);
    }
    free(x);
    free(y);
    return far / (most > 1e-6 ? most : 1e-6);
}

// Parameters, and momenta: after one step they are the gradients, but for the clip.
static int compare_all(const struct interp *whole, const struct interp *parts)
{
    int bad = 0;
    const struct graph *g = whole->g;
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *val = &g->values[v];
        if ((val->kind != VALUE_PARAM && val->kind != VALUE_STATE) || val->alias >= 0)
            continue;
        double far = distance(whole, parts, val->name);
        if (far > 1e-9)
            printf("%s differs by %.3g of its size\n", val->name, far), bad = 1;
    }
    return bad;
}

static int check_programs(struct random_case *c, struct graph *cut, struct err *e)
{
    struct schedule s[STAGES_MAX];
    struct program *p = c->programs;
    struct schedule_cost cost;
    const struct schedule_of of = {.program = PROGRAM_TRAIN,
                                   .kind = (enum job_pipeline_schedule)c->job.pipeline.schedule,
                                   .microbatches = MICROBATCHES,
                                   .stages = c->nstages,
                                   .chunks = c->nchunks,
                                   .layers = c->layers};
    const struct stage_part *parts = parts_find(cut, c->nstages, &c->a);
    int rc = schedule_build(s, &c->a, &of, e);
    for (int k = 0; k < c->nstages && !rc; k++) {
        rc = schedule_verify(&s[k], &of, e);
        lower_stage(cut, &c->mesh, &parts[k], &s[k], k, PROGRAM_TRAIN, &c->a, &p[k]);
        fuse_updates(&p[k]);
    }
    rc = rc ? rc : schedule_simulate(s, &of, &cost, e);
    rc = rc ? rc : verify_stages(p, c->nstages, e);
    for (int k = 0; k < c->nstages && !rc; k++) {
        struct program *all[] = {&p[k]};
        rc = plan_memory(all, 1, NULL, &c->a, &c->memory[k], e);
        rc = rc ? rc : verify_program(&p[k], &c->memory[k], e);
    }
    return rc;
}

// The case in microbatches, partitioned.
static int cut_case(struct random_case *c, struct graph *cut, struct err *e)
{
    struct graph g;
    build(c, &g, MICROBATCHES, (enum job_remat)ask(c, 8, 0, 3), e);
    int rc = g.failed ? g.failed : verify_graph(&g, e);
    if (rc)
        return rc;
    make_specs(c, &g);
    graph_init(cut, &c->a, g.dims, e);
    rc = partition(&g, &c->mesh, &c->sharding, cut, e);
    rc = rc ? rc : stages_cut(cut, c->nstages, e);
    if (!rc) {
        fuse_nodes(cut);
        order_nodes(cut);
        if (c->job.pipeline.schedule == JOB_ZERO_BUBBLE && c->nstages > 1)
            weights_split(cut);
        static const int64_t buckets[] = {0, 1, 300, 2000, 1 << 20}; // bytes
        cut->bucket = buckets[ask(c, 10, 0, 5)];
        bucket_nodes(cut, &c->mesh);
        cut->backend = BACKEND_CPU; // its ops ask for little scratch
    }
    rc = rc ? rc : verify_partitioned(cut, &c->mesh, e);
    return rc ? rc : check_programs(c, cut, e);
}

// The programs from where `parts`, which has run its step already, began.
static int check_replay(struct interp *parts, const struct random_case *c)
{
    struct interp start;
    struct replay r;
    interp_init(&start, parts->g, &parts->mesh, MICROBATCHES);
    begin_at(&start, 0);
    replay_init(&r, c->programs, c->memory, &start);
    for (int m = 0; m < MICROBATCHES; m++) {
        feed(&start, c, m);
        replay_feed(&r, &start, m);
    }
    int rc = replay_run(&r);
    rc = rc ? rc : replay_compare(&r, parts, 1e-9);
    replay_clear(&r);
    interp_clear(&start);
    return rc;
}

static int run_case(struct random_case *c, bool prints)
{
    struct graph g, cut;
    struct err e = {0};
    struct buf text = {0};
    c->batch = 12;
    make_mesh(c);
    make_stages(c);
    make_rules(c);
    make_finer(c);
    build(c, &g, 1, JOB_REMAT_NONE, &e);
    int rc = g.failed ? g.failed : verify_graph(&g, &e);
    rc = rc ? rc : cut_case(c, &cut, &e);
    if (prints) {
        mesh_print(&c->mesh, &text);
        buf_puts(&text, "\n");
        dump_graph(rc ? &g : &cut, rc ? NULL : &c->mesh, &text);
        printf("%s", buf_str(&text));
    }
    if (rc)
        printf("%s\n", e.text);
    else {
        struct interp whole, parts;
        interp_init(&whole, &g, NULL, 1);
        interp_init(&parts, &cut, &c->mesh, MICROBATCHES);
        run(&whole, c);
        run(&parts, c);
        rc = compare_all(&whole, &parts) | check_slope(&whole, c) | check_replay(&parts, c);
        interp_clear(&whole);
        interp_clear(&parts);
    }
    buf_clear(&text);
    arena_clear(&c->a);
    return rc;
}

static int one_case(uint64_t seed, uint32_t drop, bool prints)
{
    struct random_case *c = calloc(1, sizeof *c);
    c->r = (struct random_graph){.seed = seed, .drop = drop};
    c->r.deeds = 3 + ask(c, 0, 0, DEEDS_MAX - 2);
    int rc = run_case(c, prints);
    free(c);
    return rc;
}

// ---- many ----

static const char *self;

// Whether the case holds, in a process of its own.
static bool holds(uint64_t seed, uint32_t drop)
{
    char line[400];
    snprintf(line, sizeof line, "%s --case %llu %x >/dev/null 2>&1", self, (unsigned long long)seed,
             drop);
    return system(line) == 0;
}

static uint32_t shrink(uint64_t seed)
{
    uint32_t drop = 0;
    for (int deed = DEEDS_MAX; deed-- > 0;)
        if (!holds(seed, drop | 1u << deed))
            drop |= 1u << deed;
    return drop;
}

static void a_partitioned_graph_computes_what_the_whole_one_does(void **state)
{
    (void)state;
    const uint64_t from = 1, count = (uint64_t)how_many(300, 2500);
    // Many cases a process: they are quick. Only where one fails is each looked at.
    for (uint64_t at = from; at < from + count; at += 50) {
        char line[400];
        snprintf(line, sizeof line, "%s --cases %llu 50", self, (unsigned long long)at);
        if (system(line) == 0)
            continue;
        for (uint64_t seed = at; seed < at + 50; seed++)
            if (!holds(seed, 0)) {
                uint32_t drop = shrink(seed);
                one_case(seed, drop, true);
                fail_msg("replay: %s --case %llu %x", self, (unsigned long long)seed, drop);
            }
        fail_msg("cases %llu and on fail together, not alone", (unsigned long long)at);
    }
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc >= 3 && !strcmp(argv[1], "--case"))
        return one_case(strtoull(argv[2], NULL, 10),
                        argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 16) : 0, true) != 0;
    if (argc == 4 && !strcmp(argv[1], "--cases")) {
        uint64_t at = strtoull(argv[2], NULL, 10), end = at + strtoull(argv[3], NULL, 10);
        for (; at < end; at++)
            if (one_case(at, 0, false))
                return 1;
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_partitioned_graph_computes_what_the_whole_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
