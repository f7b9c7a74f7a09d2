// SPDX-License-Identifier: Apache-2.0
// What a device of the emulated twin chooses for one product, and what it says of it.
#pragma once
#include <stdio.h>

#include "tests/cuda/products.h"
#include "tests/support/temp_folder.h"

static char folder[TEMP_FOLDER_MAX];

static inline int with_folder(void **state)
{
    (void)state;
    scene("");
    return temp_folder_make(folder, "choices");
}

static inline int without_folder(void **state)
{
    (void)state;
    scene("");
    return temp_folder_remove(folder);
}

struct choosing {
    const char *cache, *scene, *import;
    bool whatever, time; // whatever: not deterministic
    size_t scratch;
    int offset;
    enum dtype dtype;
};

// What a new device chooses for the product "ik,kj->ij"; its choices are in `text`.
static inline int choice(const struct choosing *h, struct buf *text)
{
    const int offset[OP_MAX_IN + OP_MAX_OUT] = {h->offset, h->offset, h->offset};
    enum dtype t = h->dtype ? h->dtype : DT_F32;
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    struct placed p;
    struct err e = {0};
    double *want[OP_MAX_OUT];
    scene(h->scene ? h->scene : "");
    device_open(&r, h->cache, !h->whatever);
    product_case(&c, &a, "ik,kj->ij", even, t, t);
    rig_reference(&c, &a, want);
    place_case(&r, &p, &c, offset, h->scratch);
    if (h->import && r.backend->choice->read(r.device, h->import, &e))
        fail_msg("%s", e.text);
    tune(&r, &p, h->time);
    run(&r, &p);
    rig_compare("tuned", result(&r, &p.call.out[0], &a), want[0], 16 * 24,
                t == DT_F32 ? 1e-6 : 0x1p-8, 1e-5);
    exported(&r, text);
    release(&r, &p);
    r.backend->device.close(r.device);
    arena_clear(&a);
    scene("");
    return chosen(buf_str(text), "16x24x32");
}

// What choice() says on standard error, for free().
static inline char *said_by(const struct choosing *how)
{
    struct buf text = {0};
    char *said = calloc(1, 1 << 16);
    FILE *to = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_true(said && to && kept >= 0 && dup2(fileno(to), STDERR_FILENO) >= 0);
    choice(how, &text);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(to);
    size_t n = fread(said, 1, (1 << 16) - 1, to);
    assert_true(n > 0);
    fclose(to);
    buf_clear(&text);
    return said;
}

struct told { // of a choice
    char place[16];
    int of, id, tile, stages, split, cluster, swizzle, option;
    double us, first; // first 0: the library named none
};

static inline struct told find_choice(const char *said)
{
    struct told t = {.first = 0};
    const char *at = strstr(said, ": chosen ");
    if (!at || sscanf(at,
                      ": chosen %15s of %d (id %d, tile %d, stages %d, split %d, cluster %d, "
                      "swizzle %d, option %d): %lf us, the library's first %lf us",
                      t.place, &t.of, &t.id, &t.tile, &t.stages, &t.split, &t.cluster, &t.swizzle,
                      &t.option, &t.us, &t.first) < 10)
        fail_msg("it said: %s", said);
    else
        assert_null(strstr(at + 1, ": chosen "));
    return t;
}
