// SPDX-License-Identifier: Apache-2.0
// The switches of a device, from the environment. See switches.h.
#include "kernels/cuda/switches.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    int least, most, usual;
    bool same_numbers; // it changes no number
} known[SWITCH_COUNT] = {
    [SWITCH_LIBRARY_ATTENTION] = {"WEFT_CUDA_LIBRARY_ATTENTION", 0, 1, 1},
    [SWITCH_EPILOGUES] = {"WEFT_CUDA_EPILOGUES", 0, 1, 1},
    [SWITCH_CANDIDATES] = {"WEFT_CUDA_CANDIDATES", 1, SWITCH_CANDIDATES_MOST,
                           SWITCH_CANDIDATES_MOST},
    [SWITCH_FINALISTS] = {"WEFT_CUDA_FINALISTS", 1, SWITCH_CANDIDATES_MOST, 6},
    [SWITCH_SCRATCH] = {"WEFT_CUDA_SCRATCH", 0, 1 << 16, 1 << 16},
    [SWITCH_ATTENTION_SCRATCH] = {"WEFT_CUDA_ATTENTION_SCRATCH", 0, 1 << 16, 1 << 16},
    [SWITCH_EARLY_LAUNCH] = {"WEFT_CUDA_EARLY_LAUNCH", 0, 1, 0, .same_numbers = true},
};

int switches_read(int value[SWITCH_COUNT], struct err *e)
{
    for (int i = 0; i < SWITCH_COUNT; i++) {
        const char *set = getenv(known[i].name);
        char *end;
        value[i] = known[i].usual;
        if (!set || !set[0])
            continue;
        long n = strtol(set, &end, 10);
        if (*end || n < known[i].least || n > known[i].most)
            return err_set(e, ERR_INVALID, "%s is '%s': it takes a number from %d to %d",
                           known[i].name, set, known[i].least, known[i].most);
        value[i] = (int)n;
    }
    return 0;
}

void switches_print(const int value[SWITCH_COUNT], char to[SWITCHES_SIZE])
{
    int n = 0;
    to[0] = 0;
    for (int i = 0; i < SWITCH_COUNT; i++)
        if (value[i] != known[i].usual && !known[i].same_numbers)
            n += snprintf(to + n, (size_t)(SWITCHES_SIZE - n), ", %s=%d", known[i].name, value[i]);
}
