// SPDX-License-Identifier: Apache-2.0
// What a program of weft has to do with the system: where the others lie, signals, descriptors.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

// Closes a descriptor that is not −1, and makes it that.
void system_close(int *fd);

// Finds the path of another one, such as "weft-rank": beside this one's own file, or else in PATH.
// ERR_NOTFOUND: there is none.
int system_find_program(const char *name, char *out, size_t size, struct err *e);
// From now on these signals are read from *fd, which never waits, as struct signalfd_siginfo. They are
// blocked, in the threads that are started later too, and SIGPIPE is ignored. `which` ends with 0.
int system_read_signals(const int *which, int *fd, struct err *e);
// Raises the number of descriptors that this process may have to the most that it is allowed: a
// connection takes one, a rank four, and the usual 1,024 would be few.
void system_raise_limits(void);
