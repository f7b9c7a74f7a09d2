// SPDX-License-Identifier: Apache-2.0
// What a step communicates, worked out by hand from the rules and held against every row of the
// plan: tensor, operation, axes, phase, how often, bytes.
//
// The model: images 8 → 16 → 8 → 4 classes, 16 samples in two microbatches of 8. Floats:
//   layers/0/weight [embed 8, mlp 16] 128 · bias [mlp 16]
//   layers/1/weight [mlp 16, embed 8] 128 · bias [norm 8]
//   layers/2/weight [embed 8, classes 4] 32 · bias [classes 4]
// `whole` is count × the bytes of the tensor as cut outside the group; what a ring sends of it is
// (n − 1)/n, for an all-reduce twice that. The metrics are four floats, of a classifier five: its
// accuracy is the fifth.
#include "common/explain/cost.h"
#include "tests/unit/compile_case.h"

#define JOB                                                           \
    "name: t\n"                                                       \
    "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 4}\n" \
    "data: {train: {images: i, labels: l}, batch: 16}\n"              \
    "optimizer: {kind: sgd}\n"                                        \
    "train: {steps: 1, microbatches: 2}\n"

#define REDUCE  RESHARD_ALL_REDUCE
#define SCATTER RESHARD_REDUCE_SCATTER
#define GATHER  RESHARD_ALL_GATHER
#define FWD     PHASE_FORWARD
#define BWD     PHASE_BACKWARD
#define UPD     PHASE_UPDATE

struct row {
    enum reshard_kind op;
    unsigned axes; // bits in mesh order
    enum phase phase;
    const char *tensor;
    int64_t count;
    uint64_t whole, bytes;
};

static const struct collective_row *find(const struct cost *c, const struct row *want)
{
    for (int i = 0; i < c->ncollectives; i++)
        if (c->collectives[i].op == want->op && c->collectives[i].axes == want->axes &&
            c->collectives[i].phase == want->phase &&
            !strcmp(c->collectives[i].tensor, want->tensor))
            return &c->collectives[i];
    fail_msg("no %s of %s", reshard_kind_name(want->op), want->tensor);
    return NULL;
}

static void expect(const char *text, const struct row *want, int n)
{
    struct fixture f;
    struct cost cost;
    compile_text(&f, text, 0);
    cost_count(&f.c, &f.a, &cost);
    for (int i = 0; i < n; i++) {
        const struct collective_row *r = find(&cost, &want[i]);
        if (r->count != want[i].count || r->tensor_bytes != want[i].whole ||
            r->bytes != want[i].bytes)
            fail_msg("%s of %s: %lld times, %llu whole, %llu sent; not %lld, %llu, %llu",
                     reshard_kind_name(r->op), r->tensor, (long long)r->count,
                     (unsigned long long)r->tensor_bytes, (unsigned long long)r->bytes,
                     (long long)want[i].count, (unsigned long long)want[i].whole,
                     (unsigned long long)want[i].bytes);
        assert_int_equal(r->group, mesh_product(&f.c.mesh, (axis_set)want[i].axes));
    }
    for (int i = 0; i < cost.ncollectives; i++) {
        bool known = false;
        for (int k = 0; k < n; k++)
            known |= find(&cost, &want[k]) == &cost.collectives[i];
        if (!known)
            fail_msg("unexpected: %s of %s, %s", reshard_kind_name(cost.collectives[i].op),
                     cost.collectives[i].tensor, phase_name(cost.collectives[i].phase));
    }
    fixture_clear(&f);
}
#define EXPECT(text, rows) expect(text, rows, (int)(sizeof(rows) / sizeof *(rows)))

