// SPDX-License-Identifier: Apache-2.0
// The characters of a job file: UTF-8, no control characters, no tabs as indentation. Inside
// common/job/ only.
#pragma once
#include "common/job/job_tree.h"

// Characters that no value may hold: they would not print and read back as themselves.
bool text_is_control(uint32_t code);
// False after reporting the first thing that the YAML parser must not see.
bool text_check(const struct tree_source *source, const char *text, size_t len,
                struct tree_errors *errors);

// As text_check, but for a program's text: it may have what YAML refuses, but it may not be indented
// by tabs in one line and by spaces in another.
bool text_check_program(const struct tree_source *source, const char *text, size_t len,
                        struct tree_errors *errors);
// The text as the resolved job carries it: lines end in \n alone and have no blanks at their end, a
// tab is a blank, and after the last line comes nothing. Lines and columns stay what they were.
const char *text_lines(struct arena *a, const char *text);
