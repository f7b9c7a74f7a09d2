// SPDX-License-Identifier: Apache-2.0
// Parameters of another training's checkpoint; see take_source.h.
#include "worker/rank/train/take_source.h"

#include <string.h>

#include "common/base/log.h"
#include "common/ckpt/source.h"
#include "common/plan/plan.h"

static int check_optimizer(const struct trainer *t, const struct manifest *m, struct err *e)
{
    const char *kind = job_optimizer_name(t->job->optimizer.kind);
    if (!t->job->checkpoint.load.optimizer || strcmp(m->optimizer, kind) == 0)
        return 0;
    return err_set(e, ERR_INVALID,
                   "checkpoint.load.optimizer: the checkpoint has the state of %s, and "
                   "optimizer.kind is %s",
                   m->optimizer, kind);
}

// Samples are drawn on where the data is that of the checkpoint; else from the first one on.
static void count_on(struct trainer *t, const struct manifest *m)
{
    const struct job_load *load = &t->job->checkpoint.load;
    bool same = !data_identity_check(&m->data, m->step, &t->data, NULL);
    t->updates = load->optimizer ? m->updates : 0;
    t->sampler.from = (uint64_t)t->assignment->restore_step;
    t->sampler.drawn = load->step && same ? (uint64_t)m->samples : 0;
}

// Rank 0 compares the tokenizers, with its files.
static int check_tokenizer(const struct trainer *t, const struct load *l, const char *vocab,
                           struct buf *note, struct err *e)
{
    if (t->job->data.format != JOB_DATA_TOKENS || t->assignment->rank)
        return 0;
    const char *identity = tokenizer_identity(t->tokenizer);
    struct source_tokenizer own = {identity, t->tokenizer};
    if (strcmp(identity, "ids") == 0)
        own.identity = t->set.tokenizer; // as the files say
    return source_check_tokenizer(l, t->assignment->checkpoint_root, &t->source, vocab, &own, note,
                                  e);
}

static int note_match(struct trainer *t, const struct load *l, const struct match *match,
                      const struct match_param *params, int n, struct err *e)
{
    const struct manifest_source *s = &t->source;
    char name[64];
    store_entry_name(s->attempt, s->step, name);
    buf_printf(&t->note, "checkpoint.from %s/%s: ", s->folder, name);
    match_print(match, n, &t->note);
    int rc = check_tokenizer(t, l, match_vocab(match, params, n), &t->note, e);
    if (!rc && t->assignment->rank == 0)
        log_info("ckpt", "%s", buf_str(&t->note));
    return rc;
}

static int take(struct trainer *t, struct load *l, struct err *e)
{
    struct match match;
    struct match_param *params;
    const struct job_load *load = &t->job->checkpoint.load;
    int n = plan_params(&t->compiled, &t->arena, &params);
    int rc = check_optimizer(t, &l->manifest, e);
    rc = rc ? rc : match_params(&t->arena, &l->manifest, load, params, n, &match, e);
    rc = rc ? rc : note_match(t, l, &match, params, n, e);
    if (rc)
        return rc;
    count_on(t, &l->manifest);
    const struct state_source source = {l, params, n, &match, load->optimizer};
    struct err why = {0};
    rc = state_take(&t->state, &source, (uint64_t)t->job->train.seed,
                    world_cores(t->exec_options.world), &why);
    if (rc == ERR_DATA || rc == ERR_CORRUPT) // no other try helps
        return err_set(e, ERR_INVALID, "%.800s: start over from another one (checkpoint.from: …@N)",
                       why.text);
    if (rc && e)
        *e = why;
    return rc;
}

int take_source(struct trainer *t, struct err *e)
{
    const struct assignment *a = t->assignment;
    struct store own = {.fd = -1};
    struct load l = {.dirfd = -1};
    int rc = store_open(&own, a->checkpoint_root, a->store, e);
    rc = rc ? rc : source_read(&own, &t->arena, &t->source, e);
    rc = rc ? rc : source_open_pinned(&l, a->checkpoint_root, &t->source, e);
    rc = rc ? rc : take(t, &l, e);
    load_close(&l);
    store_close(&own);
    return rc ? err_wrap(e, "checkpoint.from") : 0;
}
