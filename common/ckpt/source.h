// SPDX-License-Identifier: Apache-2.0
// The checkpoint that a training takes parameters from before its first step (checkpoint.from).
//
// It is found once, and then pinned: the job's own folder gets a file SOURCE that says which folder,
// attempt and step it was, and the digest of its manifest; the job's manifests repeat that. An attempt
// that finds SOURCE opens that checkpoint or none.
#pragma once
#include "common/ckpt/load.h"
#include "common/tokenizer/tokenizer.h"

// "runs/base@200" is step 200 of what lies at runs/base; *step is −1 without an @. A place with a
// slash, or one that begins with a dot, is a path: another is the name or id of a job.
void source_split(const char *from, struct arena *a, const char **place, int64_t *step);
bool source_is_path(const char *place);
const char *source_path(const char *place); // without the ./ in front

// Opens the checkpoint at a path beneath `root` (may be null): the path of one (…/step-00000200.a3),
// or of a job's checkpoint folder, of which it is the newest of that step, or with step −1 the newest
// that is whole as far as its manifest, the lengths of its files and their heads show: whoever reads
// it checks the rest, of which there may be terabytes. *pin says which it is; its memory is `a`'s.
int source_open(struct load *l, const char *root, const char *path, int64_t step, struct arena *a,
                struct manifest_source *pin, struct err *e);
// Opens the one that was pinned. ERR_INVALID, with its name: it is gone, or another lies there.
int source_open_pinned(struct load *l, const char *root, const struct manifest_source *pin,
                       struct err *e);

// The tokenizer of a job's data.
struct source_tokenizer {
    const char *identity;         // "ids" or "": nobody knows which made its tokens
    const struct tokenizer *open; // itself; null: it is not at hand
};
// Whether ids of the job's data mean what they meant where `l`, the checkpoint of `pin`, was trained:
// by the same tokenizer, or by one that extends it (tokenizer.h), which is noted. `vocab`: a parameter
// that is taken and has a row for each id (match_vocab()); null: none has, so that any tokenizer does,
// and is noted. ERR_INVALID names both.
int source_check_tokenizer(const struct load *l, const char *root,
                           const struct manifest_source *pin, const char *vocab,
                           const struct source_tokenizer *job, struct buf *note, struct err *e);

// SOURCE in a job's folder; it appears whole, durably, and once. Where another attempt was first *pin
// becomes what that one has pinned. Reading: ERR_NOTFOUND where none is; ERR_DATA.
int source_pin(const struct store *job, struct arena *a, struct manifest_source *pin,
               struct err *e);
int source_parse(struct arena *a, const char *text, size_t len, struct manifest_source *pin,
                 struct err *e);
int source_read(const struct store *job, struct arena *a, struct manifest_source *pin,
                struct err *e);
