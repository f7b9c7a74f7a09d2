// SPDX-License-Identifier: Apache-2.0
// What travels together (bucket.h): what does, where it lies, and that no bit depends on it.
#include "common/compile/program/bucket.h"
#include "common/compile/program/verify.h"
#include "common/explain/cost.h"
#include "tests/support/late_transport.h"
#include "tests/support/rank_threads.h"
#include "tests/unit/mesh_reference.h"

// `bytes`: of a bucket; 0: there are none.
static void compile_buckets(struct fixture *f, const struct model *m, const struct setting *s,
                            int64_t bytes)
{
    assert_null(m->build);
    if (compile_setting(f, m, s))
        fail_msg("%s: %s", s->mesh, f->e.text);
    f->job.resources.bucket = 0;
    if (plan_explain(&f->job, &(struct compile_options){.bucket = bytes}, &f->a, &f->c, &f->found,
                     NULL, &f->e))
        fail_msg("%s: %s", s->mesh, f->e.text);
}

static const struct program *train_program(const struct fixture *f)
{
    return compiled_program(&f->c, PROGRAM_TRAIN, 0);
}

static bool sums_gradient(const struct program *p, const struct instr *i)
{
    return i->kind == INSTR_START && i->collective == RESHARD_ALL_REDUCE &&
           p->graph->nodes[i->node].when == LAST_MICROBATCH;
}

struct counted {
    int tensors, launches;
};

static bool is_any(const struct program *p, const struct instr *i)
{
    (void)p;
    return i->kind == INSTR_START;
}

static struct counted count(const struct program *p,
                            bool (*is)(const struct program *p, const struct instr *i))
{
    struct counted n = {0};
    for (int i = 0; i < p->ninstrs; i++)
        if (is(p, &p->instrs[i])) {
            n.launches++;
            n.tensors += 1 + p->instrs[i].with;
            i += p->instrs[i].with;
        }
    return n;
}

static struct counted count_sums(const struct program *p)
{
    return count(p, sums_gradient);
}

static int count_trained(const struct program *p)
{
    int n = 0;
    for (int b = 0; b < p->nbuffers; b++)
        n += p->buffers[b].kind == BUFFER_GRAD;
    return n;
}

static const struct setting dp = {GPT2, "dp: 2", 3, "", "", ""};

static void a_bucket_closes_when_its_size_is_reached(void **state)
{
    (void)state;
    enum { SIZE = 6000 };
    struct fixture f;
    compile_buckets(&f, &models[2], &dp, SIZE);
    const struct program *p = train_program(&f);
    struct counted n = count_sums(p);
    assert_int_equal(n.tensors, count_trained(p));
    assert_true(n.launches > 4 && n.launches < n.tensors / 2);
    for (int i = 0, seen = 0; i < p->ninstrs; i++) {
        const struct instr *s = &p->instrs[i];
        uint64_t bytes = 0, last = 0;
        if (!sums_gradient(p, s))
            continue;
        for (int k = 0; k <= s->with; k++)
            bytes += last = p->buffers[s[k].out[0].buffer].bytes;
        assert_true(bytes - last < SIZE);
        if (++seen < n.launches)
            assert_true(bytes >= SIZE);
        i += s->with;
    }
    fixture_clear(&f);
}

static void without_a_size_each_is_alone_and_with_a_large_one_none_is(void **state)
{
    (void)state;
    static const struct {
        int64_t bytes;
        bool alone;
    } cases[] = {{0, true}, {1, true}, {1 << 20, false}};
    for (int k = 0; k < 3; k++) {
        struct fixture f;
        compile_buckets(&f, &models[2], &dp, cases[k].bytes);
        struct counted n = count_sums(train_program(&f));
        assert_int_equal(n.tensors, count_trained(train_program(&f)));
        assert_int_equal(n.launches, cases[k].alone ? n.tensors : 1);
        fixture_clear(&f);
    }
}

