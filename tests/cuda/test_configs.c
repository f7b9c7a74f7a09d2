// SPDX-License-Identifier: Apache-2.0
// Configurations that cuBLASLt does not name, on the emulated CUDA device: they are found within the
// time for them, and none with wrong numbers, nor one that broke a device, is ever chosen.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "tests/cuda/choosing.h"

// As cublasLt.h numbers them.
enum { TILED = 48, TILE_64X64 = 15, TILE_128X128 = 20, STAGES_4 = 16, PAIRS = 3 };

// The fake's tiled algorithm is fastest with 128 x 128 tiles of 4 stages, in clusters of 2, swizzled:
// 2 units and a tenth for its one part; with parts added in place half of that, and with option 1 0.7
// of it. Tiles of 128 x 64 would beat them all and cannot be started.
static void configurations_that_the_library_did_not_name_are_found(void **state)
{
    static const struct {
        struct choosing how;
        int split, option;
        double us;
    } cases[] = {
        {{.time = true, .scratch = SCRATCH, .scene = "lt_tiles"}, 1, 0, 2.2},
        {{.time = true, .scratch = SCRATCH, .scene = "lt_tiles", .dtype = DT_BF16}, 1, 0, 2.2},
        // Parts that are added in an order of their own, and options that nobody documents, are for
        // a device that need not be deterministic; bf16 results may not be added in place anywhere.
        {{.time = true, .scratch = SCRATCH, .scene = "lt_tiles", .whatever = true}, 2, 1, 0.7},
        {{.time = true,
          .scratch = SCRATCH,
          .scene = "lt_tiles",
          .whatever = true,
          .dtype = DT_BF16},
         1,
         1,
         1.54},
    };
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *said = said_by(&cases[i].how), *again = said_by(&cases[i].how);
        struct told t = find_choice(said), second = find_choice(again);
        assert_string_equal(t.place, "enumerated");
        assert_int_equal(t.id, TILED);
        assert_int_equal(t.tile, TILE_128X128);
        assert_int_equal(t.stages, STAGES_4);
        assert_int_equal(t.split, cases[i].split);
        assert_int_equal(t.cluster, PAIRS);
        assert_int_equal(t.swizzle, 1);
        assert_int_equal(t.option, cases[i].option);
        assert_true(t.us > cases[i].us && t.us < cases[i].us * 1.1 + 1);
        assert_true(t.first > 0);
        assert_memory_equal(&t, &second, sizeof t);
        free(said);
        free(again);
    }
    unsetenv("WEFT_CUDA_ENUMERATE");
}

// Time for about a third of the configurations: going from the fastest to those beside it gets there.
// Time for one: the best of those named, or that one. No time, of a product or of all: none. The
// host's time counts too, so the fake device's is long beside it, and one may become none.
static void configurations_are_timed_until_the_time_is_over(void **state)
{
    static const struct {
        const char *ms, *all;
        int most, tile; // configurations; -1: any number, any tile
    } cases[] = {
        {"1400", "60000", -1, TILE_128X128}, {"3", "60000", 1, -1},         {"60000", "3", 1, -1},
        {"60000", "0", 0, TILE_64X64},       {"0", "60000", 0, TILE_64X64},
    };
    const struct choosing how = {
        .time = true, .scratch = SCRATCH, .scene = "lt_tiles,lt_slow:2000"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("WEFT_CUDA_ENUMERATE", cases[i].ms, 1);
        setenv("WEFT_CUDA_ENUMERATE_ALL", cases[i].all, 1);
        char *said = said_by(&how);
        struct told t = find_choice(said);
        if (!cases[i].most == (strstr(said, "library's 6, until the time was over") != NULL))
            fail_msg("case %zu said: %s", i, said);
        if (cases[i].most == 1 && !strstr(said, ": 0 configurations"))
            assert_non_null(strstr(said, ": 1 configurations"));
        if (cases[i].tile >= 0)
            assert_int_equal(t.tile, cases[i].tile);
        if (i == 0) // all of it, not the tile alone
            assert_true(t.stages == STAGES_4 && t.cluster == PAIRS && t.swizzle == 1);
        free(said);
    }
    unsetenv("WEFT_CUDA_ENUMERATE");
    unsetenv("WEFT_CUDA_ENUMERATE_ALL");
}