static void data_parallel_reduces_every_gradient_once(void **state)
{
    static const struct row rows[] = {
        {REDUCE, 1, BWD, "grad/layers/0/weight", 1, 512, 768},
        {REDUCE, 1, BWD, "grad/layers/0/bias", 1, 64, 96},
        {REDUCE, 1, BWD, "grad/layers/1/weight", 1, 512, 768},
        {REDUCE, 1, BWD, "grad/layers/1/bias", 1, 32, 48},
        {REDUCE, 1, BWD, "grad/layers/2/weight", 1, 128, 192},
        {REDUCE, 1, BWD, "grad/layers/2/bias", 1, 16, 24},
        {REDUCE, 1, UPD, "metrics", 1, 20, 30},
    };
    (void)state;
    EXPECT(JOB "mesh: {dp: 4}\n", rows);
}

// A gather for each pass that reads, a scatter for each contribution, of each microbatch; whole
// parameters once. The first layer's backward reads no weight: nothing wants the images' gradient.
static void fully_sharded_gathers_what_it_reads_and_scatters_what_it_makes(void **state)
{
    static const struct row rows[] = {
        {GATHER, 1, FWD, "layers/0/weight", 2, 1024, 768},
        {GATHER, 1, FWD, "layers/1/weight", 2, 1024, 768},
        {GATHER, 1, FWD, "layers/2/weight", 2, 256, 192},
        {GATHER, 1, BWD, "layers/1/weight", 2, 1024, 768},
        {GATHER, 1, BWD, "layers/2/weight", 2, 256, 192},
        {SCATTER, 1, BWD, "grad/layers/0/weight", 2, 1024, 768},
        {SCATTER, 1, BWD, "grad/layers/1/weight", 2, 1024, 768},
        {SCATTER, 1, BWD, "grad/layers/2/weight", 2, 256, 192},
        {REDUCE, 1, BWD, "grad/layers/0/bias", 1, 64, 96},
        {REDUCE, 1, BWD, "grad/layers/1/bias", 1, 32, 48},
        {REDUCE, 1, BWD, "grad/layers/2/bias", 1, 16, 24},
        {REDUCE, 1, UPD, "metrics", 1, 20, 30},
    };
    (void)state;
    EXPECT(JOB "mesh: {fsdp: 4}\n", rows);
}

// The second product's contraction is cut: 8 × 8 floats a microbatch. Its operands' gradients are
// cut as they are wanted, and every device has the whole batch.
static void tensor_parallel_sums_the_second_product(void **state)
{
    static const struct row rows[] = {
        {REDUCE, 1, FWD, "layers/1/act_seq", 2, 512, 512},
        {REDUCE, 1, UPD, "metrics", 1, 20, 20},
    };
    (void)state;
    EXPECT(JOB "mesh: {tp: 2}\n", rows);
}

static void data_and_tensor_parallel_are_both(void **state)
{
    static const struct row rows[] = {
        {REDUCE, 2, FWD, "layers/1/act_seq", 2, 256, 256}, // 4 samples a device
        {REDUCE, 1, BWD, "grad/layers/0/weight", 1, 256, 256},
        {REDUCE, 1, BWD, "grad/layers/0/bias", 1, 32, 32},
        {REDUCE, 1, BWD, "grad/layers/1/weight", 1, 256, 256},
        {REDUCE, 1, BWD, "grad/layers/1/bias", 1, 32, 32},
        {REDUCE, 1, BWD, "grad/layers/2/weight", 1, 128, 128},
        {REDUCE, 1, BWD, "grad/layers/2/bias", 1, 16, 16},
        {REDUCE, 3, UPD, "metrics", 1, 20, 30},
    };
    (void)state;
    EXPECT(JOB "mesh: {dp: 2, tp: 2}\n", rows);
}

