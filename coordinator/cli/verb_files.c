// SPDX-License-Identifier: Apache-2.0
// weft ckpt: it looks at checkpoints without any daemon.
#include <string.h>

#include "common/base/plain.h"
#include "common/ckpt/diff.h"
#include "common/ckpt/ls.h"
#include "common/ckpt/source.h"
#include "coordinator/cli/bar.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/run_record.h"
#include "coordinator/cli/verbs.h"

// ---- ls, verify ----------------------------------------------------------------------------------

static int list_checkpoints(const struct args *a, bool deep)
{
    struct ls ls = {0};
    struct buf out = {0};
    struct err e = {0};
    if (ls_collect(&ls, a->pos[1], deep, &e)) {
        plain_error("weft ckpt: %s", e.text);
        ls_clear(&ls);
        return CLIENT_USAGE;
    }
    (a->json ? ls_print_json : ls_print_text)(&ls, &out);
    bool ok = ls_ok(&ls);
    put_out(&out);
    ls_clear(&ls);
    return ok ? CLIENT_OK : CLIENT_FAILED;
}

// ---- diff ----------------------------------------------------------------------------------------

static int compare_checkpoints(const struct args *a)
{
    struct load load[2] = {{.dirfd = -1}, {.dirfd = -1}};
    struct manifest_source pin;
    struct arena arena = {0};
    struct diff d = {0};
    struct bar bar;
    struct buf out = {0};
    struct err e = {0};
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        int64_t step;
        const char *path = record_find_checkpoint(a->pos[1 + i], &arena, &step);
        rc = source_open(&load[i], NULL, path, step, &arena, &pin, &e);
    }
    bool opened = !rc;
    bar_begin(&bar, "compare", a->json);
    if (opened)
        rc = diff_make(&d, &load[0], &load[1], bar_show_bytes, &bar, &e);
    bar_end(&bar);
    if (rc)
        plain_error("weft ckpt: %s", e.text);
    else
        (a->json ? diff_print_json : diff_print_text)(&d, &out);
    bool same = !rc && diff_same(&d);
    put_out(&out);
    diff_clear(&d);
    load_close(&load[0]);
    load_close(&load[1]);
    arena_clear(&arena);
    if (rc == ERR_ABORTED)
        return CLIENT_INTERRUPTED;
    return !opened ? CLIENT_USAGE : same ? CLIENT_OK : CLIENT_FAILED;
}

int verb_ckpt(const struct verb *v, const struct args *a)
{
    static const char *const acts[] = {"ls", "verify", "diff"};
    enum { LS, VERIFY, DIFF, ACTS };
    int act = LS;
    while (act < ACTS && strcmp(a->pos[0], acts[act]) != 0)
        act++;
    if (act == ACTS)
        return refuse_word(v, a->pos[0], acts, ACTS);
    if (a->npos != (act == DIFF ? 3 : 2))
        return usage(v, act == DIFF ? "diff takes two checkpoints" : "which folder?");
    return act == DIFF ? compare_checkpoints(a) : list_checkpoints(a, act == VERIFY);
}
