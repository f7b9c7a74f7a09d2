// SPDX-License-Identifier: Apache-2.0
// Pipelines: what crosses between stages is what must, and no deal of the layers and no schedule
// changes a step. Counts and bytes are worked out by hand.
#include "common/compile/program/group.h"
#include "common/compile/program/verify.h"
#include "common/explain/cost.h"
#include "tests/unit/decoder_case.h"

// ---- the same step ------------------------------------------------------------------------------

// Gradients and the metrics are the last step's, parameters of two.
static void compare_steps(const struct interp *whole, const struct interp *parts, const char *what,
                          bool gradients)
{
    compare_params(whole, parts, what);
    double *one = interp_get(whole, "metrics"), *all = interp_get(parts, "metrics");
    for (int i = 0; i < METRIC_PARTS; i++)
        if (!(fabs(one[i] - all[i]) <= 1e-9 * (1 + fabs(one[i]))))
            fail_msg("%s: metric %d: %.15g, not %.15g", what, i, all[i], one[i]);
    assert_true(one[METRIC_LOSS] > 0 && one[METRIC_SQNORM] > 0);
    free(one);
    free(all);
    for (int v = 0; v < whole->g->nvalues && gradients; v++) {
        const struct value *val = &whole->g->values[v];
        if (val->kind == VALUE_SUM && val->of >= 0)
            compare_value(whole, parts, val, 1e-9, what);
    }
}

static const char *mlp_text(const char *mesh, int microbatches, const char *more)
{
    static char text[1000];
    snprintf(
        text, sizeof text,
        "name: t\n"
        "model: {program: mlp, inputs: 8, hidden: [16, 8, 16, 8], classes: 4, activation: gelu}\n"
        "mesh: {%s}\n"
        "data: {train: {images: i, labels: l}, eval: {images: i, labels: l}, batch: 16}\n"
        "optimizer: {kind: adamw, weight_decay: 0.1, clip_norm: 0.5}\n"
        "schedule: {kind: constant, value: 0.01}\n"
        "train: {steps: 3, microbatches: %d, seed: 5}\n%s",
        mesh, microbatches, more);
    return text;
}

struct piped {
    const char *mesh;
    int microbatches;
    const char *more;  // of the job
    const char *train; // of its train section, or null
};

static void mlp_case(const struct interp *whole, const struct piped *p)
{
    struct fixture f;
    struct interp parts;
    compile_text(&f, mlp_text(p->mesh, p->microbatches, p->more), 0);
    make_batch(&f);
    interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, p->microbatches);
    set_params(&parts);
    step(&f, &parts);
    step(&f, &parts);
    compare_steps(whole, &parts, p->mesh, true);
    assert_true(parts.sent > 0);
    interp_clear(&parts);
    fixture_clear(&f);
}

static void a_classifier_cut_into_stages_trains_as_on_one_device(void **state)
{
    static const struct piped cases[] = {
        {"pp: 2", 1, "", NULL},
        {"pp: 2", 2, "pipeline: {schedule: gpipe}\n", NULL},
        {"pipe: 4", 4, "", NULL},
        {"stage: 5", 2, "", NULL},
        {"pp: 4", 2, "pipeline: {schedule: gpipe, stages: [1, 1, 1, 2]}\n", NULL},
        {"pp: 2", 4, "pipeline: {stages: [1, 4]}\n", NULL},
        {"dp: 2, pp: 2", 2, "", NULL},
        {"pp: 2, dp: 2", 4, "pipeline: {stages: [4, 1]}\n", NULL},
        {"dp: 2, pp: 2, tp: 2", 2, "", NULL},
        {"pp: 2, fsdp: 2", 2, "", NULL},
        {"tp: 2, pp: 4", 1, "pipeline: {schedule: gpipe}\n", NULL},
        {"data: 2, x: 2", 2, "sharding: {rules: {layers: x}}\n", NULL},
        {"pp: 2", 4, "pipeline: {schedule: zero_bubble}\n", NULL},
        {"pp: 4, fsdp: 2", 4, "pipeline: {schedule: zero_bubble}\n", NULL},
        {"pp: 2", 2, "pipeline: {schedule: interleaved, chunks: 2, stages: [1, 2, 1, 1]}\n", NULL},
        {"dp: 2, pp: 2", 2, "pipeline: {schedule: circular, chunks: 2, stages: [1, 1, 1, 2]}\n",
         NULL},
    };
    struct fixture one;
    struct interp whole;
    (void)state;
    compile_text(&one, mlp_text("dp: 1", 1, ""), 0);
    make_batch(&one);
    interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&whole);
    step(&one, &whole);
    step(&one, &whole);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        mlp_case(&whole, &cases[c]);
    interp_clear(&whole);
    fixture_clear(&one);
}

