// SPDX-License-Identifier: Apache-2.0
// Experts on any mesh: a step of a small decoder with a mixture of experts is that of one device,
// whatever is cut, and its gradients are the slopes of its loss.
//
// More than a third of all choices find no place. Whoever is dropped on one device and not on a mesh
// would show in the loss.
#include "tests/unit/compare_values.h"
#include "tests/unit/moe_case.h"

// ---- a step of one device ----------------------------------------------------------------------

// A model: what differs from the usual one.
static const struct moe models[] = {
    {6, 2, 1, 1, 1.5, 0, 0.01, 2, 0},   // the usual one, capacity 3
    {6, 2, 0, 2, 1, 0, 0.01, 2, 0},     // groups of two samples, none shared, capacity 4
    {6, 3, 2, 1, 2, 0.2, 0.05, 2, 0},   // three choices, dropout, capacity 4
    {6, 1, 0, 1, 3, 0, 0.5, 2, 0},      // one choice: its weight is 1
    {12, 2, 1, 1, 2, 0.1, 0.01, 2, 0},  // twelve experts of two places
    {6, 2, 1, 1, 0, 0, 0.01, 2, 0},     // nothing is dropped
    {6, 2, 1, 1, 1.5, 0.1, 0.01, 4, 0}, // four layers
    {6, 2, 1, 1, 3, 0, 0.01, 2, 0},     // capacity 6, for cuts of 2 and 3
    {6, 2, 1, 1, 3, 0, 0, 4, 0.125},    // four layers, balanced by a bias alone
};
enum { USUAL, GROUPS, THREE, ONE, TWELVE, DROPLESS, DEEP, ROOMY, BIASED, MODELS };

static struct fixture wholes[MODELS][2];
static struct interp references[MODELS][2];
static bool made[MODELS][2];

static const struct interp *whole_of(int model, bool equal)
{
    struct fixture *f = &wholes[model][equal];
    struct interp *x = &references[model][equal];
    moe = models[model];
    if (made[model][equal])
        return x;
    if (compile_moe(f, moe_text("dp: 1", 1, "", "")))
        fail_msg("one device: %s", f->e.text);
    interp_init(x, f->c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(x);
    for (int s = 0; s < 2; s++)
        step_moe(x, &(struct zigzag){SEQ, 1}, s, equal ? 4 : 0);
    made[model][equal] = true;
    return x;
}

static int forget_wholes(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS * 2; m++)
        if (made[m / 2][m % 2]) {
            interp_clear(&references[m / 2][m % 2]);
            fixture_clear(&wholes[m / 2][m % 2]);
        }
    return 0;
}

static void compare_all(const struct interp *whole, const struct interp *parts, const char *what)
{
    for (int v = 0; v < whole->g->nvalues; v++) {
        const struct value *val = &whole->g->values[v];
        if ((val->kind == VALUE_PARAM || val->kind == VALUE_STATE) && val->alias < 0)
            compare_value(whole, parts, val, 1e-9, what);
    }
}

// ---- meshes ------------------------------------------------------------------------------------

#define SP    "activations: {act_seq: [batch, [seq, tp]]}"
#define BY_EP "rules: {expert: ep}"

