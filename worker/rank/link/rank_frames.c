// SPDX-License-Identifier: Apache-2.0
// Conversions between frames and structs; see rank_frames.h.
#include "worker/rank/link/rank_frames.h"

#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"

// The fields that both structs have under one name.
// clang-format off
#define ROW_FIELDS(X)                                          \
    X(step) X(steps) X(loss) X(loss_mean) X(grad_norm) X(lr)   \
    X(tokens_per_s) X(samples_per_s) X(step_ms) X(mean_ms)     \
    X(input_ms) X(compute_ms) X(communication_ms)              \
    X(checkpoint_ms) X(flops_per_s) X(mfu) X(memory_bytes)     \
    X(memory_planned_bytes) X(dropped)                         \
    X(evaluated) X(eval_loss) X(eval_accuracy)
// clang-format on
#define COPY(field) out->field = from->field;

void rank_frame_from_row(const struct step_row *from, Weft__Rank__StepReport *out)
{
    weft__rank__step_report__init(out);
    ROW_FIELDS(COPY)
    out->n_samples = (size_t)from->nsamples;
    out->samples = frame_borrow(from->samples);
    out->sample_prompt = frame_text(from->sample_prompt ? from->sample_prompt : "");
}

static void put_digest(struct hash128 h, uint8_t out[16])
{
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(h.hi >> (56 - 8 * i));
        out[8 + i] = (uint8_t)(h.lo >> (56 - 8 * i));
    }
}

static struct hash128 get_digest(const uint8_t in[16])
{
    struct hash128 h = {0};
    for (int i = 0; i < 8; i++) {
        h.hi = h.hi << 8 | in[i];
        h.lo = h.lo << 8 | in[8 + i];
    }
    return h;
}

void rank_frame_from_shard(const struct shard_report *s, struct arena *a,
                           Weft__Rank__ShardDone *out)
{
    weft__rank__shard_done__init(out);
    out->rank = s->rank;
    out->step = s->step;
    out->tries = s->tries;
    out->code = s->code;
    out->text = frame_text(s->text);
    out->removed = s->removed;
    out->bytes = s->bytes;
    out->head_bytes = s->head_bytes;
    out->head_digest.len = 16;
    out->head_digest.data = arena_alloc(a, 16);
    put_digest(s->head_digest, out->head_digest.data);
    out->evaluated = s->evaluated;
    out->eval_loss = s->eval_loss;
    out->digests.len = 16 * (size_t)s->n;
    out->digests.data = arena_alloc(a, out->digests.len + 1);
    for (int i = 0; i < s->n; i++)
        put_digest(s->digests[i], out->digests.data + 16 * i);
}

// False if the length of a digest is not 16 bytes.
static bool read_shard(const Weft__Rank__ShardDone *f, struct arena *a, struct shard_report *out)
{
    memset(out, 0, sizeof *out);
    if (f->head_digest.len != 16 || f->digests.len % 16)
        return false;
    out->rank = f->rank;
    out->step = f->step;
    out->tries = f->tries;
    out->code = f->code;
    snprintf(out->text, sizeof out->text, "%s", f->text);
    out->removed = f->removed;
    out->evaluated = f->evaluated;
    out->eval_loss = f->eval_loss;
    out->bytes = f->bytes;
    out->head_bytes = f->head_bytes;
    out->head_digest = get_digest(f->head_digest.data);
    out->n = (int)(f->digests.len / 16);
    out->digests = arena_array(a, struct hash128, out->n + 1);
    for (int i = 0; i < out->n; i++)
        out->digests[i] = get_digest(f->digests.data + 16 * i);
    return true;
}

static bool commit_event(const Weft__Rank__Commit *c, struct arena *a, struct link_event *out)
{
    struct shard_report *reports = arena_array(a, struct shard_report, c->n_shards + 1);
    for (size_t i = 0; i < c->n_shards; i++)
        if (!read_shard(c->shards[i], a, &reports[i]))
            return false;
    *out = (struct link_event){.kind = LINK_COMMIT, .step = c->step, .reports = reports};
    return true;
}

bool rank_frame_to_event(const Weft__Rank__Frame *f, struct arena *a, struct link_event *out)
{
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_COMMIT:
        return commit_event(f->commit, a, out);
    case WEFT__RANK__FRAME__BODY_COMMITTED:
        *out = (struct link_event){.kind = LINK_COMMITTED, .step = f->committed->step};
        return true;
    case WEFT__RANK__FRAME__BODY_ABORTED:
        *out = (struct link_event){.kind = LINK_ABORTED,
                                   .step = f->aborted->step,
                                   .text = f->aborted->why,
                                   .tries = f->aborted->tries,
                                   .again = f->aborted->again};
        return true;
    case WEFT__RANK__FRAME__BODY_DELETE:
        *out =
            (struct link_event){.kind = LINK_DELETE,
                                .step = f->delete_->step,
                                .id = {.attempt = f->delete_->attempt, .step = f->delete_->step}};
        return true;
    default:
        return false;
    }
}

// An empty text stands for none.
static const char *text_or_null(struct arena *a, const char *s)
{
    return *s ? arena_strdup(a, s) : NULL;
}

int rank_frame_to_assignment(const Weft__Rank__Assign *f, struct assignment *a, struct err *e)
{
    if (f->key.len != sizeof a->key || f->ranks < 1 || f->ranks > RANK_MAX || f->rank < 0 ||
        f->rank >= f->ranks)
        return err_set(
            e, ERR_DATA,
            "the assignment is damaged: it is for rank %d of %d, with a key of %zu bytes", f->rank,
            f->ranks, f->key.len);
    if (f->attempt < 1 || f->attempt > ATTEMPT_MAX)
        return err_set(e, ERR_DATA, "the assignment is damaged: attempt %llu is not within 1 to %d",
                       (unsigned long long)f->attempt, ATTEMPT_MAX);
    if (f->restore_step < 0)
        return err_set(e, ERR_DATA, "the assignment is damaged: it begins at step %lld",
                       (long long)f->restore_step);
    a->rank = f->rank;
    a->ranks = f->ranks;
    a->attempt = f->attempt;
    a->job_text = arena_strdup(&a->arena, f->job_text);
    a->base_dir = arena_strdup(&a->arena, f->base_dir);
    a->job_hash = arena_strdup(&a->arena, f->job_hash);
    snprintf(a->job_id, sizeof a->job_id, "%s", f->job_id);
    snprintf(a->cluster_id, sizeof a->cluster_id, "%s", f->cluster_id);
    snprintf(a->attempt_id, sizeof a->attempt_id, "%s", f->attempt_id);
    snprintf(a->run_id, sizeof a->run_id, "%s", f->run_id);
    memcpy(a->key, f->key.data, sizeof a->key);
    a->store = arena_strdup(&a->arena, f->store);
    a->restore = text_or_null(&a->arena, f->restore);
    a->restore_step = f->restore_step;
    a->hang_after_ns = f->hang_after_ns;
    a->metrics = text_or_null(&a->arena, f->metrics);
    a->listen = text_or_null(&a->arena, f->listen);
    a->data_root = text_or_null(&a->arena, f->data_root);
    a->checkpoint_root = text_or_null(&a->arena, f->checkpoint_root);
    a->device = f->device;
    a->threads = f->threads;
    if (f->only < 0 || f->rows < 0 || f->context < 0)
        return err_set(e, ERR_DATA,
                       "the assignment is damaged: program %d, %lld rows, context %lld", f->only,
                       (long long)f->rows, (long long)f->context);
    a->only = f->only;
    a->rows = f->rows;
    a->context = f->context;
    return 0;
}
