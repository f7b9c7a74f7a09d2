// SPDX-License-Identifier: Apache-2.0
// Texts that the decider keeps on the heap. Inside coordinator/ only.
#pragma once

// A kept text is never null once it was set; an empty one costs no memory. `s` may be the field's
// own text, or null for an empty one.
void text_set(char **field, const char *s);
void text_free(char **field); // leaves null
