// SPDX-License-Identifier: Apache-2.0
// A data set of tokens: see dataset.h. Ids are checked as they are read: a corpus may be larger
// than what a run ever sees.
#include "common/data/tokens.h"

int dataset_open_tokens(struct dataset *ds, const char *root, const char *path,
                        enum array_type type, int64_t seq, int64_t vocab, struct err *e)
{
    PRE(seq >= 1 && vocab >= 1 && vocab <= INT32_MAX);
    *ds = (struct dataset){.classes = vocab, .seq = seq, .dtype = DT_I32, .scale = 1};
    int rc = array_open_raw(&ds->images, root, path, type, e);
    if (rc)
        return rc;
    ds->features = (uint64_t)seq + 1;
    ds->n = ds->images.count ? (ds->images.count - 1) / (uint64_t)seq : 0;
    if (ds->n == 0) {
        rc = err_set(e, ERR_DATA, "%s: %llu tokens: a sample takes %lld (model.seq and one)",
                     ds->images.path, (unsigned long long)ds->images.count, (long long)seq + 1);
        dataset_close(ds);
    }
    return rc;
}

int tokens_read(const struct dataset *ds, const uint64_t *ids, size_t n, int32_t *out,
                struct err *e)
{
    const struct array *a = &ds->images;
    for (size_t k = 0; k < n; k++) {
        PRE(ids[k] < ds->n);
        for (int64_t i = 0; i <= ds->seq; i++) {
            uint64_t at = ids[k] * (uint64_t)ds->seq + (uint64_t)i;
            int64_t id = array_int(a, at);
            if (id >= ds->classes)
                return err_set(
                    e, ERR_DATA, "%s: byte %llu: token %lld is not in 0 … %lld (model.vocab: %lld)",
                    a->path, (unsigned long long)(a->offset + at * array_type_size(a->type)),
                    (long long)id, (long long)ds->classes - 1, (long long)ds->classes);
            *out++ = (int32_t)id;
        }
    }
    return 0;
}
