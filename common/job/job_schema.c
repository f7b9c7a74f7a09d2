// SPDX-License-Identifier: Apache-2.0
// Schema rows of the sections that job/ itself owns, and how each type of setting is read and
// printed. See base/schema.h for what a row means.
#include "common/job/job_schema.h"

#include "common/base/folder.h"
#include "common/job/setting.h"
#include "common/job/threads.h"
#include "common/job/until.h"

#define AT(type, field) offsetof(struct type, field)
#define TABLE(rows, at)                             \
    {                                               \
        (rows), sizeof(rows) / sizeof *(rows), (at) \
    }
#define STEPS_MAX 1e12

static const struct schema_row name_rows[] = {
    {.path = "schema",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job, schema_version),
     .def = "2",
     .doc = "version of this schema; the resolved form says it"},
    {.path = "name",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_STRING,
     .offset = AT(job, name),
     .valid = folder_name_ok,
     .doc = "a name has 1 to 63 of a-z 0-9 . _ - and starts with a letter or digit"},
    {.path = "tags",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_NAMES,
     .offset = AT(job, tags),
     .valid = folder_name_ok,
     .def = "[]",
     .max_items = JOB_MAX_TAGS,
     .doc =
         "words by which `weft jobs --tag` finds it, each of 1 to 63 of a-z 0-9 . _ - and with a "
         "letter or digit first"},
    {.path = "notify",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_NAMES,
     .offset = AT(job, notify),
     .valid = folder_name_ok,
     .def = "[]",
     .max_items = JOB_MAX_TAGS,
     .doc = "who is sent a notice when the job started, stalled, is held, failed or succeeded: "
            "names of URLs that the coordinator has (--notify NAME=URL, of `weft run` too)"},
};

static const struct schema_row mesh_rows[] = {
    {.path = "mesh",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_MESH,
     .derived = "{dp: devices}",
     .unit = "devices",
     .doc = "ordered axes of any names and their sizes; one may be -1: what is left"},
};

static const struct schema_row sharding_rows[] = {
    {.path = "sharding.rules",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_RULES,
     .def = "{batch: [dp, fsdp, ep], seq: cp, embed: fsdp, heads: tp, mlp: tp, vocab: tp, "
            "layers: pp, expert: [tp, ep]}",
     .doc = "mesh axes that cut a logical dimension; a key given replaces that key only"},
    {.path = "sharding.params",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_PARAMS,
     .def = "[]",
     .max_items = 100,
     .doc = "parameters by glob and size, the first match wins: {match, min, spec}"},
    {.path = "sharding.activations",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_POINTS,
     .def = "{}",
     .doc = "specs of act_ids, act_seq, act_att, act_hidden, act_logits, act_slots, act_expert, "
            "act_expert_hidden, act_latent in place of the rules'"},
    {.path = "sharding.grads",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_REFINE,
     .offset = AT(job_sharding, grads),
     .def = "[]",
     .max_items = 100,
     .doc = "cuts of the gradients beyond their parameters' (ZeRO-2, together with "
            "sharding.optimizer): scattered in every microbatch"},
    {.path = "sharding.optimizer",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_REFINE,
     .offset = AT(job_sharding, optimizer),
     .def = "[]",
     .max_items = 100,
     .doc = "cuts of the optimiser's state beyond the gradients' (ZeRO-1): axes, each on the "
            "largest dimension it divides, or {match, min, spec} as in sharding.params"},
    {.path = "sharding.gather",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_AXES,
     .def = "[fsdp]",
     .doc = "batch axes on which weights may be cut and gathered"},
};

#define OPT(field) AT(job_optimizer, field)
#define ADAM       "optimizer.kind=adam|adamw"
static const char *const optimizer_kinds[] = {[JOB_SGD] = "sgd",
                                              [JOB_MOMENTUM] = "momentum",
                                              [JOB_ADAM] = "adam",
                                              [JOB_ADAMW] = "adamw",
                                              NULL};
const char *job_optimizer_name(int kind)
{
    return optimizer_kinds[kind];
}

