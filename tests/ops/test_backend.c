// SPDX-License-Identifier: Apache-2.0
// Loading and checking a backend; what is the CPU's own. test_contract.c has what all keep.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/ops/rig.h"
#include "tests/unit/unit.h"

// ---- loading -----------------------------------------------------------------------------------

// A folder of libraries of the test's own, searched in place of the real one.
static void in_folder(char dir[64])
{
    strcpy(dir, "/tmp/weft-backend-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void load_from(const char *dir, const char *name, struct err *e, int want)
{
    char old[4096];
    const struct backend *b = NULL;
    snprintf(old, sizeof old, "%s", getenv("WEFT_BACKEND_DIR"));
    setenv("WEFT_BACKEND_DIR", dir, 1);
    int rc = backend_load(name, &b, e);
    setenv("WEFT_BACKEND_DIR", old, 1);
    assert_int_equal(rc, want);
}

static void a_backend_that_is_not_there_is_named_with_the_places_searched(void **state)
{
    (void)state;
    const struct backend *b;
    struct err e = {0};
    assert_int_equal(backend_load("nosuch", &b, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "libweft_nosuch.so"));
    assert_non_null(strstr(e.text, "lib/weft"));
}

static void a_name_is_never_a_path(void **state)
{
    static const char *const names[] = {"", "../cpu", "cpu/x", "CPU", "a.b"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct backend *b;
        struct err e = {0};
        assert_int_equal(backend_load(names[i], &b, &e), ERR_INVALID);
    }
}

static void a_library_of_another_kind_is_refused(void **state)
{
    char dir[64], from[4200], to[128];
    struct err e = {0};
    (void)state;
    in_folder(dir);
    snprintf(to, sizeof to, "%s/libweft_text.so", dir);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs("no library at all\n", f);
    fclose(f);
    load_from(dir, "text", &e, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "cannot load"));
    unlink(to);

    snprintf(from, sizeof from, "%s/libweft_cpu.so", getenv("WEFT_BACKEND_DIR"));
    snprintf(to, sizeof to, "%s/libweft_other.so", dir);
    assert_int_equal(symlink(from, to), 0);
    load_from(dir, "other", &e, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "is not the backend 'other'"));
    unlink(to);
    rmdir(dir);
}

// ---- checking ----------------------------------------------------------------------------------

static void holes_that_a_program_needs_are_listed(void **state)
{
    static const backend_op none[OP_COUNT];
    const struct backend b = {.name = "empty", .op = {.run = none}};
    bool needed[OP_COUNT] = {[OP_MATMUL] = true, [OP_ADAM] = true};
    struct err e = {0};
    (void)state;
    assert_int_equal(backend_check(&b, needed, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "backend 'empty' has no kernel for matmul, adam");
    memset(needed, 0, sizeof needed);
    assert_int_equal(backend_check(&b, needed, &e), 0);
}

static void choices_that_are_gone_or_others_are_counted(void **state)
{
    static const char before[] = "model x\na 1\nb 2\nc 3\n";
    (void)state;
    assert_int_equal(backend_choices_changed(before, before), 0);
    assert_int_equal(backend_choices_changed(before, "model x\na 1\nb 2\nb2 7\nc 3\n"), 0);
    assert_int_equal(backend_choices_changed(before, "model x\na 1\nb 4\n"), 2);
    assert_int_equal(backend_choices_changed(before, "model x\na 1\nb 22\nc 3"), 1);
    assert_int_equal(backend_choices_changed("", before), 0);
    assert_int_equal(backend_choices_changed(before, ""), 4);
}

// ---- the device --------------------------------------------------------------------------------

static void a_device_says_what_it_is(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, 3, NULL);
    assert_string_equal(r.info.model, "cpu");
    assert_int_equal(r.info.threads, 3);
    assert_true(r.info.memory > 1u << 20);
    assert_non_null(strstr(r.info.libraries, "onednn "));
    rig_close(&r);
    rig_open(&r, 1, "baseline");
    assert_string_equal(r.info.isa, "baseline");
    rig_close(&r);
}

static void wrong_options_of_a_device_are_refused(void **state)
{
    const struct backend *b;
    struct device *d;
    struct err e = {0};
    (void)state;
    assert_int_equal(backend_load("cpu", &b, &e), 0);
    assert_int_equal(b->device.open(&(struct device_options){.threads = 0}, &d, &e), ERR_INVALID);
    setenv("WEFT_CPU_ISA", "mmx", 1);
    assert_int_equal(b->device.open(&(struct device_options){.threads = 1}, &d, &e), ERR_INVALID);
    unsetenv("WEFT_CPU_ISA");
    assert_non_null(strstr(e.text, "mmx"));
    setenv("WEFT_CPU_PRODUCTS", "cblas", 1);
    assert_int_equal(b->device.open(&(struct device_options){.threads = 1}, &d, &e), ERR_INVALID);
    unsetenv("WEFT_CPU_PRODUCTS");
    assert_non_null(strstr(e.text, "cblas"));
}