static const char *decoder_deep(const char *model, const char *mesh, int microbatches,
                                const char *train, const char *more)
{
    static char text[1200];
    const char *two = decoder_job(model, mesh, microbatches, "", train),
               *at = strstr(two, "layers: 2");
    const char *plain = strstr(two, "sharding: {}\n");
    assert_non_null(at);
    assert_non_null(plain);
    snprintf(text, sizeof text, "%.*slayers: 4%.*s%s%s", (int)(at - two), two,
             (int)(plain - at) - 9, at + 9, plain + strlen("sharding: {}\n"), more);
    return text;
}

static void decoder_case(const struct interp *whole, const char *model, const struct piped *p)
{
    struct fixture f;
    struct interp parts;
    compile_text(
        &f, decoder_deep(model, p->mesh, p->microbatches, p->train ? p->train : "", p->more), 0);
    interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, p->microbatches);
    set_params(&parts);
    decoder_step(&parts);
    decoder_step(&parts);
    // Scattered into the optimiser's cut, a gradient leaves parts of a sum behind.
    compare_steps(whole, &parts, p->mesh, !strstr(p->more, "optimizer"));
    interp_clear(&parts);
    fixture_clear(&f);
}

// gpt2's head is its embedding: a stage group. The others' is their own.
static void a_decoder_cut_into_stages_trains_as_on_one_device(void **state)
{
    static const struct piped cases[] = {
        {"pp: 2", 1, "", NULL},
        {"pp: 2", 2, "pipeline: {schedule: gpipe}\n", NULL},
        {"pp: 4", 4, "", NULL},
        {"pp: 4", 2, "pipeline: {schedule: gpipe}\n", NULL},
        {"pp: 2", 4, "pipeline: {stages: [1, 3]}\n", NULL},
        {"dp: 2, pp: 2", 2, "pipeline: {stages: [3, 1]}\n", NULL},
        {"dp: 2, pp: 2, tp: 2", 2, "", NULL},
        {"pp: 2, fsdp: 2", 2, "", NULL},
        {"pp: 2, tp: 2", 1, "sharding: {activations: {act_seq: [batch, [seq, tp]]}}\n", NULL},
        {"pp: 3, fsdp: 2", 4, "", NULL},
        {"dp: 2, pp: 2", 2, "sharding: {optimizer: [dp]}\n", NULL},
        {"dp: 2, pp: 2", 2, "sharding: {optimizer: [dp], grads: [dp]}\n", NULL},
        {"pp: 2, cp: 2", 2, "", NULL},
        {"pp: 2, fsdp: 2", 2, "", ", remat: block"},
        {"dp: 2, pp: 2", 2, "pipeline: {schedule: gpipe}\n", ", remat: full"},
        {"pp: 2", 4, "pipeline: {schedule: zero_bubble}\n", NULL},
        {"pp: 4", 4, "pipeline: {schedule: zero_bubble}\n", NULL},
        {"pp: 2, fsdp: 2, tp: 2", 4, "pipeline: {schedule: zero_bubble}\n", NULL},
        {"dp: 2, pp: 2", 2, "pipeline: {schedule: zero_bubble}\n", ", remat: full"},
        {"pp: 2, cp: 2", 2, "pipeline: {schedule: zero_bubble}\n", ", remat: block"},
        {"dp: 2, pp: 2", 2,
         "pipeline: {schedule: zero_bubble}\nsharding: {optimizer: [dp], grads: [dp]}\n", NULL},
        {"pp: 2", 4, "pipeline: {schedule: interleaved, chunks: 2}\n", NULL},
        {"pp: 2, tp: 2, fsdp: 2", 4, "pipeline: {schedule: interleaved, chunks: 2}\n", NULL},
        {"dp: 2, pp: 2", 2, "pipeline: {schedule: interleaved, chunks: 2}\n", ", remat: block"},
        {"pp: 2, cp: 2", 2, "pipeline: {schedule: circular, chunks: 2}\n", NULL},
        {"pp: 2, fsdp: 2", 4, "pipeline: {schedule: circular, chunks: 2}\n", ", remat: full"},
        {"dp: 2, pp: 2", 2,
         "pipeline: {schedule: circular, chunks: 2}\nsharding: {optimizer: [dp], grads: [dp]}\n",
         NULL},
    };
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture one;
        struct interp whole;
        compile_text(&one, decoder_deep(models[k], "dp: 1", 1, "", ""), 0);
        interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 1);
        set_params(&whole);
        decoder_step(&whole);
        decoder_step(&whole);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            decoder_case(&whole, models[k], &cases[c]);
        interp_clear(&whole);
        fixture_clear(&one);
    }
}

