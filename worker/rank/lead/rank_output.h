// SPDX-License-Identifier: Apache-2.0
// What one rank of a solo run prints: it comes through a pipe, is kept in DIR/logs/rank-0003.log
// (when that is full it becomes rank-0003.log.1), and its warnings and errors are shown to people.
// Inside worker/rank/lead/ only.
#pragma once
#include <stdbool.h>

#include "common/base/buf.h"

struct rank_output {
    int pipe, log; // −1: closed
    char path[5000];
    size_t logged;
    struct buf line; // the last one, whose end has not come
};

// Takes the pipe's reading end, which must not block. Without a log, lines are only shown.
void rank_output_open(struct rank_output *o, const char *dir, int rank, int pipe);
// Takes one piece and no more, since a rank may print without a pause. False: there is nothing now.
bool rank_output_take(struct rank_output *o);
void rank_output_close(struct rank_output *o);