static void a_device_says_whose_its_products_are(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, 1, "avx2");
    bool avx2 = strcmp(r.info.isa, "avx2") == 0;
    bool packed = strstr(r.info.libraries, "packed") != NULL;
    rig_close(&r);
    assert_true(packed == avx2);
    setenv("WEFT_CPU_PRODUCTS", "onednn", 1);
    rig_open(&r, 1, "avx2");
    unsetenv("WEFT_CPU_PRODUCTS");
    assert_null(strstr(r.info.libraries, "packed"));
    rig_close(&r);
}

static void memory_that_is_not_to_be_had_is_an_error(void **state)
{
    struct rig r;
    void *p;
    struct err e = {0};
    (void)state;
    rig_open(&r, 1, NULL);
    assert_int_equal(r.backend->memory.alloc(r.device, (size_t)1 << 60, &p, &e), ERR_NOMEM);
    assert_non_null(strstr(e.text, "cannot map"));
    rig_close(&r);
}

static void events_and_streams_are_done_at_once(void **state)
{
    struct rig r;
    struct stream_q *other;
    struct event *ev;
    bool done = false;
    (void)state;
    rig_open(&r, 1, NULL);
    assert_int_equal(r.backend->stream.create(r.device, STREAM_USUAL, &other, NULL), 0);
    assert_int_equal(r.backend->event.create(r.device, &ev, NULL), 0);
    assert_int_equal(r.backend->event.record(r.q, ev, NULL), 0);
    assert_int_equal(r.backend->event.wait(other, ev, NULL), 0);
    assert_int_equal(r.backend->event.query(ev, &done, NULL), 0);
    assert_true(done);
    assert_int_equal(r.backend->event.sync(ev, NULL), 0);
    char from[5] = "weft", to[5] = "";
    assert_int_equal(r.backend->stream.copy(other, to, from, 5, NULL), 0);
    assert_string_equal(to, "weft");
    assert_int_equal(r.backend->stream.fill_zero(other, to, 4, NULL), 0);
    assert_memory_equal(to, "\0\0\0\0", 5);
    r.backend->event.destroy(ev);
    r.backend->stream.destroy(other);
    rig_close(&r);
}

// ---- threads -----------------------------------------------------------------------------------

enum { PIECES = 300, LENGTH = 40000 };

struct copier {
    struct rig *rig;
    struct stream_q *q;
    _Atomic bool stop;
    _Atomic int copies;
    char from[LENGTH], to[LENGTH];
};

static void *copy_on(void *arg)
{
    struct copier *c = arg;
    while (!c->stop || !c->copies) {
        c->rig->backend->stream.copy(c->q, c->to, c->from, LENGTH, NULL);
        c->copies++;
    }
    return NULL;
}

// Many short loops, so that threads are caught awake, falling asleep and asleep.
static void loops_are_whole_while_another_thread_copies(void **state)
{
    struct rig r;
    static struct copier c;
    static float x[LENGTH], y[LENGTH];
    pthread_t thread;
    (void)state;
    rig_open(&r, 3, NULL);
    c.rig = &r;
    memset(c.from, 7, LENGTH);
    assert_int_equal(r.backend->stream.create(r.device, STREAM_USUAL, &c.q, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, copy_on, &c), 0);
    struct op_attr attr = {.label = {{0}, {0}}, .scale = 2};
    struct op_call call = {.op = OP_SCALE, .attr = &attr, .nin = 1, .nout = 1};
    call.in[0] = (struct tensor){x, DT_F32, {1, {LENGTH}}};
    call.out[0] = (struct tensor){y, DT_F32, {1, {LENGTH}}};
    for (int piece = 0; piece < PIECES; piece++) {
        for (int i = 0; i < LENGTH; i++)
            x[i] = (float)(piece + i);
        assert_int_equal(r.backend->op.run[OP_SCALE](r.q, &call, NULL), 0);
        for (int i = 0; i < LENGTH; i++)
            assert_true(y[i] == 2 * x[i]);
        if (piece % 50 == 0)
            usleep(2000);
    }
    c.stop = true;
    pthread_join(thread, NULL);
    assert_memory_equal(c.to, c.from, LENGTH);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backend_that_is_not_there_is_named_with_the_places_searched),
        cmocka_unit_test(a_name_is_never_a_path),
        cmocka_unit_test(a_library_of_another_kind_is_refused),
        cmocka_unit_test(holes_that_a_program_needs_are_listed),
        cmocka_unit_test(choices_that_are_gone_or_others_are_counted),
        cmocka_unit_test(a_device_says_what_it_is),
        cmocka_unit_test(wrong_options_of_a_device_are_refused),
        cmocka_unit_test(a_device_says_whose_its_products_are),
        cmocka_unit_test(memory_that_is_not_to_be_had_is_an_error),
        cmocka_unit_test(events_and_streams_are_done_at_once),
        cmocka_unit_test(loops_are_whole_while_another_thread_copies),
    };
    return cmocka_run_group_tests(tests, rig_set_up, NULL);
}
