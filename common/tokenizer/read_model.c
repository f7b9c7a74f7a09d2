// SPDX-License-Identifier: Apache-2.0
// Vocabularies, merges and added tokens. See read_model.h.
#include "common/tokenizer/read_model.h"

#include <stdlib.h>

#include "common/base/heap.h"
#include "common/tokenizer/tokenizer.h"

// ---- typed access ------------------------------------------------------------------------------
int read_no_other_keys(const struct json *o, const char *also, const char *const *keys,
                       struct err *e)
{
    for (const struct json *m = o->first; m; m = m->next) {
        const char *const *k = keys;
        while (*k && strcmp(*k, m->key) != 0)
            k++;
        if (!*k && (!also || strcmp(m->key, also) != 0))
            return err_set(e, ERR_UNSUPPORTED, "key '%.100s' is not known", m->key);
    }
    return 0;
}

int read_bool(const struct json *o, const char *key, bool *out, struct err *e)
{
    const struct json *v = json_get(o, key);
    if (!v || v->type != JSON_BOOL)
        return err_set(e, ERR_DATA, v ? "'%s' is not true or false" : "'%s' is missing", key);
    *out = v->boolean;
    return 0;
}

int read_bool_or(const struct json *o, const char *key, bool absent, bool *out, struct err *e)
{
    *out = absent;
    return json_get(o, key) ? read_bool(o, key, out, e) : 0;
}

// ---- the vocabulary ----------------------------------------------------------------------------
static int measure(const struct json *vocab, size_t *ids, size_t *bytes, struct err *e)
{
    *ids = *bytes = 0;
    for (const struct json *v = vocab->first; v; v = v->next) {
        if (v->type != JSON_NUMBER || !v->is_int || v->integer < 0)
            return err_set(e, ERR_DATA, "vocab: '%.100s' has no id", v->key);
        if (v->integer >= TOKENIZER_MAX_VOCAB)
            return err_set(e, ERR_LIMIT, "vocab: '%.100s' has id %lld, and ids end at %d", v->key,
                           (long long)v->integer, TOKENIZER_MAX_VOCAB - 1);
        *ids = (size_t)v->integer >= *ids ? (size_t)v->integer + 1 : *ids;
        *bytes += strlen(v->key);
    }
    return *ids ? 0 : err_set(e, ERR_DATA, "vocab: holds no token");
}

static int put_vocabulary(struct pipeline *p, const struct json *vocab, size_t merges,
                          struct err *e)
{
    size_t ids, bytes;
    if (merges > TOKENIZER_MAX_MERGES)
        return err_set(e, ERR_LIMIT, "merges: %zu of them, and %d are read", merges,
                       TOKENIZER_MAX_MERGES);
    int rc = measure(vocab, &ids, &bytes, e);
    if (rc)
        return rc;
    char *to = arena_alloc(&p->arena, bytes + 1);
    vocabulary_init(&p->bpe.vocabulary, (size_t)vocab->count, ids, merges);
    p->ntokens = (size_t)vocab->count;
    p->nids = ids;
    for (const struct json *v = vocab->first; v; v = v->next) {
        size_t n = strlen(v->key);
        memcpy(to, v->key, n);
        if (!vocabulary_put(&p->bpe.vocabulary, (int32_t)v->integer, to, n)) {
            const struct vocabulary_token *t = &p->bpe.vocabulary.tokens[v->integer];
            return err_set(e, ERR_DATA, "vocab: '%.100s' has id %lld, which is that of '%.*s'",
                           v->key, (long long)v->integer, t->bytes < 100 ? (int)t->bytes : 100,
                           t->content);
        }
        to += n;
    }
    return 0;
}

// ---- merges ------------------------------------------------------------------------------------
static int put_merge(struct pipeline *p, size_t rank, const char *left, size_t nleft,
                     const char *right, size_t nright, struct err *e)
{
    struct vocabulary *v = &p->bpe.vocabulary;
    int32_t a = nleft ? vocabulary_find(v, left, nleft) : -1;
    int32_t b = nright ? vocabulary_find(v, right, nright) : -1, into = -1;
    if (a >= 0 && b >= 0) {
        buf_reset(&p->joined);
        buf_append(&p->joined, left, nleft);
        buf_append(&p->joined, right, nright);
        into = vocabulary_find(v, p->joined.data, p->joined.len);
    }
    if (into < 0)
        return err_set(e, ERR_DATA, "merges[%zu]: '%.*s' and '%.*s': %s", rank,
                       (int)(nleft < 100 ? nleft : 100), left, (int)(nright < 100 ? nright : 100),
                       right,
                       a < 0   ? "the first is no token"
                       : b < 0 ? "the second is no token"
                               : "joined they are no token");
    vocabulary_merge(v, a, b, (uint32_t)rank, into);
    return 0;
}