// The rows stay one a tensor; their numbers say which go together.
static void a_plan_counts_tensors_and_launches(void **state)
{
    (void)state;
    struct fixture f;
    struct cost cost;
    compile_buckets(&f, &models[2], &dp, 6000);
    struct counted n = count_sums(train_program(&f));
    cost_count(&f.c, &f.a, &cost);
    assert_int_equal(cost.ncollectives, n.tensors + 1); // and the metrics
    assert_int_equal(cost.nsent, n.tensors + 1);
    assert_int_equal(cost.launches, n.launches + 1);
    int last = 0, alone = 0;
    for (int i = 0; i < cost.ncollectives; i++) {
        const struct collective_row *r = &cost.collectives[i];
        assert_int_equal(r->count, 1);
        assert_true(r->bucket == -1 || r->bucket == last || r->bucket == last + 1);
        last = r->bucket < 0 ? last : r->bucket;
        alone += r->bucket < 0;
    }
    assert_int_equal(last + 1 + alone, cost.launches);
    fixture_clear(&f);
}

// In several microbatches too: a row's count says how often its launch is, and rows of a bucket are alike.
static void rows_and_launches_agree_where_groups_are_started_often(void **state)
{
    (void)state;
    static const struct setting cuts[] = {{GPT2, "fsdp: 2", 3, "", "", ""},
                                          {GPT2, "dp: 2, fsdp: 2, tp: 2", 2, "", "", ""},
                                          {GPT2, "dp: 2", 2, "", "optimizer: [dp]", ""}};
    for (int k = 0; k < 3; k++) {
        struct fixture f;
        struct cost cost;
        compile_buckets(&f, &models[2], &cuts[k], 6000);
        struct counted n = count(train_program(&f), is_any);
        cost_count(&f.c, &f.a, &cost);
        int64_t tensors = 0, launches = 0;
        int nbuckets = 0;
        for (int i = 0; i < cost.ncollectives; i++) {
            const struct collective_row *r = &cost.collectives[i], *before = r - 1;
            bool within = i && r->bucket >= 0 && r->bucket == before->bucket;
            tensors += r->count;
            launches += within ? 0 : r->count;
            assert_true(!within || (r->count == before->count && r->op == before->op &&
                                    r->phase == before->phase && r->axes == before->axes));
            if (r->bucket >= 0 && !within)
                assert_int_equal(r->bucket, nbuckets++);
        }
        assert_int_equal(tensors, n.tensors);
        assert_int_equal(cost.nsent, n.tensors);
        assert_int_equal(launches, n.launches);
        assert_int_equal(cost.launches, n.launches);
        assert_true(n.launches < n.tensors);
        fixture_clear(&f);
    }
}

static void buckets_that_lie_apart_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    compile_buckets(&f, &models[2], &dp, 1 << 20);
    struct program *p = &f.c.program[PROGRAM_TRAIN][0];
    const struct memory *m = compiled_memory(&f.c, 0);
    int at = 0;
    while (!p->instrs[at].with || p->instrs[at].kind != INSTR_START)
        at++;
    assert_int_equal(verify_program(p, m, &f.e), 0);
    struct buffer *first = &p->buffers[p->instrs[at + 1].out[0].buffer],
                  *second = &p->buffers[p->instrs[at + 2].out[0].buffer];
    uint64_t offset = first->offset;
    first->offset = second->offset;
    second->offset = offset;
    assert_int_equal(verify_program(p, m, &f.e), ERR_INTERNAL);
    second->offset = first->offset;
    first->offset = offset;
    p->instrs[at + 1].group = (struct dim_cut){0};
    assert_int_equal(verify_program(p, m, &f.e), ERR_INTERNAL);
    assert_non_null(strstr(f.e.text, "cannot go with"));
    fixture_clear(&f);
}

// ---- groups ------------------------------------------------------------------------------------

static bool is_of_layer(const struct program *p, const struct instr *i)
{
    bool grouped = i->collective == RESHARD_ALL_GATHER || i->collective == RESHARD_REDUCE_SCATTER;
    return i->kind == INSTR_START && grouped && strstr(p->graph->nodes[i->node].what, "layers/");
}

