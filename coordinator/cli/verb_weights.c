// SPDX-License-Identifier: Apache-2.0
// weft export and weft import: checkpoints as others have them, both ways.
#include <string.h>

#include "common/base/clock.h"
#include "common/base/plain.h"
#include "common/weights/foreign.h"
#include "coordinator/cli/bar.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/run_record.h"
#include "coordinator/cli/verbs.h"

// ---- while it works ------------------------------------------------------------------------------

static int end_act(const struct verb *v, struct bar *b, int rc, const struct err *e)
{
    bar_end(b);
    if (!rc)
        return CLIENT_OK;
    plain_error("weft %s: %s", v->name, e->text);
    if (rc == ERR_ABORTED)
        return CLIENT_INTERRUPTED;
    return rc == ERR_EXISTS || rc == ERR_NOTFOUND ? CLIENT_USAGE : CLIENT_FAILED;
}

static void print_speed(const struct bar *b, uint64_t bytes, struct buf *out)
{
    char size[WORD_MAX];
    double seconds = (double)(clock_mono_ns() - b->began_ns) / 1e9;
    buf_printf(out, "%s in %.1f s, %.2f GB/s", word_bytes((int64_t)bytes, size), seconds,
               seconds > 0 ? (double)bytes / 1e9 / seconds : 0.0);
}

// ---- export --------------------------------------------------------------------------------------

// -s eos_token_id=2: members of config.json. -1: another word, or no number.
static int list_members(const struct args *a, struct config_member *out, struct arena *arena)
{
    static const char *const known[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    for (int i = 0; i < a->nset; i++) {
        size_t n = strcspn(a->set[i], "=");
        const char *value = a->set[i][n] ? a->set[i] + n + 1 : "";
        bool found = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            found |= strlen(known[k]) == n && strncmp(known[k], a->set[i], n) == 0;
        size_t digits = strspn(value, "0123456789");
        if (!found || !digits || digits > 9 || value[digits] || (digits > 1 && *value == '0'))
            return -1;
        out[i] = (struct config_member){arena_printf(arena, "%.*s", (int)n, a->set[i]), value};
    }
    return a->nset;
}

int verb_export(const struct verb *v, const struct args *a)
{
    static const uint64_t shard_bytes = 5000000000;
    struct arena arena = {0};
    struct bar bar;
    struct config_member *members = arena_array(&arena, struct config_member, a->nset + 1);
    int64_t step;
    const char *checkpoint = record_find_checkpoint(a->pos[0], &arena, &step);
    struct export_options o = {.checkpoint = checkpoint,
                               .step = step,
                               .dir = a->pos[1],
                               .program = a->program,
                               .npz = a->to && strcmp(a->to, "npz") == 0,
                               .bf16 = a->dtype && strcmp(a->dtype, "bf16") == 0,
                               .shard_bytes = a->shard_size ? a->shard_size : shard_bytes,
                               .nmembers = list_members(a, members, &arena),
                               .members = members,
                               .watch = {bar_show_bytes, &bar}};
    struct export_result r = {0};
    struct err e = {0};
    struct buf out = {0};
    const char *wrong = NULL;
    if (a->to && !o.npz && strcmp(a->to, "hf") != 0)
        wrong = "--to is hf or npz";
    else if (a->dtype && !o.bf16 && strcmp(a->dtype, "f32") != 0)
        wrong = "--dtype is f32 or bf16";
    else if (o.npz && (o.bf16 || a->shard_size || a->program || a->nset))
        wrong = "--to npz writes f32 in one file, under weft's own names";
    else if (o.nmembers < 0)
        wrong = "-s takes bos_token_id=N, eos_token_id=N and pad_token_id=N";
    if (wrong) {
        arena_clear(&arena);
        return usage(v, wrong);
    }
    bar_begin(&bar, "export", a->json);
    int rc = end_act(v, &bar, weights_export(&o, &r, &e), &e);
    if (!rc && a->json) {
        struct json_out w;
        json_print_start(&w, &out, true);
        json_str(&w, "dir", o.dir);
        json_int(&w, "step", r.step);
        json_int(&w, "tensors", r.tensors);
        json_int(&w, "files", r.files);
        json_uint(&w, "bytes", r.bytes);
        json_print_end(&w);
    } else if (!rc) {
        buf_printf(&out, "%s: step %lld, %d tensors in %d file%s, ", o.dir, (long long)r.step,
                   r.tensors, r.files, r.files == 1 ? "" : "s");
        print_speed(&bar, r.bytes, &out);
        buf_putc(&out, '\n');
    }
    put_out(&out);
    arena_clear(&arena);
    return rc;
}

// ---- import --------------------------------------------------------------------------------------

int verb_import(const struct verb *v, const struct args *a)
{
    struct arena arena = {0};
    struct bar bar;
    struct import_options o = {
        .dir = a->pos[0], .out = a->out, .program = a->program, .watch = {bar_show_bytes, &bar}};
    struct import_result r = {0};
    struct err e = {0};
    struct buf out = {0};
    if (!a->out)
        return usage(v, "--out DIR: where?");
    bar_begin(&bar, "import", a->json);
    int rc = end_act(v, &bar, weights_import(&o, &arena, &r, &e), &e);
    if (!rc && a->json) {
        struct json_out w;
        json_print_start(&w, &out, true);
        json_str(&w, "dir", o.out);
        json_str(&w, "program", r.program);
        json_str(&w, "job", r.job);
        json_int(&w, "tensors", r.tensors);
        json_int(&w, "params", r.params);
        json_uint(&w, "bytes", r.bytes);
        json_print_end(&w);
    } else if (!rc) {
        buf_printf(&out, "%s: %s, %d tensors as %d parameters, ", o.out, r.program, r.tensors,
                   r.params);
        print_speed(&bar, r.bytes, &out);
        buf_printf(&out, "\n%s is a job to start from\n", r.job);
    }
    put_out(&out);
    arena_clear(&arena);
    return rc;
}
