// SPDX-License-Identifier: Apache-2.0
// A process that this one starts, what it prints, and its end.
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;

// A descriptor of ours, and the number that it has in the child.
struct child_file {
    int ours, its;
};

// How a child starts. It has our environment; of our descriptors it has those that are not
// close-on-exec, and those named here. Every signal that it does not ignore or catch itself does
// what it does by default. It has a process group of its own: a terminal's Ctrl-C does not reach it.
struct child_start {
    const char *program; // its path
    char *const *argv;   // ended by null
    // Given to the child in this order, up to the first whose `ours` is negative. Null: none. Where
    // none becomes 0, the child's standard input is /dev/null.
    const struct child_file *files;
    const sigset_t *blocked; // signals that wait until it lets them come; null: none
};

// Starts it. Returns 0, or -1 with errno set and `pid` 0.
int child_start(const struct child_start *c, pid_t *pid);

// Whether a child is stopped now, by a signal or a debugger. Nothing is taken from who waits for it.
bool child_is_stopped(pid_t pid);

// Appends what comes from the pipe `fd` to `out`, which stays a text. True: the other side has
// closed its end. False: it was still running at `until_ns`, or for more than `most` bytes.
bool child_read(int fd, size_t most, int64_t until_ns, struct buf *out);

// Gives the process `grace_ns` to end by itself, then kills it, and reaps it. Returns false if it
// does not die even then, because a driver or a file system holds it.
bool child_end(pid_t pid, int64_t grace_ns, int *status);
