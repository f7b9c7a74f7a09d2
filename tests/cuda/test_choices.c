// SPDX-License-Identifier: Apache-2.0
// Which of cuBLASLt's algorithms a product gets on the emulated CUDA device: the fastest of those
// that may be used, what is remembered and agreed on, and that what one device may use never
// becomes another's.
#include <stdio.h>

#include "tests/cuda/products.h"
#include "tests/support/temp_folder.h"

static char folder[TEMP_FOLDER_MAX];

static int with_folder(void **state)
{
    (void)state;
    scene("");
    return temp_folder_make(folder, "choices");
}

static int without_folder(void **state)
{
    (void)state;
    scene("");
    return temp_folder_remove(folder);
}

struct choosing {
    const char *cache, *scene, *import;
    bool whatever, time; // whatever: not deterministic
    size_t scratch;
    int offset, k; // k: of the sum; 0: 32
    enum dtype dtype;
};

// What a new device chooses for the product "ik,kj->ij"; its choices are in `text`.
static int choice(const struct choosing *h, struct buf *text)
{
    const int offset[OP_MAX_IN + OP_MAX_OUT] = {h->offset, h->offset, h->offset};
    enum dtype t = h->dtype ? h->dtype : DT_F32;
    struct extents ext = {16, 24, h->k ? h->k : 32, 2};
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    struct placed p;
    struct err e = {0};
    double *want[OP_MAX_OUT];
    scene(h->scene ? h->scene : "");
    device_open(&r, h->cache, !h->whatever);
    product_case(&c, &a, "ik,kj->ij", ext, t, t);
    rig_reference(&c, &a, want);
    place_case(&r, &p, &c, offset, h->scratch);
    if (h->import && r.backend->choice->read(r.device, h->import, &e))
        fail_msg("%s", e.text);
    tune(&r, &p, h->time);
    run(&r, &p);
    rig_compare("tuned", result(&r, &p.call.out[0], &a), want[0], 16 * 24,
                t == DT_F32 ? 1e-6 : 0x1p-8, 1e-5);
    exported(&r, text);
    release(&r, &p);
    r.backend->device.close(r.device);
    arena_clear(&a);
    scene("");
    return chosen(buf_str(text), "16x24x");
}

// What choice() says on standard error, for free().
static char *said_by(const struct choosing *how)
{
    struct buf text = {0};
    char *said = calloc(1, 1 << 16);
    FILE *to = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_true(said && to && kept >= 0 && dup2(fileno(to), STDERR_FILENO) >= 0);
    choice(how, &text);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(to);
    size_t n = fread(said, 1, (1 << 16) - 1, to);
    assert_true(n > 0);
    fclose(to);
    buf_clear(&text);
    return said;
}

struct reported { // of a choice
    int place, of, id;
    double us, first;
};

static struct reported find_choice(const char *said)
{
    struct reported r = {.first = 0};
    const char *at = strstr(said, ": chosen ");
    if (!at ||
        sscanf(at, ": chosen %d of %d (id %d, %*[^)]): %lf us, the library's first %lf us",
               &r.place, &r.of, &r.id, &r.us, &r.first) != 5 ||
        strstr(at + 1, ": chosen "))
        fail_msg("it said: %s", said);
    return r;
}

