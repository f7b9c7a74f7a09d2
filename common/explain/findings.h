// SPDX-License-Identifier: Apache-2.0
// What the compiler has to say about a job's sharding: errors (the job is refused), warnings and
// notes. Each names the tensor, the axes, the bytes and a corrected setting.
// Inside common/explain/ only.
//
// A fix is a text for -s ("sharding.rules.mlp=null") that makes the finding go away; where it takes
// several they are joined by " and ", and where there are two ways these by " or ".
#pragma once
#include "common/base/arena.h"
#include "common/compile/layout/mesh.h"
#include "common/compile/program/program.h"
#include "common/job/job.h"

// X(id, severity): the codes, as plan --json names them.
#define FINDING_TABLE(X)           \
    X(AXIS_UNKNOWN, ERROR)         \
    X(AXIS_TWICE, ERROR)           \
    X(SPEC_TOO_LONG, ERROR)        \
    X(INDIVISIBLE, ERROR)          \
    X(NOT_A_REFINEMENT, ERROR)     \
    X(WEIGHT_ON_BATCH_AXIS, ERROR) \
    X(BATCH_DROPPED, ERROR)        \
    X(UNUSED_AXIS, ERROR)          \
    X(STAGE_AXIS, ERROR)           \
    X(KEY_HEADS, ERROR)            \
    X(BATCH_INDIVISIBLE, ERROR)    \
    X(DOES_NOT_FIT, ERROR)         \
    X(DATA_UNUSABLE, ERROR)        \
    X(SOURCE_UNFIT, ERROR)         \
    X(TOO_MANY_DEVICES, WARNING)   \
    X(NO_MATCH, WARNING)           \
    X(STAGE_IMBALANCE, WARNING)    \
    X(FEW_MICROBATCHES, WARNING)   \
    X(REDUNDANT, WARNING)          \
    X(SIZE_UNRULED, WARNING)       \
    X(EXPERTS_ALONE, WARNING)      \
    X(EXPERT_ORDER, WARNING)       \
    X(ONE_CHOICE, WARNING)         \
    X(SEQUENCE_ORDER, WARNING)     \
    X(SAMPLES_KEYLESS, WARNING)    \
    X(CHOICES_DROPPED, NOTE)       \
    X(KEY_HEADS_WHOLE, NOTE)       \
    X(TF32_IS_F32, NOTE)           \
    X(NOT_DETERMINISTIC, NOTE)     \
    X(DETERMINISTIC_ANYWAY, NOTE)
enum finding_code {
#define X(id, severity) FINDING_##id,
    FINDING_TABLE(X)
#undef X
        FINDING_CODES
};
const char *finding_name(enum finding_code c);     // "UNUSED_AXIS"
const char *finding_severity(enum finding_code c); // "error"
bool finding_is_error(enum finding_code c);

struct finding {
    enum finding_code code;
    const char *tensor;  // a parameter, an activation point or a key; null: none in particular
    const char *like;    // a glob of the tensors that it is true of; null: that one
    axis_set axes;       // of the mesh
    uint64_t waste;      // avoidable bytes a device sends or holds a step
    double utilisation;  // REDUNDANT, EXPERTS_ALONE: of the matmuls; else 0
    const char *message; // one line; findings_add puts the job's line behind it where it names none
    const char *fix;     // null: none is known
};

struct findings {
    struct arena *arena;
    const struct job *job;
    struct finding *items;
    int n, cap, errors;
};

void findings_init(struct findings *f, const struct job *job, struct arena *a);
// The finding is copied. One of the same code, tensor and axes is kept once.
void findings_add(struct findings *f, const struct finding *one);
// The same with this message.
void findings_say(struct findings *f, struct finding one, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// A buffer's name, or the op and the place that made it.
const char *findings_name_buffer(const struct program *p, const struct buffer *b, struct arena *a);
const struct finding *findings_first_error(const struct findings *f); // null: none
// Axes that some error other than UNUSED_AXIS names: once that is mended they will cut something.
axis_set findings_blamed_axes(const struct findings *f);
