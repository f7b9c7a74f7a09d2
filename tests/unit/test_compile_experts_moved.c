// SPDX-License-Identifier: Apache-2.0
// What a layer of experts communicates, worked out by hand: on every mesh, forward and backward, the
// collectives of its activations, by kind and size; the reductions of its gradients; what crosses a
// pipeline's boundary.
//
// The layer: latent attention, a router, experts, and shared ones. Of one device and microbatch, with
// b samples (the batch over dp, fsdp and ep), T = 12 tokens of C = 12 features, 4 bytes each:
//
//   X  = b·T·C·4     activations as wide as the residual
//   L  = b·T·5·4     one of the two latents
//   R  = b·T·r·4     the rotary part of the keys, one for all heads
//   J  = b·T·k·4     a number for each choice: ids, weights
//   S  = b·E·c·C·4   all places of all experts
//
// A row says "AR X, 2 L; AG 2L" for all-reduces of X, L and L and one all-gather of 2·L.
#include "tests/unit/moe_case.h"

struct layer {
    struct fixture f;
    const struct graph *g;
    const char *scope; // the layer looked at
    int64_t x, l, r, j, s;
};

enum { MOST = 64 };
struct moved {
    int n;
    struct {
        enum reshard_kind kind;
        int64_t bytes;
    } item[MOST];
};

// ---- what is moved -----------------------------------------------------------------------------

static bool in_layer(const struct layer *l, const struct node *n, enum phase phase)
{
    return n->kind == NODE_RESHARD && n->step.kind != RESHARD_SLICE && n->phase == phase &&
           strcmp(l->g->scopes[n->scope], l->scope) == 0;
}

static bool of_activation(const struct node *n)
{
    return strstr(n->what, "/act_") != NULL;
}

// The bytes of a gather's result, of what else a device puts in.
static int64_t bytes_of(const struct layer *l, const struct node *n)
{
    const struct value *v =
        &l->g->values[n->step.kind == RESHARD_ALL_GATHER ? n->out[0] : n->in[0]];
    struct shape s = spec_local(&v->spec, &l->f.c.mesh, &v->shape);
    return shape_count(&s) * (int64_t)dtype_size(v->dtype);
}

static void find_moved(const struct layer *l, enum phase phase, struct moved *to)
{
    *to = (struct moved){0};
    for (int i = 0; i < l->g->nnodes; i++) {
        const struct node *n = &l->g->nodes[i];
        if (!in_layer(l, n, phase) || !of_activation(n))
            continue;
        assert_true(to->n < MOST);
        to->item[to->n].kind = n->step.kind;
        to->item[to->n++].bytes = bytes_of(l, n);
    }
}

// ---- what should be ----------------------------------------------------------------------------

static const char LETTERS[] = "XLRJS";

static int64_t size_of(const struct layer *l, char name)
{
    const int64_t sizes[] = {l->x, l->l, l->r, l->j, l->s};
    return sizes[strchr(LETTERS, name) - LETTERS];
}

// "2 S/3" is two of S / 3, "2L" one of 2·L.
static const char *read_term(const struct layer *l, const char *at, enum reshard_kind kind,
                             struct moved *to)
{
    long number = 1, count = 1;
    char *end;
    while (*at == ' ' || *at == ',')
        at++;
    if (*at >= '0' && *at <= '9') {
        number = strtol(at, &end, 10);
        at = end;
        if (*at == ' ') {
            count = number;
            number = 1;
            at++;
        }
    }
    assert_non_null(strchr(LETTERS, *at));
    int64_t bytes = size_of(l, *at++) * number;
    if (*at == '/') {
        bytes /= strtol(at + 1, &end, 10);
        at = end;
    }
    for (long i = 0; i < count; i++) {
        to->item[to->n].kind = kind;
        to->item[to->n++].bytes = bytes;
    }
    return at;
}