static void the_clock_decides_among_what_may_be_used(void **state)
{
    static const struct {
        struct choosing how;
        int want;
    } cases[] = {
        {{.time = true, .scratch = SCRATCH}, ALIGNED},
        {{.time = true, .scratch = SCRATCH, .dtype = DT_BF16}, ALIGNED},
        {{.time = true, .scratch = SCRATCH, .offset = 1}, SPLIT},
        {{.time = true, .scratch = SCRATCH, .offset = 1, .k = 64, .dtype = DT_BF16}, SPLIT},
        // On tensor cores a sum that is not whole steps of 64 is not split: its end may be lost. Of
        // 194 the last two would be.
        {{.time = true, .scratch = SCRATCH, .offset = 1, .dtype = DT_BF16}, ANYWHERE},
        {{.time = true, .scratch = SCRATCH, .offset = 1, .k = 194, .dtype = DT_BF16}, ANYWHERE},
        {{.time = true, .scratch = SCRATCH, .offset = 1, .k = 194}, SPLIT},
        {{.time = true, .scratch = 0, .offset = 1}, ANYWHERE},
        {{.time = true, .scratch = 4096, .offset = 1}, ANYWHERE}, // three parts want 4,608
        {{.time = true, .scratch = 3 * 16 * 24 * 4, .offset = 1}, SPLIT},
        {{.time = true, .scratch = SCRATCH, .whatever = true}, INPLACE},
        // In place the parts would be bf16: an order may be given up, f32 sums are not.
        {{.time = true, .scratch = SCRATCH, .whatever = true, .dtype = DT_BF16}, ALIGNED},
        {{.time = false, .scratch = SCRATCH}, ANYWHERE}, // the first that runs
        {{.time = false, .scratch = SCRATCH, .whatever = true}, INPLACE},
        {{.time = true, .scratch = SCRATCH, .scene = "lt_without:46"}, SPLIT},
        // The first that runs took all the time that a product has: the others are not tried.
        {{.time = true, .scratch = SCRATCH, .scene = "lt_slow:20000"}, ANYWHERE},
    };
    struct buf text = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int got = choice(&cases[i].how, &text);
        if (got != cases[i].want)
            fail_msg("case %zu chose %d, not %d", i, got, cases[i].want);
    }
    buf_clear(&text);
}