// HSDP: gathers and scatters inside fsdp, what is left of the gradients summed over dp once.
static void sharded_inside_replicated_outside(void **state)
{
    static const struct row rows[] = {
        {GATHER, 2, FWD, "layers/0/weight", 2, 1024, 512},
        {GATHER, 2, FWD, "layers/1/weight", 2, 1024, 512},
        {GATHER, 2, FWD, "layers/2/weight", 2, 256, 128},
        {GATHER, 2, BWD, "layers/1/weight", 2, 1024, 512},
        {GATHER, 2, BWD, "layers/2/weight", 2, 256, 128},
        {SCATTER, 2, BWD, "grad/layers/0/weight", 2, 1024, 512},
        {SCATTER, 2, BWD, "grad/layers/1/weight", 2, 1024, 512},
        {SCATTER, 2, BWD, "grad/layers/2/weight", 2, 256, 128},
        {REDUCE, 1, BWD, "grad/layers/0/weight", 1, 256, 256},
        {REDUCE, 1, BWD, "grad/layers/1/weight", 1, 256, 256},
        {REDUCE, 1, BWD, "grad/layers/2/weight", 1, 64, 64},
        {REDUCE, 3, BWD, "grad/layers/0/bias", 1, 64, 96},
        {REDUCE, 3, BWD, "grad/layers/1/bias", 1, 32, 48},
        {REDUCE, 3, BWD, "grad/layers/2/bias", 1, 16, 24},
        {REDUCE, 3, UPD, "metrics", 1, 20, 30},
    };
    (void)state;
    EXPECT(JOB "mesh: {dp: 2, fsdp: 2}\n", rows);
}

// Residual activations cut on tp too, as sequence parallelism does: the images are gathered before
// the first product (and again for its weight's gradient), the second product is scattered instead
// of summed; the head contracts what is cut, so its logits (8 × 4) are summed; its weight's and
// the residual bias's gradients come out cut and are gathered. The second layer's two products
// share one gather of their cotangent.
static void residuals_cut_on_tp_scatter_and_gather(void **state)
{
    static const struct row rows[] = {
        {GATHER, 1, FWD, "layers/0/act_seq", 2, 512, 256},
        {SCATTER, 1, FWD, "layers/1/act_seq", 2, 512, 256},
        {REDUCE, 1, FWD, "layers/2/act_logits", 2, 256, 256},
        {GATHER, 1, BWD, "grad/layers/2/weight", 2, 256, 128},
        {GATHER, 1, BWD, "grad/layers/1/bias", 2, 64, 32},
        {GATHER, 1, BWD, "grad/layers/1/act_seq", 2, 512, 256},
        {GATHER, 1, BWD, "layers/0/act_seq", 2, 512, 256},
        {REDUCE, 1, UPD, "metrics", 1, 20, 20},
    };
    (void)state;
    EXPECT(JOB "mesh: {tp: 2}\nsharding: {activations: {act_seq: [batch, tp]}}\n", rows);
}

// Classes cut: the row maximum, the sum of exponentials and the pick are each 8 floats a
// microbatch. The head's input gradient contracts the classes: 8 × 8 floats. The accuracy's most
// likely class is looked for in whole rows: the logits, 8 × 4 floats a microbatch, are gathered.
static void a_cut_row_is_summed_in_three_small_parts(void **state)
{
    static const struct row rows[] = {
        {REDUCE, 1, FWD, "layers/1/act_seq", 2, 512, 512},
        {REDUCE, 1, FWD, "layers/2/act_logits", 6, 192, 192},
        {GATHER, 1, FWD, "layers/2/act_logits", 2, 256, 128},
        {REDUCE, 1, BWD, "grad/layers/2/act_seq", 2, 512, 512},
        {REDUCE, 1, UPD, "metrics", 1, 20, 20},
    };
    (void)state;
    EXPECT(JOB
           "mesh: {tp: 2}\nsharding: {params: [{match: layers/2/weight, spec: [~, tp]}, {match: "
           "layers/2/bias, spec: [tp]}], activations: {act_logits: [batch, tp]}}\n",
           rows);
}

// ---- optimiser state and gradients cut further -------------------------------------------------

// A gradient is scattered into its optimiser's cut once a step, and the parameter gathered from it.
#define STATE_CUT(name, floats, n)                                                  \
    {SCATTER, 1, BWD, "grad/" name, 1, 4 * (floats), 4 * (floats) * ((n)-1) / (n)}, \
    {                                                                               \
        GATHER, 1, UPD, name, 1, 4 * (floats), 4 * (floats) * ((n)-1) / (n)         \
    }
