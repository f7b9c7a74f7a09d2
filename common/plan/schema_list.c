// SPDX-License-Identifier: Apache-2.0
// The list of the schema's tables, in the order of the resolved form. See schema_list.h.
#include "common/plan/schema_list.h"

#include "common/ckpt/ckpt_schema.h"
#include "common/data/data_schema.h"
#include "common/job/job.h"
#include "common/job/job_schema.h"
#include "common/plan/plan.h"

static const struct schema_table data_table = {data_rows, DATA_ROWS, offsetof(struct job, data)};
static const struct schema_table ckpt_table = {ckpt_rows, CKPT_ROWS,
                                               offsetof(struct job, checkpoint)};

static const struct schema_table *const tables[] = {
    &job_name_schema,     &job_model_schema,     &job_mesh_schema,    &job_sharding_schema,
    &job_pipeline_schema, &job_precision_schema, &data_table,         &job_optimizer_schema,
    &job_schedule_schema, &job_train_schema,     &job_eval_schema,    &ckpt_table,
    &job_metrics_schema,  &job_resources_schema, &job_restart_schema,
};

const struct schema weft_schema = {tables, sizeof tables / sizeof tables[0], plan_look_at_model};
