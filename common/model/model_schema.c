// SPDX-License-Identifier: Apache-2.0
// Schema rows of `model:`.
#include "common/model/model_schema.h"

#include "common/job/job.h"

#define AT(field) offsetof(struct job_model, field)
static const char *const kinds[] = {"mlp", NULL};
static const char *const activations[] = {"relu", "gelu", "tanh", NULL};

static const struct schema_row rows[] = {
    {.path = "model.kind",
     .type = SCHEMA_ENUM,
     .offset = AT(kind),
     .def = "mlp",
     .names = kinds,
     .doc = "mlp: fully connected layers, a classifier"},
    {.path = "model.inputs",
     .type = SCHEMA_INT,
     .offset = AT(inputs),
     .min = 1,
     .max = 1 << 24,
     .unit = "features",
     .doc = "of a sample; for images height times width"},
    {.path = "model.hidden",
     .type = SCHEMA_INT_LIST,
     .offset = AT(hidden),
     .min = 1,
     .max = 1 << 20,
     .min_items = 1,
     .max_items = 64,
     .unit = "features",
     .doc = "widths of the hidden layers"},
    {.path = "model.classes",
     .type = SCHEMA_INT,
     .offset = AT(classes),
     .min = 2,
     .max = 1 << 20,
     .unit = "classes",
     .doc = "labels are 0 to classes - 1"},
    {.path = "model.activation",
     .type = SCHEMA_ENUM,
     .offset = AT(activation),
     .def = "relu",
     .names = activations,
     .doc = "after each hidden layer; gelu in its tanh form"},
};

const struct schema_table model_schema = {rows, sizeof rows / sizeof *rows,
                                          offsetof(struct job, model)};
