// SPDX-License-Identifier: Apache-2.0
// A job that is valid as it stands, and verbs to read variations of it.
#pragma once
#include <stdio.h>
#include <string.h>

#include "common/job/job.h"
#include "common/plan/schema_list.h"
#include "tests/unit/unit.h"

#define NAME_LINE  "name: tiny\n"
#define MODEL_LINE "model: {program: mlp, inputs: 4, hidden: [8], classes: 3}\n"
#define DATA_LINE  "data: {train: {images: x, labels: y}, batch: 12}\n"
#define TRAIN_LINE "train: {steps: 10}\n"
#define VALID      NAME_LINE MODEL_LINE DATA_LINE TRAIN_LINE // more text starts on line 5

struct job_case {
    struct arena arena;
    struct job job;
    struct job_errors errors;
    struct buf text; // errors, a line each; or the resolved job
};

static inline void case_clear(struct job_case *c)
{
    buf_clear(&c->text);
    arena_clear(&c->arena);
}

static inline int case_read(struct job_case *c, const char *text, size_t len,
                            const char *const *overrides, int n)
{
    *c = (struct job_case){0};
    int rc = job_parse(&c->arena, &weft_schema, "job.yaml", NULL, text, len, overrides, n, &c->job,
                       &c->errors);
    assert_int_equal(rc, c->errors.n ? ERR_INVALID : 0);
    if (rc)
        job_errors_print(&c->errors, &c->text);
    else
        job_print(&c->job, &c->text);
    return rc;
}

// Fails the test unless the text reads without an error.
static inline void case_valid(struct job_case *c, const char *text)
{
    if (case_read(c, text, strlen(text), NULL, 0))
        fail_msg("%s", buf_str(&c->text));
}

// What is wrong with a text is exactly `errors`, all of them, in this order.
static inline void expect_errors(const char *text, const char *errors)
{
    struct job_case c;
    case_read(&c, text, strlen(text), NULL, 0);
    assert_string_equal(c.errors.n ? buf_str(&c.text) : "", errors);
    case_clear(&c);
}
