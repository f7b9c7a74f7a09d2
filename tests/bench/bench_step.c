// SPDX-License-Identifier: Apache-2.0
// A job's training step on this machine, and where its time goes: the program that ranks run, with
// data, without their loop around it.
//
//   bench_step [--steps N] [--warm N] [--table | --each] [--as-read]
//              [-s KEY=VALUE]... JOB
//
// A process a rank; processor time is that of all. Says what the median step takes, and the tenth
// and the ninetieth of a hundred;
// --each
// prints "wall processor" of each step instead, in ms; --table adds rank 0's instructions summed by
// kind: calls a step, milliseconds of the wall and of the processors (which other programs do not
// change much), shares of both, and what a processor makes of it: GFLOP/s (products) or GB/s (of
// what is read and written; collectives: of their buffer). --as-read compiles without order.h. The
// clocks are read after each instruction then, about a microsecond.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/compile/graph/node_work.h"
#include "common/compile/graph/optable.h"
#include "common/data/job_set.h"
#include "common/data/sampler.h"
#include "common/job/lr.h"
#include "common/job/threads.h"
#include "common/op/chain.h"
#include "common/op/gemm.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"
#include "tests/bench/bench_board.h"
#include "worker/rank/exec/model_state.h"
#include "worker/rank/train/inputs.h"

enum { SETS = 64, STEPS = 1000 };

static struct {
    const char *job, *set[SETS];
    int nset, steps, warm;
    bool table, each;
    struct compile_options compile;
    char dir[64];
} o = {.steps = 15, .warm = 4, .dir = "/tmp/weft-bench-XXXXXX"};

static struct account {
    _Atomic int64_t ns;
    _Atomic int steps; // that are in it
} * used;              // of the processors, by each rank

struct spent { // on an instruction, in ns
    int64_t wall, processor;
};

struct bench { // one rank
    struct job job;
    struct compiled compiled;
    struct arena arena;
    struct exec_options exec_options;
    struct exec *exec;
    struct state state;
    struct dataset set;
    struct sampler sampler;
    struct inputs inputs;
    struct feed *feed;
    void *hyper, *control, *step;
    struct spent *spent, clock; // of each instruction; null: nobody asks. What the clocks said last
};

// ---- the table ---------------------------------------------------------------------------------

struct row {
    const char *name;
    int calls;
    struct spent spent;
    double flops, bytes;
};

static struct spent clocks(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (struct spent){clock_mono_ns(), t.tv_sec * CLOCK_S + t.tv_nsec};
}

static void add(struct spent *to, struct spent from, struct spent until)
{
    to->wall += until.wall - from.wall;
    to->processor += until.processor - from.processor;
}

static void ran(void *ctx, int instr)
{
    struct bench *b = ctx;
    struct spent now = clocks();
    add(&b->spent[instr], b->clock, now);
    b->clock = now;
}

static struct shape local(const struct program *p, int value)
{
    const struct value *v = &p->graph->values[value];
    return spec_local(&v->spec, &p->mesh, &v->shape);
}

// A product by its shape, "matmul 256x768x768 NN", one that steps follow as "linear ..".
static const char *product_name(struct arena *a, const struct program *p, const struct node *n)
{
    struct shape s[3] = {local(p, n->in[0]), local(p, n->in[1]), local(p, n->out[0])};
    struct op_attr labels = linear_product(&n->attr, n->nin); // a matmul's are the same
    struct gemm g;
    if (!gemm_from_labels(&labels, &s[0], &s[1], &s[2], &g))
        return op_name(n->op);
    return arena_printf(a, "%s %lldx%lldx%lld %c%c%s", op_name(n->op), (long long)g.m,
                        (long long)g.n, (long long)g.k, g.trans_a ? 'T' : 'N',
                        g.trans_b ? 'T' : 'N',
                        g.batch > 1 ? arena_printf(a, " %lld times", (long long)g.batch) : "");
}