// The same, but scattered in both microbatches.
#define GRADS_CUT(name, floats, n)                                                  \
    {SCATTER, 1, BWD, "grad/" name, 2, 8 * (floats), 8 * (floats) * ((n)-1) / (n)}, \
    {                                                                               \
        GATHER, 1, UPD, name, 1, 4 * (floats), 4 * (floats) * ((n)-1) / (n)         \
    }

static void zero_1_scatters_each_gradient_once_and_gathers_the_parameter(void **state)
{
#define ALL(CUT, n)                                                                              \
    CUT("layers/0/weight", 128, n), CUT("layers/0/bias", 16, n), CUT("layers/1/weight", 128, n), \
        CUT("layers/1/bias", 8, n), CUT("layers/2/weight", 32, n)
    static const struct row two[] = {ALL(STATE_CUT, 2),
                                     STATE_CUT("layers/2/bias", 4, 2),
                                     {REDUCE, 1, UPD, "metrics", 1, 20, 20}};
    static const struct row four[] = {ALL(STATE_CUT, 4),
                                      STATE_CUT("layers/2/bias", 4, 4),
                                      {REDUCE, 1, UPD, "metrics", 1, 20, 30}};
    // Eight do not divide the last bias: it stays whole and is summed.
    static const struct row eight[] = {ALL(STATE_CUT, 8),
                                       {REDUCE, 1, BWD, "grad/layers/2/bias", 1, 16, 28},
                                       {REDUCE, 1, UPD, "metrics", 1, 20, 35}};
    (void)state;
    EXPECT(JOB "mesh: {dp: 2}\nsharding: {optimizer: [dp]}\n", two);
    EXPECT(JOB "mesh: {dp: 4}\nsharding: {optimizer: [dp]}\n", four);
    EXPECT(JOB "mesh: {dp: 8}\nsharding: {optimizer: [dp]}\n", eight);
}

static void zero_2_scatters_in_every_microbatch(void **state)
{
    static const struct row four[] = {ALL(GRADS_CUT, 4),
                                      GRADS_CUT("layers/2/bias", 4, 4),
                                      {REDUCE, 1, UPD, "metrics", 1, 20, 30}};
    static const struct row eight[] = {ALL(GRADS_CUT, 8),
                                       {REDUCE, 1, BWD, "grad/layers/2/bias", 1, 16, 28},
                                       {REDUCE, 1, UPD, "metrics", 1, 20, 35}};
    (void)state;
    EXPECT(JOB "mesh: {dp: 4}\nsharding: {grads: [dp], optimizer: [dp]}\n", four);
    EXPECT(JOB "mesh: {dp: 8}\nsharding: {grads: [dp], optimizer: [dp]}\n", eight);
}

// HSDP with the state cut over the replicas too: what fsdp left of a gradient is scattered over dp
// once. A bias, whole in both, is scattered over dp and the half summed over fsdp: 8n/2 bytes,
// fewer than any way that sums first.
static void replicas_share_the_state_of_what_is_sharded(void **state)
{
#define BIAS(name, floats)                                             \
    {SCATTER, 1, BWD, "grad/" name, 1, 4 * (floats), 2 * (floats)},    \
        {REDUCE, 2, BWD, "grad/" name, 1, 2 * (floats), 2 * (floats)}, \
    {                                                                  \
        GATHER, 1, UPD, name, 1, 4 * (floats), 2 * (floats)            \
    }
    static const struct row rows[] = {
        {GATHER, 2, FWD, "layers/0/weight", 2, 1024, 512},
        {GATHER, 2, FWD, "layers/1/weight", 2, 1024, 512},
        {GATHER, 2, FWD, "layers/2/weight", 2, 256, 128},
        {GATHER, 2, BWD, "layers/1/weight", 2, 1024, 512},
        {GATHER, 2, BWD, "layers/2/weight", 2, 256, 128},
        {SCATTER, 2, BWD, "grad/layers/0/weight", 2, 1024, 512},
        {SCATTER, 2, BWD, "grad/layers/1/weight", 2, 1024, 512},
        {SCATTER, 2, BWD, "grad/layers/2/weight", 2, 256, 128},
        STATE_CUT("layers/0/weight", 64, 2),
        STATE_CUT("layers/1/weight", 64, 2),
        STATE_CUT("layers/2/weight", 16, 2),
        BIAS("layers/0/bias", 16),
        BIAS("layers/1/bias", 8),
        BIAS("layers/2/bias", 4),
        {REDUCE, 3, UPD, "metrics", 1, 20, 30},
    };
    (void)state;
    EXPECT(JOB "mesh: {dp: 2, fsdp: 2}\nsharding: {optimizer: [dp]}\n", rows);
}

