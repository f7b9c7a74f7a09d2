// SPDX-License-Identifier: Apache-2.0
// How far a folder of tokens has come. See journal.h.
#include "common/data/prepare/journal.h"

#include <fcntl.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/base/json.h"

static const struct {
    const char *key, *word;
} facts[FACTS] = {
    [FACT_TOKENIZER] = {"tokenizer", "--tokenizer"},
    [FACT_END] = {"end", "--end"},
    [FACT_FIELD] = {"field", "--field"},
    [FACT_VAL_FRACTION] = {"val_fraction", "--val-fraction"},
    [FACT_SHARD_TOKENS] = {"shard_tokens", "--shard-tokens"},
    [FACT_INPUTS] = {"inputs", NULL},
};

int journal_write(const char *dir, const struct journal *j, struct err *e)
{
    struct buf text = {0};
    struct json_out w;
    json_out_init(&w, &text);
    json_object(&w, NULL);
    for (int f = 0; f < FACTS; f++)
        json_str(&w, facts[f].key, j->facts[f]);
    json_bool(&w, "complete", j->complete);
    json_int(&w, "source", j->at.source);
    json_uint(&w, "byte", j->at.byte);
    json_uint(&w, "lines", j->at.lines);
    json_uint(&w, "documents", j->at.documents);
    token_digest_print(&w, "stream", j->stream);
    token_digest_print(&w, "streams", j->at.streams);
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        json_array(&w, token_splits[split]);
        for (int i = 0; i < j->nshards[split]; i++) {
            const struct token_shard *s = &j->shards[split][i];
            json_object(&w, NULL);
            token_shard_print(s, &w);
            token_digest_print(&w, "digest", s->digest);
            json_end(&w);
        }
        json_end(&w);
    }
    json_end(&w);
    json_out_clear(&w);
    int rc = folder_write(dir, JOURNAL, buf_str(&text), FOLDER_DURABLE, e);
    buf_clear(&text);
    return rc;
}

static int read_count(const struct json *o, const char *key, uint64_t *out, struct err *e)
{
    int64_t n;
    int rc = json_get_int(o, key, &n, e);
    if (!rc && (n < 0 || n > INT64_MAX / 1024))
        rc = err_set(e, ERR_DATA, "'%s' is out of range", key);
    *out = rc ? 0 : (uint64_t)n;
    return rc;
}

static int read_shard(const struct json *v, struct token_shard *s, struct err *e)
{
    int rc = read_count(v, "tokens", &s->tokens, e);
    rc = rc ? rc : read_count(v, "documents", &s->documents, e);
    rc = rc ? rc : read_count(v, "bytes", &s->bytes, e);
    return rc ? rc : token_digest_read(v, "digest", &s->digest, e);
}

static int read_shards(struct arena *a, const struct json *root, int split, struct journal *j,
                       struct err *e)
{
    const struct json *list;
    int rc = json_get_array(root, token_splits[split], &list, e);
    if (rc)
        return rc;
    if (list->count > TOKEN_SHARDS_MOST)
        return err_set(e, ERR_LIMIT, "'%s' has %d shards, over %d", token_splits[split],
                       list->count, TOKEN_SHARDS_MOST);
    j->shards[split] = arena_array(a, struct token_shard, list->count + 1);
    for (const struct json *v = list->first; v && !rc; v = v->next)
        rc = read_shard(v, &j->shards[split][j->nshards[split]++], e);
    return rc;
}

static int read_place(const struct json *root, struct journal *j, struct err *e)
{
    uint64_t source = 0;
    int rc = read_count(root, "source", &source, e);
    rc = rc ? rc : read_count(root, "byte", &j->at.byte, e);
    rc = rc ? rc : read_count(root, "lines", &j->at.lines, e);
    rc = rc ? rc : read_count(root, "documents", &j->at.documents, e);
    rc = rc ? rc : token_digest_read(root, "stream", &j->stream, e);
    rc = rc ? rc : token_digest_read(root, "streams", &j->at.streams, e);
    if (!rc && source > INT32_MAX)
        rc = err_set(e, ERR_DATA, "'source' is out of range");
    j->at.source = rc ? 0 : (int)source;
    return rc;
}

int journal_parse(struct arena *a, const char *text, size_t len, struct journal *j, struct err *e)
{
    struct json *root;
    *j = (struct journal){0};
    int rc = json_parse(a, text, len, &root, e);
    for (int f = 0; f < FACTS && !rc; f++)
        rc = json_get_str(root, facts[f].key, &j->facts[f], e);
    if (!rc)
        rc = read_place(root, j, e);
    for (int split = 0; split < TOKEN_SPLITS && !rc; split++)
        rc = read_shards(a, root, split, j, e);
    if (rc)
        return rc;
    const struct json *complete = json_get(root, "complete");
    if (!complete || complete->type != JSON_BOOL)
        return err_set(e, ERR_DATA, "'complete' is neither true nor false");
    j->complete = complete->boolean;
    return 0;
}

int journal_read(const char *dir, struct arena *a, struct journal *j, struct err *e)
{
    const char *path = arena_printf(a, "%s/" JOURNAL, dir);
    struct buf text = {0};
    int rc = folder_read_whole(AT_FDCWD, path, true, JSON_MAX_BYTES, &text, e);
    if (!rc && (rc = journal_parse(a, buf_str(&text), text.len, j, e)))
        err_wrap(e, "%s: remove the folder and begin again", path);
    buf_clear(&text);
    return rc;
}

int journal_compare(const char *dir, const struct journal *was, const struct journal *now,
                    struct err *e)
{
    for (int f = 0; f < FACTS; f++) {
        if (strcmp(was->facts[f], now->facts[f]) == 0)
            continue;
        if (!facts[f].word)
            return err_set(e, ERR_INVALID,
                           "%s was prepared from other inputs, or they were changed since: name "
                           "another folder, or remove it",
                           dir);
        return err_set(e, ERR_INVALID,
                       "%s was prepared with %s %s, and now it is %s: repeat that command, name "
                       "another folder, or remove it",
                       dir, facts[f].word, was->facts[f], now->facts[f]);
    }
    return 0;
}
