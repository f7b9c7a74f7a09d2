// SPDX-License-Identifier: Apache-2.0
// A worker with a valid certificate that lies: every frame that the protocol knows, against what
// nobody asked it, jobs that are not its own, attempts that are not, and ranks of another host; and a
// storm of such frames and of clients' calls. The messages are made from their descriptors, so a
// frame that is added is tried here without a line.
#include "common/attempt/frame.h"
#include "common/ckpt/store.h"
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIAR = 1 }; // the host

// ---- messages from descriptors ----

struct claim { // what a message says, wherever a field of that name is
    const char *job;
    uint64_t attempt;
    int rank;
};
struct forger {
    struct world *w;
    struct arena a;
    struct claim claim;
    uint64_t seed; // 0: every field that is free says the same; else what it draws
};

static uint64_t draw(struct forger *f, uint64_t n)
{
    f->seed = f->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (f->seed >> 33) % n;
}

static int64_t make_number(struct forger *f, const char *name)
{
    static const int64_t odd[] = {0,  1,  2,          5,         7,         10,       -1,
                                  70, 74, 1000000000, INT32_MAX, INT64_MAX, INT64_MIN};
    if (!strcmp(name, "attempt"))
        return (int64_t)f->claim.attempt;
    if (!strcmp(name, "rank"))
        return f->claim.rank;
    return f->seed ? odd[draw(f, sizeof odd / sizeof *odd)] : 5;
}

static char *make_text(struct forger *f, const char *name)
{
    static const char *const odd[] = {
        "",      "x",          "../../etc", "\033[2J",
        "host0", "name: it\n", "a=b",       "00000000000000000000000000000000"};
    if (!strcmp(name, "job"))
        return arena_strdup(&f->a, f->claim.job);
    if (!strcmp(name, "host"))
        return arena_strdup(&f->a, f->w->hosts[LIAR].id);
    if (!strcmp(name, "incarnation"))
        return arena_strdup(&f->a, f->w->hosts[LIAR].incarnation);
    if (!strcmp(name, "cluster"))
        return arena_strdup(&f->a, coord_cluster(f->w->c));
    return arena_strdup(&f->a, f->seed ? odd[draw(f, sizeof odd / sizeof *odd)] : "x");
}

static ProtobufCMessage *make_message(struct forger *f, const ProtobufCMessageDescriptor *d,
                                      int body);

static void fill_value(struct forger *f, const ProtobufCFieldDescriptor *d, void *at)
{
    int64_t n = d->type == PROTOBUF_C_TYPE_STRING || d->type == PROTOBUF_C_TYPE_MESSAGE
                    ? 0
                    : make_number(f, d->name);
    switch (d->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = make_text(f, d->name);
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = make_message(f, d->descriptor, -1);
        return;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)at =
            (ProtobufCBinaryData){16, (uint8_t *)arena_strdup(&f->a, "0123456789abcdef")};
        return;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = f->seed ? draw(f, 2) : true;
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = (double)n;
        return;
    case PROTOBUF_C_TYPE_FLOAT:
        *(float *)at = (float)n;
        return;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        *(int64_t *)at = n;
        return;
    default:
        *(int32_t *)at = (int32_t)n;
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *d)
{
    return d->type == PROTOBUF_C_TYPE_STRING || d->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *)
           : d->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData)
                                              : sizeof(int64_t);
}

// `body`: which of a oneof's fields it has; −1: one of them.
static ProtobufCMessage *make_message(struct forger *f, const ProtobufCMessageDescriptor *d,
                                      int body)
{
    char *m = arena_alloc(&f->a, d->sizeof_message);
    protobuf_c_message_init(d, m);
    if (body < 0)
        body = f->seed ? (int)draw(f, d->n_fields + 1) : 0;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *k = &d->fields[i];
        if (k->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            if ((int)i != body)
                continue;
            *(int *)(void *)(m + k->quantifier_offset) = (int)k->id;
            fill_value(f, k, m + k->offset);
        } else if (k->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = f->seed ? draw(f, 4) : 1;
            char *list = arena_alloc(&f->a, (n + 1) * size_of(k));
            for (size_t e = 0; e < n; e++)
                fill_value(f, k, list + e * size_of(k));
            *(size_t *)(void *)(m + k->quantifier_offset) = n;
            *(void **)(void *)(m + k->offset) = list;
        } else {
            fill_value(f, k, m + k->offset);
        }
    }
    return (ProtobufCMessage *)(void *)m;
}