// The waits of a group stand together, in the order of its starts. Returns where.
static int check_waits(const struct program *p, int start)
{
    int at = start;
    while (p->instrs[at].kind != INSTR_WAIT || p->instrs[at].start != start)
        at++;
    for (int k = 0; k <= p->instrs[start].with; k++) {
        const struct instr *wait = &p->instrs[at + k];
        assert_true(wait->kind == INSTR_WAIT && wait->start == start + k);
        assert_int_equal(program_goes_with(p, wait), k > 0);
    }
    return at;
}

// The ops that run between two instructions and are not of a scope.
static int count_others(const struct program *p, int from, int to, int scope)
{
    int n = 0;
    for (int i = from; i < to; i++)
        n += p->instrs[i].kind == INSTR_OP && !p->instrs[i].attr &&
             p->graph->nodes[p->instrs[i].node].scope != scope;
    return n;
}

// In each microbatch a layer's parameters come by one launch a phase and its gradients leave by one; none
// waits for another layer's, and all cross while another computes.
static void a_layers_tensors_travel_at_once_beside_another_layer(void **state)
{
    (void)state;
    static const struct setting cuts[] = {
        {GPT2, "fsdp: 2", 3, "", "", ""},
        {GPT2, "fsdp: 4", 1, ", remat: block", "", ""},
        {GPT2, "fsdp: 2", 2, "", "", "precision: {compute: bf16, reduce: bf16}\n"}};
    for (int k = 0; k < 3; k++) {
        struct fixture f;
        compile_buckets(&f, &models[2], &cuts[k], 1 << 20);
        const struct program *p = train_program(&f);
        int launches = 0, gathers = 0;
        for (int i = 0; i < p->ninstrs; i++) {
            const struct instr *first = &p->instrs[i];
            const int scope = first->kind == INSTR_START ? p->graph->nodes[first->node].scope : -1;
            if (!is_of_layer(p, first))
                continue;
            for (int n = 1; n <= first->with; n++) {
                assert_int_equal(p->graph->nodes[first[n].node].scope, scope);
                assert_true(first[n].phase == first->phase &&
                            first[n].microbatch == first->microbatch);
            }
            assert_true(count_others(p, i, check_waits(p, i), scope) > 0);
            launches++;
            gathers += first->collective == RESHARD_ALL_GATHER;
            i += first->with;
        }
        // Four layers: in the forward and the backward, and their gradients.
        assert_int_equal(gathers, 4 * 2 * cuts[k].microbatches);
        assert_int_equal(launches, 4 * 3 * cuts[k].microbatches);
        fixture_clear(&f);
    }
}

static void a_group_closes_when_its_size_is_reached(void **state)
{
    (void)state;
    enum { SIZE = 9000 };
    static const struct setting cut = {GPT2, "fsdp: 2", 1, "", "", ""};
    struct fixture f;
    compile_buckets(&f, &models[2], &cut, SIZE);
    const struct program *p = train_program(&f);
    int full = 0, together = 0;
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *s = &p->instrs[i];
        uint64_t bytes = 0, last = 0;
        if (!is_of_layer(p, s))
            continue;
        for (int k = 0; k <= s->with; k++)
            bytes += last = p->buffers[s[k].out[0].buffer].bytes;
        assert_true(bytes - last < SIZE);
        full += bytes >= SIZE;
        together += s->with > 0;
        i += s->with;
    }
    assert_true(full > 4 && together > 4);
    fixture_clear(&f);
}

// A sharded optimiser's are of the whole step: gradients that are scattered once, parameters that are
// gathered after their update. No more are in a group than hosts can start beside another.
static void a_steps_own_groups_go_over_layers_and_are_bounded(void **state)
{
    (void)state;
    static const struct setting cut = {GPT2, "dp: 2", 2, "", "optimizer: [dp]", ""};
    struct fixture f;
    compile_buckets(&f, &models[2], &cut, 1 << 20);
    const struct program *p = train_program(&f);
    int most[RESHARD_KINDS] = {0};
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_START && p->instrs[i].with >= most[p->instrs[i].collective])
            most[p->instrs[i].collective] = 1 + p->instrs[i].with;
    assert_int_equal(most[RESHARD_REDUCE_SCATTER], GROUP_MOST);
    assert_int_equal(most[RESHARD_ALL_GATHER], GROUP_MOST);
    fixture_clear(&f);
}