// The parts of the loss are the last stage's: every rank gets them.
static void an_evaluation_in_stages_counts_what_one_device_counts(void **state)
{
    struct fixture one, f;
    struct interp whole, parts;
    (void)state;
    compile_text(&one, mlp_text("dp: 1", 1, ""), 0);
    compile_text(&f, mlp_text("pp: 2, dp: 2", 2, ""), 0);
    make_batch(&one);
    interp_init(&whole, one.c.global[PROGRAM_EVAL], NULL, 1);
    interp_init(&parts, f.c.program[PROGRAM_EVAL]->graph, &f.c.mesh, 2);
    struct interp *both[2] = {&whole, &parts};
    for (int k = 0; k < 2; k++) {
        set_params(both[k]);
        for (int m = 0; m < both[k]->microbatches; m++) {
            interp_feed(both[k], "images", one.images, m);
            interp_feed(both[k], "labels", one.labels, m);
            interp_phase(both[k], PHASE_FORWARD, m);
        }
        interp_phase(both[k], PHASE_UPDATE, both[k]->microbatches - 1);
    }
    compare(&whole, &parts, "metrics");
    double *metrics = interp_get(&whole, "metrics");
    assert_true(metrics[0] > 0);
    free(metrics);
    interp_clear(&whole);
    interp_clear(&parts);
    fixture_clear(&one);
    fixture_clear(&f);
}

// ---- programs -----------------------------------------------------------------------------------

static struct instr *find_instr(struct program *p, enum instr_kind kind, int skip)
{
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == kind && skip-- == 0)
            return &p->instrs[i];
    fail_msg("no such instruction");
    return NULL;
}

static void programs_whose_messages_do_not_meet_are_refused(void **state)
{
    struct fixture f;
    struct err e = {0};
    (void)state;
    compile_text(&f, mlp_text("pp: 2", 2, ""), 0);
    struct program *p = f.c.program[PROGRAM_TRAIN];
    assert_int_equal(verify_stages(p, 2, &e), 0);
    struct instr *recv = find_instr(&p[1], INSTR_RECV, 0);
    recv->microbatch = 1;
    assert_int_equal(verify_stages(p, 2, &e), ERR_INTERNAL);
    if (!strstr(e.text,
                "stage 0 has the send layers/2/act_hidden of microbatch 0 first, instruction ") ||
        !strstr(e.text, "stage 1 has the receive layers/2/act_hidden of microbatch 1 first, "))
        fail_msg("%s", e.text);
    recv->microbatch = 0;
    struct instr *sent = find_instr(&p[0], INSTR_SEND, 1);
    sent->kind = INSTR_MARK;
    assert_int_equal(verify_stages(p, 2, &e), ERR_INTERNAL);
    assert_non_null(strstr(e.text, "for ever"));
    sent->kind = INSTR_SEND;
    sent->peer = 2;
    assert_int_equal(verify_stages(p, 2, &e), ERR_INTERNAL);
    assert_non_null(strstr(e.text, "stage 0 has a message with stage 2 of 2"));
    sent->peer = 1;
    struct instr *sum = find_instr(&p[1], INSTR_START, 0); // of the metrics: of all stages
    sum->kind = INSTR_MARK;
    assert_int_equal(verify_stages(p, 2, &e), ERR_INTERNAL);
    assert_non_null(strstr(e.text, "stage 0 has the collective metrics of microbatch 1 first"));
    assert_non_null(strstr(e.text, "stage 1 has none left"));
    sum->kind = INSTR_START;
    assert_int_equal(verify_stages(p, 2, &e), 0);
    fixture_clear(&f);
}

