// SPDX-License-Identifier: Apache-2.0
// Error values: a code from one table and a message that grows context on its way up.
//
// A function that can fail returns an int: 0 or one of ERR_*. When it takes a `struct err *` it
// also fills in the message. Every caller that knows more puts that in front with err_wrap(), so
// that main() logs once, and logs the whole:
//
//   cannot load checkpoint: shard-00003: tensor 'w': digest differs
//
// Messages are lower case without a full stop. A null `struct err *` is allowed everywhere.
#pragma once
#include <stdarg.h>
#include <stdbool.h>

enum err_code {
    ERR_OK = 0,
    ERR_INVALID, // the user's input is wrong: job file, flag, spec
    ERR_DATA,    // a data set or checkpoint file is not what it claims
    ERR_CORRUPT, // bytes read are not the bytes written
    ERR_IO,      // the system refused a read, write, fsync, rename
    ERR_EXISTS,  // somebody else was first
    ERR_NOTFOUND,
    ERR_FENCED, // a greater attempt exists: this one must end
    ERR_PEER,   // another rank, the agent or the coordinator went away
    ERR_TIMEOUT,
    ERR_ABORTED,     // asked to stop from another thread
    ERR_DEVICE,      // the accelerator or its driver
    ERR_LIMIT,       // a documented bound was hit
    ERR_UNSUPPORTED, // a valid request that this build cannot do
    ERR_REFUSED,     // a peer understood and said no
    ERR_NOMEM,       // a large allocation failed; small ones abort, see arena.h
    ERR_INTERNAL,    // a bug of ours, found by a check
    ERR_ABSENT,      // a job's data cannot be opened on this machine
    ERR_COUNT
};

struct err {
    int code;
    bool of_host;   // the machine lacks something or broke: its disk, memory, descriptors, address
    bool forbidden; // the system says that this user may not
    char text[1000];
};

// Sets the message and returns `code`, so that `return err_set(e, ERR_IO, "…")` reads as one act.
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

// As err_set, with ": " and strerror(errno) behind the message; errno decides the flags.
int err_errno(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

// Puts "context: " in front of the message that is there; returns e's code (ERR_INTERNAL if e is
// null: pass the code on yourself in that case).
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__ // it cannot see across files that the code comes back
#define err_set(e, code, ...)   (err_set(e, code, __VA_ARGS__), (code))
#define err_errno(e, code, ...) (err_errno(e, code, __VA_ARGS__), (code))
#endif

// A broken precondition is a bug of the caller, not a state of the world: say where and abort.
_Noreturn void err_bug(const char *file, int line, const char *what);
#define PRE(x)  ((x) ? (void)0 : err_bug(__FILE__, __LINE__, "precondition: " #x))
#define POST(x) ((x) ? (void)0 : err_bug(__FILE__, __LINE__, "postcondition: " #x))