// Where the choice is among those that the library named and that may be used, and what it and the
// first of them that runs take. 42 and 47, which want 16 bytes of alignment, come first and decline.
static void the_log_says_what_the_librarys_order_is_worth(void **state)
{
    static const struct {
        struct choosing how;
        const char *finalists;
        int place, of, id;
        double us, first; // units of time, of which a launch is one more
    } cases[] = {
        {{.time = true, .scratch = SCRATCH}, "6", 5, 5, ALIGNED, 10, 30},
        // The library's first is timed whoever the finalists are.
        {{.time = true, .scratch = SCRATCH}, "1", 5, 5, ALIGNED, 10, 30},
        {{.time = true, .scratch = SCRATCH, .offset = 1}, "6", 2, 2, SPLIT, 20, 30},
        {{.time = true, .scratch = SCRATCH, .whatever = true}, "6", 3, 6, INPLACE, 2, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("WEFT_CUDA_FINALISTS", cases[i].finalists, 1);
        char *said = said_by(&cases[i].how);
        unsetenv("WEFT_CUDA_FINALISTS");
        struct reported r = find_choice(said);
        assert_int_equal(r.place, cases[i].place);
        assert_int_equal(r.of, cases[i].of);
        assert_int_equal(r.id, cases[i].id);
        assert_true(r.us > cases[i].us && r.us < cases[i].us * 1.1 + 1);
        assert_true(r.first > cases[i].first && r.first < cases[i].first * 1.1 + 1);
        free(said);
    }
}

// A device that has just been opened clocks lower: what is timed is timed under load.
static void no_product_is_timed_by_cold_clocks(void **state)
{
    const struct choosing how = {.time = true, .scratch = SCRATCH, .scene = "lt_cold:110"};
    (void)state;
    char *said = said_by(&how);
    struct reported r = find_choice(said);
    assert_int_equal(r.id, ALIGNED);
    assert_true(r.us < 12 && r.first < 34); // 10 and 30 when warm, 100 and 300 when cold
    free(said);
}

// What was proposed and could not be started left an error with CUDA's runtime. The next kernel of
// ours is no product: whoever takes that error for its own fails a device that is well.
static void a_candidate_that_declined_fails_nobody_else(void **state)
{
    static const struct op_attr twice = {.label = {{0}, {0}}, .labels = 1, .scale = 2};
    struct op_call scale = {.op = OP_SCALE, .attr = &twice, .nin = 1, .nout = 1};
    struct arena a = {0};
    struct rig_case c;
    (void)state;
    for (int time = 0; time < 2; time++) {
        struct rig r;
        struct placed p;
        struct err e = {0};
        scene("lt_without:44"); // without time, too, the two that decline come first
        device_open(&r, NULL, true);
        product_case(&c, &a, "ik,kj->ij", even, DT_F32, DT_F32);
        place_case(&r, &p, &c, NULL, SCRATCH);
        tune(&r, &p, time);
        scale.in[0] = scale.out[0] = (struct tensor){p.call.out[0].data, DT_F32, {1, {16 * 24}}};
        if (r.backend->op.run[OP_SCALE](r.q, &scale, &e))
            fail_msg("%s", e.text);
        release(&r, &p);
        r.backend->device.close(r.device);
    }
    arena_clear(&a);
}

static void what_was_timed_is_remembered_on_disk(void **state)
{
    struct buf text = {0};
    const struct choosing timed = {.cache = folder, .time = true, .scratch = SCRATCH};
    struct choosing poor = timed, other = timed, calm = timed;
    (void)state;
    poor.scene = "lt_without:46";
    assert_int_equal(choice(&poor, &text), SPLIT);
    assert_int_equal(choice(&timed, &text), SPLIT); // not timed again
    other.offset = 1;
    other.scratch = 0;
    assert_int_equal(choice(&other, &text), ANYWHERE); // another key
    assert_int_equal(choice(&timed, &text), SPLIT);    // beside it
    calm.time = false;
    assert_int_equal(choice(&calm, &text), ANYWHERE); // who must not time must not guess either
    poor.scene = "lt_without:45";
    assert_int_equal(choice(&poor, &text), ALIGNED); // what is gone is timed again
    assert_int_equal(choice(&timed, &text), ALIGNED);
    buf_clear(&text);
}

static void ranks_take_what_one_of_them_chose(void **state)
{
    struct buf text = {0}, back = {0};
    struct choosing leader = {.time = true, .scratch = SCRATCH, .cache = folder};
    (void)state;
    assert_int_equal(choice(&leader, &text), ALIGNED);
    struct choosing follower = {.scratch = SCRATCH, .import = buf_str(&text)};
    assert_int_equal(choice(&follower, &back), ALIGNED);
    assert_string_equal(buf_str(&text), buf_str(&back));
    follower.time = true; // a record of an earlier run counts for the leader too
    follower.scene = "lt_slow_ends";
    assert_int_equal(choice(&follower, &back), ALIGNED);
    assert_int_equal(backend_choices_changed(buf_str(&text), buf_str(&back)), 0);
    follower.cache = folder;
    follower.scene = "lt_without:46"; // the cache has it too, and it is gone there as well
    assert_int_equal(choice(&follower, &back), SPLIT);
    assert_int_equal(backend_choices_changed(buf_str(&text), buf_str(&back)), 1);
    buf_clear(&text);
    buf_clear(&back);
}

static void a_choice_that_no_call_uses_stays_in_the_text(void **state)
{
    struct buf text = {0}, back = {0};
    struct choosing odd = {.time = true, .scratch = SCRATCH, .offset = 1};
    (void)state;
    choice(&odd, &text);
    struct choosing plain = {.time = true, .scratch = SCRATCH, .import = buf_str(&text)};
    choice(&plain, &back);
    assert_int_equal(backend_choices_changed(buf_str(&text), buf_str(&back)), 0);
    assert_int_equal(backend_choices_changed(buf_str(&back), buf_str(&text)), 1);
    buf_clear(&text);
    buf_clear(&back);
}

// One folder for both. Whoever has the other's choices has none: neither from the disk nor as a
// text does one taken under `deterministic: false` reach a device that must give the same bits
// twice.
static void choices_that_may_vary_never_reach_a_deterministic_device(void **state)
{
    struct buf loose = {0}, strict = {0};
    struct choosing chance = {.cache = folder, .time = true, .scratch = SCRATCH, .whatever = true};
    struct choosing firm = {.cache = folder, .time = true, .scratch = SCRATCH};
    struct rig r;
    struct err e = {0};
    (void)state;
    assert_int_equal(choice(&chance, &loose), INPLACE);
    firm.scene = "lt_without:46";
    assert_int_equal(choice(&firm, &strict), SPLIT);
    firm.scene = NULL;
    assert_int_equal(choice(&firm, &strict), SPLIT); // its own is there
    chance.scene = "lt_without:43";
    assert_int_equal(choice(&chance, &loose), ALIGNED); // timed again: SPLIT is not its own
    chance.scene = NULL;
    assert_int_equal(choice(&chance, &loose), ALIGNED);
    assert_non_null(strstr(buf_str(&loose), "cublaslt 13.1.0, not deterministic\n"));
    assert_non_null(strstr(buf_str(&strict), "cublaslt 13.1.0\n"));
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        device_open(&r, NULL, deterministic);
        assert_int_equal(
            r.backend->choice->read(r.device, buf_str(deterministic ? &strict : &loose), &e), 0);
        assert_int_equal(
            r.backend->choice->read(r.device, buf_str(deterministic ? &loose : &strict), &e),
            ERR_UNSUPPORTED);
        r.backend->device.close(r.device);
    }
    buf_clear(&loose);
    buf_clear(&strict);
}

