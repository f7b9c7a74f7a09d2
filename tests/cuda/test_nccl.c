// SPDX-License-Identifier: Apache-2.0
// Our loader over NVIDIA's own libnccl.so.2, where CUDA's folder has it: every call that we make is there,
// with the type of the header, and what needs no GPU answers. Everything else runs over the tests' own
// (fake_nccl.c).
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

int main(void)
{
    setenv("NCCL_DEBUG", "", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_has_every_call_that_we_make),
        cmocka_unit_test(what_the_library_says_of_an_error_is_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