// "a b". What begins with #version is no merge, and takes no rank.
static int put_merge_text(struct pipeline *p, size_t *rank, const char *s, size_t n, struct err *e)
{
    static const char version[] = "#version";
    if (n >= sizeof version - 1 && memcmp(s, version, sizeof version - 1) == 0)
        return 0;
    const char *space = memchr(s, ' ', n);
    if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - s)))
        return err_set(e, ERR_DATA, "merges[%zu]: '%.*s' is not two tokens with a space between",
                       *rank, (int)(n < 100 ? n : 100), s);
    return put_merge(p, (*rank)++, s, (size_t)(space - s), space + 1, n - (size_t)(space + 1 - s),
                     e);
}

static int put_merge_pair(struct pipeline *p, size_t *rank, const struct json *pair, struct err *e)
{
    const struct json *left = pair->first, *right = pair->count == 2 ? left->next : NULL;
    if (!right || left->type != JSON_STRING || right->type != JSON_STRING)
        return err_set(e, ERR_DATA, "merges[%zu]: is not two tokens", *rank);
    return put_merge(p, (*rank)++, left->string, strlen(left->string), right->string,
                     strlen(right->string), e);
}

static int put_merges(struct pipeline *p, const struct json *merges, struct err *e)
{
    size_t rank = 0;
    int rc = 0;
    for (const struct json *m = merges->first; m && !rc; m = m->next) {
        if (m->type != merges->first->type || (m->type != JSON_STRING && m->type != JSON_ARRAY))
            rc = err_set(e, ERR_DATA, "merges[%zu]: all are texts, or all are pairs", rank);
        else if (m->type == JSON_STRING)
            rc = put_merge_text(p, &rank, m->string, strlen(m->string), e);
        else
            rc = put_merge_pair(p, &rank, m, e);
    }
    return rc;
}

// ---- the model ---------------------------------------------------------------------------------
static int refuse_model_keys(const struct json *model, struct err *e)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    int rc = read_no_other_keys(model, NULL, keys, e);
    if (rc)
        return rc;
    const struct json *type = json_get(model, "type"), *dropout = json_get(model, "dropout");
    if (type && (type->type != JSON_STRING || strcmp(type->string, "BPE") != 0))
        return err_set(e, ERR_UNSUPPORTED, "type %.100s is not read: BPE is",
                       type->type == JSON_STRING ? type->string : "");
    if (dropout && dropout->type != JSON_NULL &&
        (dropout->type != JSON_NUMBER || dropout->number > 0 || dropout->number < 0))
        return err_set(e, ERR_UNSUPPORTED, "dropout: ids would be drawn");
    for (size_t i = 3; i < 5; i++) {
        const struct json *affix = json_get(model, keys[i]);
        if (affix && affix->type != JSON_NULL && (affix->type != JSON_STRING || affix->string[0]))
            return err_set(e, ERR_UNSUPPORTED, "%s is not read, only \"\" or null", keys[i]);
    }
    return 0;
}

static int find_unknown(struct pipeline *p, const struct json *unknown, struct err *e)
{
    p->bpe.unknown = -1;
    if (!unknown || unknown->type == JSON_NULL)
        return 0;
    if (unknown->type == JSON_STRING)
        p->bpe.unknown =
            vocabulary_find(&p->bpe.vocabulary, unknown->string, strlen(unknown->string));
    return p->bpe.unknown >= 0 ? 0 : err_set(e, ERR_DATA, "unk_token: is no token of vocab");
}

int read_model(struct pipeline *p, const struct json *model, struct err *e)
{
    const struct json *vocab, *merges;
    int rc = refuse_model_keys(model, e);
    rc = rc ? rc : json_get_object(model, "vocab", &vocab, e);
    rc = rc ? rc : json_get_array(model, "merges", &merges, e);
    rc = rc ? rc : put_vocabulary(p, vocab, (size_t)merges->count, e);
    rc = rc ? rc : put_merges(p, merges, e);
    rc = rc ? rc : find_unknown(p, json_get(model, "unk_token"), e);
    rc = rc ? rc : read_bool_or(model, "fuse_unk", false, &p->bpe.fuse_unknown, e);
    rc = rc ? rc : read_bool_or(model, "byte_fallback", false, &p->bpe.byte_fallback, e);
    rc = rc ? rc : read_bool_or(model, "ignore_merges", false, &p->bpe.ignore_merges, e);
    if (rc)
        err_wrap(e, "model");
    else
        bpe_prepare(&p->bpe);
    return rc;
}