static const char *name_of(struct arena *a, const struct program *p, const struct instr *i)
{
    static const char *const kinds[] = {[INSTR_START] = "start",
                                        [INSTR_WAIT] = "wait",
                                        [INSTR_SEND] = "send",
                                        [INSTR_RECV] = "receive",
                                        [INSTR_MARK] = "mark"};
    if (i->kind == INSTR_OP && op_is(i->op, OP_IS_PRODUCT))
        return product_name(a, p, &p->graph->nodes[i->node]);
    if (i->kind == INSTR_OP)
        return op_name(i->op);
    if (i->kind == INSTR_START || (i->kind == INSTR_WAIT && i->group.n))
        return arena_printf(a, "%s %s", kinds[i->kind], reshard_kind_name(i->collective));
    return kinds[i->kind];
}

static double bytes_of(const struct program *p, const struct instr *i)
{
    const struct graph *g = p->graph;
    if (i->kind == INSTR_MARK)
        return 0;
    if (i->kind != INSTR_OP || i->attr)
        return (double)p->buffers[i->nout ? i->out[0].buffer : i->in[0].buffer].bytes *
               (i->kind == INSTR_OP ? 2 : 1);
    const struct node *n = &g->nodes[i->node];
    struct shape in[OP_MAX_IN], out[OP_MAX_OUT];
    for (int k = 0; k < n->nin; k++)
        in[k] = local(p, n->in[k]);
    for (int k = 0; k < n->nout; k++)
        out[k] = local(p, n->out[k]);
    return op_bytes(g, n, in, out);
}

static int by_processor(const void *x, const void *y)
{
    const struct row *a = x, *b = y;
    return (a->spent.processor < b->spent.processor) - (a->spent.processor > b->spent.processor);
}

static int rows_make(struct bench *b, const struct program *p, struct row *rows)
{
    int n = 0;
    for (int k = 0; k < p->ninstrs; k++) {
        const struct instr *i = &p->instrs[k];
        const char *name = name_of(&b->arena, p, i);
        int at = 0;
        while (at < n && strcmp(rows[at].name, name) != 0)
            at++;
        n += at == n;
        rows[at].name = name;
        rows[at].calls++;
        add(&rows[at].spent, (struct spent){0}, b->spent[k]);
        rows[at].bytes += bytes_of(p, i);
        if (i->kind == INSTR_OP && !i->attr)
            rows[at].flops += node_flops(p->graph, &p->mesh, &p->graph->nodes[i->node]);
    }
    return n;
}

static void print_table(struct bench *b)
{
    const struct program *p = compiled_program(&b->compiled, PROGRAM_TRAIN, 0);
    struct row *rows = arena_array(&b->arena, struct row, p->ninstrs);
    int n = rows_make(b, p, rows);
    struct spent all = {0};
    for (int k = 0; k < n; k++)
        add(&all, (struct spent){0}, rows[k].spent);
    qsort(rows, (size_t)n, sizeof *rows, by_processor);
    printf("%-34s %6s %9s %7s %9s %7s %9s %7s\n", "instruction", "calls", "wall ms", "share",
           "proc. ms", "share", "GFLOP/s", "GB/s");
    for (int k = 0; k < n; k++) {
        const struct row *r = &rows[k];
        double wall = (double)r->spent.wall / o.steps, ns = (double)r->spent.processor / o.steps;
        printf("%-34s %6d %9.3f %6.1f%% %9.3f %6.1f%% ", r->name, r->calls, wall / 1e6,
               100 * (double)r->spent.wall / (double)all.wall, ns / 1e6,
               100 * (double)r->spent.processor / (double)all.processor);
        if (r->flops > 0)
            printf("%9.1f\n", r->flops / ns);
        else
            printf("%9s %7.2f\n", "", r->bytes / ns);
    }
}

// ---- steps -------------------------------------------------------------------------------------

static void ids(const void *ctx, uint64_t step, uint64_t first, size_t count, uint64_t *out)
{
    sampler_ids(ctx, step, first, count, out);
}

static int open_world(struct bench *b, int rank, int ranks, struct err *e)
{
    if (ranks == 1)
        return 0;
    struct world_options w = {.rank = rank,
                              .ranks = ranks,
                              .host = "here",
                              .connect_ns = 30 * CLOCK_S,
                              .deadline_ns = 300 * CLOCK_S,
                              .socket_dir = o.dir,
                              .put = board_put,
                              .get = board_get};
    return world_open(&w, &b->exec_options.world, e);
}

