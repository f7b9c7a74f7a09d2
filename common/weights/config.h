// SPDX-License-Identifier: Apache-2.0
// config.json of a foreign checkpoint, by the lines `config` of a program's section `export hf`: read to
// sizes of the program, and written from them. A field that no line names and that is not known to
// change nothing (neutral_fields.h) is refused.
// Inside common/weights/ only.
#pragma once
#include "common/base/json.h"
#include "common/language/foreign_section.h"
#include "common/weights/foreign.h"

// What config.json gives: sizes as a job file has them, each with the field that it comes from.
struct config_sizes {
    int n;
    struct model_given *given;
    const char **field; // "size head_dim" where no field has it
    struct model_sizes sizes;
};
// ERR_DATA: it has no such field, another value, or one whose meaning is not known; `e` names it.
// Everything lies in `a`.
int config_read(const struct model_program *p, const struct json *config, struct arena *a,
                struct config_sizes *out, struct err *e);

// `more`: members beside those of the program's lines. ERR_INVALID: a size is one that
// such checkpoints cannot have.
int config_write(const struct model_sizes *sizes, const struct config_member *more, int nmore,
                 struct arena *a, struct buf *to, struct err *e);

// Whether the program's lines say that config.json is of this class: "LlamaForCausalLM".
bool config_is_of(const struct model_program *p, const char *architecture);
