// SPDX-License-Identifier: Apache-2.0
// For tests of what ends a program: a mistake made in a child, and what the child said.
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unit.h"

enum { DIES_ROOM = 1 << 16 };

// The child's last words on standard error; returns what waitpid says.
static inline int dies_run(void (*mistake)(void), char said[DIES_ROOM])
{
    int ends[2], status;
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL); // cmocka's own handler would continue
        mistake();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], said + n, DIES_ROOM - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

// Fails unless the mistake ends the process, saying so, or (where it may find it first) by the word
// of a sanitizer.
static inline void dies_saying(void (*mistake)(void), const char *say, bool sanitizer)
{
    static char said[DIES_ROOM];
    int status = dies_run(mistake, said);
    bool found = strstr(said, say) ||
                 (sanitizer && (strstr(said, "AddressSanitizer") || strstr(said, "runtime error")));
    if ((WIFEXITED(status) && WEXITSTATUS(status) == 0) || !found)
        fail_msg("it should have died saying '%s', and ended with %#x saying '%.500s'", say,
                 (unsigned)status, said);
}
