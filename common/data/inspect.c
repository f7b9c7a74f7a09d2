// SPDX-License-Identifier: Apache-2.0
// What `weft data inspect` says: see inspect.h.
#include "common/data/inspect.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/path.h"
#include "common/base/plain.h"
#include "common/tokenizer/tokenizer.h"

static void scan_values(struct inspect *in)
{
    double sum = 0;
    for (uint64_t i = 0; i < in->array.count; i++) {
        double v = array_real(&in->array, i);
        if (!isfinite(v))
            continue;
        if (in->finite == 0)
            in->min = in->max = v;
        in->min = fmin(in->min, v);
        in->max = fmax(in->max, v);
        in->finite++;
        sum += v;
    }
    if (in->finite)
        in->mean = sum / (double)in->finite;
}

static bool holds_tokens(const struct array *a)
{
    bool row = a->shape.n == 1 && (a->type == ARRAY_U16 || a->type == ARRAY_U32);
    return strcmp(a->format, "raw") == 0 || strcmp(a->format, "llm.c") == 0 || row;
}

static void count_classes(struct inspect *in)
{
    const struct array *a = &in->array;
    if (holds_tokens(a) || !array_type_is_int(a->type) || a->shape.n != 1 || a->count == 0 ||
        in->min < 0 || in->max >= INSPECT_MAX_CLASSES)
        return;
    in->classes = (int)in->max + 1;
    for (uint64_t i = 0; i < a->count; i++)
        in->histogram[array_int(a, i)]++;
}

// ---- tokens ------------------------------------------------------------------------------------
// Decodes the first ids with the tokenizer that the index names: bytes, or the one in the folder.
static void decode_beginning(struct inspect *in, const struct array *tokens, const char *folder)
{
    enum { LOOK = 48 };
    struct tokenizer *t = NULL;
    bool bytes = strcmp(in->index.digest, "bytes") == 0;
    int32_t ids[LOOK];
    size_t n = 0;
    if (tokenizer_open(&t, bytes ? "bytes" : *folder ? folder : "./", NULL))
        return;
    in->decoded = strcmp(tokenizer_identity(t), in->index.digest) == 0;
    for (; n < LOOK && n < tokens->count; n++)
        ids[n] = (int32_t)array_int(tokens, n);
    if (in->decoded)
        tokenizer_decode(t, ids, n, false, &in->begins);
    tokenizer_close(t);
}

static int check_shard(struct inspect *in, const char *folder, const struct token_shard *s,
                       struct err *e)
{
    struct array a;
    int rc = array_open(&a, arena_printf(&in->arena, "%s%s", folder, s->file), e);
    if (rc)
        return rc;
    rc = token_index_check(&in->index, &a, e);
    if (!rc) {
        struct xxh3 *x = xxh3_new();
        xxh3_update(x, a.data, a.count * array_type_size(a.type));
        struct hash128 now = xxh3_digest(x);
        xxh3_free(x);
        if (!hash128_equal(now, s->digest))
            rc = err_set(e, ERR_CORRUPT,
                         "%s: its tokens are not those that " TOKEN_INDEX " saw: it "
                         "was changed or damaged",
                         a.path);
    }
    if (!rc && s == in->index.shards)
        decode_beginning(in, &a, folder);
    array_close(&a);
    return rc;
}

static int open_folder(struct inspect *in, const char *folder, struct err *e)
{
    in->folder = true;
    int rc = token_index_read(&in->arena, NULL, folder, &in->index, e);
    if (rc == ERR_NOTFOUND)
        err_wrap(e, "%s is no folder of tokens, or one that is not prepared to its end", in->path);
    for (int i = 0; i < in->index.nshards && !rc; i++)
        rc = check_shard(in, folder, &in->index.shards[i], e);
    return rc;
}

// What lies beside a file of tokens says more of it.
static int look_beside(struct inspect *in, struct err *e)
{
    const char *name = path_name(in->path);
    const char *folder = arena_printf(&in->arena, "%.*s", (int)(name - in->path), in->path);
    struct err none = {0};
    int rc = token_index_read(&in->arena, NULL, folder, &in->index, &none);
    if (rc == ERR_NOTFOUND)
        return 0;
    if (rc)
        return err_set(e, rc, "%s", none.text);
    rc = token_index_check(&in->index, &in->array, e);
    if (!rc && token_index_find(&in->index, name))
        decode_beginning(in, &in->array, folder);
    return rc;
}

static bool is_folder(struct inspect *in, const char **folder)
{
    const char *name = path_name(in->path);
    struct stat st;
    if (stat(in->path, &st) == 0 && S_ISDIR(st.st_mode))
        *folder = arena_printf(&in->arena, "%s/", in->path);
    else if (strcmp(name, TOKEN_INDEX) == 0)
        *folder = arena_printf(&in->arena, "%.*s", (int)(name - in->path), in->path);
    else
        return false;
    return true;
}

