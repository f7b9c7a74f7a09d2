// SPDX-License-Identifier: Apache-2.0
// A text that grows by pieces, of which is shown what can no longer change: not the beginning of a stop
// text that may be coming, nor a character of UTF-8 that is not whole yet. Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>

#include "common/base/buf.h"

struct held_text {
    const char *const *stops; // borrowed; none is empty
    int nstops;
    struct buf text; // all of it; a stop text and what follows it are cut off
    size_t shown;    // bytes of it that were taken
    bool stopped;
};

// Adds bytes, which may be any part of a character. True: a stop text ended it, the earliest one.
bool held_add(struct held_text *h, const char *bytes, size_t n);
// The bytes that may be shown now and were not yet; `ended`: nothing more comes, so all of them.
const char *held_take(struct held_text *h, bool ended, size_t *n);
void held_clear(struct held_text *h);
