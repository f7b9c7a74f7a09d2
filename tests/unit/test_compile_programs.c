// SPDX-License-Identifier: Apache-2.0
// Programs as ranks run them: on many meshes and shardings, every rank a thread with the CPU
// backend and the in-process communicator, which finds wrong orders and deadlocks. Parameters after
// two steps, and an evaluation, are those of the unpartitioned graph in double precision; replicas
// agree to the bit; the memory taken is what the plan said.
#include "tests/ops/rig.h"
#include "tests/support/rank_threads.h"
#include "tests/unit/compile_case.h"

enum { STEPS = 2 };

// ---- what it is held against -------------------------------------------------------------------

static void train_reference(struct fixture *f, struct interp *x)
{
    for (int s = 0; s < STEPS; s++)
        step(f, x);
}

static void evaluate_reference(struct fixture *f, const struct interp *trained, struct interp *x)
{
    interp_init(x, f->c.global[PROGRAM_EVAL], NULL, trained->microbatches);
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].kind == VALUE_PARAM) {
            const char *name = x->g->values[v].name;
            interp_set(x, name, trained->value[interp_find(trained, name)]);
        }
    for (int m = 0; m < x->microbatches; m++) {
        interp_feed(x, "images", f->images, m);
        interp_feed(x, "labels", f->labels, m);
        interp_phase(x, PHASE_FORWARD, m);
    }
    interp_phase(x, PHASE_UPDATE, x->microbatches - 1);
}

static void check(const struct rank_threads *ranks, enum program_kind kind, const char *name,
                  const double *want, double rtol, const char *what)
{
    struct err e = {0};
    if (rank_threads_compare(ranks, kind, name, want, rtol, 0.1 * rtol, &e))
        fail_msg("%s: %s", what, e.text);
}

static void check_results(struct fixture *f, const struct rank_threads *ranks, const char *what)
{
    struct interp trained, evaluated;
    interp_init(&trained, f->c.global[PROGRAM_TRAIN], NULL, (int)f->job.train.microbatches);
    set_params(&trained);
    train_reference(f, &trained);
    evaluate_reference(f, &trained, &evaluated);
    // Where bf16 falls to the other side of a tie, what is made of it moves by some units, and one
    // sample of 48 may come out as another class.
    bool half = f->job.precision.compute == JOB_BF16;
    double rtol = 2e-5;
    for (int v = 0; v < trained.g->nvalues; v++) {
        const struct value *val = &trained.g->values[v];
        if (val->kind == VALUE_PARAM && val->alias < 0)
            check(ranks, PROGRAM_TRAIN, val->name, trained.value[v], half ? 2e-4 : rtol, what);
    }
    // The last step's metrics: loss and squared norm, of the parameters before it.
    check(ranks, PROGRAM_TRAIN, "metrics", trained.value[interp_find(&trained, "metrics")],
          half ? 0x1p-6 : rtol, what);
    check(ranks, PROGRAM_EVAL, "metrics", evaluated.value[interp_find(&evaluated, "metrics")],
          half ? 0.1 : rtol, what);
    interp_clear(&evaluated);
    interp_clear(&trained);
}

// Which moves the cases have carried out: none may be missing at the end.
static unsigned moves_run, copies_run, maxima_run;

static void count_moves(const struct compiled *c)
{
    const struct program *p = c->program[PROGRAM_TRAIN];
    for (int i = 0; i < p->ninstrs; i++) {
        if (p->instrs[i].kind == INSTR_START)
            moves_run |= 1u << p->instrs[i].collective;
        maxima_run += p->instrs[i].kind == INSTR_START && p->instrs[i].max;
        copies_run += p->instrs[i].kind == INSTR_OP && p->instrs[i].op == OP_COPY;
    }
}

// Compiles the job with `more` behind it and runs it. False when the compiler refuses it.
static bool run_job(const char *text, const char *more, bool may_refuse)
{
    static const double one = 1, hyper[HYPER_SLOTS] = {0.01, 1 / (1 - 0.9), 1 / (1 - 0.999)};
    static const double control[CONTROL_SLOTS];
    char whole[3000];
    struct fixture f;
    struct interp start;
    struct err e = {0};
    snprintf(whole, sizeof whole, "%s%s", text, more);
    int rc = compile_any(&f, whole);
    if (rc && !may_refuse)
        fail_msg("%s: %s", more, f.e.text);
    if (!rc) {
        count_moves(&f.c);
        make_batch(&f);
        interp_init(&start, f.c.global[PROGRAM_TRAIN], NULL, 1);
        set_params(&start);
        const struct whole_tensor data[] = {{"images", f.images}, {"labels", f.labels},
                                            {"one", &one},        {"hyper", hyper},
                                            {"control", control}, {NULL, NULL}};
        struct rank_threads ranks = {
            .compiled = &f.c, .start = &start, .data = data, .steps = STEPS};
        if (rank_threads_run(&ranks, &e))
            fail_msg("%s: %s", more, e.text);
        check_results(&f, &ranks, more);
        rank_threads_clear(&ranks);
        interp_clear(&start);
    }
    fixture_clear(&f);
    return !rc;
}

