// SPDX-License-Identifier: Apache-2.0
// Decoding with cached keys on meshes: caches lie where the attention that reads them works, nothing of
// them moves, and on every mesh the logits of any call are those of a forward pass over the whole text on
// one device.
#include <pthread.h>

#include "tests/support/random_graph.h"
#include "tests/support/random_text.h"
#include "tests/unit/decode_case.h"

enum { ROWS = 4 };

static const struct case_of {
    const char *mesh, *sharding;
} cases[] = {
    {"dp: 2", ""},
    {"dp: 4", ""},
    {"fsdp: 2", ""},
    {"fsdp: 4", ""},
    {"tp: 2", ""},
    {"tp: 4", ""},
    {"dp: 2, tp: 2", ""},
    {"cp: 2", ""},
    {"cp: 2, tp: 2", ""},
    {"pp: 2", ""},
    {"pp: 2, tp: 2", ""},
    {"dp: 2, pp: 2, tp: 2", ""},
    {"fsdp: 2, pp: 2", ""},
    {"tp: 2, fsdp: 2", ""},
    {"dp: 2, fsdp: 2, tp: 2", ""},
    {"fsdp: 2, tp: 4", ""},
    {"ep: 2", ""},
    {"dp: 2, ep: 2", ""},
    {"ep: 2, tp: 2", ""},
    {"pp: 2, ep: 2", ""},
    {"x: 2, y: 2", "rules: {batch: x, heads: y, mlp: y, vocab: y}"},
    {"tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
    {"dp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
    {"data: 2, model: 2", "activations: {act_seq: [batch, ~, model]}"},
    {"dp: 2, cp: 2", "activations: {act_att: [batch, seq]}"},
    {"tp: 2", "activations: {act_att: [batch]}"},
    {"dp: 2", "params: [{match: 'embed/tokens', spec: [~, dp]}], gather: [dp]"},
    {"tp: 3", "rules: {heads: ~, mlp: tp, vocab: ~}"},
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *sharded(const struct case_of *c, const char *more)
{
    static char text[300];
    snprintf(text, sizeof text, "sharding: {%s}\n%s", c->sharding, more);
    return text;
}

// Returns whether the job can be on that mesh.
static bool check_case(int k, const struct case_of *c, uint64_t seed)
{
    struct fixture f;
    char what[400], alone[4000];
    const int64_t rows = 1 + (int64_t)((seed * 5) % 7);
    snprintf(what, sizeof what, "{%s} {%s} %s", c->mesh, c->sharding, models[k]);
    snprintf(alone, sizeof alone, "%s", job_on(sized(models[k]), "dp: 1", ROWS, ""));
    int rc = compile_only(&f, job_on(sized(models[k]), c->mesh, ROWS, sharded(c, "")), PROGRAM_FILL,
                          rows, 0);
    if (rc && rc != ERR_INVALID)
        fail_msg("%s: %s", what, f.e.text);
    if (!rc)
        check_decoding(alone, &f.c, seed % 3 == 0, seed, set_params, what);
    fixture_clear(&f);
    return !rc;
}

// A third of models × meshes; with WEFT_LONG all.
static void every_mesh_gives_the_logits_of_a_whole_forward_pass(void **state)
{
    const int each = getenv("WEFT_LONG") ? 1 : 3;
    int tried = 0, held = 0;
    (void)state;
    for (int i = 0; i < MODELS * CASES; i += each) {
        if (is_spared())
            continue;
        held += check_case(i % MODELS, &cases[i / MODELS], (uint64_t)i);
        tried++;
    }
    assert_true(held * 10 >= tried * 9); // the others' sizes do not divide
}

// ---- the same bits -----------------------------------------------------------------------------

static int64_t count_rows(const struct compiled *c, const struct decode_call *call)
{
    return call->kind == PROGRAM_STEP ? 1 : c->rows;
}

// A text beside others, and beside rows that hold other ids and have no new token.
static void check_bits(const char *model, const char *mesh, uint64_t seed)
{
    struct fixture f, whole;
    struct texts t;
    struct decode_call calls[CALLS];
    double *beside[CALLS];
    char alone[4000];
    snprintf(alone, sizeof alone, "%s", job_on(sized(model), "dp: 1", ROWS, ""));
    must_compile(&whole, alone, PROGRAM_SAMPLE, 0, 0);
    must_compile(&f, job_on(sized(model), mesh, ROWS, ""), PROGRAM_FILL, 5, 0);
    texts_open(&t, &whole.c, seed, set_params);
    draw_calls(&t, calls, f.c.rows, f.c.context);
    run_calls(&f.c, calls, set_params, NULL, mesh);
    for (int i = 0; i < CALLS; i++) {
        struct decode_call *c = &calls[i];
        const int64_t rows = count_rows(&f.c, c);
        beside[i] = c->got;
        c->got = calloc((size_t)(t.rows * t.padded), sizeof *c->got);
        for (int64_t k = rows; k < t.rows * rows; k++)
            c->tokens[k] = draw(&t, t.vocab);
        for (int k = 1; k < t.rows; k++)
            c->last[k] -= c->counts[k];
    }
    run_calls(&f.c, calls, set_params, NULL, mesh);
    for (int i = 0; i < CALLS; i++) {
        for (int v = 0; v < t.vocab && calls[i].counts[0]; v++)
            if (calls[i].got[v] != beside[i][v])
                fail_msg("%s on {%s}, call %d, id %d: %.17g alone, %.17g beside others", model,
                         mesh, i, v, calls[i].got[v], beside[i][v]);
        free(beside[i]);
    }
    free_calls(calls);
    interp_clear(&t.whole);
    fixture_clear(&whole);
    fixture_clear(&f);
}

// A mixture deals its places among all texts of a device.
static void a_texts_bits_do_not_hang_on_what_is_beside_it(void **state)
{
    static const char *const meshes[] = {"dp: 1", "dp: 2", "tp: 2", "ep: 2", "dp: 2, pp: 2, tp: 2"};
    static const int of[] = {2, 13, 14};
    (void)state;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (size_t k = 0; k < sizeof of / sizeof *of; k++)
            if (k || !strstr(meshes[m], "ep"))
                check_bits(models[of[k]], meshes[m], m);
}

// ---- what must fail ----------------------------------------------------------------------------

// The hosts' transport, but for one collective of each rank, which does not take place.
static struct {
    pthread_mutex_t mutex;
    const struct fabric *fabric[RANK_THREADS];
    int prepared[RANK_THREADS], ranks;
    int skip; // its number on each rank
    const struct collective *skipped[RANK_THREADS];
} faulty = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int prepare(struct fabric *f, int communicator, const struct collective_args *calls, int n,
                   struct collective **out, struct err *e)
{
    int rc = host_transport.prepare(f, communicator, calls, n, out, e), r = 0;
    pthread_mutex_lock(&faulty.mutex);
    while (r < faulty.ranks && faulty.fabric[r] != f)
        r++;
    PRE(r < RANK_THREADS);
    faulty.ranks += r == faulty.ranks;
    faulty.fabric[r] = f;
    if (faulty.prepared[r]++ == faulty.skip)
        faulty.skipped[r] = *out;
    pthread_mutex_unlock(&faulty.mutex);
    return rc;
}

static bool is_skipped(const struct collective *c)
{
    bool skipped = false;
    pthread_mutex_lock(&faulty.mutex);
    for (int r = 0; r < faulty.ranks; r++)
        skipped |= faulty.skipped[r] == c;
    pthread_mutex_unlock(&faulty.mutex);
    return skipped;
}

static int start(struct collective *c, struct stream_q *q, struct err *e)
{
    return is_skipped(c) ? 0 : host_transport.start(c, q, e);
}

static int wait(struct collective *c, struct stream_q *q, struct err *e)
{
    return is_skipped(c) ? 0 : host_transport.wait(c, q, e);
}

// Of STEP, whose collectives are prepared behind those of FILL.
static void no_collective_could_be_left_out(void **state)
{
    static const char *const meshes[] = {"tp: 2", "fsdp: 2", "dp: 2, tp: 2"};
    struct transport transport = host_transport;
    (void)state;
    transport.prepare = prepare;
    transport.start = start;
    transport.wait = wait;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        struct fixture f, whole;
        struct texts t;
        struct decode_call calls[CALLS];
        char alone[4000];
        snprintf(alone, sizeof alone, "%s", job_on(sized(models[2]), "dp: 1", ROWS, ""));
        must_compile(&whole, alone, PROGRAM_SAMPLE, 0, 0);
        must_compile(&f, job_on(sized(models[2]), meshes[m], ROWS, ""), PROGRAM_FILL, 1, 0);
        texts_open(&t, &whole.c, 1, set_params);
        draw_calls(&t, calls, f.c.rows, f.c.context);
        for (int i = 0; i < CALLS; i++)
            calls[i].kind = PROGRAM_STEP; // FILL is like it, and could leave what this one lacks
        for (int skip = -1; skip < faulty.prepared[0];
             skip = skip < 0 ? faulty.prepared[0] / 2 : skip + 1) {
            faulty.ranks = 0;
            faulty.skip = skip;
            memset(faulty.prepared, 0, sizeof faulty.prepared);
            memset(faulty.skipped, 0, sizeof faulty.skipped);
            struct err e = {0};
            int rc = try_calls(&f.c, calls, set_params, &transport, &e);
            const bool holds = !rc && !find_difference(&t, calls, 1e-5);
            if (holds != (skip < 0))
                fail_msg("{%s} without collective %d of %d: %s", meshes[m], skip,
                         faulty.prepared[0], holds ? "nothing is wrong" : e.text);
        }
        free_calls(calls);
        interp_clear(&t.whole);
        fixture_clear(&whole);
        fixture_clear(&f);
    }
}

// A ring of as many places as its window sees: the rows of a call overwrite what its first one sees.
static void a_ring_without_room_for_a_call_fails(void **state)
{
    struct fixture f, whole;
    struct texts t;
    struct decode_call calls[CALLS];
    char alone[4000];
    (void)state;
    snprintf(alone, sizeof alone, "%s", job_on(sized(models[10]), "dp: 1", ROWS, ""));
    must_compile(&whole, alone, PROGRAM_SAMPLE, 0, 0);
    for (int less = 0; less <= 4; less += 4) {
        must_compile(&f, job_on(sized(models[10]), "dp: 2, tp: 2", ROWS, ""), PROGRAM_FILL, 5, 0);
        for (int k = PROGRAM_FILL; k <= PROGRAM_STEP; k++) {
            const struct graph *g = f.c.program[k]->graph;
            for (int v = 0; v < g->nvalues; v++) {
                struct value *val = &g->values[v];
                const bool ring = val->producer >= 0 && (g->nodes[val->producer].op == OP_APPEND ||
                                                         g->nodes[val->producer].op == OP_RING);
                if (val->kind == VALUE_CACHE || ring)
                    val->shape.dim[1] -= less;
            }
        }
        texts_open(&t, &whole.c, 1, set_params);
        draw_calls(&t, calls, f.c.rows, f.c.context);
        interpret_calls(&f.c, calls, set_params);
        const char *bad = find_difference(&t, calls, 1e-10);
        if (!bad != !less)
            fail_msg("%d places less: %s", less, bad ? bad : "nothing is wrong");
        free_calls(calls);
        interp_clear(&t.whole);
        fixture_clear(&f);
    }
    fixture_clear(&whole);
}

// ---- refusals ----------------------------------------------------------------------------------

static void a_pipeline_whose_stages_share_keys_is_refused_in_plain_words(void **state)
{
    struct fixture f;
    const char *says = "layers of several stages read the keys of one: a pipeline keeps none";
    const char *model =
        "program: ./own.model, text: \"sizes\\n  layers = 2\\n  seq = 16\\n  embed = 8\\n"
        "  vocab = 24\\nmodel\\n  x = embed(tokens, table[vocab, embed])\\n"
        "  k = x{seq as key}\\n  repeat layers\\n"
        "    x = x + softmax(causal(x @ k), key) @ k\\n"
        "  logits = x @ head[embed, vocab]\\n  loss = cross_entropy(logits, targets)\\n\"";
    (void)state;
    int rc = compile_only(&f, job_on(model, "pp: 2", ROWS, ""), PROGRAM_FILL, 4, 0);
    if (rc != ERR_UNSUPPORTED || strncmp(f.e.text, says, strlen(says)) != 0)
        fail_msg("%d %s", rc, f.e.text);
    fixture_clear(&f);
}

// ---- random texts ------------------------------------------------------------------------------

static const char *draw_mesh(uint64_t seed, int n)
{
    static const char *const meshes[] = {
        "dp: 2", "tp: 2",        "fsdp: 2",        "cp: 2",        "pp: 2",
        "dp: 4", "tp: 4",        "dp: 2, tp: 2",   "pp: 2, tp: 2", "dp: 2, pp: 2, tp: 2",
        "ep: 2", "ep: 2, tp: 2", "fsdp: 2, tp: 2", "dp: 2, cp: 2"};
    return meshes[random_pick(seed, 900, n, (int)(sizeof meshes / sizeof *meshes))];
}

// Those that are accepted are equal. With WEFT_LONG 1,000 texts on two meshes each.
static void random_texts_on_random_meshes(void **state)
{
    const bool all = getenv("WEFT_LONG");
    int accepted = 0, held = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= (uint64_t)how_many(120, 1000); seed++) {
        struct arena a = {0};
        struct random_text r = {0};
        struct buf model = {0};
        random_text_make(&r, seed, &a);
        buf_puts(&model, "program: ./random.model, text: \"");
        for (const char *s = buf_str(&r.text); *s; s++)
            buf_printf(&model, *s == '\n' ? "\\n" : "%c", *s);
        buf_puts(&model, "\"");
        for (int n = 0; n < (all ? 2 : 1) && model.len < 3500; n++) {
            const char *mesh = draw_mesh(seed, n);
            struct fixture f, alone;
            char what[80], one[4000];
            snprintf(what, sizeof what, "seed %llu on {%s}", (unsigned long long)seed, mesh);
            snprintf(one, sizeof one, "%s", job_on(buf_str(&model), "dp: 1", ROWS, ""));
            int rc = compile_only(&alone, one, PROGRAM_FILL, 5, 0);
            fixture_clear(&alone);
            if (rc)
                break; // test_compile_decode says why it may
            rc = compile_only(&f, job_on(buf_str(&model), mesh, ROWS, ""), PROGRAM_FILL,
                              1 + (int64_t)(seed % 6), 0);
            accepted++;
            held += !rc;
            if (rc && rc != ERR_INVALID)
                fail_msg("%s: %s", what, f.e.text);
            if (!rc)
                check_decoding(one, &f.c, false, seed, set_small, what);
            fixture_clear(&f);
        }
        buf_clear(&model);
        buf_clear(&r.text);
        arena_clear(&a);
    }
    assert_true(accepted >= 10 && held * 4 >= accepted * 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mesh_gives_the_logits_of_a_whole_forward_pass),
        cmocka_unit_test(a_texts_bits_do_not_hang_on_what_is_beside_it),
        cmocka_unit_test(no_collective_could_be_left_out),
        cmocka_unit_test(a_ring_without_room_for_a_call_fails),
        cmocka_unit_test(a_pipeline_whose_stages_share_keys_is_refused_in_plain_words),
        cmocka_unit_test(random_texts_on_random_meshes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
