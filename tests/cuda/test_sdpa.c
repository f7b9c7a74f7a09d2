// SPDX-License-Identifier: Apache-2.0
// Which attentions cuDNN is asked for, in what parts and with how much scratch; and that the real
// library, where it is, builds our graphs and finds an engine for them. No device: cuDNN is given
// what an H200 is, and fake_driver.c takes the code that it compiles.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/sdpa.h"
#include "tests/unit/unit.h"

// ---- the choice --------------------------------------------------------------------------------

// GPT-2 124M's: 12 heads of 64, 1,024 positions.
static struct attention plain(void)
{
    static _Alignas(16) uint16_t here[16];
    return (struct attention){.q = here,
                              .k = here,
                              .v = here,
                              .out = here,
                              .batch = 64,
                              .queries = 1024,
                              .keys = 1024,
                              .heads = 12,
                              .kv_heads = 12,
                              .d = 64,
                              .e = 64,
                              .back = INT32_MAX,
                              .group = 1,
                              .scale = 0.125f,
                              .dtype = DT_BF16,
                              .in_order = true};
}

static void cudnn_is_asked_for_bf16_in_order_and_nothing_else(void **state)
{
    static const unsigned step;
    static _Alignas(16) float numbers[4];
    struct attention a[15];
    (void)state;
    for (int i = 0; i < 15; i++)
        a[i] = plain();
    assert_true(attention_is_plain(&a[0]));
    a[1].dtype = DT_F32;
    a[2].in_order = false;
    a[3].step = &step; // dropout
    a[4].queries = 512;
    a[5].d = 60;
    a[6].k = (const uint16_t *)a[6].k + 4; // 8 bytes on
    a[7].start = 1;                        // the second head of a group is the first here
    a[7].group = 2;
    a[8].group = 3; // 12 heads share 2 key heads, but 4 are here
    a[8].kv_heads = 2;
    a[9].dv = (uint16_t *)(uintptr_t)a[9].q + 1;
    a[10].ahead = a[10].back = 100; // a window to both sides
    a[11].qr = a[11].q;             // a second pair, of 68 elements with the first
    a[11].r = 4;
    a[12].e = 60;
    a[13].lse = &numbers[1]; // 4 bytes on
    a[14].y = (const uint16_t *)a[14].q + 4;
    for (int i = 1; i < 15; i++)
        if (attention_is_plain(&a[i]))
            fail_msg("call %d is not for cuDNN", i);
    a[8].group = 6; // even shares
    assert_true(attention_is_plain(&a[8]));
    a[11].r = 128;
    assert_true(attention_is_plain(&a[11]));
    a[12].e = 128;
    assert_true(attention_is_plain(&a[12]));
    a[10].ahead = 0;
    assert_true(attention_is_plain(&a[10]));
    a[10].ahead = a[10].back = INT32_MAX;
    a[10].cap = 30;
    assert_true(attention_is_plain(&a[10]));
}

static void a_portion_is_some_samples_or_some_heads_of_one(void **state)
{
    static const struct attention_portion want[] = {{6, 8}, {3, 8}, {2, 8}, {1, 8}, {1, 4}, {1, 2}};
    struct attention a = plain();
    struct attention_portion t;
    (void)state;
    a.batch = 6;
    a.heads = 8;
    a.kv_heads = 4; // two heads share one, so a turn has two
    a.group = 2;
    for (int n = 0; n < 6; n++) {
        assert_true(attention_portion(&a, n, &t));
        assert_int_equal(t.batch, want[n].batch);
        assert_int_equal(t.heads, want[n].heads);
    }
    assert_false(attention_portion(&a, 6, &t));
    // Of 6 samples of 2 heads of 33 positions 3 have 198 numbers, which are no multiple of four.
    static const struct attention_portion odd[] = {{6, 2}, {2, 2}};
    a.heads = a.kv_heads = 2;
    a.group = 1;
    a.queries = a.keys = 33;
    for (int n = 0; n < 2; n++) {
        assert_true(attention_portion(&a, n, &t));
        assert_int_equal(t.batch, odd[n].batch);
        assert_int_equal(t.heads, odd[n].heads);
    }
    assert_false(attention_portion(&a, 2, &t));
}

// ---- the library's place -----------------------------------------------------------------------

// What cudnn_load() says where the linker looks in `folders`, each with a library of that version
// (fake_dnn.c) beside this program: the linker reads LD_LIBRARY_PATH when a program begins.
static void load_from(const char *folders, char said[64])
{
    char self[4096], command[8192];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    *strrchr(self, '/') = 0;
    snprintf(command, sizeof command, "cd '%s' && LD_LIBRARY_PATH=%s ./test_sdpa --load", self,
             folders);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    assert_non_null(fgets(said, 64, out));
    assert_int_equal(pclose(out), 0);
}

