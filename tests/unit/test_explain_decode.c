// SPDX-License-Identifier: Apache-2.0
// What a plan says of generating: of published models what others count of them, the bytes of the
// buffers that the executor opens, and the collectives that ranks start in a step.
#include <pthread.h>

#include "common/explain/decode_plan.h"
#include "tests/unit/decode_case.h"

static const struct device_model unlimited = {.name = "none", .bandwidth = 1e9};

static void make_plan(struct fixture *f, struct decode_plan *d, const char *job, int64_t rows,
                      const struct device_model *device)
{
    must_compile(f, job, PROGRAM_FILL, rows, 0);
    decode_plan_make(d, &f->c, device, &f->a);
}

// In bf16, with full contexts: keys of a token in KiB and of a text in MiB, and GB that
// a step of 1 and of 64 texts reads, counted by hand from the published sizes.
static void published_models_take_what_is_known_of_them(void **state)
{
    static const struct {
        const char *model;
        double token, text, one, many;
    } cases[] = {
        {"program: llama, size: 8b, seq: 8192", 128, 1024, 16.1, 84},
        {"program: mistral, seq: 8192", 128, 512, 14.8, 49},
        {"program: mixtral, seq: 4096", 128, 512, 26.0, 128},
        {"program: deepseek-v2-lite, seq: 4096", 219, 878, 5.8, 90},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int many = 0; many < 2; many++) {
            struct fixture f;
            struct decode_plan d;
            make_plan(
                &f, &d,
                job_on(cases[i].model, "dp: 1", many ? 64 : 1, "precision: {compute: bf16}\n"), 1,
                &unlimited);
            const double read = many ? cases[i].many : cases[i].one;
            assert_int_equal(lround((double)d.token / 1024), lround(cases[i].token));
            assert_true(fabs((double)d.row / (1 << 20) - cases[i].text) < 0.6);
            if (fabs(d.read / 1e9 - read) > 0.01 * read)
                fail_msg("%s reads %.4g GB, not %.4g", cases[i].model, d.read / 1e9, read);
            assert_true(fabs(d.seconds - d.read / 1e9) < 1e-9);
            fixture_clear(&f);
        }
}

// ---- collectives -------------------------------------------------------------------------------

// The hosts' transport, which counts what all ranks start.
static struct counted {
    const struct collective *of;
    int sent; // of its calls
    uint64_t bytes;
} prepared[10000];
static int nprepared;
static int64_t starts;
static uint64_t started;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int prepare(struct fabric *f, int communicator, const struct collective_args *calls, int n,
                   struct collective **out, struct err *e)
{
    int rc = host_transport.prepare(f, communicator, calls, n, out, e);
    pthread_mutex_lock(&mutex);
    PRE(nprepared < (int)(sizeof prepared / sizeof *prepared));
    struct counted *one = &prepared[nprepared++];
    *one = (struct counted){.of = *out};
    for (int i = 0; i < n; i++)
        if (calls[i].op != COLLECTIVE_RECV) {
            one->sent++;
            one->bytes += (uint64_t)calls[i].count * dtype_size(calls[i].dtype);
        }
    pthread_mutex_unlock(&mutex);
    return rc;
}

static int start(struct collective *c, struct stream_q *q, struct err *e)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < nprepared; i++)
        if (prepared[i].of == c) {
            starts += prepared[i].sent;
            started += prepared[i].bytes;
        }
    pthread_mutex_unlock(&mutex);
    return host_transport.start(c, q, e);
}

static void check_traffic(const char *model, const char *mesh)
{
    struct fixture f, whole;
    struct decode_plan d;
    struct texts t;
    struct decode_call calls[CALLS];
    struct transport counting = host_transport;
    char alone[4000];
    int64_t want = 0;
    uint64_t bytes = 0;
    snprintf(alone, sizeof alone, "%s", job_on(sized(model), "dp: 1", 4, ""));
    must_compile(&whole, alone, PROGRAM_SAMPLE, 0, 0);
    make_plan(&f, &d, job_on(sized(model), mesh, 4, ""), 1, &unlimited);
    texts_open(&t, &whole.c, 1, set_params);
    draw_calls(&t, calls, 1, f.c.context);
    for (int i = 0; i < CALLS; i++)
        calls[i].kind = PROGRAM_STEP; // FILL has one row too
    nprepared = 0;
    starts = 0;
    started = 0;
    counting.prepare = prepare;
    counting.start = start;
    run_calls(&f.c, calls, set_params, &counting, mesh);
    for (int i = 0; i < d.cost.ncollectives; i++) {
        const struct collective_row *r = &d.cost.collectives[i];
        const int ranks = mesh_ranks(&f.c.mesh) / f.c.nstages * __builtin_popcountll(r->stages);
        want += r->count * ranks;
        bytes += r->tensor_bytes * (uint64_t)ranks;
    }
    if (starts != want * CALLS || started != bytes * CALLS)
        fail_msg("%s: %lld collectives of %llu bytes in %d steps, not %lld of %llu a step", mesh,
                 (long long)starts, (unsigned long long)started, CALLS, (long long)want,
                 (unsigned long long)bytes);
    free_calls(calls);
    interp_clear(&t.whole);
    fixture_clear(&whole);
    fixture_clear(&f);
}

static void ranks_start_the_collectives_that_the_plan_counts(void **state)
{
    static const char *const meshes[] = {"dp: 2", "tp: 2",        "fsdp: 2",
                                         "pp: 2", "dp: 2, tp: 2", "dp: 2, pp: 2, tp: 2"};
    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        check_traffic(models[i], meshes[i]);
}

