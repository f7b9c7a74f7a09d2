// SPDX-License-Identifier: Apache-2.0
// Schema rows of `model:`, for model/schema_list.c.
#pragma once
#include "common/base/schema.h"

extern const struct schema_table model_schema;