// ---- the cases ---------------------------------------------------------------------------------

#define JOB(dtype, micro)                                                                     \
    "name: t\n"                                                                               \
    "model: {program: mlp, inputs: 24, hidden: [48, 24, 48], classes: 6, activation: gelu}\n" \
    "data: {format: npy, dtype: " dtype ", train: {images: i, labels: l}, eval: {images: i, " \
    "labels: l}, batch: 48}\n"                                                                \
    "optimizer: {kind: momentum, clip_norm: 0.5}\n"                                           \
    "schedule: {kind: constant, value: 0.01}\n"                                               \
    "train: {steps: 3, microbatches: " micro ", seed: 5}\n"

static void every_strategy_trains_to_the_numbers_of_one_device(void **state)
{
    static const char *const cases[] = {
        "mesh: {dp: 1}\n",
        "mesh: {dp: 4}\n",
        "mesh: {dp: 3}\n",
        "mesh: {fsdp: 4}\n",
        "mesh: {tp: 2}\n",
        "mesh: {tp: 6}\n",
        "mesh: {dp: 2, fsdp: 2}\n",
        "mesh: {dp: 2, tp: 2}\n",
        "mesh: {tp: 2, dp: 2}\n",
        "mesh: {data: 2, model: 3}\n",
        "mesh: {fsdp: 2, tensor: 3}\n",
        "mesh: {dp: 2, fsdp: 3, tp: 2}\n",
        "mesh: {x: 2, y: 2}\nsharding: {rules: {batch: [y, x], mlp: x}, gather: [x]}\n",
        "mesh: {x: 2, y: 3}\nsharding: {rules: {batch: x, embed: [y, x], mlp: y}, gather: [x]}\n",
        // A weight cut along the classes: row maximum, sum and pick over a cut row.
        "mesh: {dp: 2, tp: 2}\nsharding: {params: [{match: layers/3/weight, spec: [~, tp]}, "
        "{match: layers/3/bias, spec: [tp]}], activations: {act_logits: [batch, tp]}}\n",
        "mesh: {tp: 6}\nsharding: {params: [{match: layers/3/*, min: [1, 1], spec: [~, tp]}], "
        "activations: {act_logits: [batch, tp]}}\n",
        // Residual-wide activations cut on tp too: scatters and gathers along the inner dimension.
        "mesh: {dp: 2, tp: 2}\nsharding: {activations: {act_seq: [batch, tp]}}\n",
        // State, and gradients too, cut further than their parameters.
        "mesh: {dp: 4}\nsharding: {optimizer: [dp]}\n",
        "mesh: {dp: 2, fsdp: 3, tp: 2}\nsharding: {optimizer: [dp, tp]}\n",
        "mesh: {dp: 3, tp: 2}\nsharding: {grads: [dp], optimizer: [dp, tp]}\n",
        // Whole on a batch axis in between: exchanges.
        "mesh: {x: 2, y: 2}\nsharding: {rules: {batch: [x, y]}, activations: {act_hidden: [[x, y],"
        " ~], act_seq: [[x, y], ~]}, gather: [x, y], params: [{match: layers/1/weight, spec: [[y, "
        "x]]}]}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_job(JOB("u8", "2"), cases[i], false);
        run_job(JOB("f32", "1"), cases[i], false);
    }
}