// The version is that of the library that the chosen one loads behind itself, by its name alone.
static void a_library_that_is_too_old_does_not_hide_one_that_is_not(void **state)
{
    static const struct {
        const char *folders, *want;
    } cases[] = {{"dnn-91000:dnn-91700", "91700\n"},
                 {"dnn-91700:dnn-91000", "91700\n"},
                 {"dnn-91000:nowhere:dnn-91500:dnn-91800:dnn-91700", "91800\n"}};
    char said[64];
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); // it has no namespaces
#endif
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        load_from(cases[i].folders, said);
        assert_string_equal(said, cases[i].want);
    }
}

static int say_what_loads(void)
{
    struct cudnn c;
    const char *why = cudnn_load(&c);
    if (why)
        printf("%s\n", why);
    else
        printf("%zu\n", c.GetVersion());
    return 0;
}

// ---- scratch -----------------------------------------------------------------------------------

static struct op_call call_of(enum op op, const struct op_attr *attr, int64_t batch, int64_t seq,
                              int64_t heads, int64_t d)
{
    struct op_call c = {.op = op, .attr = attr, .nin = op == OP_ATTENTION ? 5 : 8};
    c.in[0].shape = c.in[1].shape = c.in[2].shape = (struct shape){4, {batch, seq, heads, d}};
    c.in[0].dtype = c.in[1].dtype = c.in[2].dtype = DT_BF16;
    return c;
}

static void scratch_is_a_few_numbers_a_row_and_some_heads_squares(void **state)
{
    const struct op_attr in_order = {.in_order = true}, dealt = {.in_order = false};
    struct op_call c = call_of(OP_ATTENTION_GRAD, &dealt, 2, 100, 3, 8);
    (void)state;
    assert_int_equal(attention_own_bytes(&c), 4 * 600);
    assert_int_equal(attention_library_bytes(&c), 0);
    c = call_of(OP_ATTENTION, &dealt, 2, 100, 3, 8);
    assert_int_equal(attention_own_bytes(&c), 0);
    c = call_of(OP_ATTENTION, &in_order, 2, 100, 3, 8);
    assert_int_equal(attention_library_bytes(&c), 16384);
    c.in[0].dtype = c.in[1].dtype = c.in[2].dtype = DT_F32; // none serves it
    assert_int_equal(attention_library_bytes(&c), 0);
    // A head: a number a row, 128 · 128 scores in bf16.
    c = call_of(OP_ATTENTION_GRAD, &in_order, 2, 100, 3, 8);
    assert_int_equal(attention_library_bytes(&c), 6 * (100 * 4 + 32768) + 16384);
    c.in[1].shape.dim[2] = 1; // shared: dk and dv of each, in bf16
    assert_int_equal(attention_library_bytes(&c), 6 * (100 * (4 + 32) + 32768) + 16384);
    c = call_of(OP_ATTENTION_GRAD, &in_order, 64, 1024, 12, 64);
    assert_int_equal(attention_library_bytes(&c), (256 << 20) + 16384);
    // What the job lets the library have: all 768 heads need some 1.5 GiB; never less than a head.
    const struct op_attr more = {.in_order = true, .scratch = (int64_t)2 << 30};
    const struct op_attr less = {.in_order = true, .scratch = 1 << 20};
    c.attr = &more;
    assert_int_equal(attention_library_bytes(&c), (size_t)768 * (4096 + (2 << 20)) + 16384);
    c.attr = &less;
    assert_int_equal(attention_library_bytes(&c), 4096 + (2 << 20) + 16384);
    // One head of 16,384 positions takes 512 MiB of scores, one of 32,768 is left to our kernels.
    c = call_of(OP_ATTENTION_GRAD, &in_order, 64, 16384, 12, 64);
    assert_int_equal(attention_library_bytes(&c), (512 << 20) + 16384 * 4 + 16384);
    c = call_of(OP_ATTENTION_GRAD, &in_order, 64, 32768, 12, 64);
    assert_int_equal(attention_library_bytes(&c), 0);
    c.nin++; // a step: dropout
    assert_int_equal(attention_library_bytes(&c), 0);
}