// ---- one order of all starts -------------------------------------------------------------------

enum { MOST_RANKS = 16 };

static bool is_start(const struct program *p, int i)
{
    enum instr_kind k = p->instrs[i].kind;
    return k == INSTR_SEND || k == INSTR_RECV ||
           (k == INSTR_START && !program_goes_with(p, &p->instrs[i]));
}

// A rank's starts, and which of them comes next.
struct rank_row {
    const struct program *p;
    int n, at, *start;
};

// Whether a rank's next start is its side of this one, among these members.
static bool comes_to(const struct rank_row *r, const struct mesh *m, int rank,
                     const struct group *group, const struct instr *in, const int *members, int n)
{
    int own[MOST_RANKS];
    if (r->at == r->n)
        return false;
    const struct instr *i = &r->p->instrs[r->start[r->at]];
    struct group g = group_of(i, r->p->stage);
    return group_equal(&g, group) && i->node == in->node && i->microbatch == in->microbatch &&
           group_ranks(&g, m, rank, own) == n && memcmp(own, members, sizeof *own * (size_t)n) == 0;
}

// Each rank does its starts one after the other, as NCCL may; returns how many are left in the end.
// Looks at ranks and communicators, as the executor makes them; not at stages, as verify_stages does.
static int run_rows(const struct compiled *c, enum program_kind kind)
{
    const int ranks = mesh_product(&c->mesh, (axis_set)((1u << c->mesh.n) - 1));
    struct rank_row rows[MOST_RANKS] = {{0}};
    struct arena a = {0};
    int left = 0;
    assert_true(ranks <= MOST_RANKS);
    for (int r = 0; r < ranks; r++) {
        const struct program *p = compiled_program(c, kind, compiled_stage(c, r));
        rows[r] = (struct rank_row){.p = p, .start = arena_array(&a, int, p->ninstrs)};
        for (int i = 0; i < p->ninstrs; i++)
            if (is_start(p, i))
                rows[r].start[rows[r].n++] = i;
        left += rows[r].n;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < ranks; r++) {
            struct rank_row *row = &rows[r];
            int members[MOST_RANKS], n = 0, there = 0;
            if (row->at == row->n)
                continue;
            const struct instr *in = &row->p->instrs[row->start[row->at]];
            struct group g = group_of(in, row->p->stage);
            n = group_ranks(&g, &c->mesh, r, members);
            for (int k = 0; k < n; k++)
                there += comes_to(&rows[members[k]], &c->mesh, members[k], &g, in, members, n);
            moved = moved || there == n;
            for (int k = 0; k < n && there == n; k++, left--)
                rows[members[k]].at++;
        }
    }
    arena_clear(&a);
    return left;
}

static const struct piped ordered[] = {
    {"pp: 2", 4, "", NULL},
    {"pp: 4", 8, "", NULL},
    {"pp: 4", 2, "", NULL},
    {"pp: 3", 8, "pipeline: {stages: [1, 2, 1]}\n", NULL},
    {"pp: 2", 4, "pipeline: {stages: [1, 3]}\n", NULL},
    {"pp: 2", 4, "pipeline: {schedule: gpipe}\n", NULL},
    {"pp: 3", 8, "pipeline: {schedule: gpipe, stages: [1, 1, 2]}\n", NULL},
    {"pp: 2", 4, "pipeline: {schedule: interleaved, chunks: 2}\n", NULL},
    {"dp: 2, pp: 2", 4, "pipeline: {schedule: interleaved, chunks: 2}\n", NULL},
    {"pp: 2", 4, "pipeline: {schedule: circular, chunks: 2}\n", NULL},
    {"pp: 2, dp: 2", 2, "pipeline: {schedule: circular, chunks: 2}\n", NULL},
    {"pp: 2", 4, "pipeline: {schedule: zero_bubble}\n", NULL},
    {"dp: 2, pp: 4, tp: 2", 4, "pipeline: {schedule: zero_bubble}\n", NULL},
    {"fsdp: 2, pp: 2, tp: 2", 4, "", NULL},
};

