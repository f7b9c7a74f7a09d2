// SPDX-License-Identifier: Apache-2.0
// The model section of a job: which program, and its sizes. Inside common/job/ only.
#pragma once
#include "common/job/job_schema.h"
#include "common/job/reading.h"
#include "common/language/model_program.h"

// Finds the program that the tree names, and gives the reading a schema with the rows of its sizes.
// What is wrong is reported; then the section has no further rows, and job->model.read is null.
void open_model(struct reading *r);
// Sets the sizes that are given, the defaults of the others, and the facts that follow from them.
void resolve_model(struct reading *r);
// The rows of a program's sizes, for documents: defaults are as the program has them.
int model_rows(const struct model_program *p, struct arena *a, struct schema_row **out);
