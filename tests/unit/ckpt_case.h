// SPDX-License-Identifier: Apache-2.0
// For tests that begin with an empty job directory: each gets a fixture of its own as its state.
#pragma once
#include "tests/unit/ckpt_fixture.h"

static UNUSED int fx_set_up(void **state)
{
    static struct fixture f;
    f = (struct fixture){0};
    fx_init(&f);
    *state = &f;
    return 0;
}

static UNUSED int fx_tear_down(void **state)
{
    fx_clear(*state);
    return 0;
}
#define FX_TEST(fn) cmocka_unit_test_setup_teardown(fn, fx_set_up, fx_tear_down)