// ---- decoders ----------------------------------------------------------------------------------
//
// L = 2 layers of embed 8, 4 heads of 2, mlp 16; 4 samples of 4 tokens of a vocabulary of 16, over
// tp: 2. An activation as wide as the residual has 4·4·8 floats, 512 bytes; a row a token, 64; a
// norm's vector 32. What moves is called by the scope of the first reader when it is a cotangent:
// that of a layer's output belongs to the next layer or the head.

#define DECODER(family)                                                                  \
    "name: t\nmodel: {program: " family ", layers: 2, embed: 8, heads: 4, mlp: 16, "     \
    "seq: 4, vocab: 16, vocab_multiple: 1}\ndata: {format: tokens, train: {tokens: t}, " \
    "batch: 4}\noptimizer: {kind: sgd}\ntrain: {steps: 1}\nmesh: {tp: 2}\n"
#define SEQUENCE_TOO "sharding: {activations: {act_seq: [batch, [seq, tp]]}}\n"

// The two products of a layer and the vocabulary-cut embedding are summed forward, what flows into
// a layer's two blocks and into the head backward: 2L + 1 each, however many products read it
// (llama: q and kv, gate and up). The cut vocabulary's row maximum, row sum and pick.
static void tensor_parallelism_sums_what_enters_and_leaves_a_block_once(void **state)
{
    static const struct row rows[] = {
        {REDUCE, 1, FWD, "embed/act_seq", 1, 512, 512},
        {REDUCE, 1, FWD, "layers/0/act_seq", 2, 1024, 1024},
        {REDUCE, 1, FWD, "layers/1/act_seq", 2, 1024, 1024},
        {REDUCE, 1, FWD, "head/act_logits", 3, 192, 192},
        {REDUCE, 1, BWD, "grad/head/act_seq", 1, 512, 512},
        {REDUCE, 1, BWD, "grad/layers/1/act_seq", 2, 1024, 1024},
        {REDUCE, 1, BWD, "grad/layers/0/act_seq", 2, 1024, 1024},
        {REDUCE, 1, UPD, "metrics", 1, 16, 16},
    };
    (void)state;
    EXPECT(DECODER("gpt2"), rows);
    EXPECT(DECODER("llama, kv_heads: 2"), rows);
    EXPECT(DECODER("cookbook"), rows);
}

// Sums become scatters; what a block or the head reads is gathered forward (2L + 1), and backward
// once more for its weights' gradients, as is what comes back into each of the products that were
// scattered and into the embedding (4L + 2).
#define CUT_SEQUENCE                                              \
    {SCATTER, 1, FWD, "embed/act_seq", 1, 512, 256},              \
        {SCATTER, 1, FWD, "layers/0/act_seq", 2, 1024, 512},      \
        {SCATTER, 1, FWD, "layers/1/act_seq", 2, 1024, 512},      \
        {GATHER, 1, FWD, "layers/0/act_seq", 2, 1024, 512},       \
        {REDUCE, 1, FWD, "head/act_logits", 3, 192, 192},         \
        {SCATTER, 1, BWD, "grad/head/act_seq", 1, 512, 256},      \
        {SCATTER, 1, BWD, "grad/layers/1/act_seq", 2, 1024, 512}, \
        {SCATTER, 1, BWD, "grad/layers/0/act_seq", 2, 1024, 512}, \
        {GATHER, 1, BWD, "layers/0/act_seq", 2, 1024, 512},       \
        {GATHER, 1, BWD, "grad/layers/1/act_seq", 2, 1024, 512},  \
    {                                                             \
        REDUCE, 1, UPD, "metrics", 1, 16, 16                      \
    }