static const ProtobufCMessageDescriptor *const ups = &weft__v1__up__descriptor;
static const ProtobufCMessageDescriptor *const frames = &weft__rank__frame__descriptor;

// ---- three jobs: the liar has no part in the first, all of the second, a rank of the third ----

struct jobs {
    char other[33], own[33], shared[33];
    int foreign; // the rank of `shared` that is not the liar's
};

static void begin(struct world *w, struct jobs *j)
{
    world_host(w, 0, 1);
    strcpy(j->other, world_submit(w, "other", 1, CALM));
    world_host(w, LIAR, 2);
    strcpy(j->own, world_submit(w, "own", 1, CALM));
    world_host(w, 2, 1);
    strcpy(j->shared, world_submit(w, "shared", 2, CALM));
    assert_state(w, j->other, RUNNING);
    assert_state(w, j->own, RUNNING);
    assert_state(w, j->shared, RUNNING);
    assert_int_equal(world_host_of(w, j->other, 0), 0);
    assert_int_equal(world_host_of(w, j->own, 0), LIAR);
    j->foreign = world_host_of(w, j->shared, 0) == LIAR;
    assert_int_equal(world_host_of(w, j->shared, j->foreign), 2);
}

// ---- what must not change ----

struct rows {
    int n;
    struct stored_row *v[ROWS];
};

static void copy_rows(const struct world *w, struct rows *out)
{
    out->n = w->nrows;
    for (int i = 0; i < w->nrows; i++)
        out->v[i] = stored_row_new(&w->rows[i]->row);
}

static bool has_row(const struct rows *r, const struct row *row)
{
    for (int i = 0; i < r->n; i++)
        if (row_is_same(&r->v[i]->row, row))
            return true;
    return false;
}

static void assert_same_rows(const struct world *w, const struct rows *was, const char *frame,
                             const char *lie)
{
    for (int i = 0; i < w->nrows; i++)
        if (!has_row(was, &w->rows[i]->row))
            fail_msg("%s, told of %s, changes what is known (a row of kind %d)", frame, lie,
                     (int)w->rows[i]->row.kind);
    assert_int_equal(w->nrows, was->n);
}

// The three jobs run; `f` speaks for the liar, and `was` has all rows as they are before it does.
static void begin_forging(struct world *w, struct forger *f, struct jobs *j, struct rows *was)
{
    *f = (struct forger){.w = w};
    arena_init(&f->a);
    begin(w, j);
    copy_rows(w, was);
}

// ---- the rule table: frame × lie ----

struct lie {
    const char *what;
    struct claim claim;
    bool of_rank; // says something of a rank: for frames that name one
};