// 2 samples of 100 positions of 3 heads of 8 + 4 elements. Rows of 12 in bf16 of queries and of
// keys, 4,800 bytes a head; of a gradient as much again, a number a row and scores, and
// a float for each of kr's.
static void scratch_of_a_second_pair_holds_joined_rows(void **state)
{
    struct op_attr in_order = {.in_order = true};
    struct op_call c = call_of(OP_ATTENTION, &in_order, 2, 100, 3, 8);
    (void)state;
    c.nin = 7;
    c.in[4].shape = (struct shape){3, {2, 100, 4}};
    assert_int_equal(attention_library_bytes(&c), 6 * 4800 + 16384);
    in_order.scratch = 10000; // two heads'
    assert_int_equal(attention_library_bytes(&c), 10000 + 16384);
    in_order.scratch = 0;
    c.op = OP_ATTENTION_GRAD;
    c.nin = 10;
    assert_int_equal(attention_library_bytes(&c), 6 * (9600 + 400 + 32768) + 1600 + 16384);
    c.nin++; // a step: dropout
    assert_int_equal(attention_library_bytes(&c), 0);
}

// ---- the library -------------------------------------------------------------------------------

static const char h200[] =
    "{\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,\"cudaDeviceId\":0,"
    "\"multiProcessorCount\":132,\"warpSize\":32,\"maxThreadsPerBlock\":1024,"
    "\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,\"regsPerBlock\":65536,"
    "\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,"
    "\"totalGlobalMem\":150754820096,\"l2CacheSize\":62914560,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":3201000,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]}";

static struct cudnn api;
static cudnnBackendDescriptor_t device;

// Beside the program; whoever looks for libcuda.so.1 then gets this one.
static inline bool load_driver(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/libfake_driver.so");
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

static const char *load_library(void)
{
#ifdef __SANITIZE_ADDRESS__
    return "a library that keeps memory to its end does not run under a sanitizer";
#else
    return load_driver() ? cudnn_load(&api) : dlerror();
#endif
}

static int open_library(void **state)
{
    (void)state;
    const char *why = load_library();
    if (!why && api.BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device) == 0) {
        api.BackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                sizeof h200 - 1, h200);
        if (api.BackendFinalize(device) != CUDNN_STATUS_SUCCESS)
            why = "this cuDNN reads another description of a device";
    }
    if (why) {
        print_message("SKIPPED: cuDNN's graphs and engines: %s\n", why);
        api = (struct cudnn){0};
    }
    return 0;
}

static int close_library(void **state)
{
    (void)state;
    if (api.GetVersion)
        api.BackendDestroyDescriptor(device);
    return 0;
}

