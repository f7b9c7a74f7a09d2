// SPDX-License-Identifier: Apache-2.0
// Schema rows of `data:`. See data_schema.h.
#include "common/data/data_schema.h"

#include "common/base/job_sections.h"

#define AT(field) offsetof(struct job_data, field)
#define IMAGES    "data.format=idx|npy"
#define TOKENS    "data.format=tokens"
static const char *const formats[] = {"idx", "npy", "tokens", NULL};
static const char *const ids[] = {"auto", "u16", "u32", NULL};
static const char *const dtypes[] = {"u8", "f32", NULL};

const struct schema_row data_rows[DATA_ROWS] = {
    {.path = "data.format",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_ENUM,
     .offset = AT(format),
     .derived = "tokens where the model reads them, else idx",
     .names = formats,
     .doc =
         "of the files: idx (MNIST's) or npy (NumPy's) with images and labels, or tokens (ids one "
         "after the other, llm.c's .bin, or .npy of u16 or u32)"},
    {.path = "data.dtype",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_ENUM,
     .offset = AT(dtype),
     .def = "u8",
     .names = dtypes,
     .when = IMAGES,
     .doc = "of the images: u8 (0 to 255, scaled to 0 to 1) or f32 (taken as they are)"},
    {.path = "data.ids",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_ENUM,
     .offset = AT(ids),
     .def = "auto",
     .names = ids,
     .when = TOKENS,
     .doc = "of a file of nothing but token ids, little-endian; auto: u16, and a file that is text "
            "is refused; llm.c's files say it themselves"},
    {.path = "data.tokenizer",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(tokenizer),
     .is_path = true,
     .derived = "bytes where model.vocab is at most 256, else ids",
     .when = TOKENS,
     .doc = "what made the tokens of text: bytes (a token is a byte), ids (nobody knows: prompts "
            "and samples are numbers), or a tokenizer.json or a folder with one, relative to the "
            "job file, for weft submit to the workers' --data-root; it is kept beside the "
            "checkpoints"},
    {.path = "data.train.tokens",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(train.tokens),
     .is_path = true,
     .when = TOKENS,
     .doc = "file of training tokens, or files by a pattern (train-*.bin); relative to the job "
            "file, for weft submit to the workers' --data-root"},
    {.path = "data.eval.tokens",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(eval.tokens),
     .is_path = true,
     .optional = true,
     .when = TOKENS,
     .doc = "file of tokens to evaluate on, or files by a pattern"},
    {.path = "data.train.images",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(train.images),
     .is_path = true,
     .when = IMAGES,
     .doc = "file of training samples; relative to the job file, for weft submit to the workers' "
            "--data-root"},
    {.path = "data.train.labels",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(train.labels),
     .is_path = true,
     .optional = true,
     .when = IMAGES,
     .doc = "file of their classes; a classifier needs one"},
    {.path = "data.eval.images",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(eval.images),
     .is_path = true,
     .optional = true,
     .when = IMAGES,
     .doc = "file of samples to evaluate on; a classifier's together with its labels"},
    {.path = "data.eval.labels",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(eval.labels),
     .is_path = true,
     .optional = true,
     .when = IMAGES,
     .doc = "file of their classes"},
    {.path = "data.batch",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_INT,
     .offset = AT(batch),
     .derived = "data.batch_per_device for each device of its own part of the batch",
     .min = 1,
     .max = 1 << 24,
     .unit = "samples",
     .doc = "of a step, over all devices and microbatches"},
    {.path = "data.batch_per_device",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(batch_per_device),
     .def = "0",
     .max = 1 << 24,
     .unit = "samples",
     .doc = "in place of data.batch: of a step on each of the devices over which the mesh cuts the "
            "batch, over its microbatches; 0: data.batch says it, as in every resolved job"},
};
