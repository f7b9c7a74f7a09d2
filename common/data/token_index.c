// SPDX-License-Identifier: Apache-2.0
// The index of token shards. See token_index.h.
#include "common/data/token_index.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/base/json.h"
#include "common/base/path.h"

const char *const token_splits[TOKEN_SPLITS] = {"train", "val"};

// ---- writing -----------------------------------------------------------------------------------
void token_shard_print(const struct token_shard *s, struct json_out *w)
{
    json_uint(w, "tokens", s->tokens);
    json_uint(w, "documents", s->documents);
    json_uint(w, "bytes", s->bytes);
}

void token_digest_print(struct json_out *w, const char *key, struct hash128 digest)
{
    char hex[33];
    hash128_hex(digest, hex);
    json_str(w, key, hex);
}

void token_index_print(const struct token_index *index, struct buf *out)
{
    struct json_out w;
    json_out_init(&w, out);
    w.pretty = true;
    json_object(&w, NULL);
    json_str(&w, "kind", TOKEN_INDEX_KIND);
    json_int(&w, "format", TOKEN_INDEX_FORMAT);
    json_object(&w, "tokenizer");
    json_str(&w, "name", index->tokenizer);
    json_str(&w, "digest", index->digest);
    json_int(&w, "vocab", index->vocab);
    json_int(&w, "end", index->end);
    json_end(&w);
    json_str(&w, "dtype", array_type_name(index->type));
    json_double(&w, "val_fraction", index->val_fraction);
    json_array(&w, "shards");
    for (int i = 0; i < index->nshards; i++) {
        const struct token_shard *s = &index->shards[i];
        json_object(&w, NULL);
        json_str(&w, "file", s->file);
        json_str(&w, "split", token_splits[s->split]);
        token_shard_print(s, &w);
        token_digest_print(&w, "digest", s->digest);
        json_end(&w);
    }
    json_end(&w);
    json_array(&w, "sources");
    for (int i = 0; i < index->nsources; i++) {
        json_object(&w, NULL);
        json_str(&w, "path", index->sources[i].path);
        json_uint(&w, "bytes", index->sources[i].bytes);
        json_end(&w);
    }
    json_end(&w);
    json_end(&w);
    buf_putc(out, '\n');
    json_out_clear(&w);
}

// ---- reading -----------------------------------------------------------------------------------
static int read_count(const struct json *o, const char *key, uint64_t *out, struct err *e)
{
    int64_t n;
    int rc = json_get_int(o, key, &n, e);
    if (!rc && n < 0)
        rc = err_set(e, ERR_DATA, "'%s' is negative", key);
    *out = rc ? 0 : (uint64_t)n;
    return rc;
}

int token_digest_read(const struct json *o, const char *key, struct hash128 *out, struct err *e)
{
    const char *hex;
    int rc = json_get_str(o, key, &hex, e);
    if (!rc && hash128_parse(hex, out))
        rc = err_set(e, ERR_DATA, "'%s' is no 32 hexadecimal digits", key);
    return rc;
}

static int read_shard(const struct json *v, struct token_shard *s, struct err *e)
{
    const char *split;
    int rc = json_get_str(v, "file", &s->file, e);
    rc = rc ? rc : json_get_str(v, "split", &split, e);
    rc = rc ? rc : read_count(v, "tokens", &s->tokens, e);
    rc = rc ? rc : read_count(v, "documents", &s->documents, e);
    rc = rc ? rc : read_count(v, "bytes", &s->bytes, e);
    rc = rc ? rc : token_digest_read(v, "digest", &s->digest, e);
    if (rc)
        return rc;
    if (!folder_name_ok(s->file))
        return err_set(e, ERR_DATA, "'file' is no name of a shard");
    while (s->split < TOKEN_SPLITS && strcmp(split, token_splits[s->split]) != 0)
        s->split++;
    if (s->split == TOKEN_SPLITS)
        return err_set(e, ERR_DATA, "'split' is neither train nor val");
    return 0;
}

