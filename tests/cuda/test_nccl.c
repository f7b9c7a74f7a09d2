// SPDX-License-Identifier: Apache-2.0
// Our loader over NVIDIA's own libnccl.so.2, where CUDA's folder has it: every call that we make is there,
// with the type of the header, and what needs no GPU answers. Everything else runs over the tests' own
// (fake_nccl.c). tests/e2e/test_nccl.py looks for the switches that we set in it.
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/nccl.h"
#include "tests/unit/unit.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
_Static_assert(__builtin_types_compatible_p(__typeof__(&ncclAlltoAll),
                                            __typeof__(((struct nccl *)0)->AlltoAll)),
               "the call that older headers lack has another type");
#endif

static struct nccl real;

static void the_library_has_every_call_that_we_make(void **state)
{
    int version = 0;
    (void)state;
    const char *why = nccl_load(&real);
    if (why)
        fail_msg("%s", why);
#define X(name) assert_non_null(real.name);
    NCCL_CALLS(X)
#undef X
    assert_int_equal(real.GetVersion(&version), ncclSuccess);
    assert_true(version >= NCCL_OLDEST);
    assert_int_equal(real.AlltoAll != NULL, version >= NCCL_VERSION(2, 28, 0));
}

static void what_the_library_says_of_an_error_is_text(void **state)
{
    (void)state;
    assert_non_null(strstr(real.GetErrorString(ncclRemoteError), "remote process"));
    assert_non_null(real.GetErrorString(ncclInvalidArgument));
}

// The library listens for the members of each.
static void an_identity_is_made_without_a_gpu_and_differs_from_others(void **state)
{
    ncclUniqueId id, other;
    (void)state;
    assert_int_equal(real.GetUniqueId(&id), ncclSuccess);
    assert_int_equal(real.GetUniqueId(&other), ncclSuccess);
    assert_memory_not_equal(&id, &other, sizeof id);
}

static void groups_are_counted(void **state)
{
    (void)state;
    assert_int_equal(real.GroupStart(), ncclSuccess);
    assert_int_equal(real.GroupEnd(), ncclSuccess);
    assert_int_equal(real.GroupEnd(), ncclInvalidUsage);
}

// Where there is a GPU it is opened, which is in progress then.
static void a_communicator_without_a_gpu_is_refused_and_not_there(void **state)
{
    ncclUniqueId id;
    ncclComm_t c = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    (void)state;
    config.blocking = 0;
    config.commName = "dp";
    assert_int_equal(real.GetUniqueId(&id), ncclSuccess);
    ncclResult_t rc = real.CommInitRankConfig(&c, 1, id, 0, &config);
    if (rc == ncclSuccess || rc == ncclInProgress) {
        assert_int_equal(real.CommAbort(c), ncclSuccess);
        return;
    }
    assert_int_equal(rc, ncclUnhandledCudaError);
    assert_null(c);
    assert_non_null(strstr(real.GetLastError(NULL), "CUDA driver"));
}

int main(void)
{
    setenv("NCCL_DEBUG", "", 1);
    setenv("NCCL_RAS_ENABLE", "0", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_has_every_call_that_we_make),
        cmocka_unit_test(what_the_library_says_of_an_error_is_text),
        cmocka_unit_test(an_identity_is_made_without_a_gpu_and_differs_from_others),
        cmocka_unit_test(groups_are_counted),
        cmocka_unit_test(a_communicator_without_a_gpu_is_refused_and_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
