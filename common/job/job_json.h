// SPDX-License-Identifier: Apache-2.0
// A resolved job's text as one object of JSON, with the keys that the text has.
#pragma once
#include "common/base/buf.h"
#include "common/base/err.h"

// Appends it. A plain number, true, false and null stay what they are; everything else is a string.
// ERR_INVALID: the text is no YAML of ours.
int job_text_json(const char *text, struct buf *out, struct err *e);
