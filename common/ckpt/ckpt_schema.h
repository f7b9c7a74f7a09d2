// SPDX-License-Identifier: Apache-2.0
// Schema rows of `checkpoint:`. Their offsets are in struct job_checkpoint (base/job_sections.h).
#pragma once
#include "common/base/schema.h"

extern const struct schema_row ckpt_rows[];
enum { CKPT_ROWS = 13 };