// Of gpt2, whose first and last stage sum the gradient of the embedding.
static void ranks_that_do_their_starts_one_after_the_other_come_to_the_end(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof ordered / sizeof *ordered; c++) {
        struct fixture f;
        compile_text(
            &f,
            decoder_deep(models[0], ordered[c].mesh, ordered[c].microbatches, "", ordered[c].more),
            0);
        for (int k = 0; k < PROGRAM_KINDS; k++)
            if (compiled_has(&f.c, (enum program_kind)k) && run_rows(&f.c, (enum program_kind)k))
                fail_msg("case %zu, %s: starts are left", c, program_name((enum program_kind)k));
        fixture_clear(&f);
    }
}

// Of two stages every message is of both, so any two that change places in one of them wait for each
// other. Stages of more may have other orders, which the check of ranks then finds as well.
static void starts_that_change_places_are_refused(void **state)
{
    (void)state;
    int refused = 0, taken = 0;
    for (size_t c = 0; c < sizeof ordered / sizeof *ordered; c++) {
        struct fixture f;
        compile_text(
            &f,
            decoder_deep(models[0], ordered[c].mesh, ordered[c].microbatches, "", ordered[c].more),
            0);
        struct program *p = f.c.program[PROGRAM_TRAIN];
        for (int s = 0; s < f.c.nstages; s++)
            for (int i = 0, last = -1; i < p[s].ninstrs; i++) {
                struct instr *in = p[s].instrs, keep = in[i];
                struct err e = {0};
                if (keep.kind != INSTR_SEND && keep.kind != INSTR_RECV)
                    continue;
                if (last >= 0) {
                    in[i] = in[last];
                    in[last] = keep;
                    bool held = !verify_stages(p, f.c.nstages, &e);
                    if (held != !run_rows(&f.c, PROGRAM_TRAIN) || (held && f.c.nstages == 2))
                        fail_msg("case %zu, stage %d: %d and %d", c, s, last, i);
                    if (!held && !strstr(e.text, "starts wait for each other for ever: stage "))
                        fail_msg("%s", e.text);
                    held ? taken++ : refused++;
                    in[last] = in[i];
                    in[i] = keep;
                }
                last = i;
            }
        fixture_clear(&f);
    }
    assert_true(refused > 300 && taken > 0);
}

// ---- what crosses ------------------------------------------------------------------------------

struct row {
    bool send;
    enum reshard_kind op;
    uint64_t stages;
    enum phase phase;
    const char *tensor;
    int group;
    int64_t count;
    uint64_t whole, bytes;
};
#define SEND 1, RESHARD_SLICE
#define SUM  0, RESHARD_ALL_REDUCE
#define FWD  PHASE_FORWARD
#define BWD  PHASE_BACKWARD
#define UPD  PHASE_UPDATE

// All rows that run along the stages, and no other.
static void expect_rows(const char *text, const struct row *want, int n)
{
    struct fixture f;
    struct cost cost;
    int along = 0;
    compile_text(&f, text, 0);
    cost_count(&f.c, &f.a, &cost);
    for (int i = 0; i < cost.ncollectives; i++) {
        const struct collective_row *r = &cost.collectives[i];
        int k = 0;
        if (!(r->axes & f.c.mesh.stages))
            continue;
        along++;
        while (k < n && (r->send != want[k].send || r->phase != want[k].phase ||
                         r->stages != want[k].stages || strcmp(r->tensor, want[k].tensor) != 0))
            k++;
        if (k == n)
            fail_msg("unexpected: %s of %s, %s, stages %llx", collective_row_name(r), r->tensor,
                     phase_name(r->phase), (unsigned long long)r->stages);
        if (r->op != want[k].op || r->group != want[k].group || r->count != want[k].count ||
            r->tensor_bytes != want[k].whole || r->bytes != want[k].bytes)
            fail_msg("%s of %s: %s, group %d, %lld times, %llu whole, %llu sent",
                     collective_row_name(r), r->tensor, phase_name(r->phase), r->group,
                     (long long)r->count, (unsigned long long)r->tensor_bytes,
                     (unsigned long long)r->bytes);
    }
    assert_int_equal(along, n);
    fixture_clear(&f);
}
#define EXPECT(text, rows) expect_rows(text, rows, (int)(sizeof(rows) / sizeof *(rows)))