static void read_row(const struct layer *l, const char *text, struct moved *to)
{
    static const struct {
        const char *name;
        enum reshard_kind kind;
    } kinds[] = {{"AR ", RESHARD_ALL_REDUCE},
                 {"RS ", RESHARD_REDUCE_SCATTER},
                 {"AG ", RESHARD_ALL_GATHER},
                 {"A2A ", RESHARD_ALL_TO_ALL}};
    *to = (struct moved){0};
    for (int k = 0; *text; k = 0) {
        while (strncmp(text, kinds[k].name, strlen(kinds[k].name)) != 0)
            assert_true(++k < 4);
        text += strlen(kinds[k].name);
        while (*text && *text != ';')
            text = read_term(l, text, kinds[k].kind, to);
        while (*text == ';' || *text == ' ')
            text++;
    }
}

static void describe(const struct moved *m, char *to, size_t size)
{
    size_t len = 0;
    to[0] = 0;
    for (int i = 0; i < m->n; i++)
        len += (size_t)snprintf(to + len, size - len, "%s %lld, ",
                                reshard_kind_name(m->item[i].kind), (long long)m->item[i].bytes);
}

static void expect_same(const struct layer *l, const char *mesh, enum phase phase, const char *row)
{
    struct moved want, got, left;
    char text[2][2000];
    read_row(l, row, &want);
    find_moved(l, phase, &got);
    left = got;
    for (int i = 0; i < want.n; i++) {
        int k = 0;
        while (k < left.n &&
               (left.item[k].kind != want.item[i].kind || left.item[k].bytes != want.item[i].bytes))
            k++;
        if (k == left.n)
            break;
        left.item[k] = left.item[--left.n];
        if (i == want.n - 1 && left.n == 0)
            return;
    }
    if (want.n == 0 && got.n == 0)
        return;
    describe(&want, text[0], sizeof text[0]);
    describe(&got, text[1], sizeof text[1]);
    fail_msg("{%s} %s: X %lld L %lld R %lld J %lld S %lld\n  wanted %s\n  moved  %s", mesh,
             phase_name(phase), (long long)l->x, (long long)l->l, (long long)l->r, (long long)l->j,
             (long long)l->s, text[0], text[1]);
}

// ---- meshes ------------------------------------------------------------------------------------

// Twelve experts of three places each, which no other size is a simple multiple of; six of six for
// cuts of the sequence.
static const struct moe twelve = {12, 2, 1, 1, 3, 0, 0.01, 2, 0};
static const struct moe six = {6, 2, 1, 1, 3, 0, 0.01, 2, 0};
static const struct moe no_shared = {12, 2, 0, 1, 3, 0, 0.01, 2, 0};

static void open_layer(struct layer *l, const struct moe *m, const char *mesh, const char *sharding)
{
    int64_t capacity = experts_capacity(SEQ, m->experts, m->factor), b = BATCH;
    moe = *m;
    if (compile_moe(&l->f, moe_text(mesh, 1, sharding, "")))
        fail_msg("%s: %s", mesh, l->f.e.text);
    l->g = l->f.c.program[PROGRAM_TRAIN]->graph;
    l->scope = "layers/1";
    l->r = 0;
    for (int a = 0; a < l->f.c.mesh.n; a++) {
        const char *name = l->f.c.mesh.axis[a].name;
        bool cuts = !strcmp(name, "dp") || !strcmp(name, "fsdp") || !strcmp(name, "ep");
        b /= cuts ? l->f.c.mesh.axis[a].size : 1;
    }
    l->x = b * SEQ * EMBED * 4;
    l->l = b * SEQ * LATENT * 4;
    l->j = b * SEQ * m->choices * 4;
    l->s = b * m->experts * capacity * EMBED * 4;
}

#define SP    "activations: {act_seq: [batch, [seq, tp]]}"
#define BY_EP "rules: {expert: ep}"

