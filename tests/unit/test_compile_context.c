// SPDX-License-Identifier: Apache-2.0
// Context parallel: a sequence cut over devices trains to the numbers of one, every device has the
// same attention to compute, and what is sent is what the rules say.
#include "common/compile/graph/optable.h"
#include "common/explain/cost.h"
#include "common/op/mask.h"
#include "tests/unit/decoder_case.h"

// ---- the order ---------------------------------------------------------------------------------

static void two_parts_hold_the_first_and_last_chunk_and_the_two_between(void **state)
{
    static const int64_t want[8] = {0, 1, 6, 7, 2, 3, 4, 5};
    const struct zigzag z = {8, 2};
    (void)state;
    for (int i = 0; i < 8; i++)
        assert_int_equal(zigzag_position(&z, i), want[i]);
    assert_int_equal(zigzag_run(&z, 2), 2);
    assert_int_equal(zigzag_run(&z, 3), 1);
}

static void every_position_has_one_column(void **state)
{
    static const struct zigzag orders[] = {{24, 1}, {24, 2}, {24, 3}, {24, 4}, {24, 12}, {7, 1}};
    (void)state;
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        const struct zigzag *z = &orders[k];
        bool taken[24] = {false};
        for (int64_t c = 0; c < z->seq; c++) {
            int64_t p = zigzag_position(z, c);
            assert_in_range(p, 0, z->seq - 1);
            assert_false(taken[p]);
            taken[p] = true;
        }
    }
}

// ---- the same work everywhere ------------------------------------------------------------------

// Products of a query with a key that the attention kernel computes for one part's rows.
static int64_t products(const struct zigzag *z, const struct op_attr *a, int parts, int part)
{
    enum { SEQUENCE = 1024, ROWS = ATTENTION_ROWS };
    int32_t at[SEQUENCE];
    int64_t own = z->seq / parts, total = 0;
    const int32_t *query = at + own * part;
    assert_int_equal(z->seq, SEQUENCE);
    for (int64_t c = 0; c < z->seq; c++)
        at[c] = (int32_t)zigzag_position(z, c);
    for (int64_t i = 0, rows; i < own; i += rows) {
        struct mask m;
        rows = mask_rows(query + i, own - i, ROWS);
        mask_keys(&m, a, query + i, rows, at, z->seq);
        total += rows * m.keys;
    }
    return total;
}

// Chunks of 128, two blocks of 64 rows each: a block of chunk q sees 128·q + 64 or + 128 keys. A
// part has chunks r and 7 − r: 64 · (2·128·7 + 2·192) products, whichever it is. Cut as they come,
// part r has two chunks 2r and 2r + 1.
static void zigzag_gives_every_part_the_same_attention(void **state)
{
    const struct op_attr plain = {0};
    (void)state;
    for (int r = 0; r < 4; r++) {
        assert_int_equal(products(&(struct zigzag){1024, 4}, &plain, 4, r), 64 * (256 * 7 + 384));
        assert_int_equal(products(&(struct zigzag){1024, 1}, &plain, 4, r),
                         64 * (256 * (4 * r + 1) + 384));
    }
}

// A block of 64 rows sees its own 64 keys and the 127 before them, fewer at the sequence's begin;
// to both sides 127 more behind. Each of four parts has two chunks of 128, whose second block of
// rows reaches no further than the chunk before.
static void a_window_is_all_that_is_computed(void **state)
{
    const struct op_attr window = {.window = 128}, both = {.window = 128, .ahead = true};
    const struct zigzag natural = {1024, 1}, dealt = {1024, 4};
    int64_t total = 0;
    (void)state;
    assert_int_equal(products(&natural, &window, 1, 0), 64 * (64 + 128 + 14 * 191));
    assert_int_equal(products(&natural, &both, 1, 0), 64 * 2 * (191 + 255 + 6 * 318));
    for (int r = 0; r < 4; r++)
        total += products(&dealt, &window, 4, r);
    assert_in_range(total, 64 * (64 + 128 + 14 * 191), 64 * (64 + 128 + 14 * (191 + MASK_GAP)));
}

