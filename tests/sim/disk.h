// SPDX-License-Identifier: Apache-2.0
// The shared checkpoint storage: a directory tree in memory with the crash semantics of a file
// system.
//
// Programs see every change at once. What survives a power loss is another matter: a file's bytes
// once it was fsynced, an entry (made, renamed, removed) once its directory was; all else may be
// kept or lost, entry by entry. A failed fsync loses what it should have kept, and a later one that
// succeeds does not bring it back.
//
// The product's own store.c works on it: while a fiber runs, the linker's --wrap sends its system
// calls here (disk_calls.c); each that changes or syncs something takes virtual time first, in
// which its process may be stopped or killed.
#pragma once
#include "common/ckpt/store.h"
#include "tests/sim/sim.h"

struct disk_node;
struct disk_entry {
    const char *name;
    struct disk_node *node;
};
struct disk_dir {
    struct disk_entry *v;
    int n, cap;
};
enum disk_op_kind { ENTRY_ADD, ENTRY_REMOVE, ENTRY_MOVE };
struct disk_op { // an entry's change that is not synced
    enum disk_op_kind kind;
    const char *name, *to;
    struct disk_node *node;
};
struct disk_node {
    bool dir;
    uint64_t ino;
    // A file: its bytes, and how many of them are synced; lost: a failed fsync threw them away.
    char *data;
    int64_t len, cap, synced;
    bool lost;
    // A directory: as programs see it, and as the platter has it.
    struct disk_dir now, kept;
    struct disk_op *ops;
    int nops, capops;
};
struct disk_fd {
    struct disk_node *node;
    int64_t at;
};
enum { DISK_FDS = 1024, DISK_FD0 = 100000 };
struct disk {
    struct sim *sim;
    struct disk_node *root;
    struct disk_fd fd[DISK_FDS];
    uint64_t inodes;
    int eio_per_mille;  // of fsyncs that fail
    int slow_per_mille; // of calls that take up to two seconds
    int open_fds;
    // What is watched (sim_check.c): a rename of an entry of a job's directory, before it is done.
    void *watch_arg;
    void (*on_call)(void *arg);
    void (*on_rename)(void *arg, struct disk_node *dir, const char *from, const char *to);
};

void disk_init(struct disk *d, struct sim *s); // and mounts it
struct disk_node *disk_find(struct disk *d, const char *path);
struct disk_node *disk_entry(const struct disk_node *dir, const char *name);
void disk_power_loss(struct disk *d);
// A file's whole text, or null.
const char *disk_text(const struct disk_node *dir, const char *name, int64_t *len);

// Edits, as the calls do them.
struct disk_node *disk_make(struct disk *d, struct disk_node *dir, const char *name, bool is_dir);
struct disk_node *disk_loose(struct disk *d, bool is_dir); // with no name anywhere
void disk_remove(struct disk *d, struct disk_node *dir, const char *name);
void disk_move(struct disk *d, struct disk_node *dir, const char *from, const char *to);
void disk_write(struct disk *d, struct disk_node *file, const void *from, int64_t n, int64_t at);
void disk_sync(struct disk_node *node);
extern struct disk *disk_mounted;