// Five linear layers over four stages: 2, 1, 1, 1. Two microbatches of 8 rows; what leaves the
// stages is 8, 16 and 8 floats wide. The metrics, an accuracy the last, are five floats, summed over
// all ranks.
static void a_classifier_sends_what_leaves_a_stage_and_the_gradient_of_it(void **state)
{
    static const struct row rows[] = {
        {SEND, 1, FWD, "layers/1/act_seq", 2, 2, 512, 512},
        {SEND, 2, FWD, "layers/2/act_hidden", 2, 2, 1024, 1024},
        {SEND, 4, FWD, "layers/3/act_seq", 2, 2, 512, 512},
        {SEND, 8, BWD, "grad/layers/4/act_seq", 2, 2, 512, 512},
        {SEND, 4, BWD, "grad/layers/3/act_hidden", 2, 2, 1024, 1024},
        {SEND, 2, BWD, "grad/layers/2/act_seq", 2, 2, 512, 512},
        {SUM, 15, UPD, "metrics", 4, 1, 20, 30},
    };
    (void)state;
    EXPECT(mlp_text("pp: 4", 2, ""), rows);
    EXPECT(mlp_text("pp: 4", 2, "pipeline: {schedule: gpipe}\n"), rows);
}

// Each device sends its own half: of the rows, and of what tp cuts between the layers of a pair.
static void every_device_sends_its_own_part(void **state)
{
    static const struct row rows[] = {
        {SEND, 1, FWD, "layers/2/act_hidden", 2, 2, 256, 256},
        {SEND, 2, BWD, "grad/layers/3/act_hidden", 2, 2, 256, 256},
        {SUM, 3, UPD, "metrics", 8, 1, 20, 35},
    };
    (void)state;
    EXPECT(mlp_text("dp: 2, pp: 2, tp: 2", 2, ""), rows);
}

// 784 → 512 → 512 → 256 → 10, a layer a stage, four microbatches of 16.
static void the_guides_four_stage_classifier(void **state)
{
    static const struct row rows[] = {
        {SEND, 1, FWD, "layers/0/act_hidden", 2, 4, 131072, 131072},
        {SEND, 2, FWD, "layers/1/act_seq", 2, 4, 131072, 131072},
        {SEND, 4, FWD, "layers/2/act_hidden", 2, 4, 65536, 65536},
        {SEND, 8, BWD, "grad/layers/3/act_hidden", 2, 4, 65536, 65536},
        {SEND, 4, BWD, "grad/layers/2/act_seq", 2, 4, 131072, 131072},
        {SEND, 2, BWD, "grad/layers/1/act_hidden", 2, 4, 131072, 131072},
        {SUM, 15, UPD, "metrics", 4, 1, 20, 30},
    };
    static const char text[] =
        "name: t\n"
        "model: {program: mlp, inputs: 784, hidden: [512, 512, 256], classes: 10}\n"
        "mesh: {stage: 4}\n"
        "data: {train: {images: i, labels: l}, batch: 64}\n"
        "train: {steps: 1, microbatches: 4}\n";
    struct fixture f;
    (void)state;
    EXPECT(text, rows);
    compile_text(&f, text, 0);
    assert_int_equal(f.found.n, 0);
    assert_true(fabs(f.c.schedule_cost.bubble - 3.0 / 7) < 1e-12);
    fixture_clear(&f);
}

// [batch 4, seq 8, embed 24] floats are 3,072 bytes; the tied embedding is 24 × 24 floats on the
// first and the last of the stages, which alone sum it.
static void a_tied_embedding_is_summed_over_its_stages_once_a_step(void **state)
{
    static const struct row tied[] = {
        {SEND, 1, FWD, "layers/1/act_seq", 2, 2, 6144, 6144},
        {SEND, 2, FWD, "layers/2/act_seq", 2, 2, 6144, 6144},
        {SEND, 4, BWD, "grad/layers/3/act_seq", 2, 2, 6144, 6144},
        {SEND, 2, BWD, "grad/layers/2/act_seq", 2, 2, 6144, 6144},
        {SUM, 5, UPD, "grad/embed/tokens", 2, 1, 2304, 2304},
        {SUM, 7, UPD, "metrics", 3, 1, 16, 22}, // 2 · 2/3 · 16, rounded up
    };
    (void)state;
    EXPECT(decoder_deep(models[0], "pp: 3", 2, "", ""), tied);
}