static const struct setting {
    int model;
    const char *mesh;
    int microbatches;
    const char *sharding, *train;
    bool equal; // the first four tokens of each sample are one: they tie
} settings[] = {
    {USUAL, "dp: 2", 2, "", "", false},
    {USUAL, "dp: 3", 1, "", "", false},
    {GROUPS, "dp: 3", 2, "", "", false},
    {USUAL, "fsdp: 2", 2, "", "", false},
    {THREE, "fsdp: 4", 1, "", ", remat: block", false},
    {USUAL, "tp: 2", 1, "", "", false},
    {THREE, "tp: 3", 2, "", "", false},
    {USUAL, "tp: 2", 1, SP, "", false},
    {USUAL, "tp: 2", 1, SP, "", true},
    {USUAL, "tp: 3", 1, SP, "", true},
    {GROUPS, "tp: 3", 1, SP, ", remat: full", false},
    {USUAL, "tp: 2", 1, BY_EP, "", false},
    {ROOMY, "cp: 2", 1, "", "", false},
    {USUAL, "cp: 3", 2, "", "", false},
    {USUAL, "cp: 3", 1, "", "", true},
    {ONE, "cp: 2", 1, "", "", false},
    {USUAL, "ep: 2", 2, "", "", false},
    {USUAL, "ep: 2", 1, "", ", remat: full", false},
    {GROUPS, "ep: 3", 2, "", "", false},
    {THREE, "ep: 3", 1, "", ", remat: block", false},
    {ONE, "ep: 2", 1, "", "", false},
    {TWELVE, "ep: 4", 3, "", "", false},
    {DROPLESS, "ep: 2", 1, "", "", false},
    {USUAL, "dp: 2, ep: 2", 1, "", "", false},
    {USUAL, "ep: 2, dp: 2", 1, "", "", false},
    {USUAL, "dp: 2, ep: 2", 1, "rules: {batch: [ep, dp]}", "", false},
    {USUAL, "ep: 2, tp: 3", 1, "", "", false},
    {USUAL, "ep: 2, tp: 3", 1, BY_EP, "", false},
    {USUAL, "ep: 3, tp: 2", 2, SP, "", false},
    {USUAL, "ep: 3, tp: 2", 1, "rules: {expert: ep}, " SP, "", true},
    {TWELVE, "tp: 2, ep: 2", 1, SP, ", remat: block", true},
    {USUAL, "ep: 2, tp: 3", 1, "rules: {expert: [ep, tp]}", "", false},
    {THREE, "fsdp: 2, ep: 3", 2, "", "", false},
    {USUAL, "ep: 2, fsdp: 2", 1, "", "", false},
    {TWELVE, "dp: 2, ep: 2, tp: 2", 1, "optimizer: [dp], " SP, "", false},
    {TWELVE, "dp: 2, ep: 2, tp: 2", 1, "grads: [dp], optimizer: [dp]", "", false},
    {USUAL, "dp: 2, ep: 3", 1, "optimizer: [dp, ep]", "", false},
    {USUAL, "dp: 3, fsdp: 2, ep: 2", 1, "", "", false},
    {DEEP, "ep: 2, pp: 2", 2, "", "", false},
    {DEEP, "pp: 4, ep: 3", 2, "", ", remat: block", false},
    {DEEP, "dp: 2, pp: 2, ep: 2", 1, "", "", false},
    {DEEP, "fsdp: 2, pp: 2, ep: 2", 3, "", "", false},
    {DEEP, "dp: 2, pp: 2, tp: 2", 2, "", "", false},
    {ROOMY, "cp: 3, ep: 2", 1, "", "", false},
    {ROOMY, "cp: 2, ep: 3", 1, "", ", remat: full", false},
    {ROOMY, "cp: 2, ep: 2, tp: 3", 1, SP, "", false},
    {USUAL, "x: 2, y: 3", 1, "rules: {batch: [x, y], expert: y}", "", false},
    {USUAL, "tp: 2, dp: 3", 1, "rules: {expert: tp}", "", false},
    {USUAL, "dp: 2, ep: 3", 1, "rules: {expert: []}", "", false},
    {USUAL, "dp: 2, ep: 3", 1, "rules: {batch: dp}", "", false},
    {USUAL, "fsdp: 2, ep: 3", 1, "rules: {embed: [fsdp, ep]}, gather: [fsdp, ep]", "", false},
    {USUAL, "ep: 2, tp: 2", 1, "activations: {act_expert: [expert, batch, seq, tp]}, " BY_EP, "",
     false},
    {ROOMY, "ep: 2, tp: 3", 1, "activations: {act_expert: [expert, batch, tp]}, " BY_EP, "", false},
    {TWELVE, "ep: 2, tp: 2", 1, "activations: {act_seq: [batch, seq, tp]}", "", false},
    {BIASED, "dp: 2, ep: 2", 3, "", "", false},
    {BIASED, "tp: 2", 1, SP, ", remat: full", false},
    {BIASED, "pp: 2, ep: 3", 2, "", "", false},
    {BIASED, "cp: 3, fsdp: 2", 1, "optimizer: [fsdp]", "", false},
    {ROOMY, "cp: 2, dp: 2", 1, "activations: {act_att: [batch, ~, cp]}", "", false},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static int try_setting(const struct setting *s)
{
    const struct interp *whole = whole_of(s->model, s->equal);
    struct fixture f;
    struct interp parts;
    char what[200];
    snprintf(what, sizeof what, "model %d on {%s}, %s", s->model, s->mesh, s->sharding);
    if (compile_moe(&f, moe_text(s->mesh, s->microbatches, s->sharding, s->train))) {
        printf("%s: %s\n", what, f.e.text);
        fixture_clear(&f);
        return 1;
    }
    interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, s->microbatches);
    set_params(&parts);
    struct zigzag z = f.c.program[PROGRAM_TRAIN]->zigzag;
    for (int k = 0; k < 2; k++)
        step_moe(&parts, &z, k, s->equal ? 4 : 0);
    compare_all(whole, &parts, what);
    interp_clear(&parts);
    fixture_clear(&f);
    return 0;
}