static void activations_move_as_worked_out_by_hand(void **state)
{
    static const struct {
        const struct moe *model;
        const char *mesh, *sharding, *forward, *backward;
    } rows[] = {
        {&twelve, "dp: 2", "", "", ""},
        {&twelve, "fsdp: 2", "", "", ""},
        // The tokens of a device's places go to its experts and come back, twice.
        {&twelve, "ep: 2", "", "A2A 2 S", "A2A 2 S"},
        {&twelve, "ep: 4", "", "A2A 2 S", "A2A 2 S"},
        {&twelve, "dp: 2, ep: 2", "", "A2A 2 S", "A2A 2 S"},
        {&twelve, "fsdp: 2, ep: 2", "", "A2A 2 S", "A2A 2 S"},
        {&twelve, "dp: 2, ep: 3", "", "A2A 2 S", "A2A 2 S"},
        // Experts cut within, as a dense layer is: attention, places, shared experts.
        {&twelve, "tp: 2", BY_EP, "AR X, S, X", "AR S, X, 2 L"},
        {&twelve, "ep: 2, tp: 2", BY_EP, "AR X, S, X; A2A 2 S", "AR S, X, 2 L; A2A 2 S"},
        // Experts dealt to tp as well: a device combines what its experts made of all tokens.
        {&twelve, "ep: 2, tp: 2", "", "A2A 2 S/2; AR X, X, X", "A2A 2 S/2; AR X, J, 2 L"},
        {&twelve, "ep: 2, tp: 3", "", "A2A 2 S/3; AR X, X, X", "A2A 2 S/3; AR X, J, 2 L"},
        // Sequence parallel: choices are gathered, not what was chosen.
        {&twelve, "ep: 2, tp: 2", BY_EP ", " SP, "AG 2L, 2 J, X; RS X, X; AR S; A2A 2 S",
         "AG X, X, X, J; RS X; AR S, 2 L; A2A 2 S"},
        {&twelve, "ep: 2, tp: 2", SP, "AG 2L, 2 J, X; RS X, X, X; A2A 2 S/2",
         "AG X, X, X, J; RS X, J; AR 2 L; A2A 2 S/2"},
        // Without shared experts: a sum less forward; one less backward too, but where experts are
        // dealt to tp, whose tokens' cotangents are parts of a sum anyway.
        {&no_shared, "tp: 2", BY_EP, "AR X, S", "AR S, 2 L"},
        {&no_shared, "ep: 2, tp: 2", BY_EP, "AR X, S; A2A 2 S", "AR S, 2 L; A2A 2 S"},
        {&no_shared, "ep: 2, tp: 2", "", "A2A 2 S/2; AR X, X", "A2A 2 S/2; AR X, J, 2 L"},
        {&no_shared, "ep: 2, tp: 2", BY_EP ", " SP, "AG 2L, 2 J, X; RS X; AR S; A2A 2 S",
         "AG X, X, J; AR S, 2 L; A2A 2 S"},
        {&no_shared, "ep: 2, tp: 2", SP, "AG 2L, 2 J, X; RS X, X; A2A 2 S/2",
         "AG X, X, J; RS X, J; AR 2 L; A2A 2 S/2"},
        // A cut sequence: keys, values, choices and tokens are gathered; places are dealt over it.
        {&six, "cp: 2", "", "AG X, X, 2 J, X; RS X", "AG 2 X, X, J; RS 2 X, J, X"},
        {&six, "cp: 3", "", "AG X, X, 2 J, X; RS X", "AG 2 X, X, J; RS 2 X, J, X"},
        {&six, "cp: 2, ep: 2", "", "AG X, X, 2 J, X; RS X; A2A 2 S/2",
         "AG 2 X, X, J; RS 2 X, J, X; A2A 2 S/2"},
        {&six, "cp: 3, ep: 2", "", "AG X, X, 2 J, X; RS X; A2A 2 S/3",
         "AG 2 X, X, J; RS 2 X, J, X; A2A 2 S/3"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct layer l;
        open_layer(&l, rows[i].model, rows[i].mesh, rows[i].sharding);
        expect_same(&l, rows[i].mesh, PHASE_FORWARD, rows[i].forward);
        expect_same(&l, rows[i].mesh, PHASE_BACKWARD, rows[i].backward);
        fixture_clear(&l.f);
    }
}

// ---- weft's own program ------------------------------------------------------------------------

// Two layers of jaxformer in its published sizes, but a rotary part half as wide as a latent (the two
// would be of one size) and a small vocabulary: the first is dense and has the rotary part, the second
// has experts, none of them shared. 16 samples.
static void open_jaxformer(struct layer *l, const char *mesh, const char *sharding,
                           const char *scope)
{
    char text[1000];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: jaxformer, blocks: 1, layers_per_block: 2, shared: 0, rotary: 64, "
             "vocab: 1024, dropout: 0}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, train: {tokens: t}, batch: 16}\n"
             "sharding: {%s}\n"
             "train: {steps: 1}\n",
             mesh, sharding);
    compile_text(&l->f, text, 0);
    int64_t b = strstr(mesh, "ep: 4") ? 16 / 4 : 16, choices = 2, places = 16 * (1536 / 16);
    l->g = l->f.c.program[PROGRAM_TRAIN]->graph;
    l->scope = scope;
    l->x = b * 1024 * 768 * 4;
    l->l = b * 1024 * 128 * 4;
    l->r = b * 1024 * 64 * 4;
    l->j = b * 1024 * choices * 4;
    l->s = b * places * 768 * 4;
}

