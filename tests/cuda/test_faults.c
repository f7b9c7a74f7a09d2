// SPDX-License-Identifier: Apache-2.0
// What goes wrong with a CUDA device, over the fake runtime: each failure is ERR_DEVICE (the rank
// ends with 71) and says which call, op and device it was and what to do.
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/dies.h"
#include "tests/ops/rig.h"
#include "tests/unit/unit.h"

static const struct backend *b;
static struct err e;

// ---- no device to open -------------------------------------------------------------------------

static void a_device_that_cannot_be_opened_says_why_and_what_to_do(void **state)
{
    static const struct {
        const char *scene;
        int ordinal;
        const char *say;
    } cases[] = {
        {"nodriver", 0,
         "no NVIDIA driver on this host: install one that serves CUDA 13.0, or give this container "
         "its GPUs"},
        {"olddriver", 0,
         "the NVIDIA driver is too old: it serves CUDA 12.2, this build needs 13.0; install a "
         "newer driver"},
        {"nodevice", 0,
         "no NVIDIA device on this host that CUDA shows (CUDA_VISIBLE_DEVICES is 7)"},
        {"count:101", 0, // a device that is not there comes first in the list
         "no NVIDIA device on this host that CUDA shows (CUDA_VISIBLE_DEVICES is 7)"},
        {"count:803", 0,
         "cannot count CUDA devices: system has unsupported display driver / cuda driver "
         "combination (cudaErrorSystemDriverMismatch): the driver's library and its kernel module "
         "have different versions: restart the host after an update, or take another libcuda.so.1 "
         "out of LD_LIBRARY_PATH"},
        {"count:34", 0,
         "cannot count CUDA devices: CUDA driver is a stub library (cudaErrorStubLibrary): take "
         "the "
         "folder of CUDA's stubs out of LD_LIBRARY_PATH"},
        {"count", 0, // what it says where nvidia_uvm is not loaded
         "cannot count CUDA devices: unknown error (cudaErrorUnknown): is nvidia_uvm loaded "
         "(nvidia-modprobe -u), and may this user open /dev/nvidia*?"},
        {"devices:2,open", 1,
         "cuda device 1: cudaSetDevice: CUDA-capable device(s) is/are busy or unavailable "
         "(cudaErrorDevicesUnavailable): another process holds it exclusively (nvidia-smi shows "
         "who)"},
        {"devices:2,open:2", 1, // no memory for a context
         "cuda device 1: cudaSetDevice: out of memory (cudaErrorMemoryAllocation): another process "
         "may hold its memory (nvidia-smi shows who)"},
        {"badarch", 0,
         "cuda device 0: probe_image: no kernel image is available for execution on the device "
         "(cudaErrorNoKernelImageForDevice): this build has kernels for sm_80, sm_90 and sm_100; "
         "build it for this device"},
        {"badarch:98", 0, // what older runtimes say of the same
         "cuda device 0: probe_image: invalid device function (cudaErrorInvalidDeviceFunction): "
         "this build has kernels for sm_80, sm_90 and sm_100; build it for this device"},
        {"devices:2", 2, "there is no CUDA device 2: this host has 2, numbered from 0"},
        {"", -1, "there is no CUDA device -1: this host has 1, numbered from 0"},
    };
    (void)state;
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct device_options o = {.ordinal = cases[i].ordinal, .threads = 1};
        struct device *d = NULL;
        setenv("WEFT_FAKE_CUDA", cases[i].scene, 1);
        assert_int_equal(b->device.open(&o, &d, &e), ERR_DEVICE);
        assert_string_equal(e.text, cases[i].say);
        assert_null(d);
    }
    unsetenv("WEFT_FAKE_CUDA");
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static void devices_are_counted_or_it_is_said_why_not(void **state)
{
    (void)state;
    setenv("WEFT_FAKE_CUDA", "devices:3", 1);
    assert_int_equal(b->device.count(&e), 3);
    setenv("WEFT_FAKE_CUDA", "nodriver", 1);
    assert_true(b->device.count(&e) < 0);
    assert_int_equal(e.code, ERR_DEVICE);
    unsetenv("WEFT_FAKE_CUDA");
}