// Of 1,024 keys a query sees half on average. A window of 128 reaches over the sequence's begin at
// the first 128 queries, which lack half of it: 64 · 128 / 1,024 keys of the average.
static void flops_count_the_keys_that_are_seen(void **state)
{
    const struct op_attr plain = {0}, ahead = {.ahead = true}, window = {.window = 128};
    const struct op_attr both = {.window = 128, .ahead = true}, wide = {.window = 5000};
    (void)state;
    assert_true(attention_seen(&plain, 1024) == 512);
    assert_true(attention_seen(&ahead, 1024) == 1024);
    assert_true(attention_seen(&window, 1024) == 128 - 8);
    assert_true(attention_seen(&both, 1024) == 2 * (128 - 8));
    assert_true(attention_seen(&wide, 1024) == 512);
}

// ---- what kernels get ---------------------------------------------------------------------------

// That positions count from 0: of all attentions of a step, or of none.
static void attention_knows_whether_the_sequence_is_whole_and_in_order(void **state)
{
    static const struct {
        const char *mesh, *sharding;
        bool in_order;
    } cases[] = {
        {"dp: 2", "", true},
        {"dp: 2, tp: 2", "", true},
        {"cp: 2", "", false},
        {"dp: 2, cp: 2", "", false},
        {"tp: 2", "activations: {act_seq: [batch, [seq, tp]]}", true}, // whole at attention
        {"cp: 2", "activations: {act_att: [batch, ~, cp]}", true},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct fixture f;
        int found = 0;
        compile_text(&f, decoder_long(models[0], 8, cases[c].mesh, 2, cases[c].sharding, ""), 0);
        const struct program *p = f.c.program[PROGRAM_TRAIN];
        for (int i = 0; i < p->graph->nnodes; i++) {
            const struct node *n = &p->graph->nodes[i];
            if (n->op != OP_ATTENTION && n->op != OP_ATTENTION_GRAD)
                continue;
            for (int rank = 0; rank < 2; rank++) {
                struct op_attr a = op_attr_on(p->graph, n, &(struct op_at){&p->mesh, rank, 0, 1});
                assert_int_equal(a.in_order, cases[c].in_order);
            }
            found++;
        }
        assert_true(found > 0);
        fixture_clear(&f);
    }
}

// ---- the same step -----------------------------------------------------------------------------

// The counter of random draws, where the model draws.
static void set_counter(struct interp *x, double step)
{
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].name && !strcmp(x->g->values[v].name, "step")) {
            interp_set(x, "step", &step);
            return;
        }
}

static void compare_on(const char *model, int seq, const char *mesh, const char *sharding,
                       const char *train, int parts)
{
    struct fixture one, many;
    struct interp whole, cut;
    const struct zigzag natural = {seq, 1};
    compile_text(&one, decoder_long(model, seq, "dp: 1", 2, "", ""), 0);
    compile_text(&many, decoder_long(model, seq, mesh, 2, sharding, train), 0);
    const struct program *p = many.c.program[PROGRAM_TRAIN];
    assert_int_equal(one.c.program[PROGRAM_TRAIN]->zigzag.parts, 1);
    assert_int_equal(p->zigzag.parts, parts);
    interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 2);
    interp_init(&cut, p->graph, &many.c.mesh, 2);
    set_params(&whole);
    set_params(&cut);
    for (int s = 0; s < 2; s++) {
        set_counter(&whole, s);
        set_counter(&cut, s);
        decoder_step_in(&whole, &natural);
        decoder_step_in(&cut, &p->zigzag);
    }
    compare_params(&whole, &cut, mesh);
    interp_clear(&whole);
    interp_clear(&cut);
    fixture_clear(&one);
    fixture_clear(&many);
}