// A device under switches is another owner: it finds its own in the folder where others' lie, and
// others refuse its text.
static void switches_are_obeyed_and_their_choices_never_mix(void **state)
{
    static const struct {
        const char *name, *value, *owner;
        int offset, want, usual;
    } cases[] = {
        {"WEFT_CUDA_CANDIDATES", "5", "cublaslt 13.1.0, WEFT_CUDA_CANDIDATES=5\n", 0, ANYWHERE,
         ALIGNED},
        {"WEFT_CUDA_SCRATCH", "0", "cublaslt 13.1.0, WEFT_CUDA_SCRATCH=0\n", 1, ANYWHERE, SPLIT},
    };
    struct buf usual = {0}, text = {0};
    struct rig r;
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct choosing how = {
            .cache = folder, .time = true, .scratch = SCRATCH, .offset = cases[i].offset};
        assert_int_equal(choice(&how, &usual), cases[i].usual);
        setenv(cases[i].name, cases[i].value, 1);
        assert_int_equal(choice(&how, &text), cases[i].want);
        device_open(&r, NULL, true);
        assert_int_equal(r.backend->choice->read(r.device, buf_str(&usual), &e), ERR_UNSUPPORTED);
        r.backend->device.close(r.device);
        unsetenv(cases[i].name);
        assert_non_null(strstr(buf_str(&text), cases[i].owner));
        assert_int_equal(choice(&how, &text), cases[i].usual);
    }
    buf_clear(&usual);
    buf_clear(&text);
}

// Runs with early launches and without take one set of choices, so that they can be compared to the
// bit.
static void early_launches_leave_the_choices_alone(void **state)
{
    const struct choosing how = {.cache = folder, .time = true, .scratch = SCRATCH};
    struct buf usual = {0}, text = {0};
    (void)state;
    assert_int_equal(choice(&how, &usual), ALIGNED);
    setenv("WEFT_CUDA_EARLY_LAUNCH", "1", 1);
    assert_int_equal(choice(&how, &text), ALIGNED);
    unsetenv("WEFT_CUDA_EARLY_LAUNCH");
    assert_string_equal(buf_str(&text), buf_str(&usual));
    buf_clear(&usual);
    buf_clear(&text);
}