// None of them passes the library's check, or none can be started: the best of those named stays.
static void configurations_that_do_not_run_leave_what_the_library_named(void **state)
{
    static const char *const scenes[] = {"lt_tiles,lt_unfit", "lt_tiles,lt_broken"};
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        struct choosing how = {.time = true, .scratch = SCRATCH, .scene = scenes[i]};
        char *said = said_by(&how);
        assert_int_equal(find_choice(said).id, ALIGNED);
        assert_non_null(strstr(said, ": 0 configurations timed"));
        free(said);
    }
    unsetenv("WEFT_CUDA_ENUMERATE");
}

// The tiled algorithm is not among the five that are asked for, so that there is nothing beside the
// fastest of those named, and time for a few hundred of thousands: each of a sample that is the
// fastest so far is gone on from.
static void from_the_fastest_of_a_sample_the_search_goes_on(void **state)
{
    const struct choosing how = {
        .time = true, .scratch = SCRATCH, .scene = "lt_tiles,lt_slow:2000", .whatever = true};
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "1500", 1);
    setenv("WEFT_CUDA_CANDIDATES", "5", 1);
    char *said = said_by(&how);
    struct told t = find_choice(said);
    assert_non_null(strstr(said, "until the time was over"));
    assert_string_equal(t.place, "enumerated");
    assert_true(t.tile == TILE_128X128 && t.stages == STAGES_4 && t.cluster == PAIRS &&
                t.swizzle == 1 && t.split == 2 && t.option == 1);
    free(said);
    unsetenv("WEFT_CUDA_CANDIDATES");
    unsetenv("WEFT_CUDA_ENUMERATE");
}

// What the library names last, or does not name, is held against what it names first. Where it names
// nothing, nothing could be held against that: there is no kernel for the product then.
static void configurations_with_wrong_numbers_are_dropped_told_and_counted(void **state)
{
    static const struct choosing cases[] = {
        {.time = true, .scratch = SCRATCH, .scene = "lt_tiles,lt_wrong"},
        {.time = true, .scratch = SCRATCH, .scene = "lt_tiles,lt_wrong", .dtype = DT_BF16},
        {.time = true, .scratch = SCRATCH, .scene = "lt_tiles,lt_wrong", .whatever = true},
    };
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *said = said_by(&cases[i]); // and what is chosen has the right numbers: choice() looks
        struct told t = find_choice(said);
        assert_string_equal(t.place, "enumerated");
        assert_int_equal(t.tile, TILE_64X64);
        const char *wrong =
            strstr(said, "wrong numbers of a configuration that cublaslt did not name");
        assert_non_null(wrong);
        assert_non_null(strstr(wrong, "tile 20, "));
        assert_non_null(strstr(wrong, "it is dropped, number 1 of this device"));
        assert_non_null(strstr(wrong, "it is dropped, number 2 of this device"));
        free(said);
    }
    unsetenv("WEFT_CUDA_ENUMERATE");
}

static void without_a_named_algorithm_nothing_else_is_trusted(void **state)
{
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    struct placed p;
    struct err e = {0};
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    scene("lt_tiles,lt_none");
    device_open(&r, NULL, true);
    product_case(&c, &a, "ik,kj->ij", even, DT_F32, DT_F32);
    place_case(&r, &p, &c, NULL, SCRATCH);
    assert_int_equal(r.backend->choice->tune(r.q, &p.call, true, &e), ERR_DEVICE);
    assert_non_null(strstr(e.text, "has no algorithm for the product 16x24x32"));
    release(&r, &p);
    r.backend->device.close(r.device);
    arena_clear(&a);
    unsetenv("WEFT_CUDA_ENUMERATE");
}

