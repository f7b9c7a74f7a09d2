// SPDX-License-Identifier: Apache-2.0
// The job file: what to train, on what, and how. KEYS.md beside this file lists the keys.
//
// A job is read with job_load() (a file) or job_parse() (text). Both report every violation at
// once, fill in every default and leave a struct job whose pointers live in the arena. The keys
// are schema rows (base/schema.h), which the modules own; the binaries hand the whole list in
// (plan/schema_list.h: weft_schema). job_print() writes the resolved job, with every default
// written out; it parses to the same struct and prints to the same bytes. job_hash() is its
// SHA-256. Nothing here opens a data set. Any thread may read a struct job once it is filled.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/job_sections.h"
#include "common/base/schema.h"
#include "common/job/job_sharding.h"
#include "common/job/sample.h"

enum {
    JOB_SCHEMA_VERSION = 2,  // `schema:` of the resolved form
    JOB_MAX_BYTES = 1 << 20, // of a job file, and of an override
    JOB_MAX_DEPTH = 16,      // of nesting
    JOB_MAX_NODES = 10000,   // keys and values
    JOB_MAX_ERRORS = 100,    // reported; the rest are counted
    JOB_MAX_STAGES = 64,
    JOB_MAX_SIZES = 64, // of a model
    JOB_MAX_CHUNKS = 64,
    JOB_MAX_TAGS = 16, // of a stage; of a job, and of its receivers of notices
};

union job_size { // as its kind says (model_program.h)
    int64_t whole;
    double number;
    int word; // an index
    struct schema_list list;
};
struct model_program; // common/language has these three
struct model_sizes;
struct model_facts;
struct job_model {
    const char *program;                // "gpt2", or the path of a text of the user's own
    const char *text;                   // of the user's own; null: it comes with weft
    const char *init;                   // what weights are born with; null: as the text says
    const struct model_program *read;   // the text, read
    const struct model_sizes *sizes;    // what the job gives, and defaults
    const struct model_facts *facts;    // what the rest of weft asks of a model
    union job_size size[JOB_MAX_SIZES]; // the same as `sizes`, for the schema's rows
};

enum job_optimizer_kind { JOB_SGD, JOB_MOMENTUM, JOB_ADAM, JOB_ADAMW };

struct job_param_group { // parameters with an update rule of their own; the first match wins
    const char *match;   // a glob over the parameter's path, matched by fnmatch(3) without flags
    double weight_decay; // the group's own or else the optimiser's
    bool own_decay;
    double lr_scale; // times the schedule
    bool freeze;     // stays as it is: no gradient, no state, no part in the norm
    int line;        // of the job file; 0: an override gave it
};
struct job_optimizer {        // fields of another kind hold their defaults and do not act
    int kind;                 // enum job_optimizer_kind
    double beta1, beta2, eps; // adam, adamw
    double momentum;          // momentum
    bool nesterov;            // momentum
    double weight_decay;      // adamw: decoupled; 0 for the others
    double clip_norm;         // of the global gradient; 0: none
    int n_groups;
    struct job_param_group *groups;
};

const char *job_optimizer_name(int kind); // "adamw", of enum job_optimizer_kind
enum job_schedule_kind { JOB_CONSTANT, JOB_LINEAR, JOB_COSINE, JOB_WARMUP_COSINE };

struct job_schedule {             // the first update uses schedule(0), as in optax
    int kind;                     // enum job_schedule_kind
    double value;                 // constant
    double init, peak, end;       // linear: init, end; cosine: peak, end; warmup_cosine
    int64_t steps, warmup, decay; // linear: steps; cosine: decay, which includes the warm-up
};

enum job_pipeline_schedule { JOB_1F1B, JOB_GPIPE, JOB_INTERLEAVED, JOB_ZERO_BUBBLE, JOB_CIRCULAR };
struct job_pipeline {
    int schedule;              // enum job_pipeline_schedule
    int64_t chunks;            // of each stage
    int64_t layers;            // of the model: where it may be cut into stages
    struct schema_list stages; // int64_t: how many layers each stage has, or each chunk, in the
                               // order of the model; none: as equal as can be
};
enum job_remat { JOB_REMAT_NONE, JOB_REMAT_BLOCK, JOB_REMAT_FULL };

struct job_train {
    int64_t steps, microbatches, seed, log_every;
    int remat;             // enum job_remat
    const char *until;     // null: it stops for no clock; until.h
    bool fuse, pack_heads; // the backend's fused ops; with them, q, k and v in one row
};
enum job_dtype { JOB_F32, JOB_BF16, JOB_TF32 }; // TF32: of `compute` alone
struct job_precision {  // parameters, optimiser state and sums of gradients are f32
    int compute;        // enum job_dtype: of activations, and of parameters as ops read them
    int reduce;         // enum job_dtype: of gradients while devices exchange them
    bool deterministic; // false: a step run twice may differ in its last bits
};
struct job_eval {
    int64_t every;            // steps; 0: only after the last step. Both 0 without data.eval
    int64_t batches;          // 0: the whole set
    struct job_sample sample; // after each evaluation
};
struct job_metrics {
    struct schema_list sinks; // of const char *
    bool jsonl;
    int64_t detail; // steps; 0: never
};
enum job_device_kind { JOB_CPU, JOB_CUDA, JOB_DEVICE_KINDS };
enum job_network { JOB_ENCRYPTED, JOB_TRUSTED };
enum job_collectives { JOB_COLLECTIVES_AUTO, JOB_COLLECTIVES_NCCL, JOB_COLLECTIVES_HOST };
const char *job_device_kind(int kind);   // "cuda": also its backend's name
extern const char *const job_networks[]; // by enum job_network, null at the end
struct job_resources {
    int64_t devices;                   // = product of the mesh
    int kind;                          // enum job_device_kind
    int64_t threads;                   // a device; 0: decided at the first start (threads.h)
    int64_t hosts;                     // at most so many; 0: any number
    int64_t priority, scratch, bucket; // MiB: of CUDA's libraries, 0: as usual; of one launch
    int network, collectives;          // enum job_network, enum job_collectives
};
struct job_restart {
    int64_t budget;     // rank failures within `per` that are answered with a restart
    int64_t per;        // nanoseconds
    int64_t backoff[2]; // nanoseconds: the first wait, the longest
    int64_t hang_after; // nanoseconds without progress beyond the longest step seen
};