static int64_t count_rows(const struct decode_plan *d, bool send, enum reshard_kind op)
{
    int64_t n = 0;
    for (int i = 0; i < d->cost.ncollectives; i++) {
        const struct collective_row *r = &d->cost.collectives[i];
        if (r->send == send && (send || r->op == op))
            n += r->count;
    }
    return n;
}

// Of two layers of llama. The logits are gathered where they are cut; all that is summed of them is what
// the last stage has and others lack.
static void a_step_has_few_collectives(void **state)
{
    static const struct {
        const char *mesh;
        int reduces, sends, gathers, weights;
    } cases[] = {
        {"dp: 4", 0, 0, 0, 0},     {"tp: 2", 5, 0, 1, 0}, // two a layer, and one for the embedding
        {"pp: 2", 1, 1, 0, 0},     {"dp: 2, pp: 2, tp: 2", 6, 1, 1, 0},
        {"fsdp: 2", 1, 0, 13, 13}, // six a layer, and the table; the head's product is summed,
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        struct decode_plan d;
        make_plan(&f, &d, job_on(sized(models[2]), cases[i].mesh, 4, ""), 4, &unlimited);
        const int64_t reduces = count_rows(&d, false, RESHARD_ALL_REDUCE),
                      sends = count_rows(&d, true, RESHARD_ALL_REDUCE),
                      gathers = count_rows(&d, false, RESHARD_ALL_GATHER);
        if (reduces != cases[i].reduces || sends != cases[i].sends || gathers != cases[i].gathers ||
            d.ngathered != cases[i].weights)
            fail_msg("%s: %lld all_reduce, %lld send, %lld all_gather, %d of them of weights",
                     cases[i].mesh, (long long)reduces, (long long)sends, (long long)gathers,
                     d.ngathered);
        fixture_clear(&f);
    }
}

static void a_mixture_deals_its_tokens_once_each_way(void **state)
{
    struct fixture f;
    struct decode_plan d;
    const char *model =
        "program: mixtral, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, experts: 4";
    (void)state;
    make_plan(&f, &d, job_on(sized(model), "ep: 2", 4, ""), 4, &unlimited);
    assert_int_equal(count_rows(&d, false, RESHARD_ALL_TO_ALL), 2 * 2); // of two layers
    assert_int_equal(d.ngathered, 0);
    fixture_clear(&f);
}

// ---- memory ------------------------------------------------------------------------------------

static void keys_lie_as_the_attention_works(void **state)
{
    static const struct {
        const char *mesh;
        int cut; // a device has this share of all keys
    } cases[] = {{"dp: 1", 1},        {"dp: 4", 4}, {"tp: 4", 4},   {"tp: 2, dp: 2", 4},
                 {"tp: 2, pp: 2", 4}, {"cp: 2", 1}, {"fsdp: 2", 2}, {"dp: 2, pp: 2, tp: 2", 8}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        struct decode_plan d;
        make_plan(&f, &d, job_on(sized(models[2]), cases[i].mesh, 4, ""), 4, &unlimited);
        // Keys and values of 2 layers, 4 heads of 4 numbers.
        assert_int_equal(d.token, 2 * 2 * 4 * 4 * 4);
        assert_int_equal(d.row, d.token * SEQ);
        for (int s = 0; s < f.c.nstages; s++)
            assert_int_equal(f.c.by_stage[s].cache, d.row * 4 / (uint64_t)cases[i].cut);
        fixture_clear(&f);
    }
}

static void as_many_rows_fit_as_a_plan_of_them_says(void **state)
{
    static const char *const meshes[] = {"dp: 1", "dp: 2", "tp: 2, pp: 2"};
    const struct compile_options o = {.only = PROGRAM_FILL, .rows = 4};
    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (uint64_t spare = 0; spare < 5; spare++) {
            struct fixture f;
            struct decode_plan d;
            struct device_model device = {.name = "small", .libraries = 1000};
            make_plan(&f, &d, job_on(sized(models[2]), meshes[i], 4, ""), 4, &device);
            device.memory = f.c.memory.arena + 1000 + spare * spare * spare * 20011 - (spare == 1);
            const int64_t fit = plan_rows_that_fit(&f.job, &o, &device);
            for (int64_t more = 0; more < 2; more++) {
                struct fixture g;
                must_compile(&g, job_on(sized(models[2]), meshes[i], 4, ""), PROGRAM_FILL, 4, 0);
                g.job.data.batch = fit + more;
                if (g.job.data.batch && plan_compile(&g.job, &o, &g.a, &g.c, NULL, &g.e))
                    fail_msg("%s", g.e.text);
                const uint64_t takes = g.job.data.batch ? g.c.memory.arena + 1000 : 0;
                if ((takes <= device.memory) == more)
                    fail_msg("{%s}: %lld rows take %llu of %llu", meshes[i],
                             (long long)(fit + more), (unsigned long long)takes,
                             (unsigned long long)device.memory);
                fixture_clear(&g);
            }
            assert_true(spare == 1 || fit >= 4);
            fixture_clear(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_models_take_what_is_known_of_them),
        cmocka_unit_test(ranks_start_the_collectives_that_the_plan_counts),
        cmocka_unit_test(a_step_has_few_collectives),
        cmocka_unit_test(a_mixture_deals_its_tokens_once_each_way),
        cmocka_unit_test(keys_lie_as_the_attention_works),
        cmocka_unit_test(as_many_rows_fit_as_a_plan_of_them_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
