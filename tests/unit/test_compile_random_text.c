// SPDX-License-Identifier: Apache-2.0
// Random programs of the language of models (random_text.h) on random meshes. Of each program the loss
// on one device is what its text means, by names alone in double precision, and the gradients are that
// loss's slope; and on each mesh two steps of training and an evaluation are those of one device
// (mesh_case.h). So what runs on a mesh is held against the text, through two references that share
// no code.
//
//   test_compile_random_text                  40 programs on a mesh each; with WEFT_LONG 1,000 on two
//   test_compile_random_text --case SEED      one of them, with its text
//   WEFT_FROM=SEED test_compile_random_text   those from another seed on
//
// A mesh that weft refuses is no failure, but most must run.
#define MESH_SIZE 12
#include <signal.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "tests/support/random_graph.h"
#include "tests/support/random_text.h"
#include "tests/unit/mesh_case.h"

_Static_assert((int)TEXT_BATCH == BATCH && (int)TEXT_SEQ == SEQ && (int)TEXT_VOCAB == VOCAB,
               "they read one data set");

enum { SHORT = 40, LONG = 1000 };
static const uint64_t job_seed = 8589934597; // compile_setting's

static long long only = -1; // the case asked for
static char at_work[60];    // said when a bug ends the process

static void say_case(int signal_number)
{
    (void)!write(STDERR_FILENO, at_work, strlen(at_work));
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

// ---- a program --------------------------------------------------------------------------------

struct program_case {
    struct random_text t;
    struct arena a;
    struct buf job; // the model section
    struct model model;
    struct reference of[2];
};

static double wobble; // of each parameter, to and fro

static void make_case(struct program_case *c, uint64_t seed)
{
    *c = (struct program_case){0};
    random_text_make(&c->t, seed, &c->a);
    buf_puts(&c->job, "{program: ./random.model, text: \"");
    for (const char *s = buf_str(&c->t.text); *s; s++)
        buf_printf(&c->job, *s == '\n' ? "\\n" : "%c", *s);
    buf_puts(&c->job, "\"}");
    c->model = (struct model){"random", buf_str(&c->job),
                              "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", "", NULL};
}

static void clear_case(struct program_case *c)
{
    forget_references(c->of, 2);
    buf_clear(&c->t.text);
    buf_clear(&c->job);
    arena_clear(&c->a);
}

// Whether an element is padding.
static bool is_beyond(const struct value *v, int64_t i)
{
    bool beyond = false;
    for (int d = v->shape.n - 1; d >= 0; d--) {
        beyond = beyond || (v->limit[d] && i % v->shape.dim[d] >= v->limit[d]);
        i /= v->shape.dim[d];
    }
    return beyond;
}

// Numbers of their own for each parameter, however long its name; padding is zero.
static void set_all_params(struct interp *x)
{
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        if (val->kind != VALUE_PARAM || val->alias >= 0)
            continue;
        int64_t n = shape_count(&val->shape);
        double *w = malloc(sizeof *w * (size_t)n);
        struct rand_site site = {.seed = 3, .stream = hash_fnv1a32(val->name)};
        for (int64_t i = 0; i < n; i++)
            w[i] = is_beyond(val, i)
                       ? 0
                       : (double)(0.25f * draw_normal(&site, (uint64_t)i)) * // exact in f32
                             (1 + (rand_word(&site, (uint64_t)i) & 1 ? wobble : -wobble));
        interp_set(x, val->name, w);
        free(w);
    }
}

// ---- its meaning -------------------------------------------------------------------------------

// The parameters as they begin, moved so far along a direction of each one's own.
struct moved {
    const struct interp *start;
    struct arena a;
    double far;
};

static double direction(const char *path, int64_t i)
{
    struct rand_site site = {.seed = 5, .stream = hash_fnv1a32(path)};
    return (double)draw_normal(&site, (uint64_t)i);
}

static const double *find_moved(void *ctx, const char *path)
{
    struct moved *m = ctx;
    int v = interp_find(m->start, path);
    int64_t n = shape_count(&m->start->g->values[v].shape);
    double *w = arena_array(&m->a, double, n);
    for (int64_t i = 0; i < n; i++)
        w[i] = m->start->value[v][i] + m->far * direction(path, i);
    return w;
}

static double meant_loss(const struct program_case *c, const struct interp *start, double far)
{
    struct moved m = {.start = start, .far = far};
    struct text_inputs in = {.tokens = batch.tokens,
                             .targets = batch.targets,
                             .seed = job_seed,
                             .find = find_moved,
                             .ctx = &m};
    double loss = random_text_loss(&c->t, &in);
    arena_clear(&m.a);
    return loss;
}