// ---- added tokens ------------------------------------------------------------------------------
static int read_added(const struct json *o, struct added_token *t, struct err *e)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    const char *content;
    if (o->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "is not an object");
    int rc = read_no_other_keys(o, NULL, keys, e);
    rc = rc ? rc : json_get_str(o, "content", &content, e);
    bool *const flags[] = {&t->single_word, &t->lstrip, &t->rstrip, &t->normalized, &t->special};
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !rc; i++)
        rc = read_bool(o, keys[2 + i], flags[i], e);
    if (rc)
        return rc;
    t->content = content;
    t->bytes = strlen(content);
    return t->bytes <= TOKENIZER_MAX_ADDED_BYTES
               ? 0
               : err_set(e, ERR_LIMIT, "a content of more than %d bytes",
                         TOKENIZER_MAX_ADDED_BYTES);
}

// The id of the file counts for nothing, as in `tokenizers`: a token of the vocabulary keeps its own, the
// others follow behind it in their order.
static void put_added(struct pipeline *p, struct added_token t, int32_t *last)
{
    int32_t id = vocabulary_find(&p->bpe.vocabulary, t.content, t.bytes);
    if (id < 0)
        id = *last >= (int32_t)p->ntokens ? *last + 1 : (int32_t)p->ntokens;
    *last = id > *last ? id : *last;
    t.id = id;
    t.content = arena_dup(&p->arena, t.content, t.bytes + 1);
    p->added[p->nadded++] = t;
}

static int compare_contents(const void *a, const void *b)
{
    return strcmp((*(const struct added_token *const *)a)->content,
                  (*(const struct added_token *const *)b)->content);
}

static int sort_contents(const struct pipeline *p, const struct added_token **sorted, struct err *e)
{
    for (size_t i = 0; i < p->nadded; i++)
        sorted[i] = &p->added[i];
    qsort(sorted, p->nadded, sizeof *sorted, compare_contents);
    for (size_t i = 1; i < p->nadded; i++)
        if (strcmp(sorted[i - 1]->content, sorted[i]->content) == 0)
            return err_set(e, ERR_UNSUPPORTED, "'%.100s' is there twice", sorted[i]->content);
    return 0;
}

// Works out what a token is looked for by and shown as, which is one thing.
static int normalize_added(struct pipeline *p, struct added_token *t,
                           const struct added_token *const *sorted, struct buf turns[2],
                           struct err *e)
{
    struct literal shown = {t->content, t->bytes};
    int rc = t->normalized ? normalize(p, t->content, t->bytes, turns, &shown, e) : 0;
    if (rc)
        return rc;
    if (shown.n > TOKENIZER_MAX_ADDED_BYTES)
        return err_set(e, ERR_LIMIT, "'%.100s' has a normal form of more than %d bytes", t->content,
                       TOKENIZER_MAX_ADDED_BYTES);
    if (!shown.n)
        return err_set(e, ERR_UNSUPPORTED, "'%.100s' has no normal form", t->content);
    t->shown = arena_dup(&p->arena, shown.s, shown.n + 1);
    t->shown_bytes = shown.n;
    const struct added_token like = {.content = t->shown}, *key = &like;
    const struct added_token *const *found =
        bsearch(&key, sorted, p->nadded, sizeof *sorted, compare_contents);
    t->hidden = found && (*found)->special;
    return 0;
}

static int plant_trees(struct pipeline *p, struct err *e)
{
    const struct added_token **sorted = heap_alloc((p->nadded + 1) * sizeof *sorted);
    struct buf turns[2] = {{0}, {0}};
    int rc = sort_contents(p, sorted, e);
    for (size_t i = 0; i < p->nadded && !rc; i++) {
        struct added_token *t = &p->added[i];
        rc = normalize_added(p, t, sorted, turns, e);
        if (!rc && !added_tree_put(t->normalized ? &p->normal : &p->raw, t->shown, t->shown_bytes,
                                   (int32_t)i))
            rc = err_set(e, ERR_UNSUPPORTED,
                         "'%.100s' has the normal form of another, and either could be meant",
                         t->content);
    }
    free(sorted);
    buf_clear(&turns[0]);
    buf_clear(&turns[1]);
    return rc;
}

static void index_added(struct pipeline *p, int32_t last)
{
    p->nids = last >= (int32_t)p->nids ? (size_t)last + 1 : p->nids;
    p->added_by_id = arena_array(&p->arena, int32_t, p->nids);
    for (size_t i = 0; i < p->nids; i++)
        p->added_by_id[i] = -1;
    for (size_t i = 0; i < p->nadded; i++)
        p->added_by_id[p->added[i].id] = (int32_t)i;
}