static void a_cut_sequence_trains_to_the_numbers_of_one_device(void **state)
{
    static const struct {
        int seq;
        const char *mesh, *sharding, *train;
        int parts;
    } cases[] = {
        {8, "cp: 2", "", "", 2},
        {8, "cp: 4", "", "", 4},
        {12, "cp: 3", "", "", 3},
        {8, "cp: 2, tp: 2", "", "", 2},
        {8, "dp: 2, cp: 2", "", "", 2},
        {8, "fsdp: 2, cp: 2", "", ", remat: block", 2},
        {8, "dp: 2, cp: 2, tp: 2", "", ", remat: full", 2},
        {8, "cp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}", "", 2},
        {24, "a: 3, b: 2", "rules: {seq: [b, a]}", "", 6},
        // Cut everywhere but at attention: the order stays natural.
        {8, "cp: 2", "activations: {act_att: [batch, ~, cp]}", "", 1},
    };
    (void)state;
    for (int k = 0; k < MODELS; k++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            compare_on(models[k], cases[c].seq, cases[c].mesh, cases[c].sharding, cases[c].train,
                       cases[c].parts);
}

// Dropout is drawn by position, wherever that lies and however often it is made.
static void draws_follow_positions(void **state)
{
    static const char *const drops[] = {
        "program: gpt2, embed: 24, heads: 4, head_dim: 6, mlp: 24, dropout: 0.2",
        "program: llama, embed: 24, heads: 8, kv_heads: 4, head_dim: 4, mlp: 24, theta: 50, "
        "dropout: 0.2",
    };
    (void)state;
    for (int k = 0; k < 2; k++) {
        compare_on(drops[k], 8, "cp: 2", "", "", 2);
        compare_on(drops[k], 8, "cp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}",
                   ", remat: full", 2);
    }
}

// ---- what is sent ------------------------------------------------------------------------------

static const struct collective_row *row_of(const struct cost *c, enum reshard_kind op,
                                           enum phase phase, const char *tensor)
{
    for (int i = 0; i < c->ncollectives; i++)
        if (c->collectives[i].op == op && c->collectives[i].phase == phase &&
            !strcmp(c->collectives[i].tensor, tensor))
            return &c->collectives[i];
    fail_msg("no %s of %s", reshard_kind_name(op), tensor);
    return NULL;
}

static void check_row(const struct collective_row *r, int64_t count, uint64_t whole, uint64_t bytes)
{
    assert_int_equal(r->count, count);
    assert_int_equal(r->tensor_bytes, whole);
    assert_int_equal(r->bytes, bytes);
}

// GPT-2 of 2 layers, 24 wide, 8 samples of 8 tokens: keys and values are 8·8·24 floats each,
// gathered in each pass; their gradients are scattered. All 12 parameters of a layer and 4 others
// are used on the cut sequence: their gradients are summed once a step, as are 4 floats of metrics.
static void keys_and_values_are_gathered_and_every_gradient_summed_once(void **state)
{
    static const struct {
        const char *param;
        uint64_t floats;
    } params[] = {
        {"embed/tokens", 24 * 24},
        {"embed/positions", 8 * 24},
        {"layers/0/norm1/weight", 24},
        {"layers/0/norm1/bias", 24},
        {"layers/0/attn/qkv/weight", 3 * 24 * 24},
        {"layers/0/attn/qkv/bias", 3 * 24},
        {"layers/0/attn/out/weight", 24 * 24},
        {"layers/0/attn/out/bias", 24},
        {"layers/1/norm2/weight", 24},
        {"layers/1/norm2/bias", 24},
        {"layers/1/mlp/in/weight", 24 * 24},
        {"layers/1/mlp/in/bias", 24},
        {"layers/1/mlp/out/weight", 24 * 24},
        {"layers/1/mlp/out/bias", 24},
        {"norm/weight", 24},
        {"norm/bias", 24},
    };
    struct fixture f;
    struct cost cost;
    const uint64_t kv = 2 * 8 * 8 * 24 * 4;
    (void)state;
    compile_text(&f, decoder_text(models[0], "cp: 2", 1, ""), 0);
    cost_count(&f.c, &f.a, &cost);
    assert_int_equal(cost.ncollectives, 2 * 3 + 2 * 12 + 4 + 1);
    for (int l = 0; l < 2; l++) {
        char name[40], grad[40];
        snprintf(name, sizeof name, "layers/%d/act_att", l);
        snprintf(grad, sizeof grad, "grad/layers/%d/act_att", l);
        check_row(row_of(&cost, RESHARD_ALL_GATHER, PHASE_FORWARD, name), 2, kv, kv / 2);
        check_row(row_of(&cost, RESHARD_ALL_GATHER, PHASE_BACKWARD, name), 2, kv, kv / 2);
        check_row(row_of(&cost, RESHARD_REDUCE_SCATTER, PHASE_BACKWARD, grad), 2, kv, kv / 2);
    }
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        char grad[60];
        snprintf(grad, sizeof grad, "grad/%s", params[i].param);
        check_row(row_of(&cost, RESHARD_ALL_REDUCE, PHASE_BACKWARD, grad), 1, 4 * params[i].floats,
                  4 * params[i].floats);
    }
    check_row(row_of(&cost, RESHARD_ALL_REDUCE, PHASE_UPDATE, "metrics"), 1, 16, 16);
    assert_true(cost.utilisation == 1);
    fixture_clear(&f);
}

