// SPDX-License-Identifier: Apache-2.0
// The job files of deploy/examples: each plans, or is refused as its first lines say; and those of
// the guides' cases have the shards and collectives that one works out by hand.
#include <dirent.h>

#include "common/explain/cost.h"
#include "common/explain/fit.h"
#include "tests/unit/compile_case.h"

#define FOLDER "deploy/examples/"

static int load(struct fixture *f, const char *file, const char *const *set, int n)
{
    char path[200];
    struct job_errors errs = {0};
    struct buf said = {0};
    *f = (struct fixture){0};
    snprintf(path, sizeof path, FOLDER "%s", file);
    if (job_load(&f->a, &weft_schema, path, set, n, &f->job, &errs)) {
        job_errors_print(&errs, &said);
        fail_msg("%s", buf_str(&said));
    }
    return compile_again(f);
}

static void every_example_plans_or_is_refused_as_it_says(void **state)
{
    struct fixture f;
    int files = 0;
    (void)state;
    DIR *d = opendir(FOLDER);
    assert_non_null(d);
    for (struct dirent *at; (at = readdir(d));) {
        size_t len = strlen(at->d_name);
        if (len < 5 || strcmp(at->d_name + len - 5, ".yaml") != 0)
            continue;
        bool refused = strcmp(at->d_name, "weights-on-data.yaml") == 0;
        int rc = load(&f, at->d_name, NULL, 0);
        if (rc != (refused ? ERR_INVALID : 0) || !f.c.whole)
            fail_msg("%s: %d %s", at->d_name, rc, f.e.text);
        for (int i = 0; i < f.found.n && !refused; i++)
            if (strcmp(finding_severity(f.found.items[i].code), "note") != 0)
                fail_msg("%s: %s", at->d_name, f.found.items[i].message);
        files++;
        fixture_clear(&f);
    }
    closedir(d);
    assert_true(files >= 15);
}

// ---- shards ------------------------------------------------------------------------------------

struct shard {
    const char *file, *tensor; // a parameter or an activation point
    struct shape whole, local;
};

// The value of that name, or the first of that shape at the point.
static const struct value *tensor_of(const struct fixture *f, const struct shard *x)
{
    const struct graph *g = compiled_program(&f->c, PROGRAM_TRAIN, 0)->graph;
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        if (v->kind == VALUE_PARAM && strcmp(v->name, x->tensor) == 0)
            return v;
        if (v->kind == VALUE_TEMP && strcmp(point_name(v->point), x->tensor) == 0 &&
            shape_equal(&v->shape, &x->whole) && !spec_partial(&v->spec))
            return v;
    }
    fail_msg("%s: no %s", x->file, x->tensor);
    return NULL;
}

