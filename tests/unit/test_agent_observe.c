// SPDX-License-Identifier: Apache-2.0
// What a worker makes of the program that looks for its host's devices; a script plays it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "worker/observe.h"

#define TWO                                                                        \
    "echo '{\"kind\": \"cuda\", \"devices\": [{\"model\": \"A\", \"memory\": 1}, " \
    "{\"model\": \"B\", \"memory\": 2}]}'\n"

static void a_probe_is_believed_by_what_it_says_and_how_it_ends(void **state)
{
    static const struct {
        const char *script, *say; // null: two devices
    } cases[] = {
        {TWO, NULL},
        {TWO "exec >&- 2>&-\nexec sleep 100\n", NULL}, // in a driver that lets go slowly
        {TWO "kill -SEGV $$\n", NULL},
        {TWO "exit 71\n", "PROG --probe --kind cuda failed: {"},
        {"echo weft-rank: no NVIDIA driver >&2; exit 71\n", "no NVIDIA driver"},
        {"echo ill; kill -SEGV $$\n", "PROG --probe --kind cuda failed: ill"},
        {"echo '{\"devices\": ['; kill -KILL $$\n", "what PROG --probe --kind cuda answers: "},
    };
    char program[] = "/tmp/weft-probe-XXXXXX", want[200];
    (void)state;
    close(mkstemp(program));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(program, "w");
        struct arena a = {0};
        Weft__V1__Register about;
        struct err e = {0};
        int n = 0;
        assert_non_null(f);
        weft__v1__register__init(&about);
        fprintf(f, "#!/bin/sh\n%s", cases[i].script);
        fclose(f);
        chmod(program, 0700);
        int rc = observe_devices(program, "cuda", 0, &a, &about, &n, &e);
        assert_int_equal(rc != 0, cases[i].say != NULL);
        assert_int_equal(about.n_devices, cases[i].say ? 0 : 2);
        if (!rc)
            assert_string_equal(about.devices[1]->model, "B");
        const char *at = cases[i].say ? strstr(cases[i].say, "PROG") : NULL;
        if (at)
            snprintf(want, sizeof want, "%.*s%s%s", (int)(at - cases[i].say), cases[i].say, program,
                     at + 4);
        else
            snprintf(want, sizeof want, "%s", cases[i].say ? cases[i].say : "");
        assert_memory_equal(e.text, want, strlen(want));
        arena_clear(&a);
    }
    unlink(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_is_believed_by_what_it_says_and_how_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
