// SPDX-License-Identifier: Apache-2.0
// The sections of a job file that job/ itself owns, for plan/schema_list.c.
#pragma once
#include "common/base/schema.h"

extern const struct schema_table job_name_schema, job_model_schema, job_mesh_schema,
    job_sharding_schema, job_optimizer_schema, job_schedule_schema, job_train_schema,
    job_pipeline_schema, job_precision_schema, job_eval_schema, job_metrics_schema,
    job_resources_schema, job_restart_schema;
