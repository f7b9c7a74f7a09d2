// SPDX-License-Identifier: Apache-2.0
// The shared storage's tree and what a power loss makes of it. See disk.h.
#include "tests/sim/disk.h"

#include <string.h>

#include "common/base/err.h"

struct disk *disk_mounted;

// ---- entries ----
static int find(const struct disk_dir *d, const char *name)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->v[i].name, name))
            return i;
    return -1;
}

static void put(struct disk *d, struct disk_dir *dir, const char *name, struct disk_node *node)
{
    int i = find(dir, name);
    if (i < 0) {
        dir->v = arena_grow(&d->sim->arena, dir->v, sizeof *dir->v, dir->n, &dir->cap);
        i = dir->n++;
    }
    dir->v[i] = (struct disk_entry){name, node};
}

static struct disk_node *take(struct disk_dir *dir, const char *name)
{
    int i = find(dir, name);
    if (i < 0)
        return NULL;
    struct disk_node *node = dir->v[i].node;
    dir->v[i] = dir->v[--dir->n];
    return node;
}

static void note(struct disk *d, struct disk_node *dir, enum disk_op_kind kind, const char *name,
                 const char *to, struct disk_node *node)
{
    dir->ops = arena_grow(&d->sim->arena, dir->ops, sizeof *dir->ops, dir->nops, &dir->capops);
    dir->ops[dir->nops++] = (struct disk_op){kind, name, to, node};
}

// ---- edits ----
struct disk_node *disk_loose(struct disk *d, bool is_dir)
{
    struct disk_node *n = arena_new(&d->sim->arena, struct disk_node);
    n->dir = is_dir;
    n->ino = ++d->inodes;
    return n;
}

struct disk_node *disk_make(struct disk *d, struct disk_node *dir, const char *name, bool is_dir)
{
    struct disk_node *n = disk_loose(d, is_dir);
    const char *own = arena_strdup(&d->sim->arena, name);
    put(d, &dir->now, own, n);
    note(d, dir, ENTRY_ADD, own, NULL, n);
    return n;
}

void disk_remove(struct disk *d, struct disk_node *dir, const char *name)
{
    struct disk_node *n = take(&dir->now, name);
    note(d, dir, ENTRY_REMOVE, arena_strdup(&d->sim->arena, name), NULL, n);
}

void disk_move(struct disk *d, struct disk_node *dir, const char *from, const char *to)
{
    struct disk_node *n = take(&dir->now, from);
    const char *own = arena_strdup(&d->sim->arena, to);
    put(d, &dir->now, own, n);
    note(d, dir, ENTRY_MOVE, arena_strdup(&d->sim->arena, from), own, n);
}

void disk_write(struct disk *d, struct disk_node *file, const void *from, int64_t n, int64_t at)
{
    if (at + n > file->cap) {
        char *old = file->data;
        file->cap = 2 * (at + n) + 64;
        file->data = arena_alloc(&d->sim->arena, (size_t)file->cap);
        if (file->len)
            memcpy(file->data, old, (size_t)file->len);
    }
    memcpy(file->data + at, from, (size_t)n);
    file->len = at + n > file->len ? at + n : file->len;
    file->synced = at < file->synced ? at : file->synced;
}

static void settle(struct disk *d, struct disk_node *dir, const struct disk_op *op)
{
    struct disk_node *n;
    switch (op->kind) {
    case ENTRY_ADD:
        put(d, &dir->kept, op->name, op->node);
        return;
    case ENTRY_REMOVE:
        (void)take(&dir->kept, op->name);
        return;
    case ENTRY_MOVE:
        n = take(&dir->kept, op->name);
        if (n)
            put(d, &dir->kept, op->to, n);
        return;
    }
}

void disk_sync(struct disk_node *node)
{
    if (!node->dir) {
        node->synced = node->lost ? node->synced : node->len;
        return;
    }
    for (int i = 0; i < node->nops; i++)
        settle(disk_mounted, node, &node->ops[i]);
    node->nops = 0;
}

// ---- finding ----
struct disk_node *disk_entry(const struct disk_node *dir, const char *name)
{
    int i = dir && dir->dir ? find(&dir->now, name) : -1;
    return i < 0 ? NULL : dir->now.v[i].node;
}

struct disk_node *disk_find(struct disk *d, const char *path)
{
    struct disk_node *at = d->root;
    while (at && *path) {
        char name[256];
        size_t n = strcspn(path, "/");
        PRE(n < sizeof name);
        memcpy(name, path, n);
        name[n] = 0;
        path += n + (path[n] == '/');
        if (n && strcmp(name, ".") != 0)
            at = disk_entry(at, name);
    }
    return at;
}

const char *disk_text(const struct disk_node *dir, const char *name, int64_t *len)
{
    const struct disk_node *f = disk_entry(dir, name);
    if (!f || f->dir)
        return NULL;
    *len = f->len;
    return f->data ? f->data : "";
}

// ---- power loss ----
enum mood { LOSE_ALL, KEEP_ALL, BY_ENTRY };

static bool keeps(struct disk *d, enum mood m)
{
    return m == KEEP_ALL || (m == BY_ENTRY && sim_chance(d->sim, 500));
}

static void lose(struct disk *d, struct disk_node *n, enum mood m)
{
    if (!n->dir) {
        if (n->lost || !keeps(d, m))
            n->len = n->synced;
        n->synced = n->len;
        return;
    }
    for (int i = 0; i < n->nops; i++)
        if (keeps(d, m))
            settle(d, n, &n->ops[i]);
    n->nops = 0;
    n->now.n = 0;
    for (int i = 0; i < n->kept.n; i++) {
        put(d, &n->now, n->kept.v[i].name, n->kept.v[i].node);
        lose(d, n->kept.v[i].node, m);
    }
}

void disk_power_loss(struct disk *d)
{
    enum mood m = (enum mood)sim_below(d->sim, 3);
    lose(d, d->root, m);
}

void disk_init(struct disk *d, struct sim *s)
{
    *d = (struct disk){.sim = s};
    d->root = disk_loose(d, true);
    disk_mounted = d;
}
