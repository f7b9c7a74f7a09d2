// SPDX-License-Identifier: Apache-2.0
// MANIFEST.json, which says what a checkpoint holds and where each byte of it lies, and COMMIT,
// which seals it.
//
// COMMIT is the SHA-256 of MANIFEST.json as 64 hex digits and a newline. A manifest is valid if and
// only if every key below is there and no other, files are unique, every slice lies inside its file
// behind the head, slices of a file do not overlap and leave no hole, and the slices of a tensor are
// no more than the files and cover it exactly. Integers over 2^53 travel as strings (seed).
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/data_identity.h"
#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/ckpt/deal.h"
#include "common/ckpt/shard_file.h"
#include "common/ckpt/slice.h"

enum { MANIFEST_VERSION = 4, MANIFEST_MAX_BYTES = 64 << 20, COMMIT_BYTES = 65 };
enum { MANIFEST_MAX_FILES = 4096 }; // more than ranks will be; slices are compared in pairs

struct manifest_axis {
    const char *name;
    int64_t size;
};
// Where two runs agree in these they are equal bit for bit; elsewhere they need not be.
struct manifest_numerics {
    const char *backend, *device, *isa, *libraries, *algorithms;
    const char *collectives; // what carries them: "NCCL 2.28.9, pinned", "hosts"; "": one device
    int64_t threads;
    bool deterministic;
};
struct manifest_slice {
    int file; // index into files
    uint64_t at, bytes;
    struct box box;
    struct hash128 digest;
};
struct manifest_tensor {
    const char *name;
    enum dtype dtype;
    struct shape shape;         // global
    int64_t unpadded[MAX_DIMS]; // how far each dimension reaches without its padding
    const char *spec;           // JSON, an entry a dimension: [null, "tp", ["dp", "fsdp"]]
    int nslices;
    struct manifest_slice *slices;
};
struct manifest_file {
    const char *name; // "shard-00000-of-00002.safetensors"
    uint64_t bytes, head_bytes;
    struct hash128 head_digest;
};
struct manifest_change { // of the job, in the middle of its training
    int64_t step;        // that was restored: what follows was done with the changed job
    const char *what;    // "train.steps from 20 to 40"
};
// The checkpoint that a training took parameters from before its first step.
struct manifest_source {
    const char *folder; // of that job's checkpoints, as it was opened; null: there is none
    int64_t attempt, step;
    const char *digest; // the SHA-256 of its MANIFEST.json
};
struct manifest {
    const char *cluster, *job, *name, *job_hash, *run; // ids and hashes are strings
    int64_t attempt, step;                             // steps completed
    uint64_t seed;
    int64_t samples;           // drawn so far: the data cursor
    struct data_identity data; // that they were drawn from
    const char *tokenizer;     // that made its tokens: bytes, ids, sha256:…; "": it has none
    const char *optimizer;     // its kind, "none" without one; its tensors are among the tensors
    int64_t updates;           // that the optimiser's state has had
    bool evaluated;            // after this step, with
    double eval_loss;          // a finite loss
    struct manifest_source source;
    int64_t parent_attempt, parent_step; // what the run was restored from; −1: nothing
    int naxes;
    struct manifest_axis *mesh;
    struct manifest_numerics numerics;
    const char *resolved; // the job's text
    int nchanges;
    const struct manifest_change *changes; // oldest first
    int nfiles;
    struct manifest_file *files;
    int ntensors;
    struct manifest_tensor *tensors;
};

// A rank's report of its shard (the body of ShardDone): digests in the order of its deal.
struct shard_report {
    int rank;
    int64_t step;
    int tries; // how often this step's save was tried before
    int code;  // 0, or why the shard failed
    char text[200];
    bool removed;   // somebody had removed the job's folder: it was made again for this save
    bool evaluated; // after this step, with
    double eval_loss;
    uint64_t bytes, head_bytes;
    struct hash128 head_digest;
    int n;
    struct hash128 *digests;
};

void manifest_file_name(int rank, int nranks, char out[64]);
// Fills files and tensors from the deal and every rank's report (in rank order); the other fields
// are the caller's. specs[i] belongs to parts[i]. Fails when a report does not fit the deal.
int manifest_fill(struct manifest *m, struct arena *a, const struct deal_part *parts,
                  const char *const *specs, int nparts, const struct deal *deal,
                  const struct shard_report *reports, struct err *e);

void manifest_write(const struct manifest *m, struct buf *out);
// Refuses keys that it does not know and values out of range. All that it returns lies in `a`.
int manifest_parse(struct arena *a, const char *text, size_t len, struct manifest *out,
                   struct err *e);
const struct manifest_tensor *manifest_find(const struct manifest *m, const char *name);
uint64_t manifest_bytes(const struct manifest *m); // of all shard files

void manifest_seal(const char *text, size_t len, char commit[COMMIT_BYTES + 1]);
int manifest_check_seal(const char *text, size_t len, const char *commit, size_t commit_len,
                        struct err *e);