static void an_untied_decoder_sends_its_boundary_alone(void **state)
{
    static const struct row rows[] = {
        {SEND, 1, FWD, "layers/1/act_seq", 2, 2, 6144, 6144},
        {SEND, 2, BWD, "grad/layers/2/act_seq", 2, 2, 6144, 6144},
        {SUM, 3, UPD, "metrics", 2, 1, 16, 16},
    };
    static const struct row halves[] = {
        {SEND, 1, FWD, "layers/1/act_seq", 2, 2, 3072, 3072},
        {SEND, 2, BWD, "grad/layers/2/act_seq", 2, 2, 3072, 3072},
        {SUM, 3, UPD, "metrics", 2, 1, 16, 16},
    };
    (void)state;
    EXPECT(decoder_deep(models[1], "pp: 2", 2, "", ""), rows);
    EXPECT(decoder_deep(models[2], "pp: 2", 2, "", ""), rows);
    EXPECT(decoder_deep(models[1], "pp: 2", 2, "", "precision: {compute: bf16}\n"), halves);
}

// The copy in bf16 of a tied embedding is each stage's own: it is never sent. Its sum is f32.
static void each_stage_casts_its_own_copy_of_a_tied_embedding(void **state)
{
    static const struct row rows[] = {
        {SEND, 1, FWD, "layers/1/act_seq", 2, 2, 3072, 3072},
        {SEND, 2, BWD, "grad/layers/2/act_seq", 2, 2, 3072, 3072},
        {SUM, 3, UPD, "grad/embed/tokens", 2, 1, 2304, 2304},
        {SUM, 3, UPD, "metrics", 2, 1, 16, 16},
    };
    (void)state;
    EXPECT(decoder_deep(models[0], "pp: 2", 2, "", "precision: {compute: bf16}\n"), rows);
}

// ---- what a stage takes ------------------------------------------------------------------------

// Floats of the layers: 8·16 + 16 = 144, 16·8 + 8 = 136, 144, 136 and 8·4 + 4 = 36.
static void a_stage_holds_its_own_layers(void **state)
{
    static const uint64_t floats[] = {144 + 136, 144, 136, 36};
    struct fixture f;
    (void)state;
    compile_text(&f, mlp_text("pp: 4", 2, ""), 0);
    uint64_t most = 0;
    assert_int_equal(f.c.nstages, 4);
    for (int s = 0; s < 4; s++) {
        const struct memory *m = compiled_memory(&f.c, s);
        assert_int_equal(m->params, 4 * floats[s]);
        assert_int_equal(m->grads, 4 * floats[s]);
        assert_int_equal(m->optimizer, 8 * floats[s]);
        assert_int_equal(m->arena, m->params + m->grads + m->optimizer + m->stash + m->transient +
                                       m->workspace);
        most = m->arena > most ? m->arena : most;
        assert_int_equal(compiled_program(&f.c, PROGRAM_TRAIN, s)->stage, s);
        assert_int_equal(compiled_stage(&f.c, s), s);
    }
    assert_int_equal(f.c.memory.arena, most);
    fixture_clear(&f);
}