static int open_rank(struct bench *b, int rank, struct err *e)
{
    struct exec_options *x = &b->exec_options;
    struct device_options d = {.threads = threads_of(&b->job),
                               .deterministic = b->job.precision.deterministic};
    *x = (struct exec_options){
        .compiled = &b->compiled, .rank = rank, .ran = b->spent ? ran : NULL, .ctx = b};
    int rc = backend_load("cpu", &x->backend, e);
    if (!rc && x->backend->device.warm_up)
        x->backend->device.warm_up();
    rc = rc ? rc : x->backend->device.open(&d, &x->device, e);
    rc = rc ? rc : open_world(b, rank, mesh_ranks(&b->compiled.mesh), e);
    rc = rc ? rc : exec_open(x, &b->exec, e);
    rc = rc ? rc : state_open(&b->state, &b->arena, &b->compiled, b->exec, rank, e);
    rc = rc ? rc : state_init(&b->state, (uint64_t)b->job.train.seed, 1, e);
    rc = rc ? rc : job_set_open(&b->job, NULL, &b->job.data.train, &b->set, e);
    rc = rc ? rc : inputs_open(&b->inputs, x, b->exec, PROGRAM_TRAIN, &b->set, e);
    if (rc)
        return rc;
    b->sampler = (struct sampler){.n = b->set.n, .batch = (uint64_t)b->job.data.batch, .seed = 1};
    exec_buffer(b->exec, PROGRAM_TRAIN, "hyper", &b->hyper);
    exec_buffer(b->exec, PROGRAM_TRAIN, "control", &b->control);
    exec_buffer(b->exec, PROGRAM_TRAIN, "step", &b->step);
    return inputs_feed(&b->inputs, &b->set, ids, &b->sampler, 0, (uint64_t)(o.warm + o.steps),
                       &b->feed, e);
}

static int run_step(struct bench *b, int32_t step, struct err *e)
{
    static const float control[CONTROL_SLOTS];
    float hyper[HYPER_SLOTS];
    struct batch batch;
    hyper_at(&b->job, step, step, hyper);
    int rc = feed_next(b->feed, &batch, e);
    rc = rc ? rc : inputs_put(&b->inputs, &batch, e);
    rc = rc ? rc : exec_put(b->exec, b->hyper, hyper, sizeof hyper, e);
    rc = rc ? rc : exec_put(b->exec, b->control, control, sizeof control, e);
    if (!rc && b->step)
        rc = exec_put(b->exec, b->step, &step, sizeof step, e);
    b->clock = clocks();
    rc = rc ? rc : exec_run(b->exec, PROGRAM_TRAIN, e);
    return rc ? rc : b->exec_options.backend->stream.sync(exec_stream(b->exec), e);
}

