// SPDX-License-Identifier: Apache-2.0
// The characters of a job file: UTF-8, no control characters, no tabs as indentation. Inside
// common/job/ only.
#pragma once
#include "common/job/job_tree.h"

// The length of the character at `s` (1 to 4), or 0 if it is not UTF-8.
int text_decode(const unsigned char *s, size_t len, uint32_t *code);
// Characters that no value may hold: they would not print and read back as themselves.
bool text_is_control(uint32_t code);
// False after reporting the first thing that the YAML parser must not see.
bool text_check(const struct tree_source *source, const char *text, size_t len,
                struct tree_errors *errors);