static const struct schema_row optimizer_rows[] = {
    {.path = "optimizer.kind",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_ENUM,
     .offset = OPT(kind),
     .def = "adamw",
     .names = optimizer_kinds,
     .doc =
         "the update rule, by optax's formulas; a training that continues with another begins with "
         "state of zeros, but adam and adamw have the same"},
    {.path = "optimizer.betas",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_PAIR,
     .offset = OPT(beta1),
     .def = "[0.9, 0.999]",
     .max = 1,
     .below_max = true,
     .when = ADAM,
     .doc = "decay of the first and second moment"},
    {.path = "optimizer.eps",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = OPT(eps),
     .def = "1e-8",
     .min = 1e-37, // kernels compute in f32, which begins at 1.2e-38
     .max = 1,
     .when = ADAM,
     .doc = "added to the root of the second moment"},
    {.path = "optimizer.momentum",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = OPT(momentum),
     .def = "0.9",
     .max = 1,
     .below_max = true,
     .when = "optimizer.kind=momentum",
     .doc = "decay of the velocity"},
    {.path = "optimizer.nesterov",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_BOOL,
     .offset = OPT(nesterov),
     .def = "false",
     .when = "optimizer.kind=momentum",
     .doc = "look ahead by one velocity"},
    {.path = "optimizer.weight_decay",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = OPT(weight_decay),
     .def = "0.01",
     .max = 1e6,
     .when = "optimizer.kind=adamw",
     .doc = "decoupled from the gradient, times the learning rate"},
    {.path = "optimizer.clip_norm",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = OPT(clip_norm),
     .def = "0",
     .max = 1e30,
     .doc = "largest norm of the whole gradient, which grad_norm in the metrics is before it is "
            "clipped; frozen parameters have no part in it; 0: not clipped"},
    {.path = "optimizer.groups",
     .continues = CONTINUE_FITS,
     .type = SCHEMA_GROUPS,
     .offset = 0,
     .def = "[]",
     .max_items = 100,
     .doc = "parameters by glob, the first match wins: {match, weight_decay, lr_scale, or freeze: "
            "true}"},
};

#define SCHED(field) AT(job_schedule, field)
#define WARMUP       "schedule.kind=warmup_cosine"
#define COSINE       "schedule.kind=cosine|warmup_cosine"
static const char *const schedule_kinds[] = {"constant", "linear", "cosine", "warmup_cosine", NULL};
static const struct schema_row schedule_rows[] = {
    {.path = "schedule.kind",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_ENUM,
     .offset = SCHED(kind),
     .def = "constant",
     .names = schedule_kinds,
     .doc = "the learning rate over the steps, as optax defines it"},
    {.path = "schedule.value",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = SCHED(value),
     .def = "1e-3",
     .max = 1e6,
     .when = "schedule.kind=constant",
     .doc = "learning rate"},
    {.path = "schedule.init",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = SCHED(init),
     .def = "0",
     .max = 1e6,
     .when = "schedule.kind=linear|warmup_cosine",
     .doc = "learning rate of the first step"},
    {.path = "schedule.peak",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = SCHED(peak),
     .def = "1e-3",
     .max = 1e6,
     .above_min = true,
     .when = COSINE,
     .doc = "learning rate after the warm-up; of cosine: of the first step"},
    {.path = "schedule.end",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_FLOAT,
     .offset = SCHED(end),
     .def = "0",
     .max = 1e6,
     .when = "schedule.kind=linear|cosine|warmup_cosine",
     .doc = "learning rate from step `decay` on (linear: `steps`)"},
    {.path = "schedule.steps",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_INT,
     .offset = SCHED(steps),
     .derived = "train.steps",
     .min = 1,
     .max = STEPS_MAX,
     .unit = "steps",
     .when = "schedule.kind=linear",
     .doc = "from init to end"},
    {.path = "schedule.warmup",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_INT,
     .offset = SCHED(warmup),
     .def = "0",
     .max = STEPS_MAX,
     .unit = "steps",
     .when = WARMUP,
     .doc = "linear from init to peak"},
    {.path = "schedule.decay",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_INT,
     .offset = SCHED(decay),
     .derived = "train.steps",
     .min = 1,
     .max = STEPS_MAX,
     .unit = "steps",
     .when = COSINE,
     .doc = "where the cosine ends, the warm-up counted in"},
};