// Of so many steps of all ranks, which are waited for.
static double processor_of_all(const struct bench *b, int steps)
{
    int64_t ns = 0;
    for (int r = 0; r < mesh_ranks(&b->compiled.mesh); r++) {
        while (used[r].steps < steps)
            clock_sleep_ms(1);
        ns += used[r].ns;
    }
    return (double)ns / 1e6;
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static int last_loss(struct bench *b, float *loss, struct err *e)
{
    void *metrics;
    exec_buffer(b->exec, PROGRAM_TRAIN, "metrics", &metrics);
    return exec_get(b->exec, loss, (float *)metrics + METRIC_LOSS, sizeof *loss, e);
}

static void say(struct bench *b, double *ms, double processor, float loss)
{
    qsort(ms, (size_t)o.steps, sizeof *ms, ascending);
    double items = (double)b->job.data.batch * (b->set.seq ? (double)b->set.seq : 1);
    printf("%d steps: median %.1f ms, p10 %.1f, p90 %.1f; %.1f %s/s; processor %.1f ms a step; "
           "arena %.1f MiB; loss %.4f\n",
           o.steps, ms[o.steps / 2], ms[o.steps / 10], ms[o.steps * 9 / 10],
           1000 * items / ms[o.steps / 2], b->set.seq ? "tokens" : "samples", processor / o.steps,
           (double)b->compiled.memory.arena / 1048576, (double)loss);
    if (b->spent)
        print_table(b);
}

static int measure(struct bench *b, int ninstrs, struct err *e)
{
    double ms[STEPS], processor = 0, before = 0;
    float loss = 0;
    int rank = b->exec_options.rank, rc = 0;
    for (int s = 0; s < o.warm + o.steps && !rc; s++) {
        if (s == o.warm && b->spent)
            memset(b->spent, 0, sizeof *b->spent * (size_t)ninstrs);
        struct spent began = clocks(), step = {0};
        rc = run_step(b, s, e);
        add(&step, began, clocks());
        used[rank].ns += step.processor;
        used[rank].steps++;
        double now = rank || rc ? 0 : processor_of_all(b, s + 1);
        if (s >= o.warm)
            ms[s - o.warm] = (double)step.wall / 1e6;
        if (s >= o.warm && o.each && rank == 0)
            printf("%.3f %.3f\n", ms[s - o.warm], now - before);
        processor += s >= o.warm ? now - before : 0;
        before = now;
    }
    rc = rc ? rc : last_loss(b, &loss, e);
    if (!rc && rank == 0 && !o.each)
        say(b, ms, processor, loss);
    return rc;
}

static int rank_main(struct bench *b, int rank)
{
    struct err e = {0};
    const struct program *p =
        compiled_program(&b->compiled, PROGRAM_TRAIN, compiled_stage(&b->compiled, rank));
    if (o.table && rank == 0)
        b->spent = arena_array(&b->arena, struct spent, p->ninstrs);
    int rc = open_rank(b, rank, &e);
    rc = rc ? rc : measure(b, p->ninstrs, &e);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", rank, e.text);
    feed_close(b->feed);
    inputs_close(&b->inputs);
    dataset_close(&b->set);
    exec_close(b->exec);
    world_close(b->exec_options.world);
    if (b->exec_options.device)
        b->exec_options.backend->device.close(b->exec_options.device);
    arena_clear(&b->arena);
    return rc != 0;
}

static int arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--table") == 0)
            o.table = true;
        else if (strcmp(argv[i], "--as-read") == 0)
            o.compile.as_read = true;
        else if (strcmp(argv[i], "--each") == 0)
            o.each = true;
        else if (strcmp(argv[i], "--steps") == 0 && more)
            o.steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--warm") == 0 && more)
            o.warm = atoi(argv[++i]);
        else if (strcmp(argv[i], "-s") == 0 && more && o.nset < SETS)
            o.set[o.nset++] = argv[++i];
        else if (argv[i][0] != '-' && !o.job)
            o.job = argv[i];
        else
            return -1;
    }
    return o.job && o.steps > 0 && o.steps <= STEPS && o.warm >= 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct findings found;
    struct job_errors errs = {0};
    struct err e = {0};
    int status, failed = 0;
    if (arguments(argc, argv)) {
        fprintf(stderr, "usage: bench_step [--steps N] [--warm N] [--table | --each] [--as-read] "
                        "[-s K=V]... JOB\n");
        return 2;
    }
    if (job_load(&b.arena, &weft_schema, o.job, o.set, o.nset, &b.job, &errs)) {
        fprintf(stderr, "bench_step: %s: %s\n", o.job, errs.items[0].message);
        return 2;
    }
    if (plan_explain(&b.job, &o.compile, &b.arena, &b.compiled, &found, NULL, &e)) {
        fprintf(stderr, "bench_step: %s\n", e.text);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); // who reads --each takes a line as a step's end
    int ranks = mesh_ranks(&b.compiled.mesh);
    used = mmap(NULL, BOARD_RANKS * sizeof *used, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks > BOARD_RANKS || board_open() || used == MAP_FAILED || !mkdtemp(o.dir))
        return 2;
    for (int r = 0; r < ranks; r++) {
        fflush(stdout);
        if (fork() == 0)
            exit(rank_main(&b, r));
    }
    while (wait(&status) > 0)
        failed |= status;
    rmdir(o.dir);
    return failed != 0;
}
