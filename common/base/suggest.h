// SPDX-License-Identifier: Apache-2.0
// What a mistyped word was probably meant to be. Keys and words of a job file, verbs and flags of
// the command line.
#pragma once

// The nearest of the `n` known words, when it is near enough to have been meant, else null.
const char *suggest(const char *word, const char *const *known, int n);