static const struct schema_row pipeline_rows[] = {
    {.path = "pipeline.schedule",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_ENUM,
     .offset = AT(job_pipeline, schedule),
     .def = "1f1b",
     .names = job_schedule_names,
     .doc = "how the stages of a mesh axis pp take turns: 1f1b starts a backward as soon as it can "
            "and keeps at most as many microbatches as there are stages; gpipe runs all forwards "
            "first; zero_bubble is 1f1b with the gradients of weights made where a stage would "
            "wait; interleaved (1f1b) and circular (gpipe) pass the stages once for each chunk"},
    {.path = "pipeline.chunks",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_pipeline, chunks),
     .def = "1",
     .min = 1,
     .max = JOB_MAX_CHUNKS,
     .doc = "runs of layers that each stage has, for interleaved and circular: v chunks make the "
            "time that stages wait a v-th, and v times as many sends"},
    {.path = "pipeline.layers",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_pipeline, layers),
     .derived = "of the model",
     .max = 1024,
     .doc = "of the model, which stages may be cut at; weft builds the model to count them when it "
            "reads the job file, whatever stands here"},
    {.path = "pipeline.stages",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT_LIST,
     .offset = AT(job_pipeline, stages),
     .def = "[]",
     .min = 1,
     .max = 1024,
     .max_items = 1024,
     .unit = "layers",
     .doc =
         "of each stage; []: as equal as can be, the remainder earliest. With chunks: of each "
         "chunk, in the order of the model. The embedding is on the first, the head on the last; "
         "an mlp's layers are its linear ones"},
};

static const char *const remat_kinds[] = {"none", "block", "full", NULL};
static const struct schema_row train_rows[] = {
    {.path = "train.steps",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_train, steps),
     .max = STEPS_MAX,
     .unit = "steps",
     .doc = "optimiser updates; 0: data.eval is evaluated once and nothing is saved"},
    {.path = "train.until",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(job_train, until),
     .optional = true,
     .valid = until_ok,
     .doc = "when `weft run` is to be over, 2h from its start or 23:40 of the clock: it saves in "
            "time, ends with 75, and the same command continues it"},
    {.path = "train.microbatches",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_train, microbatches),
     .def = "1",
     .min = 1,
     .max = 1024,
     .doc = "passes a step; their gradients are summed"},
    {.path = "train.seed",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_INT,
     .offset = AT(job_train, seed),
     .def = "0",
     .max = 9e18,
     .doc = "of initialisation and of the order of samples"},
    {.path = "train.remat",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_ENUM,
     .offset = AT(job_train, remat),
     .def = "none",
     .names = remat_kinds,
     .doc = "what the backward makes again to save memory: nothing; the insides of layers; all but "
            "the inputs of a stage"},
    {.path = "train.fuse",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_BOOL,
     .offset = AT(job_train, fuse),
     .def = "true",
     .doc = "ops next to each other run as one where the devices' backend can; false, to find a "
            "bug: each alone, the same numbers but for rounding"},
    {.path = "train.pack_heads",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_BOOL,
     .offset = AT(job_train, pack_heads),
     .def = "true",
     .doc = "with train.fuse, in bf16 on CUDA: one product makes queries, keys and values, and "
            "attention reads them in its rows; false, to compare: one for each, the same numbers "
            "but for rounding"},
    {.path = "train.log_every",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_train, log_every),
     .def = "1",
     .min = 1,
     .max = STEPS_MAX,
     .unit = "steps",
     .doc = "between two rows of metrics.jsonl; evaluations and the last step have rows too"},
};