static void a_device_says_where_it_is_and_whom_it_reaches(void **state)
{
    struct rig r;
    (void)state;
    setenv("WEFT_FAKE_CUDA", "devices:3", 1);
    rig_open(&r, 1, NULL);
    unsetenv("WEFT_FAKE_CUDA");
    b->device.info(r.device, &r.info); // nothing is asked again
    assert_string_equal(r.info.model, "emulated");
    assert_string_equal(r.info.isa, "sm_90");
    assert_non_null(strstr(r.info.libraries, "cuda 13.0 driver 13.0"));
    assert_string_equal(r.info.driver, "13.0");
    assert_string_equal(r.info.uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    assert_string_equal(r.info.pci, "0000:1b:00.0");
    assert_string_equal(r.info.peers, "1 nvlink, 2 pcie");
    rig_close(&r);
    setenv("WEFT_FAKE_CUDA", "mig", 1);
    rig_open(&r, 1, NULL);
    unsetenv("WEFT_FAKE_CUDA");
    assert_string_equal(r.info.model, "emulated MIG 1g.18gb");
    assert_string_equal(r.info.uuid, "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f");
    rig_close(&r);
}

static void *warm_up(void *arg)
{
    (void)arg;
    b->device.warm_up();
    return NULL;
}

// With a driver or without.
static void a_rank_warms_up_on_another_thread_before_it_opens_its_device(void **state)
{
    pthread_t thread;
    struct rig r;
    (void)state;
    assert_non_null(b->device.warm_up);
    for (int k = 0; k < 2; k++) {
        setenv("WEFT_FAKE_CUDA", k ? "devices:2" : "nodriver", 1);
        assert_int_equal(pthread_create(&thread, NULL, warm_up, NULL), 0);
        pthread_join(thread, NULL);
    }
    rig_open(&r, 1, NULL);
    rig_close(&r);
    unsetenv("WEFT_FAKE_CUDA");
}

// ---- memory ------------------------------------------------------------------------------------

static void out_of_memory_says_how_much_was_asked_for_and_how_much_is_left(void **state)
{
    struct rig r;
    void *p = NULL;
    (void)state;
    setenv("WEFT_FAKE_CUDA", "memory:8388608", 1); // 8 MiB
    setenv("WEFT_CUDA_GUARD", "0", 1);
    rig_open(&r, 1, NULL);
    assert_int_equal(b->memory.alloc(r.device, 3 << 20, &p, &e), 0);
    assert_int_equal(b->memory.alloc(r.device, 6 << 20, &p, &e), ERR_DEVICE);
    assert_string_equal(e.text,
                        "cuda device 0 is out of memory: 6.0 MiB were asked for, 5.0 of 8.0 MiB "
                        "are free (this process has 3.0 MiB); another process may hold the rest "
                        "(nvidia-smi)");
    assert_int_equal(b->memory.alloc(r.device, 5 << 20, &p, &e), 0); // and what fits still does
    rig_close(&r);
    unsetenv("WEFT_CUDA_GUARD");
    unsetenv("WEFT_FAKE_CUDA");
}

// x holds `has` elements, and the shape says n.
static int scale_in_place(const struct rig *r, int64_t has, int64_t n)
{
    static const struct op_attr attr = {.label = {{0}, {0}}, .labels = 1, .scale = 2};
    struct op_call c = {.op = OP_SCALE, .attr = &attr, .nin = 1, .nout = 1};
    c.in[0] = (struct tensor){rig_memory(r, NULL, (size_t)has * 4), DT_F32, {1, {n}}};
    c.out[0] = c.in[0];
    int rc = r->backend->op.run[OP_SCALE](r->q, &c, &e);
    return rc ? rc : r->backend->stream.sync(r->q, &e);
}

#ifndef __SANITIZE_ADDRESS__ // which ends the program at the very access
static void
a_kernel_that_writes_past_its_buffer_is_found_when_the_stream_is_waited_for(void **state)
{
    struct rig r;
    (void)state;
    setenv("WEFT_CUDA_GUARD", "1", 1);
    rig_open(&r, 1, NULL);
    assert_int_equal(scale_in_place(&r, 1000, 1000), 0);
    assert_int_equal(scale_in_place(&r, 1000, 1001), ERR_DEVICE);
    // The zone's pattern read as f32 and doubled, 0xa625a5a5 for 0xa5a5a5a5: the third byte
    // differs.
    assert_string_equal(e.text, "cuda device 0: byte 3 behind a region of 4000 bytes was written");
    rig_close(&r);
    unsetenv("WEFT_CUDA_GUARD");
}
#endif

// ---- graphs ------------------------------------------------------------------------------------

// Before anybody counts on it.
static void a_graph_that_finds_no_memory_on_the_device_is_refused_when_it_is_made(void **state)
{
    struct rig r;
    void *graph = NULL;
    (void)state;
    setenv("WEFT_FAKE_CUDA", "graph:1", 1);
    rig_open(&r, 1, NULL);
    void *p = rig_memory(&r, NULL, 64);
    assert_int_equal(b->graph->begin(r.q, &e), 0);
    assert_int_equal(b->stream.fill_zero(r.q, p, 64, &e), 0);
    assert_int_equal(b->graph->end(r.q, &graph, &e), ERR_DEVICE);
    assert_string_equal(e.text, "cuda device 0: cudaGraphUpload: out of memory "
                                "(cudaErrorMemoryAllocation): another process may hold its memory "
                                "(nvidia-smi shows who)");
    assert_null(graph);
    rig_close(&r);
    unsetenv("WEFT_FAKE_CUDA");
}

static void with_CUDA_LAUNCH_BLOCKING_there_are_no_graphs(void **state)
{
    struct rig r;
    (void)state;
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    rig_open(&r, 1, NULL);
    unsetenv("CUDA_LAUNCH_BLOCKING");
    assert_int_equal(b->graph->begin(r.q, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "CUDA_LAUNCH_BLOCKING asks for one op at a time");
    rig_close(&r);
}

// ---- early launches ----------------------------------------------------------------------------

// Where the switch asks for them, and the device and the code have them.
static void a_kernel_is_launched_early_where_that_is_asked_for_and_can_be(void **state)
{
    static const struct {
        const char *asked, *scene;
        int want;
    } cases[] = {
        {"0", "in_turn", 0},
        {"1", "in_turn", ERR_DEVICE},
        {"1", "in_turn,sm_80", 0},
        {"1", "", 0},
    };
    struct rig r;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("WEFT_CUDA_EARLY_LAUNCH", cases[i].asked, 1);
        setenv("WEFT_FAKE_CUDA", cases[i].scene, 1);
        rig_open(&r, 1, NULL);
        assert_int_equal(scale_in_place(&r, 10, 10), cases[i].want);
        rig_close(&r);
    }
    unsetenv("WEFT_CUDA_EARLY_LAUNCH");
    unsetenv("WEFT_FAKE_CUDA");
}

// ---- a device that fails -----------------------------------------------------------------------

// The last one: the process's device 0 is lost for good.
static void a_sticky_error_names_op_and_device_and_ends_every_later_call_alike(void **state)
{
    static const char say[] =
        "cuda device 0: cudaStreamSynchronize behind op 'scale': an illegal memory access was "
        "encountered (cudaErrorIllegalAddress): run with CUDA_LAUNCH_BLOCKING=1 to learn which op "
        "it is";
    struct rig r;
    void *p;
    (void)state;
    setenv("WEFT_FAKE_CUDA", "sticky:2", 1);
    rig_open(&r, 1, NULL);
    assert_int_equal(scale_in_place(&r, 10, 10), 0);
    assert_int_equal(scale_in_place(&r, 10, 10), ERR_DEVICE);
    assert_string_equal(e.text, say);
    e = (struct err){0};
    assert_int_equal(b->memory.alloc(r.device, 16, &p, &e), ERR_DEVICE);
    assert_string_equal(e.text, say);
    assert_int_equal(b->stream.copy(r.q, NULL, NULL, 8, &e), ERR_DEVICE);
    assert_int_equal(b->op.run[OP_SCALE](r.q, &(struct op_call){.op = OP_SCALE}, &e), ERR_DEVICE);
    assert_string_equal(e.text, say);
    rig_close(&r); // closes as far as it goes
}

// ---- what the rig says of it -------------------------------------------------------------------

static void two_of_three_are_wrong(void **state)
{
    const double got[3] = {1, 2.5, 8}, want[3] = {1, 2, 4};
    (void)state;
    rig_compare("numbers", got, want, 3, 0.125, 0);
    rig_wrong("and %d", 7);
}

static void nothing_is_wrong(void **state)
{
    (void)state;
    rig_compare("numbers", (double[]){1}, (double[]){1}, 1, 0, 0);
}

static void run_both(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_of_three_are_wrong),
                                       cmocka_unit_test(nothing_is_wrong)};
    _exit(rig_run_group("both", tests, 2, NULL, NULL));
}