int read_added_tokens(struct pipeline *p, const struct json *list, struct err *e)
{
    int32_t last = -1;
    int rc = 0, i = 0;
    if (list && (list->type != JSON_ARRAY || list->count > TOKENIZER_MAX_ADDED))
        return list->type == JSON_ARRAY
                   ? err_set(e, ERR_LIMIT, "added_tokens: more than %d", TOKENIZER_MAX_ADDED)
                   : err_set(e, ERR_DATA, "added_tokens: is not an array");
    p->added = arena_array(&p->arena, struct added_token, list ? list->count + 1 : 1);
    for (const struct json *v = list ? list->first : NULL; v && !rc; v = v->next, i++) {
        struct added_token t = {0};
        rc = read_added(v, &t, e);
        if (rc)
            err_wrap(e, "added_tokens[%d]", i);
        else if (t.bytes) // of no content none is made
            put_added(p, t, &last);
        if (!rc && last >= TOKENIZER_MAX_VOCAB)
            rc = err_set(e, ERR_LIMIT, "added_tokens[%d]: its id is %d, and the greatest is %d", i,
                         (int)last, TOKENIZER_MAX_VOCAB - 1);
    }
    index_added(p, last);
    if (rc)
        return rc;
    rc = plant_trees(p, e);
    if (rc)
        err_wrap(e, "added_tokens");
    return rc;
}

// ---- vocab.json and merges.txt -----------------------------------------------------------------
static size_t count_lines(const char *s, size_t n)
{
    size_t lines = 1;
    for (size_t i = 0; i < n; i++)
        lines += s[i] == '\n';
    return lines;
}

static int put_merge_lines(struct pipeline *p, const char *s, size_t n, struct err *e)
{
    size_t rank = 0, line = 1;
    int rc = 0;
    for (const char *end = s + n, *next; s < end && !rc; s = next, line++) {
        const char *newline = memchr(s, '\n', (size_t)(end - s)), *to = newline ? newline : end;
        next = newline ? newline + 1 : end;
        to -= to > s && to[-1] == '\r';
        if (to > s && memchr(s, 0, (size_t)(to - s)))
            rc = err_set(e, ERR_DATA, "line %zu: a zero byte", line);
        else if (to > s)
            rc = put_merge_text(p, &rank, s, (size_t)(to - s), e);
    }
    return rc;
}

static void add_end_of_text(struct pipeline *p)
{
    static const char content[] = "<|endoftext|>";
    struct added_token end = {.content = content, .bytes = sizeof content - 1, .special = true};
    int32_t last = -1;
    p->added = arena_array(&p->arena, struct added_token, 1);
    if (vocabulary_find(&p->bpe.vocabulary, content, sizeof content - 1) >= 0)
        put_added(p, end, &last);
    index_added(p, last);
    plant_trees(p, NULL); // of one token nothing can be wrong
}

int pipeline_read_pair(struct pipeline *p, const char *vocab, size_t vocab_bytes,
                       const char *merges, size_t merges_bytes, struct err *e)
{
    struct arena tree;
    struct json *top;
    char_classes_make();
    arena_init(&tree);
    p->pre_tokenizers[p->npre_tokenizers++] = (struct pre_tokenizer){
        .kind = PRE_BYTE_LEVEL, .known = byte_level_pattern(), .behavior = SPLIT_ISOLATED};
    p->decoders[p->ndecoders++] = (struct decoder){.kind = DECODE_BYTE_LEVEL};
    p->bpe.byte_level = true;
    p->bpe.unknown = -1;
    int rc = json_parse(&tree, vocab, vocab_bytes, &top, e);
    if (!rc && top->type != JSON_OBJECT)
        rc = err_set(e, ERR_DATA, "is not an object");
    if (!rc)
        rc = put_vocabulary(p, top, count_lines(merges, merges_bytes), e);
    if (rc)
        err_wrap(e, "vocab.json");
    else if ((rc = put_merge_lines(p, merges, merges_bytes, e)))
        err_wrap(e, "merges.txt");
    if (!rc) {
        bpe_prepare(&p->bpe);
        add_end_of_text(p);
    }
    arena_clear(&tree);
    return rc;
}

void pipeline_clear(struct pipeline *p)
{
    for (int i = 0; i < p->npre_tokenizers; i++) {
        class_pattern_clear(&p->pre_tokenizers[i].class);
        regex_pattern_free(p->pre_tokenizers[i].regex);
    }
    added_tree_clear(&p->raw);
    added_tree_clear(&p->normal);
    token_ids_clear(&p->before);
    token_ids_clear(&p->behind);
    bpe_clear(&p->bpe);
    buf_clear(&p->joined);
    arena_clear(&p->arena);
    *p = (struct pipeline){0};
}