// Head sizes, odd lengths, one position, shared key heads, a part of a larger call's heads; values of
// another width (DeepSeek's, JAXformer's, with their second pairs joined), windows (Mistral's), an
// encoder, caps (Gemma 2's), q, k and v packed (GPT-2's) and k and v (Llama's).
static const struct sdpa_shape shapes[] = {
    {.batch = 4, .seq = 1024, .heads = 12, .kv_heads = 12, .d = 64, .e = 64},
    {.batch = 4,
     .seq = 1024,
     .heads = 12,
     .kv_heads = 12,
     .d = 64,
     .e = 64,
     .q_pitch = 3 * 768,
     .k_pitch = 3 * 768,
     .v_pitch = 3 * 768},
    {.batch = 2, .seq = 67, .heads = 8, .kv_heads = 2, .d = 80, .e = 80},
    {.batch = 1, .seq = 1, .heads = 2, .kv_heads = 2, .d = 8, .e = 8},
    {.batch = 1, .seq = 4096, .heads = 4, .kv_heads = 1, .d = 128, .e = 128},
    {.batch = 1, .seq = 130, .heads = 4, .kv_heads = 4, .d = 256, .e = 256},
    {.batch = 3, .seq = 33, .heads = 2, .kv_heads = 2, .d = 24, .e = 24},
    {.batch = 1, .seq = 1024, .heads = 4, .kv_heads = 4, .d = 192, .e = 128},
    {.batch = 1, .seq = 1024, .heads = 4, .kv_heads = 4, .d = 192, .e = 64},
    {.batch = 2, .seq = 130, .heads = 4, .kv_heads = 4, .d = 64, .e = 32},
    {.batch = 1, .seq = 1024, .heads = 8, .kv_heads = 2, .d = 128, .e = 128, .window = 256},
    {.batch = 2, .seq = 130, .heads = 4, .kv_heads = 4, .d = 64, .e = 64, .window = 7},
    {.batch = 2, .seq = 512, .heads = 4, .kv_heads = 4, .d = 64, .e = 64, .ahead = true},
    {.batch = 1, .seq = 1024, .heads = 8, .kv_heads = 4, .d = 256, .e = 256, .cap = true},
    {.batch = 1,
     .seq = 512,
     .heads = 8,
     .kv_heads = 4,
     .d = 256,
     .e = 256,
     .window = 256,
     .cap = true},
    {.batch = 2, .seq = 130, .heads = 4, .kv_heads = 4, .d = 64, .e = 64, .cap = true},
    {.batch = 1,
     .seq = 1024,
     .heads = 8,
     .kv_heads = 2,
     .d = 128,
     .e = 128,
     .k_pitch = 2 * 256,
     .v_pitch = 2 * 256},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static struct sdpa_shape shape_of(int i, bool grad, bool deterministic)
{
    struct sdpa_shape s = shapes[i];
    int64_t q = s.heads * s.d, k = s.kv_heads * s.d, v = s.kv_heads * s.e;
    if (!s.q_pitch)
        s.q_pitch = q;
    if (!s.k_pitch) {
        s.k_pitch = k;
        s.v_pitch = v;
    }
    s.y_pitch = s.heads * s.e;
    s.grad = grad;
    s.deterministic = deterministic;
    return s;
}

static void every_graph_is_one_that_cudnn_takes(void **state)
{
    (void)state;
    if (!api.GetVersion)
        skip();
    const struct sdpa_on on = {.api = &api, .device = device};
    for (int t = 0; t < 4 * SHAPES; t++) {
        struct sdpa_shape shape = shape_of(t / 4, t & 1, t & 2);
        struct sdpa_made made = {.api = &api};
        if (!sdpa_graph(&made, &on, &shape))
            fail_msg("shape %d: %s", t / 4, made.said);
        sdpa_made_clear(&made);
    }
}

// With the scratch that the compiler reserves for a call of this shape.
static void engine_for(int i, bool grad, bool deterministic)
{
    const struct sdpa_on on = {.api = &api, .device = device};
    const struct sdpa_shape s = shape_of(i, grad, deterministic);
    const struct op_attr attr = {.in_order = true, .window = s.window, .ahead = s.ahead};
    struct op_call c =
        call_of(grad ? OP_ATTENTION_GRAD : OP_ATTENTION, &attr, s.batch, s.seq, s.heads, s.d);
    c.in[1].shape.dim[2] = c.in[2].shape.dim[2] = s.kv_heads;
    c.in[2].shape.dim[3] = s.e;
    char why[256] = "";
    struct sdpa *p = sdpa_new(&on, &s, attention_library_bytes(&c), why, sizeof why);
    if (!p)
        fail_msg("shape %d%s%s: %s", i, grad ? ", gradient" : "",
                 deterministic ? ", deterministic" : "", why);
    assert_true(sdpa_bytes(p) <= attention_library_bytes(&c));
    if (deterministic || grad)
        assert_int_equal(sdpa_varies(p), !deterministic);
    sdpa_free(p);
}

// An engine is compiled for each, seconds long; WEFT_LONG: for all shapes, and in no order too.
static void an_h200_has_an_engine_within_the_scratch_there_is(void **state)
{
    const char *all = getenv("WEFT_LONG");
    (void)state;
    if (!api.GetVersion)
        skip();
    for (int t = 0; t < (all ? SHAPES : 2); t++) {
        engine_for(t, true, true);
        if (all) {
            engine_for(t, false, true);
            engine_for(t, true, false);
        }
    }
}

static void too_little_scratch_is_refused_with_a_reason(void **state)
{
    char why[256] = "";
    (void)state;
    if (!api.GetVersion)
        skip();
    const struct sdpa_on on = {.api = &api, .device = device};
    struct sdpa_shape shape = shape_of(0, true, false);
    assert_null(sdpa_new(&on, &shape, 196000, why, sizeof why)); // a number a row takes 196,608
    assert_string_equal(why, "no engine runs within this scratch");
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--load") == 0)
        return say_what_loads();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cudnn_is_asked_for_bf16_in_order_and_nothing_else),
        cmocka_unit_test(a_portion_is_some_samples_or_some_heads_of_one),
        cmocka_unit_test(a_library_that_is_too_old_does_not_hide_one_that_is_not),
        cmocka_unit_test(scratch_is_a_few_numbers_a_row_and_some_heads_squares),
        cmocka_unit_test(scratch_of_a_second_pair_holds_joined_rows),
        cmocka_unit_test(every_graph_is_one_that_cudnn_takes),
        cmocka_unit_test(an_h200_has_an_engine_within_the_scratch_there_is),
        cmocka_unit_test(too_little_scratch_is_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
