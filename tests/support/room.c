// SPDX-License-Identifier: Apache-2.0
// The main() of a room's tests: its test files are linked as one program, each with its own main() by
// the name of the file (Makefile), and run in a process each.
//
//   PROGRAM --group test_NAME [ARGUMENT...]   runs one file
//   PROGRAM                                   prints their names
//
// A test that starts its own program again does so without --group: the environment names the file.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
    const char *name;
    int (*main)(int argc, char **argv);
};

// clang-format off
#define TEST(test) int test(int argc, char **argv);
ROOM
#undef TEST

#define TEST(test) {#test, test},
static const struct test tests[] = {ROOM};
// clang-format on

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--group") == 0) {
        setenv("WEFT_TEST_GROUP", argv[2], 1);
        argv[2] = argv[0];
        argv += 2;
        argc -= 2;
    }
    const char *group = getenv("WEFT_TEST_GROUP");
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (group && strcmp(group, tests[i].name) == 0)
            return tests[i].main(argc, argv);
        else if (!group)
            puts(tests[i].name);
    if (group)
        fprintf(stderr, "%s has no test file %s\n", argv[0], group);
    return group ? 2 : 0;
}
