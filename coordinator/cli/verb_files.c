// SPDX-License-Identifier: Apache-2.0
// weft ckpt and weft data: they look at checkpoints and data files without any daemon, and make
// tokens of text.
#include <stdio.h>
#include <string.h>

#include "common/base/plain.h"
#include "common/ckpt/ls.h"
#include "common/data/inspect.h"
#include "common/data/prepare.h"
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

static bool parse_ids(const char *name, enum array_type *ids)
{
    *ids = !name ? ARRAY_TYPE_COUNT : strcmp(name, "u32") == 0 ? ARRAY_U32 : ARRAY_U16;
    return !name || strcmp(name, array_type_name(*ids)) == 0;
}

static int inspect_all(int n, const char *const *files, enum array_type ids, struct json_out *json,
                       struct buf *out)
{
    int rc = CLIENT_OK;
    for (int i = 0; i < n; i++) {
        struct inspect in;
        struct err e = {0};
        if (inspect_open(&in, files[i], ids, &e)) {
            plain_error("weft data: %s", e.text);
            rc = CLIENT_FAILED;
            continue;
        }
        if (json)
            inspect_json(&in, NULL, json);
        else
            inspect_text(&in, out);
        inspect_close(&in);
    }
    return rc;
}

static void print_prepared(const char *file, unsigned long long tokens)
{
    struct buf out = {0};
    struct json_out w;
    json_print_start(&w, &out, true);
    json_str(&w, "file", file);
    json_uint(&w, "tokens", tokens);
    json_str(&w, "dtype", array_type_name(ARRAY_U16));
    json_print_end(&w);
    put_out(&out);
}

static int prepare_tokens(const struct verb *v, const struct args *a)
{
    unsigned long long tokens;
    struct err e = {0};
    if (a->npos != 3)
        return usage(v, "prepare takes two files: the text, and the one that its tokens make");
    if (a->ids)
        return usage(v, "prepare takes no --ids: it writes u16");
    if (!a->tokenizer || strcmp(a->tokenizer, "bytes") != 0)
        return usage(v, "prepare needs --tokenizer bytes: it knows no other");
    if (prepare_bytes(a->pos[1], a->pos[2], &tokens, &e)) {
        plain_error("weft data: %s", e.text);
        return CLIENT_FAILED;
    }
    if (a->json)
        print_prepared(a->pos[2], tokens);
    else
        plain_printf(stdout, "%s: %llu tokens of u16; data.format: tokens, model.vocab: 256\n",
                     a->pos[2], tokens);
    return CLIENT_OK;
}

int verb_data(const struct verb *v, const struct args *a)
{
    struct buf out = {0};
    struct json_out w;
    enum array_type ids;
    if (strcmp(a->pos[0], "prepare") == 0)
        return prepare_tokens(v, a);
    if (strcmp(a->pos[0], "inspect") != 0)
        return refuse_word(v, a->pos[0], (const char *const[]){"inspect", "prepare"}, 2);
    if (a->npos < 2 || a->tokenizer)
        return usage(v, "inspect takes files, at least one, and no --tokenizer");
    if (!parse_ids(a->ids, &ids))
        return usage(v, "--ids is u16 or u32");
    json_out_init(&w, &out);
    w.pretty = true;
    if (a->json) {
        json_object(&w, NULL);
        json_array(&w, "files");
    }
    int rc = inspect_all(a->npos - 1, a->pos + 1, ids, a->json ? &w : NULL, &out);
    if (a->json) {
        json_end(&w);
        json_end(&w);
        buf_putc(&out, '\n');
    }
    json_out_clear(&w);
    put_out(&out);
    return rc;
}