// A stage that is like the one before it takes its places. A plan of each alone must give the same.
static void stages_that_are_alike_lie_as_in_plans_of_their_own(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(
        &f,
        "name: t\n"
        "model: {program: mlp, inputs: 8, hidden: [16, 16, 16, 16, 16, 16, 16], classes: 4}\n"
        "mesh: {pp: 4}\n"
        "data: {train: {images: i, labels: l}, batch: 16}\n"
        "train: {steps: 3, microbatches: 4}\npipeline: {schedule: gpipe}\n",
        0);
    const struct program *second = compiled_program(&f.c, PROGRAM_TRAIN, 1), *third = second + 1;
    assert_int_equal(second->nbuffers, third->nbuffers); // alike, else this shows nothing
    assert_int_equal(second->ninstrs, third->ninstrs);
    for (int s = 0; s < 4; s++) {
        const struct program *there = compiled_program(&f.c, PROGRAM_TRAIN, s);
        struct program alone = *there, *all[] = {&alone};
        struct memory m;
        alone.buffers =
            arena_dup(&f.a, there->buffers, sizeof *there->buffers * (size_t)there->nbuffers);
        assert_int_equal(plan_memory(all, 1, NULL, &f.a, &m, &f.e), 0);
        assert_memory_equal(&m, compiled_memory(&f.c, s), sizeof m);
        for (int b = 0; b < alone.nbuffers; b++)
            assert_int_equal(alone.buffers[b].offset, there->buffers[b].offset);
    }
    fixture_clear(&f);
}

static uint64_t first_stash(const char *schedule, int microbatches)
{
    struct fixture f;
    compile_text(&f, mlp_text("pp: 2", microbatches, schedule), 0);
    uint64_t bytes = compiled_memory(&f.c, 0)->stash;
    fixture_clear(&f);
    return bytes * (uint64_t)microbatches; // a microbatch's rows are that many times fewer
}

// The first stage keeps what its backward reads of each microbatch under way: of two with 1f1b.
static void one_forward_one_backward_keeps_fewer_microbatches(void **state)
{
    static const char gpipe[] = "pipeline: {schedule: gpipe}\n";
    (void)state;
    assert_int_equal(first_stash(gpipe, 8), 2 * first_stash(gpipe, 4));
    assert_int_equal(first_stash("", 8), first_stash("", 4));
    assert_true(first_stash("", 8) < first_stash(gpipe, 8) / 2);
}

// Wherever it is met: while the layers are counted, or in a program whose layers are not.
static void a_fault_of_the_model_is_reported_with_stages_too(void **state)
{
    static const struct {
        const char *line, *says;
    } each[] = {{"x = relu(x @ w[embed, embeb])", "no dimension is called embeb here"},
                {"x = relu(x @ w[embed, out = embed]) if training else zzz", "called zzz here"}};
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct fixture f;
        char text[900];
        snprintf(
            text, sizeof text,
            "name: t\nmesh: {pp: 2}\nmodel: {program: ./t.model, text: \"sizes\\n  embed = 8\\n"
            "model\\n  x = images\\n  repeat 2\\n    %s\\n"
            "  loss = sum(x) / samples\\n\"}\n"
            "data: {format: npy, train: {images: i}, eval: {images: i}, batch: 4}\n"
            "train: {steps: 1, microbatches: 2}\n",
            each[i].line);
        assert_int_equal(compile_any(&f, text), ERR_INVALID);
        if (!strstr(f.e.text, each[i].says) || !strstr(f.e.text, "t.model:6:"))
            fail_msg("%s", f.e.text);
        fixture_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_of_the_model_is_reported_with_stages_too),
        cmocka_unit_test(a_classifier_cut_into_stages_trains_as_on_one_device),
        cmocka_unit_test(a_decoder_cut_into_stages_trains_as_on_one_device),
        cmocka_unit_test(an_evaluation_in_stages_counts_what_one_device_counts),
        cmocka_unit_test(programs_whose_messages_do_not_meet_are_refused),
        cmocka_unit_test(ranks_that_do_their_starts_one_after_the_other_come_to_the_end),
        cmocka_unit_test(starts_that_change_places_are_refused),
        cmocka_unit_test(a_classifier_sends_what_leaves_a_stage_and_the_gradient_of_it),
        cmocka_unit_test(every_device_sends_its_own_part),
        cmocka_unit_test(the_guides_four_stage_classifier),
        cmocka_unit_test(a_tied_embedding_is_summed_over_its_stages_once_a_step),
        cmocka_unit_test(an_untied_decoder_sends_its_boundary_alone),
        cmocka_unit_test(each_stage_casts_its_own_copy_of_a_tied_embedding),
        cmocka_unit_test(a_stage_holds_its_own_layers),
        cmocka_unit_test(stages_that_are_alike_lie_as_in_plans_of_their_own),
        cmocka_unit_test(one_forward_one_backward_keeps_fewer_microbatches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
