// SPDX-License-Identifier: Apache-2.0
// Texts of the decider: those that it keeps on the heap, and what a text from outside may hold.
// Inside coordinator/ only.
#pragma once

// For people, and for every client's decoder: what is no UTF-8 and what steers a terminal becomes
// '?'; lines and tabs stay.
void text_plain(char *s);

// A kept text is never null once it was set; an empty one costs no memory. `s` may be the field's
// own text, or null for an empty one.
void text_set(char **field, const char *s);
void text_free(char **field); // leaves null
