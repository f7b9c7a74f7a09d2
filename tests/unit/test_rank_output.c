// SPDX-License-Identifier: Apache-2.0
// What a rank of a solo run prints, as its parent takes it.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"
#include "worker/rank/lead/rank_output.h"

enum { PIECE = 16 << 10 }; // what is taken in one turn

struct printer {
    char dir[TEMP_FOLDER_MAX];
    int pipe; // the rank's end
    struct rank_output output;
};

static int setup(void **state)
{
    struct printer *p = calloc(1, sizeof *p);
    char logs[TEMP_FOLDER_MAX + 8];
    int ends[2];
    assert_int_equal(temp_folder_make(p->dir, "output"), 0);
    snprintf(logs, sizeof logs, "%s/logs", p->dir);
    assert_int_equal(mkdir(logs, 0700), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    p->pipe = ends[1];
    rank_output_open(&p->output, p->dir, 3, ends[0]);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct printer *p = *state;
    rank_output_close(&p->output);
    if (p->pipe >= 0)
        close(p->pipe);
    assert_int_equal(temp_folder_remove(p->dir), 0);
    free(p);
    return 0;
}

// Prints until the pipe is full; returns how many bytes it took.
static int64_t fill_pipe(struct printer *p)
{
    static char text[4096];
    int64_t all = 0;
    memset(text, 'x', sizeof text);
    for (ssize_t n; (n = write(p->pipe, text, sizeof text)) > 0;)
        all += n;
    return all;
}

static int64_t log_size(const struct printer *p)
{
    char path[TEMP_FOLDER_MAX + 40];
    struct stat st;
    snprintf(path, sizeof path, "%s/logs/rank-0003.log", p->dir);
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void a_rank_that_never_pauses_gets_one_piece_a_turn(void **state)
{
    struct printer *p = *state;
    (void)fcntl(p->pipe, F_SETPIPE_SZ, 4 * PIECE); // may be refused, or be so already
    int64_t had = fill_pipe(p);
    if (had < 2 * PIECE) {
        print_message("SKIPPED: a pipe holds %lld bytes here, and the test needs %d\n",
                      (long long)had, 2 * PIECE);
        skip();
    }
    assert_true(rank_output_take(&p->output));
    assert_in_range(log_size(p), 1, had / 2);
    had += fill_pipe(p); // it goes on printing
    int turns = 1;
    while (rank_output_take(&p->output))
        turns++;
    assert_int_equal(log_size(p), had);
    assert_in_range(turns, 3, 1000);
}

static void what_was_printed_last_is_kept(void **state)
{
    struct printer *p = *state;
    assert_false(rank_output_take(&p->output));
    assert_int_equal(write(p->pipe, "the end", 7), 7);
    close(p->pipe);
    p->pipe = -1;
    assert_true(rank_output_take(&p->output));
    assert_false(rank_output_take(&p->output));
    assert_int_equal(log_size(p), 7);
    assert_int_equal(p->output.pipe, -1); // a poll would find its end again and again
}

#define STORY(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(a_rank_that_never_pauses_gets_one_piece_a_turn),
        STORY(what_was_printed_last_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