static int count_suspects(void)
{
    DIR *d = opendir(folder);
    struct dirent *f;
    int n = 0;
    assert_non_null(d);
    while ((f = readdir(d)))
        n += strncmp(f->d_name, "suspect-", 8) == 0;
    closedir(d);
    return n;
}

// Tunes a product in a process of its own, with or without the folder; what it says of its failure.
static void told_of_a_broken_device(const char *cache, char said[1000])
{
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        struct arena a = {0};
        struct rig_case c;
        struct rig r;
        struct placed p;
        struct err e = {0}, later = {0};
        device_open(&r, cache, true);
        product_case(&c, &a, "ik,kj->ij", even, DT_F32, DT_F32);
        place_case(&r, &p, &c, NULL, SCRATCH);
        int rc = r.backend->choice->tune(r.q, &p.call, true, &e);
        int again = r.backend->stream.sync(r.q, &later); // whoever comes first in a log names it
        ssize_t n = write(pipes[1], e.text, strlen(e.text) + 1);
        _exit(rc == ERR_DEVICE && again == ERR_DEVICE && strcmp(e.text, later.text) == 0 && n > 0
                  ? 0
                  : 1);
    }
    close(pipes[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(read(pipes[0], said, 1000) > 0);
    close(pipes[0]);
}

// It is said which configuration did it and how to go on; a process that begins anew with the same
// folder does not try it again, and the training goes on.
static void a_configuration_that_breaks_the_device_is_named_and_never_tried_again(void **state)
{
    const struct choosing how = {
        .cache = folder, .time = true, .scratch = SCRATCH, .scene = "lt_tiles,lt_breaks"};
    char said[1000];
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    scene("lt_tiles,lt_breaks");
    told_of_a_broken_device(NULL, said);
    assert_non_null(strstr(said, "The next run may try it again, because no file names it"));
    told_of_a_broken_device(folder, said);
    assert_non_null(strstr(said, "illegal memory access"));
    assert_non_null(strstr(said, "which cublaslt did not name (id 48, tile 15, stages 15, split 1, "
                                 "cluster 2, swizzle 0, option 0) of the product 16x24x32"));
    assert_non_null(strstr(said,
                           "this process can do nothing more with the device. The next run leaves "
                           "it out, because a file names it in "));
    assert_non_null(strstr(said, folder));
    assert_non_null(strstr(said, "WEFT_CUDA_ENUMERATE=0 tries none"));
    char *log = said_by(&how);
    struct told t = find_choice(log);
    assert_non_null(strstr(log, "a configuration that ended a process is left out"));
    assert_true(t.tile == TILE_128X128 && t.stages == STAGES_4 && t.cluster == PAIRS);
    assert_int_equal(count_suspects(), 1); // those that are over are not remembered
    free(log);
    unsetenv("WEFT_CUDA_ENUMERATE");
}

// The file of a suspect, opened.
static int open_suspect(void)
{
    char path[600] = "";
    struct dirent *f;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while ((f = readdir(d)))
        if (strncmp(f->d_name, "suspect-", 8) == 0)
            snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
    closedir(d);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

// Two trainings of one user share the folder: what the other has under trial has ended nobody.
static void a_configuration_that_another_process_tries_is_no_suspect(void **state)
{
    const struct choosing how = {
        .cache = folder, .time = true, .scratch = SCRATCH, .scene = "lt_tiles"};
    char said[1000];
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    scene("lt_tiles,lt_breaks");
    told_of_a_broken_device(folder, said);
    int fd = open_suspect();
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0); // whoever left it has let it go
    char *log = said_by(&how);
    assert_null(strstr(log, "is left out"));
    assert_int_equal(count_suspects(), 1); // it is the other's to take away
    free(log);
    close(fd);
    unsetenv("WEFT_CUDA_ENUMERATE");
}

static void who_cannot_write_a_suspect_down_tries_it_all_the_same(void **state)
{
    char beneath[600];
    struct choosing how = {.cache = beneath, .time = true, .scratch = SCRATCH, .scene = "lt_tiles"};
    (void)state;
    snprintf(beneath, sizeof beneath, "%s/file", folder);
    int fd = open(beneath, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    snprintf(beneath, sizeof beneath, "%s/file/cache", folder);
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    char *log = said_by(&how), *warned = strstr(log, "nothing remembers one that ends the process");
    assert_int_equal(find_choice(log).id, TILED);
    assert_non_null(warned);
    assert_null(strstr(warned + 1, "nothing remembers"));
    free(log);
    unsetenv("WEFT_CUDA_ENUMERATE");
}

// A device that has just been opened clocks lower: what is timed is timed under load.
static void no_product_is_timed_by_cold_clocks(void **state)
{
    const struct choosing how = {.time = true, .scratch = SCRATCH, .scene = "lt_cold:110"};
    (void)state;
    char *said = said_by(&how);
    struct told t = find_choice(said);
    assert_int_equal(t.id, ALIGNED);
    assert_true(t.us < 12 && t.first < 34); // 10 and 30 when warm, 100 and 300 when cold
    free(said);
}

// As a training that is resumed takes it from its checkpoint, and a later one from the disk: neither
// times anything. A device that enumerates is another owner.
static void an_enumerated_choice_stands_when_a_training_goes_on(void **state)
{
    struct choosing first = {
        .cache = folder, .time = true, .scratch = SCRATCH, .scene = "lt_tiles"};
    struct choosing later = first;
    struct buf text = {0}, back = {0};
    struct rig r;
    struct err e = {0};
    (void)state;
    setenv("WEFT_CUDA_ENUMERATE", "60000", 1);
    assert_int_equal(choice(&first, &text), TILED);
    assert_non_null(strstr(buf_str(&text), ", WEFT_CUDA_ENUMERATE=60000\n"));
    later.scene = "lt_tiles,lt_none"; // nothing is asked for either
    assert_int_equal(choice(&later, &back), TILED);
    assert_string_equal(buf_str(&text), buf_str(&back));
    later.cache = NULL;
    later.time = false;
    later.import = buf_str(&text);
    assert_int_equal(choice(&later, &back), TILED);
    assert_string_equal(buf_str(&text), buf_str(&back));
    unsetenv("WEFT_CUDA_ENUMERATE");
    device_open(&r, NULL, true);
    assert_int_equal(r.backend->choice->read(r.device, buf_str(&text), &e), ERR_UNSUPPORTED);
    r.backend->device.close(r.device);
    buf_clear(&text);
    buf_clear(&back);
}

int main(void)
{
    if (!find_twin())
        return 1;
#define CASE(f) cmocka_unit_test_setup_teardown(f, with_folder, without_folder)
    const struct CMUnitTest tests[] = {
        CASE(configurations_that_the_library_did_not_name_are_found),
        CASE(configurations_are_timed_until_the_time_is_over),
        CASE(configurations_that_do_not_run_leave_what_the_library_named),
        CASE(from_the_fastest_of_a_sample_the_search_goes_on),
        CASE(configurations_with_wrong_numbers_are_dropped_told_and_counted),
        CASE(without_a_named_algorithm_nothing_else_is_trusted),
        CASE(a_configuration_that_breaks_the_device_is_named_and_never_tried_again),
        CASE(a_configuration_that_another_process_tries_is_no_suspect),
        CASE(who_cannot_write_a_suspect_down_tries_it_all_the_same),
        CASE(no_product_is_timed_by_cold_clocks),
        CASE(an_enumerated_choice_stands_when_a_training_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
