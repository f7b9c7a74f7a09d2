// SPDX-License-Identifier: Apache-2.0
// The manifest's struct: filling it from a deal, looking things up, and the seal. Its text is
// manifest_json.c. See manifest.h.
#include "common/ckpt/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/map.h"

void manifest_file_name(int rank, int nranks, char out[64])
{
    snprintf(out, 64, "shard-%05d-of-%05d.safetensors", rank, nranks);
}

// ---- filling ----
static int check_report(const struct shard_report *r, const struct deal_rank *d, int rank,
                        int64_t step, struct err *e)
{
    if (r->rank != rank || r->step != step)
        return err_set(e, ERR_INVALID,
                       "a report of rank %d, step %" PRId64 " stands for rank %d, "
                       "step %" PRId64,
                       r->rank, r->step, rank, step);
    if (r->code)
        return err_set(e, ERR_INVALID, "rank %d's shard failed: %s", rank, r->text);
    if (r->n != d->n || r->bytes < r->head_bytes || r->bytes - r->head_bytes != d->bytes)
        return err_set(e, ERR_INVALID,
                       "rank %d's report does not fit its deal: %d slices, %" PRIu64 " bytes", rank,
                       r->n, r->bytes);
    return 0;
}

// The tensors in the order of their first parts, with room for their slices.
static void fill_tensors(struct manifest *m, struct arena *a, const struct deal_part *parts,
                         const char *const *specs, int nparts, const struct deal *deal, int *tensor)
{
    struct map seen = {0};
    m->tensors = arena_array(a, struct manifest_tensor, nparts ? nparts : 1);
    m->ntensors = 0;
    for (int i = 0; i < nparts; i++) {
        struct manifest_tensor *t = map_get(&seen, parts[i].name);
        if (!t) {
            t = &m->tensors[m->ntensors++];
            *t = (struct manifest_tensor){.name = parts[i].name,
                                          .dtype = parts[i].dtype,
                                          .shape = parts[i].global,
                                          .spec = specs[i]};
            for (int d = 0; d < t->shape.n; d++)
                t->unpadded[d] = parts[i].limit[d] ? parts[i].limit[d] : t->shape.dim[d];
            map_put(&seen, parts[i].name, t);
        }
        tensor[i] = (int)(t - m->tensors);
    }
    map_clear(&seen);
    for (int r = 0; r < deal->nranks; r++)
        for (int k = 0; k < deal->rank[r].n; k++)
            m->tensors[tensor[deal->rank[r].slices[k].part]].nslices++;
    for (int i = 0; i < m->ntensors; i++) {
        struct manifest_tensor *t = &m->tensors[i];
        t->slices = arena_array(a, struct manifest_slice, t->nslices + 1);
        t->nslices = 0;
    }
}

int manifest_fill(struct manifest *m, struct arena *a, const struct deal_part *parts,
                  const char *const *specs, int nparts, const struct deal *deal,
                  const struct shard_report *reports, struct err *e)
{
    int *tensor = arena_array(a, int, nparts ? nparts : 1);
    fill_tensors(m, a, parts, specs, nparts, deal, tensor);
    m->nfiles = deal->nranks;
    m->files = arena_array(a, struct manifest_file, deal->nranks);
    for (int r = 0; r < deal->nranks; r++) {
        const struct deal_rank *d = &deal->rank[r];
        const struct shard_report *rep = &reports[r];
        int rc = check_report(rep, d, r, m->step, e);
        if (rc)
            return rc;
        char name[64];
        manifest_file_name(r, deal->nranks, name);
        m->files[r] = (struct manifest_file){arena_strdup(a, name), rep->bytes, rep->head_bytes,
                                             rep->head_digest};
        uint64_t at = rep->head_bytes;
        for (int k = 0; k < d->n; k++) {
            struct manifest_tensor *t = &m->tensors[tensor[d->slices[k].part]];
            t->slices[t->nslices++] = (struct manifest_slice){r, at, d->slices[k].bytes,
                                                              d->slices[k].box, rep->digests[k]};
            at += d->slices[k].bytes;
        }
    }
    return 0;
}

// ---- looking up ----
const struct manifest_tensor *manifest_find(const struct manifest *m, const char *name)
{
    for (int i = 0; i < m->ntensors; i++)
        if (!strcmp(m->tensors[i].name, name))
            return &m->tensors[i];
    return NULL;
}

uint64_t manifest_bytes(const struct manifest *m)
{
    uint64_t n = 0;
    for (int i = 0; i < m->nfiles; i++)
        n += m->files[i].bytes;
    return n;
}

// ---- the seal ----
void manifest_seal(const char *text, size_t len, char commit[COMMIT_BYTES + 1])
{
    sha256_hex(text, len, commit);
    commit[COMMIT_BYTES - 1] = '\n';
    commit[COMMIT_BYTES] = 0;
}

int manifest_check_seal(const char *text, size_t len, const char *commit, size_t commit_len,
                        struct err *e)
{
    char want[COMMIT_BYTES + 1];
    manifest_seal(text, len, want);
    if (commit_len != COMMIT_BYTES)
        return err_set(e, ERR_CORRUPT, "COMMIT has %zu bytes, not %d", commit_len, COMMIT_BYTES);
    if (memcmp(commit, want, COMMIT_BYTES) != 0)
        return err_set(e, ERR_CORRUPT,
                       "COMMIT is not the SHA-256 of MANIFEST.json: one of them was changed");
    return 0;
}