static int list_lies(const struct jobs *j, struct lie out[12])
{
    const struct lie all[] = {
        {"a job that runs on another host", {j->other, 1, 0}, false},
        {"a job that nobody knows", {"ffffffffffffffffffffffffffffffff", 1, 0}, false},
        {"a job without a name", {"", 1, 0}, false},
        {"an attempt before the first", {j->own, 0, 0}, false},
        {"an attempt to come", {j->own, 2, 0}, false},
        {"the last attempt of all", {j->own, ATTEMPT_MAX, 0}, false},
        {"an attempt that cannot be", {j->own, UINT64_MAX, 0}, false},
        {"a greater attempt of another host's job", {j->other, 7, 0}, false},
        {"a rank of another host", {j->shared, 1, j->foreign}, true},
        {"a rank that is not there", {j->shared, 1, 7}, true},
        {"no rank", {j->shared, 1, -1}, true},
    };
    memcpy(out, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

// Those are about the host itself, or begin a stream.
static bool is_of_jobs(const ProtobufCFieldDescriptor *up)
{
    static const char *const others[] = {"hello", "register", "heartbeat", "leaving"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(up->name, others[i]))
            return false;
    return true;
}

static void send_lie(struct forger *f, const struct rows *was, int up, int frame, const char *what)
{
    Weft__V1__Up *m = (Weft__V1__Up *)(void *)make_message(f, ups, up);
    const char *name = ups->fields[up].name;
    if (m->body_case == WEFT__V1__UP__BODY_FRAME) {
        m->frame->frame = (Weft__Rank__Frame *)(void *)make_message(f, frames, frame);
        name = frames->fields[frame].name;
    }
    world_up(f->w, LIAR, m);
    assert_same_rows(f->w, was, name, what);
    arena_clear(&f->a);
}

static void test_no_frame_is_believed_about_what_is_not_the_speaker_s(void **state)
{
    static struct rows was;
    struct world *w = *state;
    struct forger f;
    struct jobs j;
    struct lie lies[12];
    begin_forging(w, &f, &j, &was);
    int n = list_lies(&j, lies), tried = 0;
    for (int l = 0; l < n; l++) {
        for (unsigned up = 0; up < ups->n_fields; up++) {
            bool is_frame = ups->fields[up].descriptor == &weft__v1__rank_frame__descriptor;
            bool of_host = ups->fields[up].descriptor == &weft__v1__reaped__descriptor;
            if (!is_of_jobs(&ups->fields[up]) || (lies[l].of_rank && of_host))
                continue; // a host that has reaped its own part may say so
            f.claim = lies[l].claim;
            for (unsigned k = 0; k < (is_frame ? frames->n_fields : 1); k++, tried++)
                send_lie(&f, &was, (int)up, (int)k, lies[l].what);
        }
    }
    assert_true(tried > 150);
}

static void test_answers_that_nobody_asked_for_are_not_heard(void **state)
{
    static struct rows was;
    struct world *w = *state;
    struct forger f;
    struct jobs j;
    begin_forging(w, &f, &j, &was);
    f.claim = (struct claim){j.own, 1, 0}; // its own job, and no act of it is in hand
    for (int op = 0; op <= WEFT__V1__STORAGE_OP__STORAGE_FIND + 2; op++)
        for (int ok = 0; ok < 2; ok++) {
            NEW(StorageDone, storage_done, d);
            const Weft__V1__StorageDone *all = (const Weft__V1__StorageDone *)(void *)make_message(
                &f, &weft__v1__storage_done__descriptor, -1);
            d = *all;
            d.op = (Weft__V1__StorageOp)op;
            d.ok = ok;
            d.attempt_id = frame_text(world_job(w, j.own)->attempt_id);
            UP(up, STORAGE, storage, &d);
            world_up(w, LIAR, &up);
            assert_same_rows(w, &was, "an answer about storage", "what nobody asked");
        }
    arena_clear(&f.a);
}

// A stream of the test's own for the liar, up to its challenge, whose nonce comes back.
static const char *greet(struct world *w, uint64_t conn)
{
    static char nonce[65];
    NEW(Hello, hello, hello);
    hello.host = w->hosts[LIAR].id;
    hello.incarnation = w->hosts[LIAR].incarnation;
    UP(up, HELLO, hello, &hello);
    struct coord_event ev = {.kind = COORD_EV_UP, .conn = conn, .up = &up};
    world_event(w, &ev);
    nonce[0] = 0;
    for (int i = 0; i < w->nqueue; i++)
        if (w->queue[i].conn == conn &&
            w->queue[i].down->body_case == WEFT__V1__DOWN__BODY_CHALLENGE)
            snprintf(nonce, sizeof nonce, "%s", w->queue[i].down->challenge->nonce);
    return nonce;
}

static void test_no_attempt_is_believed_that_a_registration_brings_and_is_not_its_own(void **state)
{
    static struct rows was;
    struct world *w = *state;
    struct forger f;
    struct jobs j;
    struct lie lies[12];
    begin_forging(w, &f, &j, &was);
    int n = list_lies(&j, lies);
    for (int l = 0; l < n; l++) {
        NEW(AttemptHere, attempt_here, own);
        NEW(AttemptHere, attempt_here, shared);
        own.job = j.own;
        shared.job = j.shared;
        own.attempt = shared.attempt = 1;
        f.claim = lies[l].claim;
        Weft__V1__AttemptHere *forged = (Weft__V1__AttemptHere *)(void *)make_message(
            &f, &weft__v1__attempt_here__descriptor, -1);
        forged->reaped = !lies[l].of_rank;
        forged->n_answered = forged->n_puts = 0; // keys are any rank's of the attempt
        Weft__V1__AttemptHere *list[] = {&own, &shared, forged};
        uint64_t conn = 100000 + (uint64_t)l;
        Weft__V1__Register r;
        weft__v1__register__init(&r);
        r.nonce = frame_text(greet(w, conn));
        r.cluster = frame_text(coord_cluster(w->c));
        r.host = w->hosts[LIAR].id;
        r.incarnation = w->hosts[LIAR].incarnation;
        r.name = w->hosts[LIAR].name;
        r.attempts = list;
        r.n_attempts = 3;
        UP(up, REGISTER, register_, &r);
        struct coord_event ev = {.kind = COORD_EV_UP, .conn = conn, .up = &up};
        w->hosts[LIAR].conn = conn;
        world_event(w, &ev);
        world_pump(w);
        assert_same_rows(w, &was, "a registration", lies[l].what);
        arena_clear(&f.a);
    }
}

// ---- the storm ----

static int count_of_storm(void)
{
    return getenv("WEFT_LONG") ? 40000 : 2000;
}

static void say_anything(struct forger *f, const struct jobs *j)
{
    static const uint64_t attempts[] = {0, 1, 2, 3, ATTEMPT_MAX, UINT64_MAX};
    const char *const jobs[] = {j->other, j->own, j->shared,
                                "",       "x",    "ffffffffffffffffffffffffffffffff"};
    f->claim = (struct claim){jobs[draw(f, 6)], attempts[draw(f, 6)], (int)draw(f, 4) - 1};
    world_up(f->w, LIAR, (Weft__V1__Up *)(void *)make_message(f, ups, -1));
    arena_clear(&f->a);
}

// Each call leaves one, thousands of which nobody here reads.
static void drop_audit_rows(struct world *w)
{
    for (int i = w->nrows - 1; i >= 0; i--)
        if (w->rows[i]->row.kind == ROW_AUDIT)
            world_drop_row(w, i);
}

// A user who may do what users may, and asks for what cannot be.
static void ask_anything(struct forger *f)
{
    struct coord_event ev = {.who = "mallory", .role = "client", .call = 1};
    char id[33];
    snprintf(id, sizeof id, "%032x", (unsigned)draw(f, 16)); // repeated with other contents
    f->claim = (struct claim){"x", 1, 0};
    if (draw(f, 2)) {
        Weft__V1__ActRequest *q =
            (Weft__V1__ActRequest *)(void *)make_message(f, &weft__v1__act_request__descriptor, -1);
        q->request_id = id;
        q->target = frame_text(draw(f, 2) ? "nobody" : "\033[2J");
        ev.kind = COORD_EV_ACT;
        ev.act = q;
        world_event(f->w, &ev);
    } else {
        Weft__V1__SubmitRequest *q = (Weft__V1__SubmitRequest *)(void *)make_message(
            f, &weft__v1__submit_request__descriptor, -1);
        q->request_id = id;
        ev.kind = COORD_EV_SUBMIT;
        ev.submit = q;
        world_event(f->w, &ev);
    }
    arena_clear(&f->a);
}

static void test_a_storm_of_lies_touches_nobody_else_s_job(void **state)
{
    const char *seed = getenv("WEFT_SEED");
    struct world *w = *state;
    struct forger f = {.w = w, .seed = seed ? strtoull(seed, NULL, 10) : 1};
    struct jobs j;
    arena_init(&f.a);
    begin(w, &j);
    for (int i = 0; i < count_of_storm(); i++) {
        if (i % 20 == 0)
            world_attach(w, LIAR); // what it said may have ended its stream
        if (i % 200 == 0) {
            world_pass(w, 100);
            drop_audit_rows(w);
        }
        if (draw(&f, 4))
            say_anything(&f, &j);
        else
            ask_anything(&f);
        if (!f.seed)
            f.seed = 1;
    }
    const struct job_record *is = world_job(w, j.other);
    assert_int_equal(is->state, STATE(RUNNING));
    assert_int_equal(is->attempt, 1);
    assert_int_equal(is->restarts, 0);
    assert_int_equal(world_events(w, j.other, "failed") + world_events(w, j.other, "lost"), 0);
    world_finish(w, j.other);
    assert_state(w, j.other, SUCCEEDED);
    arena_clear(&f.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_no_frame_is_believed_about_what_is_not_the_speaker_s),
        CASE(test_answers_that_nobody_asked_for_are_not_heard),
        CASE(test_no_attempt_is_believed_that_a_registration_brings_and_is_not_its_own),
        CASE(test_a_storm_of_lies_touches_nobody_else_s_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