static int compare_shards(const void *a, const void *b)
{
    const struct token_shard *const *x = a, *const *y = b;
    return strcmp((*x)->file, (*y)->file);
}

static int sort_shards(struct arena *a, struct token_index *index, struct err *e)
{
    index->by_name = arena_array(a, const struct token_shard *, index->nshards + 1);
    for (int i = 0; i < index->nshards; i++)
        index->by_name[i] = &index->shards[i];
    qsort(index->by_name, (size_t)index->nshards, sizeof *index->by_name, compare_shards);
    for (int i = 1; i < index->nshards; i++)
        if (!compare_shards(&index->by_name[i - 1], &index->by_name[i]))
            return err_set(e, ERR_DATA, "shard '%s' is there twice", index->by_name[i]->file);
    return 0;
}

static int read_shards(struct arena *a, const struct json *list, struct token_index *index,
                       struct err *e)
{
    enum { MOST = TOKEN_SPLITS * TOKEN_SHARDS_MOST };
    uint64_t sum[3] = {0};
    if (list->count > MOST)
        return err_set(e, ERR_LIMIT, "%d shards: an index has at most %d", list->count, MOST);
    index->shards = arena_array(a, struct token_shard, list->count + 1);
    for (const struct json *v = list->first; v; v = v->next) {
        struct token_shard *s = &index->shards[index->nshards];
        if (read_shard(v, s, e))
            return err_wrap(e, "shard %d", index->nshards);
        if (__builtin_add_overflow(sum[0], s->tokens, &sum[0]) ||
            __builtin_add_overflow(sum[1], s->documents, &sum[1]) ||
            __builtin_add_overflow(sum[2], s->bytes, &sum[2]))
            return err_set(e, ERR_DATA, "the shards' sizes come to more than 2^64");
        index->nshards++;
    }
    return sort_shards(a, index, e);
}

static int read_sources(struct arena *a, const struct json *list, struct token_index *index,
                        struct err *e)
{
    index->sources = arena_array(a, struct token_source, list->count + 1);
    for (const struct json *v = list->first; v; v = v->next) {
        struct token_source *s = &index->sources[index->nsources];
        if (json_get_str(v, "path", &s->path, e) || read_count(v, "bytes", &s->bytes, e))
            return err_wrap(e, "source %d", index->nsources);
        index->nsources++;
    }
    return 0;
}

static int read_tokenizer(const struct json *o, struct token_index *index, struct err *e)
{
    int rc = json_get_str(o, "name", &index->tokenizer, e);
    rc = rc ? rc : json_get_str(o, "digest", &index->digest, e);
    rc = rc ? rc : json_get_int(o, "vocab", &index->vocab, e);
    rc = rc ? rc : json_get_int(o, "end", &index->end, e);
    if (!rc && (index->vocab < 1 || index->vocab > INT32_MAX))
        rc = err_set(e, ERR_DATA, "'vocab' is not in 1 … 2^31 - 1");
    if (!rc && (index->end < 0 || index->end >= index->vocab))
        rc = err_set(e, ERR_DATA, "'end' is no id of the vocabulary");
    return rc ? err_wrap(e, "tokenizer") : 0;
}