// Llama's 4 key heads of 4 cut on tp, its keys turned before they are gathered over cp: 4 places.
static void tensor_parallel_cuts_what_context_parallel_gathers(void **state)
{
    struct fixture f;
    struct cost cost;
    const uint64_t kv = 2 * 8 * 8 * (4 / 2) * 4 * 4;
    (void)state;
    compile_text(&f, decoder_text(models[1], "cp: 4, tp: 2", 1, ""), 0);
    cost_count(&f.c, &f.a, &cost);
    check_row(row_of(&cost, RESHARD_ALL_GATHER, PHASE_FORWARD, "layers/1/act_att"), 2, kv,
              kv * 3 / 4);
    check_row(row_of(&cost, RESHARD_REDUCE_SCATTER, PHASE_BACKWARD, "grad/layers/1/act_att"), 2, kv,
              kv * 3 / 4);
    // Residual sums of 8·(8/4)·24 floats over tp, one for each half of a layer.
    check_row(row_of(&cost, RESHARD_ALL_REDUCE, PHASE_FORWARD, "layers/1/act_seq"), 2,
              2 * 8 * 2 * 24 * 4, 2 * 8 * 2 * 24 * 4);
    fixture_clear(&f);
}

// ---- what does not divide ----------------------------------------------------------------------

static void a_sequence_that_does_not_deal_out_is_refused_with_one_that_does(void **state)
{
    static const struct {
        int seq;
        const char *mesh, *sharding, *tensor, *says, *fix;
    } cases[] = {
        {8, "cp: 3", "", "act_seq",
         "of size 8 does not divide by 6, two chunks for each place on "
         "cp: try 6 or 12",
         "model.seq=12"},
        {9, "cp: 3", "", "act_seq", "of size 9 does not divide by 6", "model.seq=12"},
        {2, "cp: 2", "", "act_seq",
         "of size 2 does not divide by 4, two chunks for each place on "
         "cp: try 4",
         "model.seq=4"},
        {12, "cp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}", "act_seq",
         "of size 12 does not divide by 8, two chunks for each place on cp,tp: try 8 or 16",
         "model.seq=16"},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct fixture f;
        const struct finding *found;
        compile_text(&f,
                     decoder_long(models[0], cases[c].seq, cases[c].mesh, 1, cases[c].sharding, ""),
                     ERR_INVALID);
        assert_true(f.c.whole);
        assert_int_equal(f.found.n, 1); // though every point has the sequence
        found = &f.found.items[0];
        assert_int_equal(found->code, FINDING_INDIVISIBLE);
        assert_string_equal(found->tensor, cases[c].tensor);
        if (!strstr(found->message, cases[c].says))
            fail_msg("%s", found->message);
        assert_string_equal(found->fix, cases[c].fix);
        fixture_clear(&f);
        compile_text(&f,
                     decoder_long(models[0], atoi(cases[c].fix + strlen("model.seq=")),
                                  cases[c].mesh, 1, cases[c].sharding, ""),
                     0);
        fixture_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_parts_hold_the_first_and_last_chunk_and_the_two_between),
        cmocka_unit_test(every_position_has_one_column),
        cmocka_unit_test(zigzag_gives_every_part_the_same_attention),
        cmocka_unit_test(a_window_is_all_that_is_computed),
        cmocka_unit_test(flops_count_the_keys_that_are_seen),
        cmocka_unit_test(attention_knows_whether_the_sequence_is_whole_and_in_order),
        cmocka_unit_test(a_cut_sequence_trains_to_the_numbers_of_one_device),
        cmocka_unit_test(draws_follow_positions),
        cmocka_unit_test(keys_and_values_are_gathered_and_every_gradient_summed_once),
        cmocka_unit_test(tensor_parallel_cuts_what_context_parallel_gathers),
        cmocka_unit_test(a_sequence_that_does_not_deal_out_is_refused_with_one_that_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
