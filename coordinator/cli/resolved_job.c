// SPDX-License-Identifier: Apache-2.0
// Reading the job of a command line; see resolved_job.h.
#include "coordinator/cli/resolved_job.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/base/plain.h"
#include "common/explain/plan_report.h"
#include "common/plan/nccl_memory.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"

int resolve_job(const struct args *a, struct arena *arena, struct job *job)
{
    struct job_errors errs = {0};
    struct compiled compiled;
    struct findings found = {0};
    struct buf why = {0};
    struct err e = {0};
    if (job_load(arena, &weft_schema, a->pos[0], a->set, a->nset, job, &errs))
        job_errors_print(&errs, &why);
    else if (job_check_devices(job, &e))
        buf_printf(&why, "%s: %s\n", a->pos[0], e.text);
    else if (plan_explain(job, &(struct compile_options){.hasty = true}, arena, &compiled, &found,
                          NULL, &e))
        report_errors(a->pos[0], &found, &e, &why);
    int rc = why.len ? CLIENT_USAGE : CLIENT_OK;
    plain_puts(stderr, buf_str(&why));
    buf_clear(&why);
    return rc;
}

// The device to plan for where none is named: of each kind what most people have.
static const char *const usual[JOB_DEVICE_KINDS] = {[JOB_CPU] = "cpu", [JOB_CUDA] = "h200"};

int resolve_device(const struct args *f, const struct job *job, struct arena *a,
                   struct device_model *device, struct err *e)
{
    enum { LARGEST = 1 << 20 };
    struct buf file = {0};
    int rc =
        f->device_file ? folder_read_whole(AT_FDCWD, f->device_file, false, LARGEST, &file, e) : 0;
    if (!rc)
        rc = device_model_read(a, f->device ? f->device : usual[job->resources.kind],
                               f->device_file ? buf_str(&file) : NULL, f->device_file, device, e);
    buf_clear(&file);
    if (rc)
        return rc;
    char model[NCCL_MODEL];
    uint64_t bytes;
    if (!nccl_memory_find(model, &bytes))
        return 0;
    const struct device_model *of = device_model_reported(model);
    if (strcmp(of ? of->name : model, device->name) == 0) {
        device->communicator = bytes;
        device->measured = true;
    }
    return 0;
}