// A world carries so many at once, and what starts one more must wait for the oldest.
static void no_more_are_open_than_hosts_can_carry(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 20000, 30000, 50000, 1 << 20};
    for (int k = 0; k < 5; k++) {
        struct fixture f;
        int open = 0, most = 0;
        if (compile_any(&f, "name: t\nmodel: {program: gpt2, layers: 12, embed: 24, heads: 2, "
                            "seq: 24, vocab: 24}\n"
                            "data: {format: tokens, train: {tokens: t}, batch: 48}\n"
                            "optimizer: {kind: adamw}\nschedule: {kind: constant, value: 0.01}\n"
                            "train: {steps: 3}\nmesh: {dp: 2}\nsharding: {optimizer: [dp]}\n"
                            "resources: {bucket: 0}\n"))
            fail_msg("%s", f.e.text);
        const struct compile_options o = {.bucket = sizes[k]};
        assert_int_equal(plan_explain(&f.job, &o, &f.a, &f.c, &f.found, NULL, &f.e), 0);
        const struct program *p = train_program(&f);
        for (int i = 0; i < p->ninstrs; i++) {
            const struct instr *in = &p->instrs[i];
            if (in->kind != INSTR_START && in->kind != INSTR_WAIT)
                continue;
            if (in->collective != RESHARD_ALL_REDUCE || !program_goes_with(p, in))
                open += in->kind == INSTR_START ? 1 : -1;
            most = open > most ? open : most;
        }
        assert_in_range(most, COLLECTIVES_OPEN - GROUP_MOST, COLLECTIVES_OPEN);
        fixture_clear(&f);
    }
}

// What compute waits for anyhow goes together where it stands together: queries, keys and values.
static void an_attentions_operands_travel_at_once(void **state)
{
    (void)state;
    static const struct setting cut = {GPT2, "cp: 2", 1, "", "", ""};
    struct fixture f;
    compile_buckets(&f, &models[2], &cut, 1 << 20);
    const struct program *p = train_program(&f);
    int together = 0;
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_START && p->instrs[i].phase == PHASE_FORWARD &&
            p->instrs[i].with) {
            int n = 1 + p->instrs[i].with;
            assert_int_equal(p->instrs[i + n].kind, INSTR_WAIT);
            together++;
        }
    assert_int_equal(together, 4);
    fixture_clear(&f);
}

// ---- bits --------------------------------------------------------------------------------------

static const struct bits_case {
    int model;
    struct setting setting;
} bits_cases[] = {
    {0, {ALL, "dp: 2", 2, "", "", ""}},
    {2, {ALL, "dp: 3", 1, "", "", ""}},
    {2, {ALL, "dp: 4", 2, "", "", "precision: {deterministic: true}\n"}},
    {3, {ALL, "dp: 8", 1, ", remat: block", "", ""}},
    {2, {ALL, "dp: 2, tp: 2", 2, "", "", "precision: {deterministic: true}\n"}},
    {2, {ALL, "dp: 2, fsdp: 2", 2, "", "", ""}},
    {3, {ALL, "dp: 2, tp: 2", 1, "", SP, ""}},
    {2, {ALL, "dp: 2, pp: 2", 3, "", "", ""}},
    {3, {ALL, "dp: 2, pp: 2", 4, "", "", "pipeline: {schedule: zero_bubble}\n"}},
    {3, {ALL, "dp: 2, pp: 2", 2, "", "", "pipeline: {schedule: circular, chunks: 2}\n"}},
    {2, {ALL, "dp: 4", 2, "", "", "precision: {compute: bf16, reduce: bf16}\n"}},
    {3, {ALL, "dp: 2, tp: 2", 2, "", "grads: [dp], optimizer: [dp]", ""}},
    {7, {ALL, "dp: 2, ep: 2", 2, "", "", ""}},
    {2, {ALL, "fsdp: 2", 3, "", "", ""}},
    {3, {ALL, "fsdp: 4", 1, ", remat: block", "", ""}},
    {2, {ALL, "fsdp: 2", 2, "", "", "precision: {compute: bf16, reduce: bf16}\n"}},
    {3, {ALL, "fsdp: 2, tp: 2", 2, "", SP, ""}},
    {2, {ALL, "fsdp: 2, pp: 2", 3, "", "", ""}},
    {3, {ALL, "fsdp: 2, pp: 2", 4, "", "", "pipeline: {schedule: zero_bubble}\n"}},
    {2,
     {ALL, "fsdp: 2, pp: 2", 2, ", remat: full", "",
      "pipeline: {schedule: circular, chunks: 2}\n"}},
    {2, {ALL, "dp: 2", 2, "", "optimizer: [dp]", ""}},
    {3, {ALL, "fsdp: 2, cp: 2", 1, "", "", ""}},
    {8, {ALL, "ep: 2, tp: 2", 1, "", SP, ""}},
};
enum { BITS_CASES = sizeof bits_cases / sizeof *bits_cases };

