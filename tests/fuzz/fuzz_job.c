// SPDX-License-Identifier: Apache-2.0
// Fuzzes the job file's reader: any bytes are refused with messages that name a place, in order, or
// are a job whose resolved text reads back to itself. A byte 1 (which no job file may hold) ends
// the file and begins an override.
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"
#include "common/plan/schema_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { MOST = 4 }; // overrides

static void must(int truth)
{
    if (!truth)
        abort();
}

static void check_errors(const struct job_errors *errs)
{
    must(errs->n > 0 && errs->n <= JOB_MAX_ERRORS && errs->more >= 0);
    must(errs->more == 0 || errs->n == JOB_MAX_ERRORS);
    for (int i = 0; i < errs->n; i++) {
        const struct job_error *e = &errs->items[i], *before = i ? e - 1 : NULL;
        must(e->file && e->path && e->message[0] && e->line >= 0 && e->column >= 0);
        if (before && strcmp(before->file, e->file) == 0 && e->line > 0)
            must(before->line < e->line ||
                 (before->line == e->line && before->column <= e->column));
    }
    struct buf text = {0};
    job_errors_print(errs, &text);
    must(text.len > 0);
    buf_clear(&text);
}

static void check_stable(struct arena *a, const struct job *job)
{
    struct buf one = {0}, two = {0};
    struct job again;
    struct job_errors errs;
    job_print(job, &one);
    must(job_parse(a, &weft_schema, "resolved", NULL, one.data, one.len, NULL, 0, &again, &errs) ==
         0);
    job_print(&again, &two);
    must(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
    buf_clear(&one);
    buf_clear(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {0};
    char *text = arena_alloc(&a, len + 1); // with a zero byte behind it
    const char *overrides[MOST];
    int n = 0;
    if (len)
        memcpy(text, bytes, len);
    char *end = memchr(text, 1, len);
    size_t file = end ? (size_t)(end - text) : len;
    for (char *at = end; at && n < MOST; at = strchr(at, 1)) {
        *at++ = 0;
        overrides[n++] = at;
    }
    struct job job;
    struct job_errors errs;
    int rc = job_parse(&a, &weft_schema, "input", NULL, text, file, overrides, n, &job, &errs);
    must(rc == (errs.n ? ERR_INVALID : 0));
    if (rc)
        check_errors(&errs);
    else
        check_stable(&a, &job);
    arena_clear(&a);
    return 0;
}
