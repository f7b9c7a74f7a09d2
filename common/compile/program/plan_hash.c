// SPDX-License-Identifier: Apache-2.0
// The hash of a plan. See plan_hash.h.
#include "common/compile/program/plan_hash.h"

#include <string.h>

#include "common/compile/program/dump.h"
#include "common/op/chain.h"

enum { FULL_BYTES = 1 << 16 };

void plan_hash_init(struct plan_hash *hash)
{
    *hash = (struct plan_hash){.sum = xxh3_new(), .one = xxh3_new()};
}

static void flush_bytes(struct plan_hash *hash)
{
    xxh3_update(hash->sum, hash->bytes.data, hash->bytes.len);
    buf_reset(&hash->bytes);
}

void plan_hash_end(struct plan_hash *hash, char out[33])
{
    flush_bytes(hash);
    hash128_hex(xxh3_digest(hash->sum), out);
    xxh3_free(hash->sum);
    xxh3_free(hash->one);
    buf_clear(&hash->bytes);
    buf_clear(&hash->text);
    map_clear(&hash->attrs);
    arena_clear(&hash->arena);
}

// ---- numbers and texts -------------------------------------------------------------------------

static void put_bytes(struct plan_hash *hash, const void *data, size_t len)
{
    buf_append(&hash->bytes, data, len);
    if (hash->bytes.len >= FULL_BYTES)
        flush_bytes(hash);
}

static void put_numbers(struct plan_hash *hash, const uint64_t *numbers, int n)
{
    put_bytes(hash, numbers, sizeof *numbers * (size_t)n);
}

static void put_text(struct plan_hash *hash, const char *text)
{
    uint64_t len = text ? strlen(text) + 1 : 0;
    put_numbers(hash, &len, 1);
    if (text)
        put_bytes(hash, text, len);
}

static void put_cut(struct plan_hash *hash, const struct dim_cut *c)
{
    put_bytes(hash, &c->n, sizeof c->n);
    put_bytes(hash, c->axis, c->n * sizeof *c->axis);
}

// ---- attributes --------------------------------------------------------------------------------

// Attributes of one op that are the same to the byte print the same text. Where the bytes between
// members differ alone, the same text is printed twice.
struct attr_key {
    struct op_attr attr;
    struct op_chain chain;
    enum op op;
    int nin, nout;
};

static struct hash128 hash_one(struct plan_hash *hash, const void *data, size_t len)
{
    xxh3_reset(hash->one);
    xxh3_update(hash->one, data, len);
    return xxh3_digest(hash->one);
}

static const struct hash128 *find_attr(struct plan_hash *hash, const struct op_attr *a,
                                       const struct instr *i)
{
    struct attr_key key;
    char name[33];
    memset(&key, 0, sizeof key);
    memcpy(&key.attr, a, sizeof *a);
    key.attr.chain = NULL;
    if (a->chain)
        memcpy(&key.chain, a->chain, sizeof *a->chain);
    key.op = i->op;
    key.nin = i->nin;
    key.nout = i->nout;
    hash128_hex(hash_one(hash, &key, sizeof key), name);
    struct hash128 *known = map_get(&hash->attrs, name);
    if (known)
        return known;
    buf_reset(&hash->text);
    dump_attr(a, i, &hash->text);
    known = arena_new(&hash->arena, struct hash128);
    *known = hash_one(hash, hash->text.data, hash->text.len);
    map_put(&hash->attrs, name, known);
    return known;
}

// ---- programs ----------------------------------------------------------------------------------

static void put_buffer(struct plan_hash *hash, const struct buffer *b)
{
    put_text(hash, b->name);
    put_numbers(
        hash, (const uint64_t[]){(uint64_t)b->dtype, (uint64_t)b->region, b->offset, b->bytes}, 4);
    uint64_t n = (uint64_t)b->shape.n;
    put_numbers(hash, &n, 1);
    put_bytes(hash, b->shape.dim, sizeof *b->shape.dim * (size_t)b->shape.n);
}

static void put_views(struct plan_hash *hash, const struct view *v, int n)
{
    for (int k = 0; k < n; k++) {
        put_numbers(hash, (const uint64_t[]){(uint64_t)v[k].buffer, v[k].offset, v[k].step}, 3);
        if (v[k].step)
            put_cut(hash, &v[k].by);
    }
}

void plan_hash_add(struct plan_hash *hash, const struct program *p)
{
    struct arena scratch = {0};
    const struct hash128 **of = arena_array(&scratch, const struct hash128 *, p->graph->nnodes);
    struct buf mesh = {0};
    mesh_print(&p->mesh, &mesh);
    put_text(hash, buf_str(&mesh));
    buf_clear(&mesh);
    put_numbers(hash,
                (const uint64_t[]){(uint64_t)p->kind, (uint64_t)p->stage, (uint64_t)p->zigzag.parts,
                                   (uint64_t)p->nbuffers, (uint64_t)p->ninstrs},
                5);
    for (int b = 0; b < p->nbuffers; b++)
        put_buffer(hash, &p->buffers[b]);
    for (int k = 0; k < p->ninstrs; k++) {
        const struct instr *i = &p->instrs[k];
        put_numbers(hash,
                    (const uint64_t[]){(uint64_t)i->kind, (uint64_t)i->phase,
                                       (uint64_t)i->microbatch, (uint64_t)i->nin, (uint64_t)i->nout,
                                       (uint64_t)i->workspace},
                    6);
        bool starts = i->kind == INSTR_START || i->kind == INSTR_WAIT;
        const struct hash128 *attr = NULL;
        if (i->kind == INSTR_OP && i->attr)
            attr = find_attr(hash, i->attr, i);
        else if (i->kind == INSTR_OP)
            attr = of[i->node] = of[i->node] ? of[i->node] : find_attr(hash, program_attr(p, i), i);
        if (attr)
            put_numbers(hash,
                        (const uint64_t[]){(uint64_t)i->op, i->accumulate, i->owner,
                                           (uint64_t)i->with, attr->hi, attr->lo},
                        6);
        if (starts) {
            put_numbers(hash,
                        (const uint64_t[]){(uint64_t)i->collective, i->max, i->stages,
                                           i->stages ? (uint64_t)i->axis : 0, (uint64_t)i->with},
                        5);
            put_cut(hash, &i->group);
        }
        if (i->kind == INSTR_SEND || i->kind == INSTR_RECV)
            put_numbers(hash, (const uint64_t[]){(uint64_t)i->axis, (uint64_t)i->peer}, 2);
        put_views(hash, i->in, i->nin);
        put_views(hash, i->out, i->nout);
    }
    arena_clear(&scratch);
}