static void all_that_is_wrong_in_a_test_is_said_and_fails_it_alone(void **state)
{
    static char said[DIES_ROOM];
    (void)state;
    int status = dies_run(run_both, said);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_non_null(strstr(said,
                           "--- numbers: element 1 of 3 is 2.5, not 2; 2 are wrong, the worst "
                           "is 2: 8, not 4, 8 times the 0 and 0.125 of it that are allowed\n"));
    assert_non_null(strstr(said, "--- and 7\n"));
}

int main(void)
{
    char self[PATH_MAX] = {0};
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    setenv("WEFT_BACKEND_DIR", dirname(self), 1); // the emulated twin, not a real one in build/
    setenv("WEFT_RIG", "cuda", 1);
    if (backend_load("cuda", &b, &e))
        fail_msg("%s", e.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_cannot_be_opened_says_why_and_what_to_do),
        cmocka_unit_test(devices_are_counted_or_it_is_said_why_not),
        cmocka_unit_test(a_device_says_where_it_is_and_whom_it_reaches),
        cmocka_unit_test(a_rank_warms_up_on_another_thread_before_it_opens_its_device),
        cmocka_unit_test(out_of_memory_says_how_much_was_asked_for_and_how_much_is_left),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(
            a_kernel_that_writes_past_its_buffer_is_found_when_the_stream_is_waited_for),
#endif
        cmocka_unit_test(a_graph_that_finds_no_memory_on_the_device_is_refused_when_it_is_made),
        cmocka_unit_test(with_CUDA_LAUNCH_BLOCKING_there_are_no_graphs),
        cmocka_unit_test(a_kernel_is_launched_early_where_that_is_asked_for_and_can_be),
        cmocka_unit_test(all_that_is_wrong_in_a_test_is_said_and_fails_it_alone),
        cmocka_unit_test(a_sticky_error_names_op_and_device_and_ends_every_later_call_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