static void a_switch_that_is_no_number_of_its_range_opens_no_device(void **state)
{
    static const char *const bad[] = {"0", "33", "8x", "many"};
    struct rig r = {0};
    (void)state;
    device_open(&r, NULL, true);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct device_options o = {.deterministic = true};
        struct device *d = NULL;
        struct err e = {0};
        setenv("WEFT_CUDA_CANDIDATES", bad[i], 1);
        assert_int_equal(r.backend->device.open(&o, &d, &e), ERR_INVALID);
        assert_non_null(strstr(e.text, "takes a number from 1 to 32"));
    }
    unsetenv("WEFT_CUDA_CANDIDATES");
    r.backend->device.close(r.device);
}

static void another_devices_choices_are_refused(void **state)
{
    struct rig r;
    struct buf text = {0}, before = {0};
    struct err e = {0};
    (void)state;
    device_open(&r, NULL, true);
    exported(&r, &before);
    assert_string_equal(buf_str(&before),
                        "algorithms emulated, sm_90, 4 processors, cublaslt 13.1.0\n");
    assert_int_equal(
        r.backend->choice->read(r.device,
                                "algorithms NVIDIA H200, sm_90, 132 processors, cublaslt "
                                "13.1.0\n16x24x32 = 1\n",
                                &e),
        ERR_UNSUPPORTED);
    assert_int_equal(r.backend->choice->read(r.device, "nonsense", &e), ERR_INVALID);
    exported(&r, &text);
    assert_string_equal(buf_str(&text), buf_str(&before));
    buf_clear(&text);
    buf_clear(&before);
    r.backend->device.close(r.device);
}

// Bits that mean no algorithm, or one for other dtypes, under the right header and key.
static void choices_that_make_no_sense_here_are_settled_again(void **state)
{
    static const char *const bad[] = {"", "none", "00", "zz", "0000002e0000a190"};
    struct buf text = {0}, twisted = {0}, back = {0};
    struct choosing leader = {.time = true, .scratch = SCRATCH};
    (void)state;
    choice(&leader, &text);
    const char *value = strstr(buf_str(&text), " = ") + 3;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char word[129];
        memset(word, '0', 128);
        word[128] = 0;
        memcpy(word, bad[i], strlen(bad[i]));
        buf_reset(&twisted);
        buf_append(&twisted, buf_str(&text), (size_t)(value - buf_str(&text)));
        buf_puts(&twisted, i == 1 || i == 2 ? bad[i] : word);
        buf_putc(&twisted, '\n');
        struct choosing h = {.scratch = SCRATCH, .time = true, .import = buf_str(&twisted)};
        assert_int_equal(choice(&h, &back), ALIGNED);
    }
    buf_clear(&text);
    buf_clear(&twisted);
    buf_clear(&back);
}

int main(void)
{
    if (!find_twin())
        return 1;
#define CASE(f) cmocka_unit_test_setup_teardown(f, with_folder, without_folder)
    const struct CMUnitTest tests[] = {
        CASE(the_clock_decides_among_what_may_be_used),
        CASE(no_product_is_timed_by_cold_clocks),
        CASE(a_candidate_that_declined_fails_nobody_else),
        CASE(the_log_says_what_the_librarys_order_is_worth),
        CASE(what_was_timed_is_remembered_on_disk),
        CASE(ranks_take_what_one_of_them_chose),
        CASE(a_choice_that_no_call_uses_stays_in_the_text),
        CASE(choices_that_may_vary_never_reach_a_deterministic_device),
        CASE(switches_are_obeyed_and_their_choices_never_mix),
        CASE(early_launches_leave_the_choices_alone),
        CASE(a_switch_that_is_no_number_of_its_range_opens_no_device),
        CASE(another_devices_choices_are_refused),
        CASE(choices_that_make_no_sense_here_are_settled_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
