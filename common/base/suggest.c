// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the nearest known word by edit distance, swapped neighbours counted as one edit.
#include "common/base/suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { LONGEST = 63 };

static int pick_smaller(int a, int b)
{
    return a < b ? a : b;
}

// LayerNorm is a slip for layernorm, and a size that somebody called N is one for n.
static bool same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static int edit_distance(const char *a, int n, const char *b, int m)
{
    int d[LONGEST + 1][LONGEST + 1];
    for (int i = 0; i <= n; i++)
        d[i][0] = i;
    for (int j = 0; j <= m; j++)
        d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            d[i][j] = pick_smaller(d[i - 1][j], d[i][j - 1]) + 1;
            d[i][j] = pick_smaller(d[i][j], d[i - 1][j - 1] + !same_letter(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                same_letter(a[i - 2], b[j - 1]))
                d[i][j] = pick_smaller(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[n][m];
}

// How many edits still count as a slip: one, and one more for every three letters. A word of three
// letters with another first one is another word: tpu is no cpu.
static bool is_slip(const char *word, const char *known, int shorter, int edits)
{
    return shorter <= 3 ? edits <= 1 && same_letter(word[0], known[0]) : edits <= 1 + shorter / 3;
}

const char *suggest(const char *word, const char *const *known, int n)
{
    int len = (int)strnlen(word, LONGEST + 1), best = LONGEST;
    const char *found = NULL;
    if (len > LONGEST)
        return NULL;
    for (int i = 0; i < n; i++) {
        int other = (int)strnlen(known[i], LONGEST + 1);
        if (other > LONGEST)
            continue;
        int d = edit_distance(word, len, known[i], other);
        if (d < best && is_slip(word, known[i], pick_smaller(len, other), d)) {
            best = d;
            found = known[i];
        }
    }
    return found;
}