// With a norm in front of each block the head reads its own.
#define NORM_BEFORE                                              \
    {GATHER, 1, FWD, "layers/1/act_seq", 2, 1024, 512},          \
        {GATHER, 1, FWD, "head/act_seq", 1, 512, 256},           \
        {GATHER, 1, BWD, "layers/1/act_seq", 2, 1024, 512},      \
        {GATHER, 1, BWD, "head/act_seq", 1, 512, 256},           \
        {GATHER, 1, BWD, "grad/layers/0/act_seq", 2, 1024, 512}, \
    {                                                            \
        GATHER, 1, BWD, "grad/head/act_seq", 1, 512, 256         \
    }
#define ONCE(name)                              \
    {                                           \
        REDUCE, 1, BWD, "grad/" name, 1, 32, 32 \
    }

static void
sequence_parallelism_scatters_and_gathers_them_and_sums_what_the_cut_rows_share(void **state)
{
    static const struct row gpt2[] = {
        CUT_SEQUENCE,
        NORM_BEFORE,
        ONCE("layers/0/norm1/weight"),
        ONCE("layers/0/norm1/bias"),
        ONCE("layers/0/norm2/weight"),
        ONCE("layers/0/norm2/bias"),
        ONCE("layers/0/attn/out/bias"),
        ONCE("layers/0/mlp/out/bias"),
        ONCE("layers/1/norm1/weight"),
        ONCE("layers/1/norm1/bias"),
        ONCE("layers/1/norm2/weight"),
        ONCE("layers/1/norm2/bias"),
        ONCE("layers/1/attn/out/bias"),
        ONCE("layers/1/mlp/out/bias"),
        ONCE("norm/weight"),
        ONCE("norm/bias"),
        {REDUCE, 1, BWD, "grad/embed/positions", 1, 128, 128},
    };
    static const struct row llama[] = {
        CUT_SEQUENCE,
        NORM_BEFORE,
        ONCE("layers/0/norm1/weight"),
        ONCE("layers/0/norm2/weight"),
        ONCE("layers/1/norm1/weight"),
        ONCE("layers/1/norm2/weight"),
        ONCE("norm/weight"),
    };
    // A norm after each residual sum: a layer's first product reads the norm before it or the
    // embedding, and what comes back into a product is the cotangent of its own layer's sum.
    static const struct row cookbook[] = {
        CUT_SEQUENCE,
        {GATHER, 1, FWD, "embed/act_seq", 1, 512, 256},
        {GATHER, 1, FWD, "layers/1/act_seq", 2, 1024, 512},
        {GATHER, 1, BWD, "embed/act_seq", 1, 512, 256},
        {GATHER, 1, BWD, "layers/1/act_seq", 2, 1024, 512},
        {GATHER, 1, BWD, "grad/layers/0/act_seq", 3, 1536, 768},
        {REDUCE, 1, BWD, "grad/embed/positions", 1, 128, 128},
    };
    (void)state;
    EXPECT(DECODER("gpt2") SEQUENCE_TOO, gpt2);
    EXPECT(DECODER("llama, kv_heads: 2") SEQUENCE_TOO, llama);
    EXPECT(DECODER("cookbook") SEQUENCE_TOO, cookbook);
}