struct job {
    int64_t schema_version; // JOB_SCHEMA_VERSION
    const char *name;
    struct schema_list tags, notify; // const char *
    struct job_model model;
    struct job_mesh mesh;
    struct job_sharding sharding;
    struct job_data data;
    struct job_optimizer optimizer;
    struct job_schedule schedule;
    struct job_train train;
    struct job_pipeline pipeline;
    struct job_precision precision;
    struct job_eval eval;
    struct job_checkpoint checkpoint;
    struct job_metrics metrics;
    struct job_resources resources;
    struct job_restart restart;

    int64_t batch_unit;   // what data.batch must be a multiple of; 0: not known; derived
    const char *base_dir; // the job file's folder, "." for text; not part of the resolved form
    const struct tree_node *text; // the tree that was read, for job_line
    const struct schema *schema;  // borrowed: the rows it was read with
};

// The mesh axis along which the pipeline's stages lie: the one that the rule of `layers` names, by
// default pp. −1: the mesh has no such axis, so there is one stage.
int job_pipeline_axis(const struct job *job);
int job_stages(const struct job *job);
int job_chunks(const struct job *job); // of each stage, pipeline.chunks; 1 without a pipeline
int64_t job_microbatches_within(const struct job *, int64_t most); // its schedule takes; 0: none
extern const char *const job_schedule_names[]; // by enum job_pipeline_schedule, null at the end
// Returns how many layers the place c · stages + s has, chunk c of stage s: as pipeline.stages
// says, else equally, with what is left over at the earliest places.
int64_t job_stage_layers(const struct job *job, int place);

struct job_error {
    const char *file; // or "-s key=value"
    int line, column; // from 1; line 0: the file as a whole
    const char *path; // "optimizer.betas"; "" at the top
    const char *message;
};
struct job_errors {          // zeroed: none
    struct job_error *items; // sorted by position: the file's first, then the overrides'
    int n, cap;
    int more; // found beyond JOB_MAX_ERRORS
};

// Reads, fills defaults, checks. `overrides` are the texts of -s, "train.steps=200" each, applied
// in order. Returns 0, ERR_IO (cannot read; one entry says why) or ERR_INVALID (see errs).
int job_load(struct arena *a, const struct schema *schema, const char *path,
             const char *const *overrides, int n_overrides, struct job *out,
             struct job_errors *errs);
// As job_load, but of a text in memory. Errors name `file`; null: the text is a resolved job, and
// errors name no lines, since its user never saw them. `base_dir` may be null (".").
int job_parse(struct arena *a, const struct schema *schema, const char *file, const char *base_dir,
              const char *text, size_t len, const char *const *overrides, int n_overrides,
              struct job *out, struct job_errors *errs);
// One line each, "file:line:column: path: message"; ends with "… and N more" when there are more.
void job_errors_print(const struct job_errors *errs, struct buf *to);
// The first error, and how many more, as one struct err (for logs); returns ERR_INVALID.
int job_errors_err(const struct job_errors *errs, struct err *e);

void job_print(const struct job *job, struct buf *to);
void job_hash(const struct job *job, char hex[65]);
void job_groups_print(const struct job_optimizer *o, struct buf *to);
const struct job_param_group *job_group_of(const struct job_optimizer *optimizer,
                                           const char *param); // the first that matches, or null

// The line of the job file that gives a key ("model.seq"), or the line of its section when the key
// is left out. 0: an override gives it, or nothing does. `path` ends at `len`.
int job_line(const struct job *job, const char *path, size_t len);

// Appends the keys that keep one job from continuing from the other's checkpoint, "model.embed,
// train.seed", as the schema's rows say (`continues`). None: it may.
void job_identity_differences(const struct job *one, const struct job *other, struct buf *keys);
// Whether training data is named otherwise: only then may it be other data.
bool job_names_other_data(const struct job *before, const struct job *now);
bool job_optimizers_share_state(const char *one, const char *other); // by their kinds' names
// Appends every key of another meaning with its settings: "train.steps from 20 to 40, schedule.value from
// 1e-3 to 1e-4".
void job_changes(const struct job *before, const struct job *now, struct buf *text);
// `rel` against the job file's folder; an absolute path stays as it is.
const char *job_path(const struct job *job, struct arena *a, const char *rel);

// The table of keys that `weft schema` prints, and KEYS.md beside this file.
enum job_schema_form { JOB_SCHEMA_TEXT, JOB_SCHEMA_MARKDOWN, JOB_SCHEMA_JSON };
void job_schema_print(const struct schema *schema, enum job_schema_form form, struct buf *to);
