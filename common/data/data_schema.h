// SPDX-License-Identifier: Apache-2.0
// Schema rows of `data:`. Their offsets are in struct job_data (base/job_sections.h).
#pragma once
#include "common/base/schema.h"

extern const struct schema_row data_rows[];
enum { DATA_ROWS = 12 };