static void the_guides_shards_are_those_worked_out_by_hand(void **state)
{
#define DP  "cookbook-data-parallel.yaml"
#define FS  "cookbook-fsdp.yaml"
#define FT  "cookbook-fsdp-tensor.yaml"
#define BNS "by-name-and-size.yaml"
#define VAE "vae-on-model.yaml"
    static const struct shard cases[] = {
        {DP, "layers/0/attn/qkv/weight", {4, {3, 512, 8, 128}}, {4, {3, 512, 8, 128}}},
        {DP, "act_seq", {3, {256, 128, 512}}, {3, {32, 128, 512}}},
        {FS, "embed/tokens", {2, {256, 512}}, {2, {256, 64}}},
        {FS, "layers/3/attn/qkv/weight", {4, {3, 512, 8, 128}}, {4, {3, 64, 8, 128}}},
        {FS, "layers/3/attn/out/weight", {3, {8, 128, 512}}, {3, {1, 128, 512}}},
        {FS, "layers/3/mlp/in/weight", {2, {512, 2048}}, {2, {64, 2048}}},
        {FS, "layers/3/mlp/out/weight", {2, {2048, 512}}, {2, {2048, 64}}},
        {FS, "head/weight", {2, {512, 256}}, {2, {64, 256}}},
        {FT, "embed/tokens", {2, {256, 4096}}, {2, {2, 1024}}},
        {FT, "layers/0/attn/qkv/weight", {4, {3, 4096, 128, 128}}, {4, {3, 32, 32, 128}}},
        {FT, "layers/0/attn/out/weight", {3, {128, 128, 4096}}, {3, {1, 32, 4096}}},
        {FT, "layers/0/mlp/in/weight", {2, {4096, 16384}}, {2, {32, 4096}}},
        {FT, "layers/0/mlp/out/weight", {2, {16384, 4096}}, {2, {4096, 32}}},
        {FT, "act_hidden", {3, {128, 128, 16384}}, {3, {1, 128, 4096}}},
        {"attention-on-a-grid.yaml", "act_att", {4, {32, 64, 64, 128}}, {4, {32, 32, 16, 128}}},
        {"hidden-on-eight-by-eight.yaml",
         "act_hidden",
         {3, {64, 2048, 12288}},
         {3, {8, 2048, 1536}}},
        {"two-hosts-of-eight.yaml", "layers/0/weight", {2, {256, 192}}, {2, {32, 192}}},
        {BNS, "embed/tokens", {2, {50304, 768}}, {2, {12576, 768}}},
        {BNS, "embed/positions", {2, {1024, 768}}, {2, {1024, 768}}},
        {BNS, "layers/5/attn/qkv/weight", {4, {3, 768, 12, 64}}, {4, {3, 768, 12, 64}}},
        {BNS, "layers/5/mlp/in/weight", {2, {768, 3072}}, {2, {768, 768}}},
        {BNS, "layers/5/mlp/out/weight", {2, {3072, 768}}, {2, {3072, 768}}},
        {BNS, "layers/5/mlp/in/bias", {1, {3072}}, {1, {3072}}},
        {VAE, "encoder/in/weight", {2, {784, 512}}, {2, {784, 256}}},
        {VAE, "encoder/logvar/weight", {2, {512, 32}}, {2, {256, 32}}},
        {VAE, "encoder/mean/bias", {1, {32}}, {1, {32}}},
        {VAE, "decoder/in/weight", {2, {32, 512}}, {2, {32, 256}}},
        {VAE, "decoder/out/weight", {2, {512, 784}}, {2, {256, 784}}},
        {"classifier-on-eight.yaml", "act_hidden", {2, {256, 512}}, {2, {32, 512}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        assert_int_equal(load(&f, cases[i].file, NULL, 0), 0);
        const struct value *v = tensor_of(&f, &cases[i]);
        struct shape local = spec_local(&v->spec, &f.c.mesh, &v->shape);
        if (!shape_equal(&v->shape, &cases[i].whole) || !shape_equal(&local, &cases[i].local))
            fail_msg("%s: %s has another shape or shard", cases[i].file, cases[i].tensor);
        fixture_clear(&f);
    }
}

static void a_tensor_on_the_gpus_of_two_hosts_lies_on_two_ranks_a_block(void **state)
{
    struct fixture f;
    (void)state;
    assert_int_equal(load(&f, "two-hosts-of-eight.yaml", NULL, 0), 0);
    const struct value *v =
        tensor_of(&f, &(struct shard){"two-hosts-of-eight.yaml", "layers/0/weight", {0}, {0}});
    for (int rank = 0; rank < 16; rank++) {
        int64_t start[MAX_DIMS];
        spec_start(&v->spec, &f.c.mesh, &v->shape, rank, start);
        assert_int_equal(start[0], rank % 8 * 32); // ranks 8 apart hold the same rows
    }
    fixture_clear(&f);
}

// ---- collectives -------------------------------------------------------------------------------

struct total {
    int64_t count;
    uint64_t bytes;
};

static struct total total_of(const struct cost *cost, enum reshard_kind op, enum phase phase)
{
    struct total t = {0};
    for (int i = 0; i < cost->ncollectives; i++)
        if (cost->collectives[i].op == op && cost->collectives[i].phase == phase) {
            t.count += cost->collectives[i].count;
            t.bytes += cost->collectives[i].bytes;
        }
    return t;
}

// Parameters of the cookbook's decoder: a layer has 3·512·1024 + 1024·512 + 2·512·2048.
enum { TOKENS = 256 * 512, POSITIONS = 128 * 512, LAYER = 4194304, HEAD = 512 * 256 };

static void data_parallel_reduces_every_gradient_once(void **state)
{
    struct fixture f;
    struct cost cost;
    (void)state;
    assert_int_equal(load(&f, "cookbook-data-parallel.yaml", NULL, 0), 0);
    cost_count(&f.c, &f.a, &cost);
    struct total t = total_of(&cost, RESHARD_ALL_REDUCE, PHASE_BACKWARD);
    assert_int_equal(t.count, 2 + 4 * 4 + 1); // embeddings, four weights a layer, head
    assert_int_equal(t.bytes, (uint64_t)(TOKENS + POSITIONS + 4 * LAYER + HEAD) * 4 * 2 * 7 / 8);
    assert_int_equal(total_of(&cost, RESHARD_ALL_REDUCE, PHASE_UPDATE).count, 1);
    assert_int_equal(cost.ncollectives, 19 + 1);
    fixture_clear(&f);
}

static void fully_sharded_gathers_for_each_reading_pass_and_scatters_each_gradient(void **state)
{
    struct fixture f;
    struct cost cost;
    (void)state;
    assert_int_equal(load(&f, "cookbook-fsdp.yaml", NULL, 0), 0);
    cost_count(&f.c, &f.a, &cost);
    struct total forward = total_of(&cost, RESHARD_ALL_GATHER, PHASE_FORWARD);
    struct total backward = total_of(&cost, RESHARD_ALL_GATHER, PHASE_BACKWARD);
    struct total scatter = total_of(&cost, RESHARD_REDUCE_SCATTER, PHASE_BACKWARD);
    uint64_t all = (uint64_t)(TOKENS + POSITIONS + 4 * LAYER + HEAD) * 4 * 7 / 8;
    assert_int_equal(forward.count, 19);
    assert_int_equal(forward.bytes, all);
    // The embeddings' backward reads no table.
    assert_int_equal(backward.count, 17);
    assert_int_equal(backward.bytes, all - (uint64_t)(TOKENS + POSITIONS) * 4 * 7 / 8);
    assert_int_equal(scatter.count, 19);
    assert_int_equal(scatter.bytes, all);
    assert_int_equal(cost.ncollectives, 19 + 17 + 19 + 1);
    fixture_clear(&f);
}

static void a_vae_cut_on_model_reduces_where_its_hidden_layers_are_contracted(void **state)
{
    struct fixture f;
    struct cost cost;
    int64_t count[2] = {0};
    uint64_t sent[2] = {0};
    (void)state;
    assert_int_equal(load(&f, VAE, NULL, 0), 0);
    cost_count(&f.c, &f.a, &cost);
    for (int i = 0; i < cost.ncollectives; i++) {
        const struct collective_row *r = &cost.collectives[i];
        if (r->axes != 1 << 1)
            continue;
        count[r->phase == PHASE_BACKWARD] += r->count;
        sent[r->phase == PHASE_BACKWARD] += r->bytes;
    }
    // Forward: mean and logvar (64 samples a device × 32), the images (64 × 784). Backward: the
    // latent's gradient; images have none. An all-reduce over two sends its operand once.
    assert_int_equal(count[0], 3);
    assert_int_equal(sent[0], 4 * (2 * 64 * 32 + 64 * 784));
    assert_int_equal(count[1], 1);
    assert_int_equal(sent[1], 4 * 64 * 32);
    fixture_clear(&f);
}

// ---- pipelines ---------------------------------------------------------------------------------

// Linear layers 784 → 512 → 512 → 256 → 10, one a stage; what crosses is a layer's output.
static void four_stages_hold_a_layer_each_and_send_its_output(void **state)
{
    static const uint64_t params[] = {784 * 512 + 512, 512 * 512 + 512, 512 * 256 + 256,
                                      256 * 10 + 10};
    static const uint64_t width[] = {512, 512, 256};
    struct fixture f;
    struct cost cost;
    uint64_t sent[2][4] = {0};
    (void)state;
    assert_int_equal(load(&f, "stages.yaml", NULL, 0), 0);
    assert_int_equal(f.c.nstages, 4);
    for (int s = 0; s < 4; s++) {
        assert_int_equal(compiled_memory(&f.c, s)->params, 4 * params[s]);
        assert_int_equal(compiled_memory(&f.c, s)->optimizer, 8 * params[s]);
    }
    cost_count(&f.c, &f.a, &cost);
    for (int i = 0; i < cost.ncollectives; i++)
        for (int s = 0; s < 4; s++)
            if (cost.collectives[i].send && cost.collectives[i].stages >> s & 1)
                sent[cost.collectives[i].phase == PHASE_BACKWARD][s] += cost.collectives[i].bytes;
    for (int s = 0; s < 3; s++) { // 256 samples of floats; a stage's cotangent goes back
        assert_int_equal(sent[0][s], 256 * width[s] * 4);
        assert_int_equal(sent[1][s + 1], 256 * width[s] * 4);
    }
    assert_int_equal(sent[0][3] + sent[1][0], 0);
    fixture_clear(&f);
}

// Forty layers of latent attention with rotary keys and a hidden layer, eight without and with
// experts, each with a bias wherever there is a weight; one table for embedding and head. A token
// passes two experts of a layer's 16.
static void
jaxformer_has_the_parameters_that_are_published_and_sends_a_residual_between_stages(void **state)
{
    enum { C = 768, V = 100352, LATENT = 128, TURNED = 128, HEADS = 12, M = 4 * C };
    enum {
        ATTENTION = 2 * (C + 1) * LATENT + 3 * (LATENT + 1) * C + (C + 1) * C,
        ROTARY = (2 * LATENT + 1) * TURNED * (1 + HEADS),
        HIDDEN = (C + 1) * M + (M + 1) * C,
        ROUTING = (C + 1) * 16 + (C + 1) * 2 * C, // and the shared maps
        NORMS = 4 * C
    };
    const int64_t active = (int64_t)V * C + 48 * (ATTENTION + NORMS) + 40 * (ROTARY + HIDDEN) +
                           8 * (ROUTING + 2 * HIDDEN) + 2 * C;
    struct fixture f;
    struct cost cost;
    uint64_t sent = 0;
    (void)state;
    assert_int_equal(load(&f, "jaxformer.yaml", NULL, 0), 0);
    cost_count(&f.c, &f.a, &cost);
    assert_int_equal(cost.params_active, active);
    assert_int_equal(cost.params, active + 8 * 14 * (int64_t)HIDDEN);
    assert_int_equal(cost.params / 1000000, 949);
    // What the example says of it, in millions.
    assert_int_equal((active + 500000) / 1000000, 420);
    assert_int_equal((active - (int64_t)V * C + 500000) / 1000000, 343);
    assert_int_equal((active - (int64_t)V * C - 8 * (int64_t)HIDDEN + 500000) / 1000000, 306);
    assert_int_equal((active - (int64_t)V * C - 16 * (int64_t)HIDDEN + 500000) / 1000000, 268);
    for (int i = 0; i < cost.ncollectives; i++)
        if (cost.collectives[i].send && cost.collectives[i].phase == PHASE_FORWARD)
            sent += cost.collectives[i].bytes;
    // 256 samples over 8, 1024 tokens over 2, in bf16; 8 blocks in turns on two stages meet 7 times.
    assert_int_equal(sent, 7 * (256 / 8) * (1024 / 2) * C * 2);
    // Each stage works 3 for each of 4 microbatches and waits (1 + 2) / 4.
    assert_true(fabs(f.c.schedule_cost.bubble - 0.75 / 12.75) < 1e-12);
    fixture_clear(&f);
}

// Four layers of 12·256² + 13·256 parameters. Two lie on a stage; of each, tp halves the matrices
// and the biases of what is cut (3·256 and 4·256), not norms and output biases (6·256).
static void a_gpt_in_three_dimensions_holds_half_of_its_stages_layers(void **state)
{
    enum { E = 256, SHARD = (12 * E * E + 7 * E) / 2 + 6 * E };
    struct fixture f;
    (void)state;
    assert_int_equal(load(&f, "gpt-3d.yaml", NULL, 0), 0);
    assert_int_equal(f.c.nstages, 2);
    // The first stage has the embeddings, the last the final norm and, for the head, the table too.
    assert_int_equal(compiled_memory(&f.c, 0)->params, 4 * (2 * SHARD + 128 * E + 128 * E));
    assert_int_equal(compiled_memory(&f.c, 1)->params, 4 * (2 * SHARD + 128 * E + 2 * E));
    fixture_clear(&f);
}

// ---- refusals ----------------------------------------------------------------------------------

static void at_the_programs_sizes_fsdp_with_tensor_is_refused_naming_the_heads(void **state)
{
    static const char *const set[] = {"model.heads=8", "model.embed=512", "model.mlp=2048"};
    struct fixture f;
    (void)state;
    assert_int_equal(load(&f, "cookbook-fsdp-tensor.yaml", set, 3), ERR_INVALID);
    assert_non_null(strstr(f.e.text, "layers/0/attn/out/weight and 3 like it: dimension heads of "
                                     "size 8 does not divide by 128 (fsdp): try 128"));
    assert_int_equal(f.found.errors, 1);
    const char *fix = f.found.items[0].fix;
    struct fixture g;
    assert_int_equal(
        load(&g, "cookbook-fsdp-tensor.yaml", (const char *[]){set[0], set[1], set[2], fix}, 4), 0);
    fixture_clear(&g);
    fixture_clear(&f);
}

static void weights_on_data_are_refused_with_two_ways_out(void **state)
{
    struct fixture f, g;
    char fix[2][300];
    (void)state;
    assert_int_equal(load(&f, "weights-on-data.yaml", NULL, 0), ERR_INVALID);
    const struct finding *one = findings_first_error(&f.found);
    assert_int_equal(one->code, FINDING_WEIGHT_ON_BATCH_AXIS);
    assert_string_equal(one->tensor, "layers/0/weight");
    assert_int_equal(one->axes, 1);
    const char * or = strstr(one->fix, " or ");
    assert_non_null(or);
    snprintf(fix[0], sizeof fix[0], "%.*s", (int)(or -one->fix), one->fix);
    snprintf(fix[1], sizeof fix[1], "%s", or +4);
    fixture_clear(&f);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(load(&g, "weights-on-data.yaml", (const char *[]){fix[i]}, 1), 0);
        assert_null(find_finding(&g, FINDING_WEIGHT_ON_BATCH_AXIS, NULL));
        fixture_clear(&g);
    }
}

static void gpt3_is_refused_by_80_gb_devices_and_fits_with_its_fix(void **state)
{
    struct fixture f;
    (void)state;
    assert_int_equal(load(&f, "gpt3-175b.yaml", NULL, 0), 0);
    plan_fit(&f.job, device_model_find("a100-80g"), &f.c, &f.found, &f.a);
    assert_int_equal(f.found.n, 1);
    assert_int_equal(f.found.items[0].code, FINDING_DOES_NOT_FIT);
    char fix[300];
    snprintf(fix, sizeof fix, "%s", f.found.items[0].fix);
    char *and = strstr(fix, " and ");
    assert_non_null(and);
    assert_null(strstr(fix, " or "));
    *and = 0;
    fixture_clear(&f);
    assert_int_equal(load(&f, "gpt3-175b.yaml", (const char *[]){fix, and+5}, 2), 0);
    plan_fit(&f.job, device_model_find("a100-80g"), &f.c, &f.found, &f.a);
    assert_int_equal(f.found.n, 0);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_example_plans_or_is_refused_as_it_says),
        cmocka_unit_test(the_guides_shards_are_those_worked_out_by_hand),
        cmocka_unit_test(a_tensor_on_the_gpus_of_two_hosts_lies_on_two_ranks_a_block),
        cmocka_unit_test(data_parallel_reduces_every_gradient_once),
        cmocka_unit_test(fully_sharded_gathers_for_each_reading_pass_and_scatters_each_gradient),
        cmocka_unit_test(a_vae_cut_on_model_reduces_where_its_hidden_layers_are_contracted),
        cmocka_unit_test(four_stages_hold_a_layer_each_and_send_its_output),
        cmocka_unit_test(
            jaxformer_has_the_parameters_that_are_published_and_sends_a_residual_between_stages),
        cmocka_unit_test(a_gpt_in_three_dimensions_holds_half_of_its_stages_layers),
        cmocka_unit_test(at_the_programs_sizes_fsdp_with_tensor_is_refused_naming_the_heads),
        cmocka_unit_test(weights_on_data_are_refused_with_two_ways_out),
        cmocka_unit_test(gpt3_is_refused_by_80_gb_devices_and_fits_with_its_fix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