static const char *const precisions[] = {"f32", "bf16", "tf32", NULL};
static const char *const summed_in[] = {"f32", "bf16", NULL};
static const struct schema_row precision_rows[] = {
    {.path = "precision.compute",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_ENUM,
     .offset = AT(job_precision, compute),
     .def = "f32",
     .names = precisions,
     .doc = "dtype of activations and of weights in products; the parameters themselves stay f32; "
            "tf32: f32 that products on CUDA read with 10 bits of mantissa"},
    {.path = "precision.reduce",
     .continues = CONTINUE_CHANGES,
     .type = SCHEMA_ENUM,
     .offset = AT(job_precision, reduce),
     .def = "f32",
     .names = summed_in,
     .doc = "dtype in which gradients are summed between devices; they accumulate in f32"},
    {.path = "precision.deterministic",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_BOOL,
     .offset = AT(job_precision, deterministic),
     .def = "true",
     .doc = "a step run twice gives the same bits; false: CUDA's libraries may also add in an "
            "order that chance decides, which may be faster"},
};

#define SAMPLE(field) offsetof(struct job_eval, sample.field)
#define PROMPT        "eval.sample.prompt"
static const struct schema_row eval_rows[] = {
    {.path = "eval.every",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_eval, every),
     .def = "0",
     .max = STEPS_MAX,
     .unit = "steps",
     .when = "data.eval.images|data.eval.tokens",
     .doc = "between evaluations; 0: only after the last step"},
    {.path = "eval.batches",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_eval, batches),
     .def = "0",
     .max = STEPS_MAX,
     .unit = "batches",
     .when = "data.eval.images|data.eval.tokens",
     .doc = "of an evaluation; 0: the whole set"},
    {.path = PROMPT,
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = SAMPLE(prompt),
     .optional = true,
     .when = "data.eval.tokens",
     .doc = "what a decoder continues after evaluations: text with \\n, \\t, \\\\ and \\xNN (in "
            "single quotes: 'a\\n'), or ids, as data.tokenizer says"},
    {.path = "eval.sample.every",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = SAMPLE(every),
     .def = "1",
     .min = 1,
     .max = STEPS_MAX,
     .unit = "evaluations",
     .when = PROMPT,
     .doc = "from one that is followed by samples to the next; the last step's always is"},
    {.path = "eval.sample.tokens",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = SAMPLE(tokens),
     .def = "100",
     .min = 1,
     .max = 8192,
     .unit = "tokens",
     .when = PROMPT,
     .doc = "to add"},
    {.path = "eval.sample.count",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = SAMPLE(count),
     .def = "1",
     .min = 1,
     .max = 64,
     .unit = "samples",
     .when = PROMPT,
     .doc = "continuations, drawn independently"},
    {.path = "eval.sample.temperature",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_FLOAT,
     .offset = SAMPLE(temperature),
     .def = "0",
     .max = 1e6,
     .when = PROMPT,
     .doc = "divides the logits before a token is drawn; 0: always the most likely token"},
    {.path = "eval.sample.top_k",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = SAMPLE(top_k),
     .def = "0",
     .max = 1 << 19,
     .unit = "tokens",
     .when = PROMPT,
     .doc = "draw among so many most likely tokens; 0: among all"},
    {.path = "eval.sample.seed",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = SAMPLE(seed),
     .def = "0",
     .max = 9e18,
     .when = PROMPT,
     .doc = "of the draws, which are the same at each evaluation and on any mesh"},
};

static const struct schema_row metrics_rows[] = {
    {.path = "metrics.jsonl",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_BOOL,
     .offset = AT(job_metrics, jsonl),
     .def = "true",
     .doc = "rows of metrics, one line of JSON each, beside the checkpoints"},
    {.path = "metrics.detail",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_metrics, detail),
     .def = "0",
     .max = STEPS_MAX,
     .unit = "steps",
     .doc = "between two updates of which a row has the norms of weights and update, of each layer "
            "and of what is in none; such a step waits for the device; 0 is never"},
    {.path = "metrics.sinks",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_NAMES,
     .offset = AT(job_metrics, sinks),
     .def = "[]",
     .max_items = 16,
     .valid = folder_name_ok,
     .doc =
         "programs that get the rows of metrics.jsonl: tensorboard, and those that the worker of "
         "rank 0's host has (--sink NAME=COMMAND)"},
};