int inspect_open(struct inspect *in, const char *path, enum array_type ids, struct err *e)
{
    const char *folder;
    *in = (struct inspect){.path = path};
    if (is_folder(in, &folder)) {
        int rc = open_folder(in, folder, e);
        if (rc)
            inspect_close(in);
        return rc;
    }
    int rc = ids == ARRAY_TYPE_COUNT ? array_open(&in->array, path, e)
                                     : array_open_raw(&in->array, NULL, path, ids, e);
    if (!rc && holds_tokens(&in->array))
        rc = look_beside(in, e);
    if (rc) {
        inspect_close(in);
        return rc;
    }
    scan_values(in);
    count_classes(in);
    return 0;
}

void inspect_close(struct inspect *in)
{
    array_close(&in->array);
    buf_clear(&in->begins);
    arena_clear(&in->arena);
}

// ---- saying it ---------------------------------------------------------------------------------
// A text as one line between quotes, whatever it holds.
static void print_beginning(const struct inspect *in, struct buf *out)
{
    struct json_out w;
    struct buf quoted = {0};
    if (!in->decoded)
        return;
    json_out_init(&w, &quoted);
    json_strn(&w, NULL, buf_str(&in->begins), in->begins.len);
    plain_line(out, "  begins   %s", buf_str(&quoted));
    json_out_clear(&w);
    buf_clear(&quoted);
}

static void print_folder(const struct inspect *in, struct buf *out)
{
    const struct token_index *index = &in->index;
    plain_line(out, "%s", in->path);
    plain_line(out, "  tokens   of %s (%s), %lld of them, %lld ends a document; files of %s",
               index->tokenizer, index->digest, (long long)index->vocab, (long long)index->end,
               array_type_name(index->type));
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        struct token_shard s = token_index_sum(index, split);
        buf_printf(out, "  %-7s  %llu tokens, %llu documents", token_splits[split],
                   (unsigned long long)s.tokens, (unsigned long long)s.documents);
        if (s.tokens)
            buf_printf(out, ", %llu bytes of text: %.3g a token", (unsigned long long)s.bytes,
                       (double)s.bytes / (double)s.tokens);
        buf_putc(out, '\n');
    }
    print_beginning(in, out);
}

void inspect_text(const struct inspect *in, struct buf *out)
{
    const struct array *a = &in->array;
    if (in->folder) {
        print_folder(in, out);
        return;
    }
    plain_line(out, "%s", a->path);
    buf_printf(out, "  format   %s, %s, shape [", a->format, array_type_name(a->type));
    for (int i = 0; i < a->shape.n; i++)
        buf_printf(out, "%s%lld", i ? ", " : "", (long long)a->shape.dim[i]);
    buf_printf(out, "]\n  bytes    %zu, elements from byte %zu\n", a->file_len, a->offset);
    if (in->finite)
        buf_printf(out, "  values   min %.9g, max %.9g, mean %.9g\n", in->min, in->max, in->mean);
    if (in->finite < a->count)
        buf_printf(out, "  warning  %llu values are not finite\n",
                   (unsigned long long)(a->count - in->finite));
    print_beginning(in, out);
    if (!in->classes)
        return;
    buf_printf(out, "  classes  %d:", in->classes);
    for (int c = 0; c < in->classes; c++)
        buf_printf(out, " %d×%llu", c, (unsigned long long)in->histogram[c]);
    buf_putc(out, '\n');
}

static void put_beginning(const struct inspect *in, struct json_out *out)
{
    if (in->decoded)
        json_strn(out, "begins", buf_str(&in->begins), in->begins.len);
    else
        json_null(out, "begins");
}

static void put_folder(const struct inspect *in, struct json_out *out)
{
    json_str(out, "path", in->path);
    json_str(out, "format", "prepared");
    json_str(out, "dtype", array_type_name(in->index.type));
    json_str(out, "tokenizer", in->index.digest);
    json_int(out, "vocab", in->index.vocab);
    json_int(out, "end", in->index.end);
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        struct token_shard s = token_index_sum(&in->index, split);
        json_object(out, token_splits[split]);
        token_shard_print(&s, out);
        json_end(out);
    }
    put_beginning(in, out);
}

void inspect_json(const struct inspect *in, const char *key, struct json_out *out)
{
    const struct array *a = &in->array;
    json_object(out, key);
    if (in->folder) {
        put_folder(in, out);
        json_end(out);
        return;
    }
    json_str(out, "path", a->path);
    json_str(out, "format", a->format);
    json_str(out, "dtype", array_type_name(a->type));
    json_array(out, "shape");
    for (int i = 0; i < a->shape.n; i++)
        json_int(out, NULL, a->shape.dim[i]);
    json_end(out);
    json_uint(out, "bytes", a->file_len);
    json_uint(out, "offset", a->offset);
    json_uint(out, "count", a->count);
    json_known_double(out, "min", in->finite, in->min);
    json_known_double(out, "max", in->finite, in->max);
    json_known_double(out, "mean", in->finite, in->mean);
    json_uint(out, "nonfinite_values", a->count - in->finite);
    if (in->classes) {
        json_array(out, "classes");
        for (int c = 0; c < in->classes; c++)
            json_uint(out, NULL, in->histogram[c]);
        json_end(out);
    } else {
        json_null(out, "classes");
    }
    put_beginning(in, out);
    json_end(out);
}
