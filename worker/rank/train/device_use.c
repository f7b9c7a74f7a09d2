// SPDX-License-Identifier: Apache-2.0
// What a rank makes of its device. See device_use.h.
#include "worker/rank/train/device_use.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/explain/plan_report.h"
#include "common/language/model_facts.h"

void device_use_init(struct device_use *u, const struct job *job, const struct compiled *c,
                     const struct backend *b, struct device *d, int rank)
{
    struct arena scratch = {0};
    struct device_info info;
    struct report plan;
    int stage = compiled_stage(c, rank);
    const struct memory *m = compiled_memory(c, stage);
    b->device.info(d, &info);
    const struct device_model *known = device_model_reported(info.model);
    const struct device_model *cpu = device_model_find("cpu");
    report_make(&plan, job, c, NULL, known ? known : cpu, &scratch);
    *u = (struct device_use){.backend = b, .device = d, .planned = m->arena};
    u->flops = plan.token_flops * (double)job->data.batch * (double)job->model.facts->seq;
    if (u->flops <= 0)
        u->flops = plan.cost.flops_active;
    if (known && job->precision.compute == JOB_BF16) // the peak that MFU counts against
        u->peak = known->flops * mesh_ranks(&c->mesh);
    if (info.shares_host) {
        u->window = m->region[REGION_SHARED];
        u->planned += plan.staging[stage] + cpu->libraries;
    }
    arena_clear(&scratch);
}

// Memory that the process alone has: what it maps of files, or shares, does not count. 0: not known.
static uint64_t read_process_memory(void)
{
    char text[128];
    unsigned long long size, resident, shared;
    (void)folder_read("/proc/self", "statm", text, sizeof text, NULL);
    if (sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3 || resident < shared)
        return 0;
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t device_use_memory(struct device_use *u, int64_t now_ns)
{
    struct device_info info;
    uint64_t bytes;
    if (!u->backend || (u->most && now_ns - u->looked_ns < CLOCK_S))
        return u->most;
    u->looked_ns = now_ns;
    u->backend->device.info(u->device, &info);
    bytes = info.shares_host ? read_process_memory() + u->window : info.allocated;
    u->most = bytes > u->most ? bytes : u->most;
    return u->most;
}