// Σ gradient · direction over all parameters.
static double slope_of(const struct interp *x)
{
    double slope = 0;
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        char name[200];
        if (val->kind != VALUE_PARAM || val->alias >= 0)
            continue;
        snprintf(name, sizeof name, "grad/%s", val->name);
        double *g = interp_get(x, name);
        for (int64_t i = 0; i < shape_count(&val->shape); i++)
            slope += g[i] * direction(val->name, i);
        free(g);
    }
    return slope;
}

static bool means_what_it_says(const struct program_case *c)
{
    const double far = c->t.has & TEXT_EXPERTS ? 1e-8 : 1e-7; // few tokens change places in it
    const struct reference *r = &c->of[0];
    struct interp x;
    interp_init(&x, r->start.g, NULL, 1);
    x.exact = true;
    set_all_params(&x);
    feed(&x, 0);
    for (enum phase p = 0; p < PHASE_COUNT; p++)
        interp_phase(&x, p, 0);
    double loss = x.value[interp_find(&x, "metrics")][METRIC_LOSS], slope = slope_of(&x);
    interp_clear(&x);
    double meant = meant_loss(c, &r->start, 0);
    double up = meant_loss(c, &r->start, far), down = meant_loss(c, &r->start, -far);
    double seen = (up - down) / (2 * far);
    bool fine = fabs(loss - meant) <= 1e-6 * fabs(meant) &&
                fabs(slope - seen) <= 1e-4 * (fabs(seen) + 1e-2 * fabs(meant));
    if (!fine)
        printf(
            "on one device the loss is %.12g and the gradients' slope %.9g; the text means %.12g "
            "and %.9g\n",
            loss, slope, meant, seen);
    return fine;
}

// ---- its meshes --------------------------------------------------------------------------------

struct drawn_setting {
    char mesh[80], train[60], sharding[80];
    struct setting s;
};

static int ask_mesh(const struct program_case *c, int mesh, int k, int n)
{
    return random_pick(c->t.seed, 400 + (uint32_t)mesh, k, n);
}

static bool add_axis(char *mesh, size_t size, const char *name, int n)
{
    size_t at = strlen(mesh);
    snprintf(mesh + at, size - at, "%s%s: %d", at ? ", " : "", name, n);
    return true;
}

// One to three axes, at most 8 devices, with what goes with them.
static void draw_setting(const struct program_case *c, int mesh, struct drawn_setting *d)
{
    static const char *const names[] = {"dp", "fsdp", "tp", "cp", "ep", "pp"};
    enum { DP, FSDP, TP, CP, EP, PP, AXES };
    static const char *const trains[] = {"", ", remat: block", ", remat: full", ", fuse: false"};
    int size[AXES] = {0}, k = 0, devices = 1, rows = 1;
    *d = (struct drawn_setting){0};
    int wanted = 1 + ask_mesh(c, mesh, k++, 3);
    for (int turn = 0; turn < 12 && wanted > 0; turn++) {
        int axis = ask_mesh(c, mesh, k++, AXES),
            n = ask_mesh(c, mesh, k++, 4) ? 2 : 3 + (axis == TP || axis == EP);
        bool fits = !size[axis] && devices * n <= 8 &&
                    !(axis == EP && !(c->t.has & TEXT_EXPERTS)) && !(axis == PP && n > 2);
        bool cuts_batch = axis == DP || axis == FSDP || axis == EP;
        if (!fits || (cuts_batch && BATCH % (rows * n)))
            continue;
        size[axis] = n;
        devices *= n;
        rows *= cuts_batch ? n : 1;
        wanted--;
        add_axis(d->mesh, sizeof d->mesh, names[axis], n);
    }
    if (devices == 1)
        add_axis(d->mesh, sizeof d->mesh, "dp", 2), rows = 2, size[DP] = 2;
    int microbatches = 1 + ask_mesh(c, mesh, k++, 3);
    while (BATCH / rows % microbatches)
        microbatches--;
    snprintf(d->train, sizeof d->train, "%s", trains[ask_mesh(c, mesh, k++, 4)]);
    bool sequence = size[TP] && !size[PP] && ask_mesh(c, mesh, k++, 3) == 0;
    bool zero = size[DP] && ask_mesh(c, mesh, k++, 2);
    snprintf(d->sharding, sizeof d->sharding, "%s%s%s", sequence ? SP : "",
             sequence && zero ? ", " : "", zero ? "optimizer: [dp]" : "");
    unsigned say_refusals = only >= 0;
    d->s = (struct setting){say_refusals, d->mesh, microbatches, d->train, d->sharding, ""};
}

static void tell(const struct program_case *c, const struct drawn_setting *d)
{
    if (d)
        printf("on mesh {%s}, microbatches: %d%s, sharding: {%s}\n", d->mesh, d->s.microbatches,
               d->train, d->sharding);
    printf("of the program\n%sreplay: test_compile_random_text --case %llu\n", buf_str(&c->t.text),
           (unsigned long long)c->t.seed);
}

