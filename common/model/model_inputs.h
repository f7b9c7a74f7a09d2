// SPDX-License-Identifier: Apache-2.0
// What a program reads of the data: made when it is first read.
// Inside common/model/ only.
#pragma once
#include "common/model/term.h"

// The value that a name of the data stands for. False: it is none of them.
bool input_find(struct builder *b, const char *name, struct term *out);
int input_positions(struct builder *b);
// Returns, of a value with a sequence, the row at each sample's last position.
int input_last_rows(struct builder *b, int x);
extern const char *const input_names[]; // null-terminated