static const char *const device_kinds[] = {[JOB_CPU] = "cpu", [JOB_CUDA] = "cuda", NULL};
const char *job_device_kind(int kind)
{
    PRE(kind >= 0 && kind < JOB_DEVICE_KINDS);
    return device_kinds[kind];
}

const char *const job_networks[] = {[JOB_ENCRYPTED] = "encrypted", [JOB_TRUSTED] = "trusted", NULL};

static const char *const collectives_words[] = {[JOB_COLLECTIVES_AUTO] = "auto",
                                                [JOB_COLLECTIVES_NCCL] = "nccl",
                                                [JOB_COLLECTIVES_HOST] = "host",
                                                NULL};

static const struct schema_row resources_rows[] = {
    {.path = "resources.devices",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_resources, devices),
     .derived = "product of the mesh, else 1",
     .min = 1,
     .max = JOB_MAX_DEVICES,
     .unit = "devices",
     .doc = "ranks, one a device"},
    {.path = "resources.kind",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_ENUM,
     .offset = AT(job_resources, kind),
     .def = "cpu",
     .names = device_kinds,
     .doc = "kind of device; the host needs its backend, libweft_KIND.so"},
    {.path = "resources.threads",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_resources, threads),
     .def = "0",
     .max = JOB_MAX_THREADS,
     .unit = "threads",
     .doc = "of one device; 0: a host's cores divided by its devices, of the job's poorest host, "
            "decided when the job first starts and kept. Another number may round products "
            "otherwise"},
    {.path = "resources.hosts",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_resources, hosts),
     .def = "0",
     .max = JOB_MAX_DEVICES,
     .unit = "hosts",
     .doc = "at most so many; 0: any number"},
    {.path = "resources.priority",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_resources, priority),
     .def = "0",
     .min = -1000000,
     .max = 1000000,
     .doc = "of submitted jobs: the greater goes first and may preempt the smaller"},
    {.path = "resources.scratch",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_resources, scratch),
     .def = "0",
     .max = 1 << 16,
     .unit = "MiB",
     .doc =
         "on CUDA: what the libraries may use while they compute, in the plan's memory; 0: 32 for "
         "products, up to 256 or what one head needs for attention's gradient. More may let them "
         "find faster "
         "algorithms, which may round otherwise"},
    {.path = "resources.bucket",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_resources, bucket),
     .def = "16",
     .max = 1 << 16,
     .unit = "MiB",
     .doc =
         "tensors that the same devices move next to each other are moved by one launch once they "
         "have so many bytes together: one all-reduce of gradients, one group of a layer's "
         "reduce-scatters or all-gathers; 0: a launch for each. The hosts' sums have the same "
         "bits, "
         "NCCL's of three ranks and more may round otherwise"},
    {.path = "resources.network",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_ENUM,
     .offset = AT(job_resources, network),
     .def = "encrypted",
     .names = job_networks,
     .doc =
         "between the job's hosts; encrypted: tensors travel encrypted, and what was changed on "
         "the way ends the attempt (AES-128-GCM); trusted: they travel plain, for a network that "
         "nobody else can reach"},
    {.path = "resources.collectives",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_ENUM,
     .offset = AT(job_resources, collectives),
     .def = "auto",
     .names = collectives_words,
     .doc =
         "who carries tensors between the devices; nccl: the devices themselves, by NCCL 2.27 or "
         "later, whose sums of three ranks and more may round otherwise than the hosts'; host: "
         "their hosts; auto: NCCL where every rank has it and a GPU of its own; CPUs' go by their "
         "hosts"},
};

