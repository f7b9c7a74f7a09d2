// SPDX-License-Identifier: Apache-2.0
// Numbers to time algorithms on. See noise.h.
//
// The host makes a few megabytes, and the device copies them over and over into the rest.
#include "worker/rank/exec/noise.h"

#include <stdlib.h>

#include "common/base/rand.h"

enum { SEED_BYTES = 4 << 20 };

// Two bf16 numbers in a word: each has any sign and mantissa, and an exponent of 2^-8 to 2^-5. The
// upper one gives the word's value as f32.
static uint32_t make_word(uint32_t random)
{
    const uint32_t exponents = 119u << 7 | 119u << 23;
    return (random & 0x81ff81ff) + exponents;
}

static void make_noise(uint32_t *words, size_t n)
{
    const struct rand_site site = {.seed = 1};
    for (size_t i = 0; i < n; i++)
        words[i] = make_word(rand_word(&site, i));
}

int noise_fill(const struct backend *b, struct stream_q *q, void *to, uint64_t bytes, struct err *e)
{
    uint64_t done = bytes < SEED_BYTES ? bytes : SEED_BYTES;
    uint32_t *words = malloc(SEED_BYTES);
    if (!words)
        return err_set(e, ERR_NOMEM, "no memory for numbers to time algorithms on");
    make_noise(words, SEED_BYTES / sizeof *words);
    int rc = b->stream.copy(q, to, words, done, e);
    while (!rc && done < bytes) { // what is there becomes twice as much
        uint64_t n = bytes - done < done ? bytes - done : done;
        rc = b->stream.copy(q, (char *)to + done, to, n, e);
        done += n;
    }
    int synced = b->stream.sync(q, rc ? NULL : e);
    free(words);
    return rc ? rc : synced;
}