// A vae 8 → 16 → 4 → 16 → 8 whose hidden layers are cut on model; a microbatch has 4 samples a
// device. Mean, log variance and pixels are partial products, summed before their biases; the
// noise and the divergence take nothing. Back, the latent's cotangent is one more; every gradient
// is summed over data once. The metrics are six floats: two are the loss's parts.
static void a_vae_cut_on_model_sums_its_partial_products(void **state)
{
    static const char text[] = "name: t\n"
                               "model: {program: vae, inputs: 8, hidden: [16], latent: 4}\n"
                               "mesh: {data: 2, model: 2}\n"
                               "data: {train: {images: i}, batch: 16}\n"
                               "optimizer: {kind: sgd}\n"
                               "train: {steps: 1, microbatches: 2}\n";
    static const struct row rows[] = {
        {REDUCE, 2, FWD, "encoder (layer 1)/act_seq", 4, 4 * 64, 4 * 64},
        {REDUCE, 2, FWD, "decoder (layer 3)/act_logits", 2, 2 * 128, 2 * 128},
        {REDUCE, 2, BWD, "grad/decoder (layer 2)/act_seq", 2, 2 * 64, 2 * 64},
        {REDUCE, 1, BWD, "grad/encoder/in/weight", 1, 256, 256},
        {REDUCE, 1, BWD, "grad/encoder/in/bias", 1, 32, 32},
        {REDUCE, 1, BWD, "grad/encoder/mean/weight", 1, 128, 128},
        {REDUCE, 1, BWD, "grad/encoder/mean/bias", 1, 16, 16},
        {REDUCE, 1, BWD, "grad/encoder/logvar/weight", 1, 128, 128},
        {REDUCE, 1, BWD, "grad/encoder/logvar/bias", 1, 16, 16},
        {REDUCE, 1, BWD, "grad/decoder/in/weight", 1, 128, 128},
        {REDUCE, 1, BWD, "grad/decoder/in/bias", 1, 32, 32},
        {REDUCE, 1, BWD, "grad/decoder/out/weight", 1, 256, 256},
        {REDUCE, 1, BWD, "grad/decoder/out/bias", 1, 32, 32},
        {REDUCE, 3, UPD, "metrics", 1, 24, 36},
    };
    (void)state;
    EXPECT(text, rows);
}

// A model of one's own, of 24 samples: z [24, 6] and y [24, 24] are sums over the hidden features,
// which are cut; so is the gradient of z, both weights being read twice. No weight's gradient is
// summed. Five floats are reported: the report is one.
static void a_tied_autoencoder_sums_what_its_hidden_features_make(void **state)
{
    static const struct row rows[] = {
        {REDUCE, 1, FWD, "inner/act_seq", 1, 576, 576},
        {REDUCE, 1, FWD, "outer/act_seq", 1, 2304, 2304},
        {REDUCE, 1, BWD, "grad/inner/act_seq", 1, 576, 576},
        {REDUCE, 1, UPD, "metrics", 1, 20, 20},
    };
    (void)state;
    EXPECT("name: t\nmodel: {program: ./tests/unit/programs/tied.model}\nmesh: {tp: 2}\n"
           "data: {train: {images: i}, batch: 24}\noptimizer: {kind: sgd}\ntrain: {steps: 1}\n",
           rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tied_autoencoder_sums_what_its_hidden_features_make),
        cmocka_unit_test(data_parallel_reduces_every_gradient_once),
        cmocka_unit_test(fully_sharded_gathers_what_it_reads_and_scatters_what_it_makes),
        cmocka_unit_test(tensor_parallel_sums_the_second_product),
        cmocka_unit_test(data_and_tensor_parallel_are_both),
        cmocka_unit_test(sharded_inside_replicated_outside),
        cmocka_unit_test(residuals_cut_on_tp_scatter_and_gather),
        cmocka_unit_test(a_cut_row_is_summed_in_three_small_parts),
        cmocka_unit_test(zero_1_scatters_each_gradient_once_and_gathers_the_parameter),
        cmocka_unit_test(zero_2_scatters_in_every_microbatch),
        cmocka_unit_test(replicas_share_the_state_of_what_is_sharded),
        cmocka_unit_test(tensor_parallelism_sums_what_enters_and_leaves_a_block_once),
        cmocka_unit_test(
            sequence_parallelism_scatters_and_gathers_them_and_sums_what_the_cut_rows_share),
        cmocka_unit_test(a_vae_cut_on_model_sums_its_partial_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
