// SPDX-License-Identifier: Apache-2.0
// Schema rows of `data:`.
#include "common/data/data_schema.h"

#include "common/base/config.h"

#define AT(field) offsetof(struct job_data, field)
static const char *const formats[] = {"idx", "npy", NULL};
static const char *const dtypes[] = {"u8", "f32", NULL};

const struct schema_row data_rows[DATA_ROWS] = {
    {.path = "data.format",
     .type = SCHEMA_ENUM,
     .offset = AT(format),
     .def = "idx",
     .names = formats,
     .doc = "of the files: idx (MNIST's) or npy (NumPy's)"},
    {.path = "data.dtype",
     .type = SCHEMA_ENUM,
     .offset = AT(dtype),
     .def = "u8",
     .names = dtypes,
     .doc = "of the images: u8 (0 to 255, scaled to 0 to 1) or f32 (taken as they are)"},
    {.path = "data.train.images",
     .type = SCHEMA_STRING,
     .offset = AT(train.images),
     .doc = "file of training samples; relative to the job file"},
    {.path = "data.train.labels",
     .type = SCHEMA_STRING,
     .offset = AT(train.labels),
     .doc = "file of their classes"},
    {.path = "data.eval.images",
     .type = SCHEMA_STRING,
     .offset = AT(eval.images),
     .optional = true,
     .doc = "file of samples to evaluate on; together with its labels"},
    {.path = "data.eval.labels",
     .type = SCHEMA_STRING,
     .offset = AT(eval.labels),
     .optional = true,
     .doc = "file of their classes"},
    {.path = "data.batch",
     .type = SCHEMA_INT,
     .offset = AT(batch),
     .min = 1,
     .max = 1 << 24,
     .unit = "samples",
     .doc = "of a step, over all devices and microbatches"},
};
