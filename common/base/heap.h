// SPDX-License-Identifier: Apache-2.0
// Small structures that one owner frees by itself, with free(). As an arena's they are zeroed and
// never fail: a process that cannot get a few kilobytes aborts (arena.h). What may be large, as
// tensors and contents of files, is asked for with malloc() and checked.
#pragma once
#include <stddef.h>

void *heap_alloc(size_t bytes);
char *heap_strdup(const char *s); // a null one is copied as ""
// Gives the field a copy of this text in place of its own, which may be null, or be `s` itself.
void heap_set(char **field, const char *s);
