// SPDX-License-Identifier: Apache-2.0
// The whole schema of a job file: the one place that lists the modules' tables. It stands above
// job/, data/ and ckpt/, so that none of them needs to know the others.
#pragma once
#include "common/base/schema.h"

extern const struct schema weft_schema;
