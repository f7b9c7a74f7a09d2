// SPDX-License-Identifier: Apache-2.0
// A data set of tokens. See dataset.h. Ids are checked as they are read, because a corpus may be
// larger than what a run ever sees.
#include "common/data/tokens.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/path.h"
#include "common/data/pattern.h"
#include "common/data/token_index.h"

// Reads the index beside the files, where `weft data prepare` left one.
static int read_index(struct dataset *ds, const char *root, const char *path, struct arena *a,
                      struct token_index *index, struct err *e)
{
    const char *name = path_name(path);
    struct err none = {0};
    int rc =
        token_index_read(a, root, arena_printf(a, "%.*s", (int)(name - path), path), index, &none);
    if (rc == ERR_NOTFOUND)
        return 0;
    if (rc)
        return err_set(e, rc, "%s", none.text);
    snprintf(ds->tokenizer, sizeof ds->tokenizer, "%s", index->digest);
    if (index->vocab <= ds->classes)
        return 0;
    return err_set(e, ERR_DATA,
                   "%s: its tokenizer has %lld tokens (" TOKEN_INDEX
                   " beside it), and model.vocab is "
                   "%lld: it must be as large",
                   path, (long long)index->vocab, (long long)ds->classes);
}

// A pattern gives the files that are there. Those that the index lists beside them are to be there too:
// without them a training would take less, and say nothing.
static int find_missing(const char *path, const char *const *files, int n,
                        const struct token_index *index, struct err *e)
{
    const char *name = path_name(path);
    int at = 0, folder = (int)(name - path);
    if (n == 1 && strcmp(*files, path) == 0)
        return 0;                              // one file, and no pattern
    for (int i = 0; i < index->nshards; i++) { // both by name
        const char *file = index->by_name[i]->file;
        if (fnmatch(name, file, FNM_PERIOD) != 0)
            continue;
        while (at < n && strcmp(files[at] + folder, file) < 0)
            at++;
        if (at == n || strcmp(files[at] + folder, file) != 0)
            return err_set(e, ERR_NOTFOUND,
                           "%.*s%s is missing: " TOKEN_INDEX
                           " beside it lists it: bring it back, prepare again, or name the files "
                           "that are to be read by another pattern",
                           folder, path, file);
    }
    return 0;
}

static int open_files(struct dataset *ds, const char *root, const char *const *files, int n,
                      enum array_type type, const struct token_index *index, struct err *e)
{
    ds->files = calloc((size_t)n, sizeof *ds->files);
    if (!ds->files)
        return err_set(e, ERR_NOMEM, "no memory for %d files of tokens", n);
    for (; ds->nfiles < n; ds->nfiles++) {
        struct token_file *s = &ds->files[ds->nfiles];
        int rc = array_open_raw(&s->tokens, root, files[ds->nfiles], type, e);
        if (rc)
            return rc;
        rc = token_index_check(index, &s->tokens, e);
        if (rc) {
            array_close(&s->tokens);
            return rc;
        }
        s->first = ds->n;
        ds->n += s->tokens.count ? (s->tokens.count - 1) / (uint64_t)ds->seq : 0;
    }
    return 0;
}

// Where the index knows all of the files.
static double find_text_bytes(const struct dataset *ds, const struct token_index *index)
{
    double bytes = 0, tokens = 0;
    for (int i = 0; i < ds->nfiles; i++) {
        const char *path = ds->files[i].tokens.path;
        PRE(path);
        const struct token_shard *s = token_index_find(index, path_name(path));
        if (!s)
            return 0;
        bytes += (double)s->bytes;
        tokens += (double)s->tokens;
    }
    return tokens > 0 ? bytes / tokens : 0;
}

static int check_samples(const struct dataset *ds, struct err *e)
{
    const struct array *first = &ds->files[0].tokens;
    if (ds->n)
        return 0;
    if (ds->nfiles == 1)
        return err_set(e, ERR_DATA, "%s: %llu tokens: a sample takes %lld (model.seq and one)",
                       first->path, (unsigned long long)first->count, (long long)ds->seq + 1);
    return err_set(e, ERR_DATA,
                   "%s and %d more files: none has the %lld tokens that a sample takes (model.seq "
                   "and one)",
                   first->path, ds->nfiles - 1, (long long)ds->seq + 1);
}

int dataset_open_tokens(struct dataset *ds, const char *root, const char *path,
                        enum array_type type, int64_t seq, int64_t vocab, struct err *e)
{
    struct arena names = {0};
    struct token_index index = {0};
    const char **files;
    int n, rc;
    PRE(seq >= 1 && vocab >= 1 && vocab <= INT32_MAX);
    *ds = (struct dataset){
        .classes = vocab, .seq = seq, .features = (uint64_t)seq + 1, .dtype = DT_I32};
    rc = pattern_files(root, path, &names, &files, &n, e);
    rc = rc ? rc : read_index(ds, root, files[0], &names, &index, e);
    rc = rc ? rc : find_missing(path, files, n, &index, e);
    rc = rc ? rc : open_files(ds, root, files, n, type, &index, e);
    rc = rc ? rc : check_samples(ds, e);
    ds->text_bytes = rc ? 0 : find_text_bytes(ds, &index);
    if (rc) {
        tokens_close(ds);
        *ds = (struct dataset){0};
    }
    arena_clear(&names);
    return rc;
}

void tokens_close(struct dataset *ds)
{
    for (int i = 0; i < ds->nfiles; i++)
        array_close(&ds->files[i].tokens);
    free(ds->files);
}

// The last file that begins at or before the sample. A file too short to hold a sample begins where
// the next one does, so the last of them is the one that has it.
static const struct token_file *find_file(const struct dataset *ds, uint64_t id)
{
    int low = 0, high = ds->nfiles - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (ds->files[middle].first <= id)
            low = middle;
        else
            high = middle - 1;
    }
    return &ds->files[low];
}

static int read_sample(const struct dataset *ds, const struct array *a, uint64_t at, int32_t *out,
                       struct err *e)
{
    for (int64_t i = 0; i <= ds->seq; i++, at++) {
        int64_t id = array_int(a, at);
        if (id >= ds->classes)
            return err_set(e, ERR_DATA,
                           "%s: byte %llu: token %lld is not in 0 … %lld (model.vocab: %lld)",
                           a->path, (unsigned long long)(a->offset + at * array_type_size(a->type)),
                           (long long)id, (long long)ds->classes - 1, (long long)ds->classes);
        out[i] = (int32_t)id;
    }
    return 0;
}

int tokens_read(const struct dataset *ds, const uint64_t *ids, size_t n, int32_t *out,
                struct err *e)
{
    const struct token_file *checked = NULL;
    for (size_t k = 0; k < n; k++, out += ds->seq + 1) {
        PRE(ids[k] < ds->n);
        const struct token_file *f = find_file(ds, ids[k]);
        PRE(f != NULL);
        int rc = f == checked ? 0 : array_check(&f->tokens, e);
        if (rc)
            return rc;
        checked = f;
        rc = read_sample(ds, &f->tokens, (ids[k] - f->first) * (uint64_t)ds->seq, out, e);
        if (rc)
            return rc;
    }
    return 0;
}