// Rounded at the same places: activations and gathers, and on the way of gradients.
static void bf16_trains_to_the_numbers_of_one_device(void **state)
{
    static const char *const cases[] = {
        "mesh: {dp: 1}\nprecision: {compute: bf16}\n",
        "mesh: {dp: 2, fsdp: 2}\nprecision: {compute: bf16}\n",
        "mesh: {fsdp: 2, tensor: 3}\nprecision: {compute: bf16}\n",
        "mesh: {dp: 2, fsdp: 2}\nprecision: {compute: bf16, reduce: bf16}\n",
        "mesh: {dp: 2, tp: 2}\nprecision: {compute: bf16}\nsharding: {activations: {act_seq: "
        "[batch,"
        " tp]}}\n",
        "mesh: {x: 2, y: 2}\nprecision: {compute: bf16, reduce: bf16}\n"
        "sharding: {rules: {batch: [x, y]}, activations: {act_hidden: [[x, y], ~], act_seq: [[x, "
        "y],"
        " ~]}, gather: [x, y], params: [{match: layers/1/weight, spec: [[y, x]]}]}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_job(JOB("u8", "2"), cases[i], false);
        run_job(JOB("f32", "1"), cases[i], false);
    }
}

static void random_spec(char *to, size_t size, const char *const *axes, int n, int dims,
                        unsigned *seed)
{
    int dim_of[3];
    size_t len = 0;
    for (int a = 0; a < n; a++)
        dim_of[a] = rand_r(seed) % (dims + 1);
    len += (size_t)snprintf(to + len, size - len, "[");
    for (int d = 0; d < dims; d++) {
        len += (size_t)snprintf(to + len, size - len, "%s[", d ? ", " : "");
        const char *sep = "";
        int first = rand_r(seed) % n;
        for (int a = 0; a < n; a++)
            if (dim_of[(first + a) % n] == d) {
                len += (size_t)snprintf(to + len, size - len, "%s%s", sep, axes[(first + a) % n]);
                sep = ", ";
            }
        len += (size_t)snprintf(to + len, size - len, "]");
    }
    snprintf(to + len, size - len, "]");
}

// Each parameter and each point with a spec of its own; the batch keeps its axes everywhere.
static void random_sharding(char *to, size_t size, unsigned seed)
{
    static const struct {
        const char *mesh, *all;
        const char *axes[3];
        int n;
    } meshes[] = {{"{a: 2}", "a", {"a"}, 1},
                  {"{a: 2, b: 3}", "a, b", {"a", "b"}, 2},
                  {"{a: 2, b: 3, c: 2}", "a, b, c", {"a", "b", "c"}, 3},
                  {"{a: 4, b: 2}", "a, b", {"a", "b"}, 2},
                  {"{b: 2, a: 2, c: 2}", "a, b, c", {"a", "b", "c"}, 3}};
    static const char *const names[] = {"layers/0/weight", "layers/0/bias",   "layers/1/weight",
                                        "layers/1/bias",   "layers/2/weight", "layers/3/weight"};
    int m = (int)(seed % 5), n = meshes[m].n;
    char spec[64];
    size_t len = (size_t)snprintf(to, size,
                                  "mesh: %s\nsharding:\n  gather: [%s]\n  rules: {batch: %s}\n"
                                  "  optimizer: [%s]\n  params:\n",
                                  meshes[m].mesh, meshes[m].all,
                                  n > 1 ? meshes[m].axes[rand_r(&seed) % n] : "~",
                                  meshes[m].axes[rand_r(&seed) % n]);
    for (int i = 0; i < 6; i++) {
        random_spec(spec, sizeof spec, meshes[m].axes, n, strstr(names[i], "bias") ? 1 : 2, &seed);
        len +=
            (size_t)snprintf(to + len, size - len, "    - {match: %s, spec: %s}\n", names[i], spec);
    }
}

static void random_shardings_train_to_the_numbers_of_one_device(void **state)
{
    (void)state;
    unsigned count = getenv("WEFT_LONG") ? 400 : 30, ran = 0;
    for (unsigned k = 1; k <= count; k++) {
        char text[2000];
        random_sharding(text, sizeof text, k);
        ran += run_job(k % 2 ? JOB("u8", "2") : JOB("f32", "1"), text, true);
    }
    if (ran * 2 < count)
        fail_msg("only %u of %u shardings were taken", ran, count);
    assert_int_equal(moves_run, 1u << RESHARD_REDUCE_SCATTER | 1u << RESHARD_ALL_GATHER |
                                    1u << RESHARD_ALL_TO_ALL | 1u << RESHARD_ALL_REDUCE);
    assert_true(maxima_run > 0 && copies_run > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_trains_to_the_numbers_of_one_device),
        cmocka_unit_test(bf16_trains_to_the_numbers_of_one_device),
        cmocka_unit_test(random_shardings_train_to_the_numbers_of_one_device),
    };
    return cmocka_run_group_tests(tests, rig_set_up, NULL);
}