static void no_mesh_changes_what_is_chosen_dropped_and_learnt(void **state)
{
    int bad = 0;
    (void)state;
    for (int s = 0; s < SETTINGS; s++)
        bad += try_setting(&settings[s]);
    if (bad)
        fail_msg("%d of %d settings are refused", bad, (int)SETTINGS);
}

// ---- one device --------------------------------------------------------------------------------

// In the interpreter's forward of one device: the share of choices that found no place.
static double share_dropped(const struct interp *x)
{
    double dropped = 0, choices = 0;
    for (int i = 0; i < x->g->nnodes; i++) {
        const struct node *n = &x->g->nodes[i];
        if (n->op != OP_SLOTS || n->phase != PHASE_FORWARD)
            continue;
        int64_t count = shape_count(&x->g->values[n->out[0]].shape);
        for (int64_t k = 0; k < count; k++)
            dropped += x->value[n->out[0]][k] < 0;
        choices += (double)count;
    }
    return dropped / choices;
}

static void much_is_dropped_in_what_meshes_are_held_against(void **state)
{
    (void)state;
    assert_true(share_dropped(whole_of(USUAL, false)) > 0.3);
    assert_true(share_dropped(whole_of(GROUPS, false)) > 0.4);
    assert_true(share_dropped(whole_of(DROPLESS, false)) == 0);
}

static double loss_at(struct interp *x)
{
    const double one = 1;
    interp_set(x, "one", &one);
    feed_moe(x, 0, &(struct zigzag){SEQ, 1}, 0);
    interp_phase(x, PHASE_FORWARD, 0);
    double *loss = interp_get(x, "loss"), value = *loss;
    free(loss);
    return value;
}

// The loss with an element a little more, less the loss with it a little less, over what that is.
static double slope_at(struct interp *x, const char *param, double *w, int64_t i)
{
    const double h = 1e-7, keep = w[i]; // a larger step would cross where a choice changes
    w[i] = keep + h;
    interp_set(x, param, w);
    double up = loss_at(x);
    w[i] = keep - h;
    interp_set(x, param, w);
    double slope = (up - loss_at(x)) / (2 * h);
    w[i] = keep;
    interp_set(x, param, w);
    return slope;
}

