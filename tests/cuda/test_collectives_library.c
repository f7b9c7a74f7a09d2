// SPDX-License-Identifier: Apache-2.0
// The library that carries collectives between CUDA devices (backend.h): whether there is one, and what
// it is given to read. The tests' own NCCL stands for it.
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/ops/rig.h"
#include "tests/unit/unit.h"

static void a_library_that_cannot_be_used_is_named_with_what_to_do(void **state)
{
    static const struct {
        const char *scene, *say;
    } cases[] = {
        {"nccl_absent", "there is no libnccl.so.2: install NCCL 2.27 or later, or let "
                        "LD_LIBRARY_PATH name its folder"},
        {"nccl_version:22605", "NCCL 22605 is too old (it calls 2.27.0 22700): install 2.27 or "
                               "later, or let LD_LIBRARY_PATH name its folder"},
        {"nccl_version:2708",
         "NCCL 2708 is too old (it calls 2.27.0 22700): install 2.27 or later, "
         "or let LD_LIBRARY_PATH name its folder"},
    };
    struct rig r;
    struct err e = {0};
    struct collectives_library library;
    (void)state;
    rig_open(&r, 1, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("WEFT_FAKE_CUDA", cases[i].scene, 1);
        assert_int_equal(r.backend->collectives->load(r.device, true, &library, &e),
                         ERR_UNSUPPORTED);
        assert_string_equal(e.text, cases[i].say);
    }
    unsetenv("WEFT_FAKE_CUDA");
    assert_int_equal(r.backend->collectives->load(r.device, true, &library, &e), 0);
    assert_string_equal(library.version, "2.28.9");
    rig_close(&r);
}

static void unset_variables(void)
{
    static const char *const all[] = {"NCCL_ALGO",     "NCCL_PROTO",    "NCCL_NVLS_ENABLE",
                                      "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_SOCKET_IFNAME"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        unsetenv(all[i]);
}

static struct collectives_library load_on(bool deterministic, bool local)
{
    const struct device_options o = {.threads = 1, .deterministic = deterministic};
    struct collectives_library library;
    const struct backend *b;
    struct device *d;
    struct err e = {0};
    if (backend_load("cuda", &b, &e) || b->device.open(&o, &d, &e) ||
        b->collectives->load(d, local, &library, &e))
        fail_msg("%s", e.text);
    b->device.close(d);
    return library;
}

static void a_deterministic_device_pins_what_the_order_of_sums_hangs_on(void **state)
{
    (void)state;
    unset_variables();
    assert_false(load_on(false, true).pinned);
    assert_null(getenv("NCCL_ALGO"));
    assert_null(getenv("NCCL_MAX_CTAS"));
    assert_true(load_on(true, true).pinned);
    assert_string_equal(getenv("NCCL_ALGO"), "Ring");
    assert_string_equal(getenv("NCCL_PROTO"), "Simple");
    assert_string_equal(getenv("NCCL_NVLS_ENABLE"), "0");
    assert_string_equal(getenv("NCCL_MIN_CTAS"), getenv("NCCL_MAX_CTAS"));
    unset_variables();
    setenv("NCCL_MAX_CTAS", "4", 1); // somebody else's wish stands, and is no pin of ours
    assert_false(load_on(true, true).pinned);
    assert_string_equal(getenv("NCCL_MAX_CTAS"), "4");
    unset_variables();
}

static void within_one_host_nccl_listens_to_it_alone(void **state)
{
    (void)state;
    unset_variables();
    (void)load_on(true, false);
    assert_null(getenv("NCCL_SOCKET_IFNAME"));
    (void)load_on(true, true);
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "=lo");
    setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
    (void)load_on(true, true);
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "eth0");
    unset_variables();
}

// A process in a network of its own, whose loopback nobody has brought up.
static void where_loopback_is_down_nccl_chooses(void **state)
{
    enum { NOT_ALLOWED = 77 };
    int how = 0;
    (void)state;
    unset_variables();
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
            _exit(NOT_ALLOWED);
        (void)load_on(true, true);
        _exit(getenv("NCCL_SOCKET_IFNAME") != NULL);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NOT_ALLOWED) {
        print_message("SKIPPED: this user may make no network of its own\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

// CUDA's free memory is what all processes together leave.
static uint64_t left_on(const struct rig *r)
{
    uint64_t left = 0;
    struct err e = {0};
    if (r->backend->memory.left(r->device, &left, &e))
        fail_msg("%s", e.text);
    return left;
}

static void memory_for_collectives_is_counted_as_it_is_taken(void **state)
{
    static const struct {
        size_t asked, pieces;
    } cases[] = {{1, 1}, {COLLECTIVE_PIECE, 1}, {COLLECTIVE_PIECE + 1, 2}, {5 << 20, 3}};
    struct rig r;
    struct err e = {0};
    struct collectives_library library;
    struct device_info info;
    (void)state;
    unset_variables();
    setenv("WEFT_CUDA_GUARD", "0", 1); // zones around it take memory as well
    rig_open(&r, 1, NULL);
    assert_int_equal(r.backend->collectives->load(r.device, true, &library, &e), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t taken = cases[i].pieces * COLLECTIVE_PIECE, before = left_on(&r);
        void *p = NULL;
        r.backend->device.info(r.device, &info);
        const uint64_t counted = info.allocated;
        assert_int_equal(r.backend->collectives->alloc(r.device, cases[i].asked, &p, &e), 0);
        r.backend->device.info(r.device, &info);
        assert_int_equal(info.allocated - counted, taken);
        assert_int_equal(before - left_on(&r), taken);
        r.backend->memory.free(r.device, p);
        assert_int_equal(left_on(&r), before);
    }
    rig_close(&r);
    unsetenv("WEFT_CUDA_GUARD");
}

static void memory_that_nccl_cannot_take_is_not_called_full(void **state)
{
    static const struct {
        const char *scene, *say;
    } cases[] = {
        {"nccl_memory",
         "cuda device 0: ncclMemAlloc of 4.0 MiB, while 8192.0 of 8192.0 MiB are free: "
         "Cuda failure 800 'operation not permitted'"},
        {"memory:3145728",
         "cuda device 0 is out of memory: 4.0 MiB were asked for, 3.0 of 3.0 MiB are "
         "free (this process has 0.0 MiB); another process may hold the rest "
         "(nvidia-smi)"},
    };
    struct rig r;
    struct err e = {0};
    struct collectives_library library;
    void *p = NULL;
    (void)state;
    rig_open(&r, 1, NULL);
    assert_int_equal(r.backend->collectives->load(r.device, true, &library, &e), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("WEFT_FAKE_CUDA", cases[i].scene, 1);
        assert_int_equal(r.backend->collectives->alloc(r.device, 4 << 20, &p, &e), ERR_DEVICE);
        assert_string_equal(e.text, cases[i].say);
        unsetenv("WEFT_FAKE_CUDA");
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_that_cannot_be_used_is_named_with_what_to_do),
        cmocka_unit_test(a_deterministic_device_pins_what_the_order_of_sums_hangs_on),
        cmocka_unit_test(within_one_host_nccl_listens_to_it_alone),
        cmocka_unit_test(where_loopback_is_down_nccl_chooses),
        cmocka_unit_test(memory_for_collectives_is_counted_as_it_is_taken),
        cmocka_unit_test(memory_that_nccl_cannot_take_is_not_called_full),
    };
    return cmocka_run_group_tests(tests, rig_set_up, NULL);
}
