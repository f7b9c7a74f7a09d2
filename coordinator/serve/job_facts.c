// SPDX-License-Identifier: Apache-2.0
// Job texts; see job_facts.h.
#include "coordinator/serve/job_facts.h"

#include <string.h>

#include "common/attempt/frame.h"
#include "common/job/threads.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"

// Returns the text, and clears the buffer.
static char *keep_text(struct arena *a, struct buf *b)
{
    char *text = arena_strdup(a, buf_str(b));
    buf_clear(b);
    return text;
}

static char *print_mesh(const struct job_mesh *m, struct arena *a)
{
    struct buf text = {0};
    for (int i = 0; i < m->n; i++)
        buf_printf(&text, "%s%s: %lld", i ? ", " : "{", m->axis[i].name,
                   (long long)m->axis[i].size);
    buf_puts(&text, m->n ? "}" : "{}");
    return keep_text(a, &text);
}

// Of a folder the ranks look for the one or two files in it.
static bool names_json(const struct job_data *d)
{
    const char *suffix = d->tokenizer ? strrchr(d->tokenizer, '.') : NULL;
    return suffix && strcmp(suffix, ".json") == 0;
}

static void list_data(const struct job_data *d, struct arena *a, Weft__Plan__JobFacts *f)
{
    const struct {
        const char *key, *path;
    } all[JOB_DATA_PATHS] = {
        {"data.train.images", d->train.images},
        {"data.train.labels", d->train.labels},
        {"data.train.tokens", d->train.tokens},
        {"data.eval.images", d->eval.images},
        {"data.eval.labels", d->eval.labels},
        {"data.eval.tokens", d->eval.tokens},
        {"data.tokenizer", names_json(d) ? d->tokenizer : NULL},
    };
    f->data = arena_array(a, Weft__Plan__DataPath *, JOB_DATA_PATHS);
    for (int i = 0; i < JOB_DATA_PATHS; i++) {
        if (!all[i].path)
            continue;
        Weft__Plan__DataPath *p = f->data[f->n_data++] = arena_new(a, Weft__Plan__DataPath);
        weft__plan__data_path__init(p);
        p->key = frame_text(all[i].key);
        p->path = frame_text(all[i].path);
    }
    f->literal = d->format != JOB_DATA_TOKENS;
}

static int parse_text(const char *text, const char *base_dir, struct arena *a, struct job *job,
                      struct err *e)
{
    struct job_errors errs = {0};
    return job_parse(a, &weft_schema, NULL, *base_dir ? base_dir : NULL, text, strlen(text), NULL,
                     0, job, &errs)
               ? job_errors_err(&errs, e)
               : 0;
}

// A text that names no threads continues with those that the job has.
static int compare_with_before(const Weft__Plan__JobText *t, struct job now, struct arena *a,
                               Weft__Plan__JobFacts *f, struct err *e)
{
    struct buf identity = {0}, changes = {0};
    struct job before;
    char *hash = arena_array(a, char, 65);
    if (parse_text(t->before, "", a, &before, e))
        return err_wrap(e, "its text so far");
    job_hash(&before, hash);
    if (!before.resources.threads)
        before.resources.threads = t->threads_before;
    threads_keep(&now, &before);
    job_identity_differences(&before, &now, &identity);
    job_changes(&before, &now, &changes);
    f->before_hash = hash;
    f->identity = keep_text(a, &identity);
    f->changes = keep_text(a, &changes);
    return 0;
}

static void fill_facts(const struct job *job, struct arena *a, Weft__Plan__JobFacts *f)
{
    struct buf text = {0}, tags = {0}, notify = {0};
    job_print(job, &text);
    f->text = keep_text(a, &text);
    f->hash = arena_array(a, char, 65);
    job_hash(job, f->hash);
    f->name = frame_text(job->name);
    f->kind = job->resources.kind;
    f->ranks = (int)job->resources.devices;
    f->max_hosts = (int)job->resources.hosts;
    f->threads = (int)job->resources.threads;
    f->steps = job->train.steps;
    f->priority = job->resources.priority;
    f->mesh = print_mesh(&job->mesh, a);
    for (int i = 0; i < job->tags.n; i++)
        buf_printf(&tags, "%s%s", i ? " " : "", ((const char *const *)job->tags.items)[i]);
    f->tags = keep_text(a, &tags);
    for (int i = 0; i < job->notify.n; i++)
        buf_printf(&notify, "%s%s", i ? " " : "", ((const char *const *)job->notify.items)[i]);
    f->notify = keep_text(a, &notify);
    f->checkpoint_dir = frame_text(job->checkpoint.dir);
    f->keep = job->checkpoint.keep;
    f->keep_every = job->checkpoint.keep_every;
    f->source = frame_text(job->checkpoint.from ? job->checkpoint.from : "");
    f->source_steps = job->checkpoint.from && job->checkpoint.load.step;
    f->keep_best = job->checkpoint.best == JOB_BEST_EVAL_LOSS;
    f->patience_ns = job->checkpoint.patience;
    f->budget = job->restart.budget;
    f->budget_ns = job->restart.per;
    f->backoff_ns = job->restart.backoff[0];
    f->backoff_most_ns = job->restart.backoff[1];
    f->hang_after_ns = job->restart.hang_after;
    list_data(&job->data, a, f);
}

Weft__Plan__JobFacts *job_facts_read(const Weft__Plan__JobText *t, struct arena *a)
{
    Weft__Plan__JobFacts *f = arena_new(a, Weft__Plan__JobFacts);
    struct compiled compiled;
    struct job job;
    struct err e = {0};
    weft__plan__job_facts__init(f);
    int rc = parse_text(t->text, t->base_dir, a, &job, &e);
    rc = rc ? rc : job_check_devices(&job, &e);
    if (!rc && t->plan)
        rc = plan_compile(&job, NULL, a, &compiled, NULL, &e);
    if (!rc && *t->before)
        rc = compare_with_before(t, job, a, f, &e);
    if (rc)
        f->refused = arena_strdup(a, e.text);
    else
        fill_facts(&job, a, f);
    return f;
}