static void gradients_are_the_slopes_of_the_loss(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct fixture f;
        struct interp x;
        moe = models[m];
        moe.balance = 1;
        assert_int_equal(compile_moe(&f, moe_text("dp: 1", 1, "", "")), 0);
        interp_init(&x, f.c.global[PROGRAM_TRAIN], NULL, 1);
        set_params(&x);
        loss_at(&x);
        interp_phase(&x, PHASE_BACKWARD, 0);
        for (int v = 0; v < x.g->nvalues; v++) {
            const struct value *val = &x.g->values[v];
            if (val->kind != VALUE_PARAM || val->alias >= 0)
                continue;
            char name[80];
            snprintf(name, sizeof name, "grad/%s", val->name);
            double *grad = interp_get(&x, name), *w = interp_get(&x, val->name);
            int64_t n = shape_count(&val->shape);
            for (int64_t i = n / 7; i < n; i += n / 3 + 1) {
                double slope = slope_at(&x, val->name, w, i);
                if (fabs(slope - grad[i]) > 2e-7 + 1e-5 * fabs(slope))
                    fail_msg("%s[%lld]: vjp %.12g, differences %.12g", val->name, (long long)i,
                             grad[i], slope);
            }
            free(grad);
            free(w);
        }
        interp_clear(&x);
        fixture_clear(&f);
    }
}

// ---- the bias ----------------------------------------------------------------------------------

// After each step the bias of an expert that was chosen more often than the mean is a rate less, of
// one that was chosen less a rate more; no gradient reaches it, and it moves by nothing else.
static void the_bias_follows_the_loads_of_the_step(void **state)
{
    struct fixture f;
    struct interp x;
    (void)state;
    moe = models[BIASED];
    assert_int_equal(compile_moe(&f, moe_text("dp: 1", 2, "", "")), 0);
    interp_init(&x, f.c.global[PROGRAM_TRAIN], NULL, 2);
    set_params(&x);
    double *before = interp_get(&x, "layers/3/moe/bias");
    step_moe(&x, &(struct zigzag){SEQ, 1}, 0, 0);
    double *after = interp_get(&x, "layers/3/moe/bias"), *load = interp_get(&x, "chosen.1");
    double total = 0, mean = (double)BATCH * SEQ * 2 / 6;
    int moved = 0;
    for (int e = 0; e < 6; e++) {
        double way = load[e] < mean ? 1 : load[e] > mean ? -1 : 0;
        assert_true(after[e] == before[e] + 0.125 * way);
        moved += way != 0;
        total += load[e];
    }
    assert_true(moved > 2 && total == (double)BATCH * SEQ * 2);
    for (int v = 0; v < x.g->nvalues; v++)
        assert_true(!x.g->values[v].name || !strstr(x.g->values[v].name, "grad/layers/3/moe/bias"));
    free(before);
    free(after);
    free(load);
    interp_clear(&x);
    fixture_clear(&f);
}

// ---- what is made again ------------------------------------------------------------------------

// Whatever else the backward makes again: which experts a token chose and which places it got is
// decided once.
static void a_decision_is_made_once(void **state)
{
    struct fixture f;
    int slots = 0, again = 0;
    (void)state;
    moe = usual;
    assert_int_equal(compile_moe(&f, moe_text("dp: 1", 1, "", ", remat: full")), 0);
    const struct graph *g = f.c.global[PROGRAM_TRAIN];
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        slots += n->op == OP_SLOTS;
        again += n->again && n->op == OP_GELU;
        for (int k = 0; k < n->nin; k++) {
            const struct value *v = &g->values[n->in[k]];
            if (v->dtype == DT_I32 && v->producer >= 0)
                assert_true(g->nodes[v->producer].phase == PHASE_FORWARD);
        }
    }
    assert_int_equal(slots, 1);
    assert_true(again > 0);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(much_is_dropped_in_what_meshes_are_held_against),
        cmocka_unit_test(gradients_are_the_slopes_of_the_loss),
        cmocka_unit_test(the_bias_follows_the_loads_of_the_step),
        cmocka_unit_test(a_decision_is_made_once),
        cmocka_unit_test(no_mesh_changes_what_is_chosen_dropped_and_learnt),
    };
    return cmocka_run_group_tests(tests, NULL, forget_wholes);
}