// Forward, attention's and the hidden layer's outputs are sums over tp. Backward, the hidden layer's
// input is owed one, the rotary key one (each device has the parts of its heads), and each latent one:
// kv or q and the rotary query all read the one value, and their parts are added before the sum.
//
// With sequence parallel a device makes both latents and the rotary key of its own tokens and gathers
// them wherever its heads read them: forward, and backward again for attention and the weights. So
// does the hidden layer with its input. What latents and hidden input are owed is summed where it is
// cut; the rotary key's is whole on each device of attention, and summed as such.
static void a_dense_layer_moves_as_worked_out_by_hand(void **state)
{
    static const struct {
        const char *sharding, *forward, *backward;
    } rows[] = {
        {"", "AR 2 X", "AR X, R, 2 L"},
        {SP, "AG 2 L, R, X; RS 2 X", "AG 3 X, 2 L, R; RS X, 2 L; AR R"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct layer l;
        open_jaxformer(&l, "tp: 2", rows[i].sharding, "layers/0");
        expect_same(&l, "tp: 2", PHASE_FORWARD, rows[i].forward);
        expect_same(&l, "tp: 2", PHASE_BACKWARD, rows[i].backward);
        fixture_clear(&l.f);
    }
}

// What a device sends for the layer's activations in a microbatch, in rings.
static int64_t count_sent(const struct layer *l)
{
    uint64_t sent = 0;
    for (int i = 0; i < l->g->nnodes; i++) {
        const struct node *n = &l->g->nodes[i];
        if ((in_layer(l, n, PHASE_FORWARD) || in_layer(l, n, PHASE_BACKWARD)) && of_activation(n))
            sent += reshard_ring_bytes(n->step.kind, (uint64_t)bytes_of(l, n),
                                       dim_parts(&l->f.c.mesh, &n->step.cut));
    }
    return (int64_t)sent;
}

// The rotary query and key may be made by products that read both latents as one value, as the
// system that was published does: what it is owed is then summed beside what each latent is, 4 L in
// place of 2 L. The latents read each by itself give the same numbers and send less: 17 MB of 189
// on {tp: 2}; with sequence parallel, where the whole rotary key is gathered again backward, 15 of
// 224. X = 50,331,648, L = 8,388,608, R = 4,194,304; over two devices an all-reduce sends all of
// it, the others half.
static void a_dense_layer_sends_less_than_with_latents_read_as_one(void **state)
{
    enum { X = 50331648, L = 8388608, R = 4194304 };
    static const struct {
        const char *sharding;
        int64_t bytes, as_one;
    } rows[] = {
        // AR 2 X and X, R, 2 L; as one: 4 L
        {"", 2 * X + (X + R + 2 * L), 2 * X + (X + R + 4 * L)},
        // AG 2 L, R, X; RS 2 X and AG 3 X, 2 L, R; RS X, 2 L; AR R; as one: no R gathered, AR R, 2 L
        {SP, (2 * L + R + 3 * X) / 2 + (4 * X + 4 * L + R) / 2 + R,
         (2 * L + R + 3 * X) / 2 + (4 * X + 4 * L) / 2 + R + 2 * L},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct layer l;
        open_jaxformer(&l, "tp: 2", rows[i].sharding, "layers/0");
        assert_int_equal(count_sent(&l), rows[i].bytes);
        assert_true(rows[i].bytes < rows[i].as_one);
        fixture_clear(&l.f);
    }
}

// 4 samples a device: X = 12,582,912, S = 18,874,368 (of 96 places an expert), L = 2,097,152 and
// J = 32,768 bytes. In a ring of n an all-to-all, a gather and a scatter of so many bytes send
// (n - 1) / n of them, an all-reduce twice that; so over tp a half or all, over ep three quarters.
static void experts_of_published_sizes_send_so_many_bytes(void **state)
{
    static const struct {
        const char *sharding;
        int64_t bytes;
    } rows[] = {
        // X + S and S + 2 L summed, four all-to-alls of S: 111 MB
        {BY_EP, 12582912 + 2 * 18874368 + 2 * 2097152 + 4 * 14155776},
        // 2 X and X + J + 2 L summed, four all-to-alls of S / 2: 70 MB
        {"", 3 * 12582912 + 32768 + 2 * 2097152 + 4 * 7077888},
        // 2 L + 2 J + X and 2 X + J gathered, X scattered; S and S + 2 L summed; as above: 126 MB
        {BY_EP ", " SP,
         (2 * 2097152 + 3 * 32768 + 4 * 12582912) / 2 + 2 * 18874368 + 2 * 2097152 + 4 * 14155776},
        // The same gathered; 2 X and X + J scattered; 2 L summed; as above: 72 MB
        {SP, (2 * 2097152 + 4 * 32768 + 6 * 12582912) / 2 + 2 * 2097152 + 4 * 7077888},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct layer l;
        open_jaxformer(&l, "ep: 4, tp: 2", rows[i].sharding, "layers/1");
        assert_int_equal(count_sent(&l), rows[i].bytes);
        fixture_clear(&l.f);
    }
}

// ---- weights and gradients ---------------------------------------------------------------------

static axis_set axes_named(const struct mesh *m, const char *names)
{
    axis_set set = 0;
    for (int a = 0; a < m->n; a++)
        if (strstr(names, m->axis[a].name))
            set |= (axis_set)(1u << a);
    return set;
}

// Of this tensor one collective moves, in this phase: over these axes, so many elements. Axes null:
// none does.
static void expect_one(const struct layer *l, const char *mesh, const char *what, enum phase phase,
                       enum reshard_kind kind, const char *axes, int64_t elements)
{
    int found = 0;
    for (int i = 0; i < l->g->nnodes; i++) {
        const struct node *n = &l->g->nodes[i];
        if (n->kind != NODE_RESHARD || n->step.kind == RESHARD_SLICE || n->phase != phase ||
            strcmp(n->what, what) != 0)
            continue;
        if (!axes || n->step.kind != kind ||
            dim_axes(&n->step.cut) != axes_named(&l->f.c.mesh, axes) ||
            bytes_of(l, n) != elements * 4)
            fail_msg("{%s}: %s of %s, %lld bytes", mesh, reshard_kind_name(n->step.kind), what,
                     (long long)bytes_of(l, n));
        found++;
    }
    if (found != (axes != NULL))
        fail_msg("{%s}: %d collectives of %s", mesh, found, what);
}

// An expert's weight is 12 · 24 elements, there are twelve; the router's 12 · 12; a dense weight is
// the shared experts'. Whatever the mesh, nothing gathers an expert over ep and nothing sums its
// gradient over ep: its tokens have come to it.
static void
experts_stay_and_their_gradients_are_summed_over_what_cuts_the_batch_beside(void **state)
{
    enum { EXPERTS = 12 * 12 * 24, ROUTER = 12 * 12, DENSE = 12 * 24 };
    static const struct {
        const char *mesh, *sharding;
        const char *gather; // axes of the experts' weight; null: it stays
        int64_t gathered;
        enum reshard_kind kind; // of the experts' gradient
        const char *axes;
        int64_t elements;
        // Axes of an all-reduce of these; "": nothing is moved; null: not looked at, as they move
        // twice
        const char *router, *dense;
        int64_t dense_elements; // of a device
    } rows[] = {
        {"dp: 2", "", NULL, 0, RESHARD_ALL_REDUCE, "dp", EXPERTS, "dp", "dp", DENSE},
        {"ep: 2", "", NULL, 0, RESHARD_ALL_REDUCE, NULL, 0, "ep", "ep", DENSE},
        {"dp: 2, ep: 2", "", NULL, 0, RESHARD_ALL_REDUCE, "dp", EXPERTS / 2, "dp ep", "dp ep",
         DENSE},
        {"fsdp: 2, ep: 2", "", "fsdp", EXPERTS / 2, RESHARD_REDUCE_SCATTER, "fsdp", EXPERTS / 2,
         NULL, NULL, 0},
        {"ep: 2, tp: 2", "", NULL, 0, RESHARD_ALL_REDUCE, NULL, 0, "ep", "ep", DENSE / 2},
        {"ep: 2, tp: 2", BY_EP, NULL, 0, RESHARD_ALL_REDUCE, NULL, 0, "ep", "ep", DENSE / 2},
        {"cp: 3, ep: 2", "", NULL, 0, RESHARD_ALL_REDUCE, "cp", EXPERTS / 2, "cp ep", "cp ep",
         DENSE},
        {"tp: 2", BY_EP, NULL, 0, RESHARD_ALL_REDUCE, NULL, 0, "", "", 0},
        {"cp: 3", "", NULL, 0, RESHARD_ALL_REDUCE, "cp", EXPERTS, "cp", "cp", DENSE},
        // A device of tp routes its own part of the sequence, and so the router alone is summed.
        {"tp: 2", BY_EP ", " SP, NULL, 0, RESHARD_ALL_REDUCE, NULL, 0, "tp", "", 0},
        {"ep: 2, tp: 2", BY_EP ", " SP, NULL, 0, RESHARD_ALL_REDUCE, NULL, 0, "ep tp", "ep",
         DENSE / 2},
        {"ep: 2, tp: 2", SP, NULL, 0, RESHARD_ALL_REDUCE, NULL, 0, "ep tp", "ep", DENSE / 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct layer l;
        const char *mesh = rows[i].mesh;
        open_layer(&l, &twelve, mesh, rows[i].sharding);
        for (int p = 0; p < 2; p++)
            expect_one(&l, mesh, "layers/1/moe/in/weight", p ? PHASE_BACKWARD : PHASE_FORWARD,
                       RESHARD_ALL_GATHER, rows[i].gather, rows[i].gathered);
        expect_one(&l, mesh, "grad/layers/1/moe/in/weight", PHASE_BACKWARD, rows[i].kind,
                   rows[i].axes, rows[i].elements);
        if (rows[i].router) {
            expect_one(&l, mesh, "grad/layers/1/moe/router/weight", PHASE_BACKWARD,
                       RESHARD_ALL_REDUCE, *rows[i].router ? rows[i].router : NULL, ROUTER);
            expect_one(&l, mesh, "grad/layers/1/moe/shared/in/weight", PHASE_BACKWARD,
                       RESHARD_ALL_REDUCE, *rows[i].dense ? rows[i].dense : NULL,
                       rows[i].dense_elements);
        }
        fixture_clear(&l.f);
    }
}

// ---- a pipeline --------------------------------------------------------------------------------

// Four layers on four stages: activations go up and their cotangents down, and nothing else; each
// balance is a term of the loss on its own stage.
static void a_boundary_carries_activations_and_no_balance(void **state)
{
    static const struct moe deep = {12, 2, 1, 1, 3, 0, 0.01, 4, 0};
    struct layer l;
    int up = 0, down = 0;
    (void)state;
    open_layer(&l, &deep, "pp: 4", "");
    for (int i = 0; i < l.g->nnodes; i++) {
        const struct node *n = &l.g->nodes[i];
        if (n->kind != NODE_SEND)
            continue;
        const struct value *v = &l.g->values[n->in[0]];
        assert_int_equal(shape_count(&v->shape) * 4, l.x);
        up += n->peer > n->stage;
        down += n->peer < n->stage;
    }
    assert_int_equal(up, 3);
    assert_int_equal(down, 3);
    fixture_clear(&l.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_move_as_worked_out_by_hand),
        cmocka_unit_test(a_dense_layer_moves_as_worked_out_by_hand),
        cmocka_unit_test(a_dense_layer_sends_less_than_with_latents_read_as_one),
        cmocka_unit_test(experts_of_published_sizes_send_so_many_bytes),
        cmocka_unit_test(
            experts_stay_and_their_gradients_are_summed_over_what_cuts_the_batch_beside),
        cmocka_unit_test(a_boundary_carries_activations_and_no_balance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
