// SPDX-License-Identifier: Apache-2.0
// Where the forked ranks of a benchmark find each other's addresses: a page that all of them share.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/err.h"

enum { BOARD_RANKS = 64 };

static struct board {
    _Atomic int there;
    char value[256];
} * board; // one a rank

// Before the fork. 0, or −1.
static inline int board_open(void)
{
    board = mmap(NULL, BOARD_RANKS * sizeof *board, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? -1 : 0;
}

static inline int board_put(void *ctx, const char *key, const char *value, struct err *e)
{
    struct board *b = &board[atoi(strrchr(key, '.') + 1)];
    (void)ctx;
    (void)e;
    snprintf(b->value, sizeof b->value, "%s", value);
    b->there = 1;
    return 0;
}

static inline int board_get(void *ctx, const char *key, char *value, size_t size,
                            int64_t deadline_ns, struct err *e)
{
    struct board *b = &board[atoi(strrchr(key, '.') + 1)];
    (void)ctx;
    while (!b->there) {
        if (clock_mono_ns() > deadline_ns)
            return err_set(e, ERR_TIMEOUT, "%s is not there", key);
        clock_sleep_ms(1);
    }
    snprintf(value, size, "%s", b->value);
    return 0;
}
