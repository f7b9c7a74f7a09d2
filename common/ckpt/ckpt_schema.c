// SPDX-License-Identifier: Apache-2.0
// Schema rows of `checkpoint:`. See ckpt_schema.h.
#include "common/ckpt/ckpt_schema.h"

#include "common/base/job_sections.h"

#define AT(field) offsetof(struct job_checkpoint, field)
#define FROM      "checkpoint.from"

static const char *const best_by[] = {"none", "eval_loss", NULL};

const struct schema_row ckpt_rows[CKPT_ROWS] = {
    {.path = "checkpoint.every",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(every),
     .def = "0",
     .max = 1e12,
     .unit = "steps",
     .doc = "between checkpoints; 0: only after the last step"},
    {.path = "checkpoint.first",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_BOOL,
     .offset = AT(first),
     .def = "false",
     .doc = "one before the first step too: what training began with"},
    {.path = "checkpoint.keep",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(keep),
     .def = "3",
     .min = 1,
     .max = 1e6,
     .unit = "checkpoints",
     .doc = "the newest ones that stay, beside the one that is being written; 1 leaves nothing to "
            "fall back to where that one is damaged"},
    {.path = "checkpoint.keep_every",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(keep_every),
     .def = "0",
     .max = 1e12,
     .unit = "steps",
     .doc = "steps that it divides stay for ever, step 0 too; 0: none"},
    {.path = "checkpoint.best",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_ENUM,
     .offset = AT(best),
     .def = "none",
     .names = best_by,
     .doc = "eval_loss: the checkpoint of the least loss of an evaluation at its step stays too, "
            "while it is the best"},
    {.path = "checkpoint.dir",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(dir),
     .def = "ckpt",
     .is_path = true,
     .doc = "folder of the job's checkpoints; relative to the job file, for weft submit to the "
            "workers' --checkpoint-root"},
    {.path = "checkpoint.async",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_BOOL,
     .offset = AT(async),
     .def = "true",
     .doc = "write while training continues"},
    {.path = "checkpoint.patience",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_DURATION,
     .offset = AT(patience),
     .def = "24h",
     .max = 1e8,
     .doc = "saves may fail for so long, then training stops; the last save is tried again until "
            "then"},
    {.path = "checkpoint.from",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_STRING,
     .offset = AT(from),
     .optional = true,
     .doc =
         "the checkpoint whose parameters training begins with: a path (./base/step-00000200.a1, "
         "or "
         "./base and ./base@200 of a job's folder), or a job's name or id (base, base@200). It is "
         "read until the job has a checkpoint of its own"},
    {.path = "checkpoint.load.params",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_GLOBS,
     .offset = AT(load.params),
     .def = "[\"*\"]",
     .max_items = 100,
     .when = FROM,
     .doc =
         "globs of the parameters that are taken from it, by their names here; the rest is drawn, "
         "and so are rows of a vocabulary that is longer here"},
    {.path = "checkpoint.load.rename",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_RENAMES,
     .offset = AT(load.rename),
     .def = "{}",
     .max_items = 100,
     .when = FROM,
     .doc =
         "{its name: the name here, …}, the first that matches acts; a * is any text, and in the "
         "name here the same text"},
    {.path = "checkpoint.load.optimizer",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_BOOL,
     .offset = AT(load.optimizer),
     .def = "false",
     .when = FROM,
     .doc = "the optimiser's state of what is taken too; both must be of one kind"},
    {.path = "checkpoint.load.step",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_BOOL,
     .offset = AT(load.step),
     .def = "false",
     .when = FROM,
     .doc = "true: steps are counted on from its step, in train.steps and the schedule; false: "
            "from 0"},
};
