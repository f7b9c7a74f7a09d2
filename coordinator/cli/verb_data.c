// SPDX-License-Identifier: Apache-2.0
// weft data: it looks at data files without any daemon, and makes tokens of text.
#include <stdlib.h>
#include <string.h>

#include "common/base/cores.h"
#include "common/base/plain.h"
#include "common/data/inspect.h"
#include "common/data/pattern.h"
#include "common/data/prepare/prepare.h"
#include "common/data/prepare/train_tokenizer.h"
#include "coordinator/cli/bar.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/verbs.h"

// ---- inspect -----------------------------------------------------------------------------------
static bool parse_ids(const char *name, enum array_type *ids)
{
    *ids = !name ? ARRAY_TYPE_COUNT : strcmp(name, "u32") == 0 ? ARRAY_U32 : ARRAY_U16;
    return !name || strcmp(name, array_type_name(*ids)) == 0;
}

static int inspect_one(const char *file, enum array_type ids, struct json_out *json,
                       struct buf *out)
{
    struct inspect in;
    struct err e = {0};
    if (inspect_open(&in, file, ids, &e)) {
        plain_error("weft data: %s", e.text);
        return CLIENT_FAILED;
    }
    if (json)
        inspect_json(&in, NULL, json);
    else
        inspect_text(&in, out);
    inspect_close(&in);
    return CLIENT_OK;
}

static int inspect_all(int n, const char *const *paths, enum array_type ids, struct json_out *json,
                       struct buf *out)
{
    struct arena names = {0};
    int rc = CLIENT_OK;
    for (int i = 0; i < n; i++) {
        const char **files;
        struct err e = {0};
        int found = 0;
        if (pattern_files(NULL, paths[i], &names, &files, &found, &e)) {
            plain_error("weft data: %s", e.text);
            rc = CLIENT_FAILED;
        }
        for (int k = 0; k < found; k++)
            rc = inspect_one(files[k], ids, json, out) ? CLIENT_FAILED : rc;
    }
    arena_clear(&names);
    return rc;
}

static int inspect_data(const struct verb *v, const struct args *a)
{
    struct buf out = {0};
    struct json_out w;
    enum array_type ids;
    if (a->npos < 2 || a->out || a->tokenizer || a->end || a->format || a->field ||
        a->val_fraction || a->shard_tokens || a->threads)
        return usage(
            v, "inspect takes files or folders, at least one, and no flags but --ids, --json");
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

// ---- prepare -----------------------------------------------------------------------------------
static bool show_prepared(void *context, const struct prepare_report *r)
{
    char tokens[WORD_MAX], taken[WORD_MAX];
    bar_show(context, r->taken, r->total, "%s read  %s tokens  %llu documents",
             word_bytes((int64_t)r->taken, taken), word_rate((double)r->tokens, tokens),
             (unsigned long long)r->documents);
    return bar_interrupted();
}

static void print_result_json(const struct prepare *p, const struct prepare_result *r)
{
    struct buf out = {0};
    struct json_out w;
    json_print_start(&w, &out, true);
    json_str(&w, "out", p->out);
    json_str(&w, "tokenizer", tokenizer_identity(p->t));
    json_int(&w, "vocab", tokenizer_vocab(p->t));
    json_int(&w, "end", p->end);
    json_str(&w, "dtype", array_type_name(r->type));
    json_bool(&w, "found_done", r->found_done);
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        json_object(&w, token_splits[split]);
        json_int(&w, "shards", r->shards[split]);
        json_uint(&w, "tokens", r->sum[split].tokens);
        json_uint(&w, "documents", r->sum[split].documents);
        json_uint(&w, "bytes", r->sum[split].bytes);
        json_end(&w);
    }
    json_print_end(&w);
    put_out(&out);
}

