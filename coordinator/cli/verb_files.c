// SPDX-License-Identifier: Apache-2.0
// weft ckpt: it looks at checkpoints without any daemon.
#include <string.h>

#include "common/base/plain.h"
#include "common/ckpt/ls.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/verbs.h"

int verb_ckpt(const struct verb *v, const struct args *a)
{
    struct ls ls = {0};
    struct buf out = {0};
    struct err e = {0};
    bool deep = strcmp(a->pos[0], "verify") == 0;
    if (!deep && strcmp(a->pos[0], "ls") != 0)
        return refuse_word(v, a->pos[0], (const char *const[]){"ls", "verify"}, 2);
    if (a->npos < 2)
        return usage(v, "which folder?");
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
