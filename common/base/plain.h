// SPDX-License-Identifier: Apache-2.0
// Text for people. What comes from outside (names of files, words of a job file, what a model
// writes, what a peer says) may hold bytes that steer a terminal: they move its cursor, rename its
// window, turn the order of letters around, or end a line so that the next looks like ours. Here is
// the one list of them, and the one way by which the programs write to standard output and standard
// error; `make lint` finds every other.
//
// Harmful are bytes that are not UTF-8, and the characters of utf8_steers (utf8.h). A newline is
// harmless between lines and harmful within one: plain_line is for one line.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "common/base/buf.h"

// The bytes of the character at `s`, or 0 if it is harmful; a newline counts as harmless.
size_t plain_character(const char *s, size_t left);

// Appends the text; a harmful character becomes "\x1b" or "\u202e".
void plain_append(struct buf *to, const char *s, size_t len);
// Formats, and appends one line with its newline: newlines inside become "\n" in letters.
void plain_line(struct buf *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void plain_vline(struct buf *to, const char *fmt, va_list ap);
// Makes a text harmless in place: each harmful byte becomes '?', so that it stays as long.
void plain_mask(char *s);

// Writing to people. Standard error comes behind what standard output was given before, and begins
// a line of its own, so that neither cuts into the other where both go to one place.
void plain_put(FILE *to, const char *s, size_t len);
void plain_puts(FILE *to, const char *s);
void plain_printf(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Writes one line to standard error, whatever the words hold.
void plain_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// A picture with colours: bytes 1 to PLAIN_COLOURS begin one, PLAIN_NO_COLOUR ends it, all else as
// plain_put has it. Whoever puts a text from outside into a picture makes it plain first.
enum { PLAIN_COLOURS = 8, PLAIN_NO_COLOUR = 15 };
void plain_picture(FILE *to, const char *s, size_t len);
// The terminal's own sequences, constants of ours: erases the line that the cursor stands on, those above
// it up to so many, and all below.
void plain_erase_lines(FILE *to, int lines);
// Ends the line on the standard output's terminal, if it is one and takes something at once. For a
// handler of signals.
void plain_end_line(void);