static void print_result(const struct prepare *p, const struct prepare_result *r)
{
    struct buf out = {0};
    if (r->found_done)
        plain_line(&out, "%s was prepared already from these inputs; nothing was done", p->out);
    for (int split = 0; split < TOKEN_SPLITS; split++)
        if (r->shards[split])
            plain_line(&out, "%s/%s-*.bin: %llu tokens of %s, %llu documents, in %d file%s", p->out,
                       token_splits[split], (unsigned long long)r->sum[split].tokens,
                       array_type_name(r->type), (unsigned long long)r->sum[split].documents,
                       r->shards[split], r->shards[split] == 1 ? "" : "s");
    bool bytes = strcmp(tokenizer_identity(p->t), "bytes") == 0;
    plain_line(&out,
               "in the job file: model.vocab: %lld, data: {format: tokens, %s%s%strain: {tokens: "
               "'%s/train-*.bin'}%s%s%s}",
               (long long)tokenizer_vocab(p->t), bytes ? "" : "tokenizer: '", bytes ? "" : p->out,
               bytes ? "" : "', ", p->out, r->shards[1] ? ", eval: {tokens: '" : "",
               r->shards[1] ? p->out : "", r->shards[1] ? "/val-*.bin'}" : "");
    put_out(&out);
    if (p->val_fraction > 0 && !r->shards[1])
        plain_error("weft data: the documents are too few for --val-fraction: all of them train");
}

static bool parse_fraction(const char *text, double *out)
{
    char *end = NULL;
    *out = text ? strtod(text, &end) : 0;
    return !text ||
           (end != text && !*end && (*out == 0 || (*out >= PREPARE_VAL_LEAST && *out < 1)));
}

// The id behind each document: --end, the tokenizer's own, or of bytes the one that no text has.
static int find_end(const struct tokenizer *t, const struct args *a, int32_t *end, struct err *e)
{
    int rc = tokenizer_find_end(t, a->end, end, e);
    if (rc || *end >= 0)
        return rc;
    if (strcmp(tokenizer_identity(t), "bytes") != 0)
        return err_set(e, ERR_INVALID,
                       "the tokenizer has no token that is known to end a document");
    *end = PREPARE_END_BYTES;
    return 0;
}

static int say_failure(int rc, const struct err *e)
{
    struct buf out = {0};
    print_lines(&out, "weft data: ", e->text); // a command to copy has a line of its own
    plain_put(stderr, buf_str(&out), out.len);
    buf_clear(&out);
    return rc == ERR_INVALID ? CLIENT_USAGE : CLIENT_FAILED;
}

static int run_prepare(const struct verb *v, const struct args *a, struct prepare *p)
{
    struct prepare_result r;
    struct err e = {0};
    struct bar bar;
    if (find_end(p->t, a, &p->end, &e)) {
        complain(v, e.text, p->tokenizer, "--end TOKEN names the token that ends a document");
        return CLIENT_USAGE;
    }
    bar_begin(&bar, "prepare", a->json);
    p->report = show_prepared;
    p->context = &bar;
    int rc = prepare_run(p, &r, &e);
    bar_end(&bar);
    if (rc == ERR_ABORTED) {
        plain_error(r.kept
                        ? "weft data: interrupted; the same command continues it"
                        : "weft data: interrupted before anything was kept: nothing was written");
        return CLIENT_INTERRUPTED;
    }
    if (rc) {
        int code = say_failure(rc, &e);
        if (rc == ERR_IO && r.kept) // a full disk, mostly
            plain_error("weft data: what was done before is kept; the same command continues it");
        return code;
    }
    (a->json ? print_result_json : print_result)(p, &r);
    if (r.damaged)
        plain_error(
            "weft data: %llu parts of the texts are no UTF-8 (the first of %s), and became "
            "U+FFFD: text in another encoding is made UTF-8 by iconv, as iconv -f latin1 -t "
            "utf-8",
            (unsigned long long)r.damaged, r.damaged_in);
    return CLIENT_OK;
}

