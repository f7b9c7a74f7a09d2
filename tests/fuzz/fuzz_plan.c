// SPDX-License-Identifier: Apache-2.0
// Fuzzes the way from a job file to its plan: any job that reads is planned, or refused with a
// message; a refusal by findings names them, and what is said and drawn prints.
#include <stdlib.h>
#include <string.h>

#include "common/explain/picture.h"
#include "common/explain/plan_report.h"
#include "common/language/model_facts.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const struct device_model tiny = {"tiny", 4096, 0, 0};

enum { RANKS_DRAWN = 64 };

static void must(int truth)
{
    if (!truth)
        abort();
}

static void check_report(struct arena *a, const struct job *job, const struct compiled *c,
                         const struct findings *found)
{
    struct report r;
    struct buf out = {0};
    struct json_out w;
    report_make(&r, job, c, found, device_model_find("h200"), a);
    report_text(&r, false, 80, &out);
    report_text(&r, true, 100, &out);
    json_out_init(&w, &out);
    report_json(&r, &w);
    json_out_clear(&w);
    must(out.len > 0);
    for (int p = 0; p < PICTURE_KINDS && mesh_ranks(&c->mesh) <= RANKS_DRAWN; p++) {
        buf_reset(&out);
        picture_print((enum picture)p, c, 80, &out);
        must(out.len > 0);
    }
    buf_clear(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {0};
    struct job job;
    struct job_errors errs;
    struct compiled c = {0};
    struct findings found;
    struct err e = {0};
    int rc =
        job_parse(&a, &weft_schema, "input", NULL, (const char *)bytes, len, NULL, 0, &job, &errs);
    // A fuzzer would only wait for many layers or microbatches.
    if (rc == 0 && job.train.microbatches <= 4 && job.pipeline.layers <= 7) {
        rc = plan_explain(&job, &(struct compile_options){0}, &a, &c, &found, NULL, &e);
        must(rc == 0 || (rc != ERR_INTERNAL && e.code == rc && e.text[0]));
        must(!found.errors || rc == ERR_INVALID);
        if (c.whole && !found.errors && job.pipeline.layers <= 2)
            plan_fit(&job, &tiny, &c, &found, &a);
        if (c.whole)
            check_report(&a, &job, &c, &found);
    }
    arena_clear(&a);
    return 0;
}