static const struct schema_row restart_rows[] = {
    {.path = "restart.budget",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_INT,
     .offset = AT(job_restart, budget),
     .def = "5",
     .max = 1000000,
     .unit = "restarts",
     .doc = "after rank failures with no checkpoint since the last; one more holds the job"},
    {.path = "restart.per",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_DURATION,
     .offset = AT(job_restart, per),
     .def = "1h",
     .min = 1,
     .max = 31536000,
     .doc = "the time within which the budget is counted"},
    {.path = "restart.backoff",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_DURATIONS,
     .offset = AT(job_restart, backoff),
     .def = "[1s, 60s]",
     .max = 86400,
     .doc = "first and longest wait; it doubles with each attempt in a row without a step"},
    {.path = "restart.hang_after",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_DURATION,
     .offset = AT(job_restart, hang_after),
     .def = "5s",
     .min = 0.1,
     .max = 86400,
     .doc = "without progress, beyond the longest step seen, is a hang"},
};

const struct schema_table job_name_schema = TABLE(name_rows, 0);
const struct schema_table job_pipeline_schema = TABLE(pipeline_rows, AT(job, pipeline));
const struct schema_table job_mesh_schema = TABLE(mesh_rows, AT(job, mesh));
const struct schema_table job_sharding_schema = TABLE(sharding_rows, AT(job, sharding));
const struct schema_table job_optimizer_schema = TABLE(optimizer_rows, AT(job, optimizer));
const struct schema_table job_schedule_schema = TABLE(schedule_rows, AT(job, schedule));
const struct schema_table job_train_schema = TABLE(train_rows, AT(job, train));
const struct schema_table job_precision_schema = TABLE(precision_rows, AT(job, precision));
const struct schema_table job_eval_schema = TABLE(eval_rows, AT(job, eval));
const struct schema_table job_metrics_schema = TABLE(metrics_rows, AT(job, metrics));
const struct schema_table job_resources_schema = TABLE(resources_rows, AT(job, resources));
const struct schema_table job_restart_schema = TABLE(restart_rows, AT(job, restart));

// How the setting of each type is read and printed.
// clang-format off
const struct setting_type setting_types[SCHEMA_COUNT] = {
    [SCHEMA_INT]       = {"integer", setting_read_int, setting_print_int},
    [SCHEMA_FLOAT]     = {"number", setting_read_float, setting_print_float},
    [SCHEMA_BOOL]      = {"true or false", setting_read_bool, setting_print_bool},
    [SCHEMA_STRING]    = {"text", setting_read_string, setting_print_string},
    [SCHEMA_TEXT]      = {"lines of text", setting_read_text, setting_print_text},
    [SCHEMA_ENUM]      = {"word", setting_read_enum, setting_print_enum},
    [SCHEMA_DURATION]  = {"duration", setting_read_duration, setting_print_duration},
    [SCHEMA_INT_LIST]  = {"list of integers", setting_read_int_list, setting_print_int_list},
    [SCHEMA_PAIR]      = {"two numbers", setting_read_pair, setting_print_pair},
    [SCHEMA_DURATIONS] = {"two durations", setting_read_durations, setting_print_durations},
    [SCHEMA_MESH]      = {"map of axis: size", setting_read_mesh, setting_print_mesh},
    [SCHEMA_RULES]     = {"map of dimension: axes", setting_read_rules, setting_print_rules},
    [SCHEMA_PARAMS]    = {"list of parameter specs", setting_read_params, setting_print_params},
    [SCHEMA_POINTS]    = {"map of point: spec", setting_read_points, setting_print_points},
    [SCHEMA_AXES]      = {"list of axes", setting_read_axes, setting_print_axes},
    [SCHEMA_REFINE]    = {"list of axes, or of parameter specs", setting_read_refine, setting_print_refine},
    [SCHEMA_GLOBS]     = {"list of globs", setting_read_globs, setting_print_names},
    [SCHEMA_NAMES]     = {"list of names", setting_read_names, setting_print_names},
    [SCHEMA_RENAMES]   = {"map of pattern: pattern", setting_read_renames, setting_print_renames},
    [SCHEMA_GROUPS]    = {"list of groups", setting_read_groups, setting_print_groups},
};
// clang-format on