static int prepare_data(const struct verb *v, const struct args *a)
{
    struct tokenizer *t;
    struct err e = {0};
    struct prepare p = {.inputs = a->pos + 1,
                        .ninputs = a->npos - 1,
                        .format = a->format,
                        .field = a->field ? a->field : "text",
                        .out = a->out,
                        .tokenizer = a->tokenizer ? a->tokenizer : "bytes",
                        .shard_tokens = a->shard_tokens ? a->shard_tokens : PREPARE_SHARD_TOKENS,
                        .threads = a->threads ? a->threads : cores_usable()};
    if (a->ids)
        return usage(v, "prepare takes no --ids: what the tokenizer has decides");
    if (a->npos < 2 || !a->out)
        return usage(
            v, "prepare takes texts (files, patterns, or - for standard input) and --out DIR");
    if (!parse_fraction(a->val_fraction, &p.val_fraction))
        return usage(v, "--val-fraction is 0, or a number from 1e-9 to less than 1");
    if (p.shard_tokens > INT32_MAX)
        return usage(v, "--shard-tokens is at most 2147483647");
    if (p.threads > PREPARE_THREADS)
        p.threads = PREPARE_THREADS;
    if (tokenizer_open(&t, p.tokenizer, &e)) {
        complain(v, e.text, NULL,
                 "--tokenizer is bytes, a tokenizer.json, or a folder that has one");
        return CLIENT_USAGE;
    }
    p.t = t;
    int rc = tokenizer_vocab(t) ? run_prepare(v, a, &p)
                                : usage(v, "prepare makes tokens with bytes or a tokenizer's file");
    tokenizer_close(t);
    return rc;
}

// ---- train-tokenizer ---------------------------------------------------------------------------
static bool show_trained(void *context, const struct train_report *r)
{
    char taken[WORD_MAX];
    if (r->tokens)
        bar_show(context, 0, 0, "%u tokens of %llu different pieces", r->tokens,
                 (unsigned long long)r->pieces);
    else
        bar_show(context, r->taken, r->total, "%s read  %llu documents",
                 word_bytes((int64_t)r->taken, taken), (unsigned long long)r->documents);
    return bar_interrupted();
}

static void print_trained(const struct train_tokenizer *t, const struct train_report *r, bool json)
{
    struct buf out = {0};
    struct json_out w;
    if (!json) {
        plain_line(&out, "%s: %u tokens, learned from %llu documents with %llu different pieces%s",
                   t->out, r->tokens, (unsigned long long)r->documents,
                   (unsigned long long)r->pieces,
                   r->tokens < t->vocab ? "; more cannot be learned of them" : "");
        put_out(&out);
        return;
    }
    json_print_start(&w, &out, true);
    json_str(&w, "file", t->out);
    json_int(&w, "vocab", r->tokens);
    json_uint(&w, "documents", r->documents);
    json_uint(&w, "pieces", r->pieces);
    json_print_end(&w);
    put_out(&out);
}

static int train_data(const struct verb *v, const struct args *a)
{
    struct err e = {0};
    struct bar bar;
    struct train_report r;
    struct train_tokenizer t = {.inputs = a->pos + 1,
                                .ninputs = a->npos - 1,
                                .format = a->format,
                                .field = a->field ? a->field : "text",
                                .out = a->out,
                                .vocab = (uint32_t)a->vocab,
                                .threads = a->threads ? a->threads : cores_usable(),
                                .report = show_trained,
                                .context = &bar};
    if (a->ids || a->tokenizer || a->end || a->val_fraction || a->shard_tokens)
        return usage(
            v,
            "train-tokenizer takes only --vocab, --out, --format, --field, --threads and --json");
    if (a->npos < 2 || !a->out || !a->vocab)
        return usage(
            v,
            "train-tokenizer takes texts (files, patterns, or - for standard input), --vocab N and "
            "--out FILE");
    if (a->vocab < TRAIN_VOCAB_LEAST || a->vocab > TOKENIZER_MAX_VOCAB)
        return usage(v, "--vocab is from 257 (the bytes and <|endoftext|>) to 4194304");
    if (t.threads > PREPARE_THREADS)
        t.threads = PREPARE_THREADS;
    bar_begin(&bar, "train-tokenizer", a->json);
    int rc = train_tokenizer(&t, &r, &e);
    bar_end(&bar);
    if (rc == ERR_ABORTED) {
        plain_error("weft data: interrupted; nothing was written");
        return CLIENT_INTERRUPTED;
    }
    if (rc)
        return say_failure(rc, &e);
    print_trained(&t, &r, a->json);
    return CLIENT_OK;
}

int verb_data(const struct verb *v, const struct args *a)
{
    static const struct {
        const char *word;
        int (*run)(const struct verb *v, const struct args *a);
    } words[] = {
        {"inspect", inspect_data},
        {"prepare", prepare_data},
        {"train-tokenizer", train_data},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(a->pos[0], words[i].word) == 0)
            return words[i].run(v, a);
    return refuse_word(v, a->pos[0], (const char *const[]){"inspect", "prepare", "train-tokenizer"},
                       3);
}