static void train(struct rank_threads *ranks, const struct fixture *f, bool late)
{
    struct interp start;
    struct err e = {0};
    interp_init(&start, f->c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&start);
    *ranks = (struct rank_threads){
        .compiled = &f->c, .start = &start, .data = data, .steps = STEPS, .late = late};
    if (late)
        ranks->transport = &inline_transport;
    if (rank_threads_run(ranks, &e))
        fail_msg("%s", e.text);
    interp_clear(&start);
}

static void training_has_the_same_bits_with_and_without(void **state)
{
    (void)state;
    int together = 0;
    for (int k = 0; k < BITS_CASES; k++) {
        const struct model *m = &models[bits_cases[k].model];
        const struct setting *s = &bits_cases[k].setting;
        const int64_t sizes[] = {1 << 20, k % 2 ? 6000 : 500};
        struct fixture alone, bucketed;
        struct rank_threads want, got;
        compile_buckets(&alone, m, s, 0);
        train(&want, &alone, false);
        for (int i = 0; i < 2; i++) {
            struct err e = {0};
            compile_buckets(&bucketed, m, s, sizes[i]);
            for (int stage = 0; stage < bucketed.c.nstages; stage++) {
                struct counted n =
                    count(compiled_program(&bucketed.c, PROGRAM_TRAIN, stage), is_any);
                together += n.launches < n.tensors;
            }
            train(&got, &bucketed, (k + i) % 3 == 0);
            if (rank_threads_same(&want, &got, &e))
                fail_msg("%s on {%s}, buckets of %lld: %s", m->name, s->mesh, (long long)sizes[i],
                         e.text);
            rank_threads_clear(&got);
            fixture_clear(&bucketed);
        }
        rank_threads_clear(&want);
        fixture_clear(&alone);
    }
    assert_true(together > BITS_CASES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_closes_when_its_size_is_reached),
        cmocka_unit_test(without_a_size_each_is_alone_and_with_a_large_one_none_is),
        cmocka_unit_test(a_plan_counts_tensors_and_launches),
        cmocka_unit_test(rows_and_launches_agree_where_groups_are_started_often),
        cmocka_unit_test(buckets_that_lie_apart_are_refused),
        cmocka_unit_test(a_layers_tensors_travel_at_once_beside_another_layer),
        cmocka_unit_test(a_group_closes_when_its_size_is_reached),
        cmocka_unit_test(a_steps_own_groups_go_over_layers_and_are_bounded),
        cmocka_unit_test(no_more_are_open_than_hosts_can_carry),
        cmocka_unit_test(an_attentions_operands_travel_at_once),
        cmocka_unit_test(training_has_the_same_bits_with_and_without),
    };
    return cmocka_run_group_tests(tests, make_data, NULL);
}
