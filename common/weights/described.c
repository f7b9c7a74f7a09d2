// SPDX-License-Identifier: Apache-2.0
// Models as resolved jobs describe them. See described.h.
#include "common/weights/described.h"

#include <fcntl.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/model/builder.h"
#include "common/plan/schema_list.h"

int described_program(const char *name, struct arena *a, const struct model_program **out,
                      struct err *e)
{
    const struct model_text *known = model_text_find(name);
    struct buf text = {0};
    struct model_errors errs = {.arena = a};
    int rc = known ? 0 : folder_read_whole(AT_FDCWD, name, false, MODEL_MAX_BYTES, &text, e);
    if (known)
        buf_puts(&text, known->text);
    if (!rc && model_program_read(name, buf_str(&text), text.len, out, &errs))
        rc = err_set(e, ERR_INVALID, "%s:%d:%d: %s", name, errs.item[0].at.line,
                     errs.item[0].at.column, errs.item[0].message);
    buf_clear(&text);
    return rc;
}

int described_build(struct described *d, struct arena *a, struct err *e)
{
    const struct job *job = &d->job;
    int64_t batch = job->data.batch / job->train.microbatches;
    struct model_run run = {.kind = PROGRAM_TRAIN,
                            .batch = batch ? batch : 1,
                            .step_batch = job->data.batch,
                            .seed = job->train.seed,
                            .bytes = job->data.dtype != JOB_DATA_F32};
    struct arena scratch = {0};
    struct graph g;
    graph_init(&g, &scratch, NULL, e);
    int rc = model_build(&g, job->model.sizes, &run);
    if (!rc)
        weight_params_find(&g, a, &d->params);
    d->sizes = *job->model.sizes;
    arena_clear(&scratch);
    return rc;
}

static bool same_tokens(const char *one, const char *other)
{
    struct buf a = {0}, b = {0};
    model_text_print_tokens(one, &a);
    model_text_print_tokens(other, &b);
    bool same = strcmp(buf_str(&a), buf_str(&b)) == 0;
    buf_clear(&a);
    buf_clear(&b);
    return same;
}

int described_read(struct described *d, struct arena *a, const char *resolved, const char *with,
                   struct err *e)
{
    struct job_errors errs = {0};
    const struct model_program *other = NULL;
    *d = (struct described){0};
    if (job_parse(a, &weft_schema, NULL, NULL, resolved, strlen(resolved), NULL, 0, &d->job,
                  &errs)) {
        job_errors_err(&errs, e);
        err_wrap(e, "the checkpoint's job cannot be read");
        return ERR_DATA;
    }
    int rc = described_build(d, a, e);
    const char *name = d->job.model.program;
    if (!rc && with)
        rc = described_program(with, a, &other, e);
    else if (!rc && !foreign_section(d->sizes.program) && model_text_find(name))
        rc = described_program(name, a, &other, e); // a checkpoint of before it had the section
    if (!other || rc)
        return rc;
    bool same = same_tokens(d->job.model.text, other->text);
    if (!same && with)
        return err_set(
            e, ERR_INVALID,
            "%s is another model than the checkpoint's: only its section `export hf` may "
            "differ",
            with);
    if (same)
        d->sizes.program = other;
    return 0;
}