int token_index_parse(struct arena *a, const char *text, size_t len, struct token_index *index,
                      bool *foreign, struct err *e)
{
    struct json *root;
    const struct json *tokenizer, *shards, *sources, *fraction;
    const char *type;
    int64_t format;
    *index = (struct token_index){0};
    *foreign = false;
    int rc = json_parse(a, text, len, &root, e);
    if (rc)
        return rc;
    const struct json *kind = json_get(root, "kind");
    *foreign = !kind || kind->type != JSON_STRING || strcmp(kind->string, TOKEN_INDEX_KIND) != 0;
    if (*foreign)
        return err_set(e, ERR_DATA, "'kind' is not \"" TOKEN_INDEX_KIND "\": it is another's file");
    rc = json_get_int(root, "format", &format, e);
    if (!rc && format != TOKEN_INDEX_FORMAT)
        rc = err_set(e, ERR_UNSUPPORTED, "format %lld, and this weft reads %d", (long long)format,
                     TOKEN_INDEX_FORMAT);
    if (rc)
        return rc;
    rc = json_get_object(root, "tokenizer", &tokenizer, e);
    rc = rc ? rc : read_tokenizer(tokenizer, index, e);
    rc = rc ? rc : json_get_str(root, "dtype", &type, e);
    if (rc)
        return rc;
    index->type = strcmp(type, "u16") == 0 ? ARRAY_U16 : ARRAY_U32;
    if (strcmp(type, array_type_name(index->type)) != 0)
        return err_set(e, ERR_DATA, "'dtype' is neither u16 nor u32");
    fraction = json_get(root, "val_fraction");
    if (!fraction || fraction->type != JSON_NUMBER)
        return err_set(e, ERR_DATA, "'val_fraction' is no number");
    index->val_fraction = fraction->number;
    rc = json_get_array(root, "shards", &shards, e);
    rc = rc ? rc : read_shards(a, shards, index, e);
    rc = rc ? rc : json_get_array(root, "sources", &sources, e);
    return rc ? rc : read_sources(a, sources, index, e);
}

static int read_file(const char *root, const char *path, struct buf *out, struct err *e)
{
    struct array file = {0}; // recognised as no array: only its bytes are wanted
    int rc = array_map(&file, root, path, e);
    if (!rc && file.file_len > (size_t)JSON_MAX_BYTES)
        rc = err_set(e, ERR_LIMIT, "%s: %zu bytes: an index has at most %d", path, file.file_len,
                     JSON_MAX_BYTES);
    if (!rc)
        buf_append(out, file.file, file.file_len);
    array_close(&file);
    return rc;
}

int token_index_read(struct arena *a, const char *root, const char *folder,
                     struct token_index *index, struct err *e)
{
    const char *path = arena_printf(a, "%s" TOKEN_INDEX, folder);
    struct buf text = {0};
    bool foreign;
    int rc = read_file(root, path, &text, e);
    if (!rc && (rc = token_index_parse(a, buf_str(&text), text.len, index, &foreign, e))) {
        err_wrap(e, "%s", path);
        rc = foreign ? ERR_NOTFOUND : rc;
    }
    buf_clear(&text);
    return rc;
}

const struct token_shard *token_index_find(const struct token_index *index, const char *file)
{
    const struct token_shard wanted = {.file = file}, *key = &wanted;
    const struct token_shard *const *found =
        index->nshards ? bsearch(&key, index->by_name, (size_t)index->nshards,
                                 sizeof *index->by_name, compare_shards)
                       : NULL;
    return found ? *found : NULL;
}

int token_index_check(const struct token_index *index, const struct array *shard, struct err *e)
{
    const struct token_shard *s = token_index_find(index, path_name(shard->path));
    if (!s || (s->tokens == shard->count && index->type == shard->type))
        return 0;
    return err_set(e, ERR_DATA,
                   "%s: it holds %llu tokens of %s, and " TOKEN_INDEX
                   " beside it says %llu of %s: prepare again, or take the file that belongs there",
                   shard->path, (unsigned long long)shard->count, array_type_name(shard->type),
                   (unsigned long long)s->tokens, array_type_name(index->type));
}

struct token_shard token_index_sum(const struct token_index *index, int split)
{
    struct token_shard sum = {.split = split};
    for (int i = 0; i < index->nshards; i++)
        if (index->shards[i].split == split) {
            sum.tokens += index->shards[i].tokens;
            sum.documents += index->shards[i].documents;
            sum.bytes += index->shards[i].bytes;
        }
    return sum;
}