// How far all that is compared goes when each parameter is another by a rounding: programs differ in
// what they make of it. Of a tensor's largest element, or of a hundredth of all.
static double measure_spread(const struct program_case *c)
{
    struct reference other[2] = {0};
    const struct reference *r = &c->of[0];
    double spread = 0;
    wobble = 0x1p-24;
    const struct reference *near = reference_of(other, &c->model, false);
    wobble = 0;
    for (int v = 0; v < r->trained.g->nvalues; v++) {
        const struct value *val = &r->trained.g->values[v];
        if (!is_compared(val) && !(val->name && !strcmp(val->name, "metrics")))
            continue;
        int64_t n = shape_count(&val->shape);
        const double *a = r->trained.value[v], *b = near->trained.value[v];
        double most = fmax(largest_of(a, NULL, n), 0.01 * r->largest);
        spread = fmax(spread, largest_of(a, b, n) / most);
    }
    forget_references(other, 2);
    return spread;
}

// Experts: one device in f32 chooses otherwise than in f64 where two scores are all but equal, or a
// weight's 4,096th is. Then no mesh is to blame.
static bool has_ties(struct program_case *c)
{
    const struct setting alone = {0, "dp: 1", 1, "", "", ""};
    return (c->t.has & TEXT_EXPERTS) && try_setting(&c->model, c->of, &alone) == FAILS;
}

// A mesh rounds everywhere, not the parameters alone: a hundred times as far is still rounding.
static enum verdict try_mesh(struct program_case *c, const struct setting *s)
{
    const double usual = 1e-4;
    mesh_rtol = usual;
    enum verdict verdict = try_setting(&c->model, c->of, s);
    if (verdict != FAILS)
        return verdict;
    if (has_ties(c)) {
        printf("its experts are chosen by less than f32 holds\n");
        return REFUSED;
    }
    mesh_rtol = fmin(100 * measure_spread(c), 1e-2);
    if (mesh_rtol <= usual)
        return FAILS;
    printf("once more, within what rounding does to this program: %.3g\n", mesh_rtol);
    return try_setting(&c->model, c->of, s);
}

// ---- all of them -------------------------------------------------------------------------------

struct tally {
    int held, refused, failed;
};

// Whether weft takes the program at all: else the generator is wrong.
static bool is_taken(const struct program_case *c)
{
    struct fixture f;
    const struct setting alone = {0, "dp: 1", 1, "", "", ""};
    int rc = compile_setting(&f, &c->model, &alone);
    if (rc)
        printf("refused on one device: %s\n", f.e.text);
    fixture_clear(&f);
    return rc == 0;
}

static void run_case(uint64_t seed, int meshes, struct tally *sum)
{
    struct program_case c;
    snprintf(at_work, sizeof at_work, "replay: test_compile_random_text --case %llu\n",
             (unsigned long long)seed);
    make_case(&c, seed);
    if (only >= 0)
        printf("%s", buf_str(&c.t.text));
    bool fine = is_taken(&c);
    if (fine) {
        reference_of(c.of, &c.model, false);
        fine = means_what_it_says(&c);
    }
    if (!fine) {
        tell(&c, NULL);
        sum->failed++;
    }
    for (int m = 0; fine && m < meshes; m++) {
        struct drawn_setting d;
        draw_setting(&c, m, &d);
        enum verdict verdict = try_mesh(&c, &d.s);
        sum->held += verdict == HOLDS;
        sum->refused += verdict == REFUSED;
        sum->failed += verdict == FAILS;
        if (verdict == FAILS)
            tell(&c, &d);
        else if (only >= 0)
            printf("%s: {%s}\n", verdict == HOLDS ? "holds" : "refused", d.mesh);
    }
    clear_case(&c);
}

static void random_programs_are_what_their_texts_mean_on_every_mesh(void **state)
{
    struct tally sum = {0};
    const char *from = getenv("WEFT_FROM");
    bool all = getenv("WEFT_LONG") || only >= 0;
    uint64_t first = only >= 0 ? (uint64_t)only : from ? strtoull(from, NULL, 10) : 0;
    int cases = only >= 0 ? 1 : how_many(SHORT, LONG);
    (void)state;
    for (int i = 0; i < cases; i++)
        run_case(first + (uint64_t)i, all ? 2 : 1, &sum);
    printf("%d meshes hold, %d are refused\n", sum.held, sum.refused);
    if (sum.failed)
        fail_msg("%d fail", sum.failed);
    if (only < 0) // a generator of what weft refuses would show nothing
        assert_true(sum.refused * 4 <= sum.held + sum.refused);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--case"))
        only = strtoll(argv[2], NULL, 10);
    signal(SIGABRT, say_case);
    signal(SIGSEGV, say_case);
    set_start = set_all_params;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_are_what_their_texts_mean_on_every_mesh),
    };
    return cmocka_run_group_tests(tests, make_data, NULL);
}
