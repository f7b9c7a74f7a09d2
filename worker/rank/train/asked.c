// SPDX-License-Identifier: Apache-2.0
// Questions and answers. See asked.h.
#include "worker/rank/train/asked.h"

#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/page.h"
#include "common/language/model_facts.h"
#include "worker/rank/link/rank_link.h"

// ---- texts ----

static int check_row(const struct sampling *s, const Weft__Rank__Row *r, struct err *e)
{
    const int64_t vocab = s->job->model.facts->vocab;
    if (r->row < 0 || r->row >= s->rows || (r->begins && !r->n_ids))
        return err_set(e, ERR_INVALID, "row %d of %lld rows with %zu tokens", r->row,
                       (long long)s->rows, r->n_ids);
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || r->ids[i] >= vocab)
            return err_set(e, ERR_INVALID, "token %d is not in 0 … %lld", r->ids[i],
                           (long long)vocab - 1);
    if (!r->begins && !s->text[r->row].n)
        return err_set(e, ERR_INVALID, "row %d has no text to continue", r->row);
    return 0;
}

static int continue_texts(struct trainer *t, const Weft__Rank__Ask *ask, struct err *e)
{
    struct sampling *s = &t->sampling;
    struct sampling_how how = {.temperature = ask->temperature,
                               .top_k = ask->top_k,
                               .top_p = ask->top_p,
                               .min_p = ask->min_p,
                               .penalty = ask->penalty,
                               .seed = ask->seed};
    FRAME_BODY(answer, Answer, answer);
    struct arena a = {0};
    int rc = 0;
    if (ask->context > 0 && ask->context < s->context)
        s->context = ask->context;
    for (size_t i = 0; i < ask->n_rows && !rc; i++) {
        const Weft__Rank__Row *r = ask->rows[i];
        rc = check_row(s, r, e);
        if (!rc && r->begins)
            rc = sampling_begin(s, r->row, e);
        if (!rc)
            sampling_append(s, r->row, r->ids, (int64_t)r->n_ids);
    }
    if (!rc)
        rc = sampling_run(s, e);
    answer.ids = arena_array(&a, int32_t, ask->n_rows);
    answer.rows = arena_array(&a, int32_t, ask->n_rows);
    answer.log_shares = arena_array(&a, double, ask->n_rows);
    for (size_t i = 0; i < ask->n_rows && !rc; i++) {
        if (!sampling_has(s, ask->rows[i]->row))
            continue;
        how.request = ask->rows[i]->request;
        answer.rows[answer.n_rows++] = (int32_t)i;
        answer.ids[answer.n_ids++] =
            sampling_choose(s, ask->rows[i]->row, &how,
                            ask->log_shares ? &answer.log_shares[answer.n_log_shares++] : NULL);
    }
    answer.parts = (int32_t)(s->rows / s->mine);
    if (!rc && s->answers)
        link_answer(t->link, &answer);
    arena_clear(&a);
    return rc;
}

// ---- scores ----

// Queues the samples of the question; rows that it does not fill hold zeros, and nobody reads what
// they come to.
static int put_samples(struct trainer *t, const Weft__Rank__Ask *ask, int64_t n, struct err *e)
{
    struct inputs *in = &t->inputs;
    const size_t each = dataset_sample_bytes(&t->set);
    char *samples = in->host[0];
    int32_t *labels = in->host[1];
    memset(samples, 0, each * (size_t)in->local);
    memset(labels, 0, sizeof *labels * (size_t)in->local);
    for (int64_t r = 0; r < in->local && in->start + r < n; r++) {
        memcpy(samples + each * (size_t)r, ask->samples.data + each * (size_t)(in->start + r),
               each);
        if (ask->n_labels)
            labels[r] = ask->labels[in->start + r];
    }
    return inputs_put(in, &(struct batch){.images = samples, .labels = labels}, e);
}

static int score_samples(struct trainer *t, const Weft__Rank__Ask *ask, struct err *e)
{
    const size_t each = dataset_sample_bytes(&t->set);
    const int64_t n = (int64_t)(ask->samples.len / each);
    const struct zigzag *order = &compiled_program(&t->compiled, PROGRAM_SCORE, 0)->zigzag;
    const int64_t width = t->set.seq ? t->set.seq : 1;
    const int64_t all = t->job->data.batch * width;
    struct arena a = {0};
    if (n < 1 || n > t->job->data.batch || ask->samples.len % each ||
        (dataset_label_bytes(&t->set) && ask->n_labels != (size_t)n))
        return err_set(e, ERR_INVALID, "%zu bytes and %zu labels are no %lld samples",
                       ask->samples.len, ask->n_labels, (long long)t->job->data.batch);
    float *got = arena_array(&a, float, 2 * all);
    int rc = put_samples(t, ask, n, e);
    rc = rc ? rc : exec_run(t->exec, PROGRAM_SCORE, e);
    rc = rc ? rc : exec_get(t->exec, got, t->metrics_device, sizeof *got * (size_t)(2 * all), e);
    page_beat(t->assignment->page);
    if (!rc && t->assignment->rank == 0) {
        FRAME_BODY(answer, Answer, answer);
        answer.n_scores = answer.n_right = (size_t)(n * width);
        answer.scores = arena_array(&a, float, n *width);
        answer.right = arena_array(&a, float, n *width);
        for (int64_t i = 0; i < n * width; i++) {
            // Columns lie in the order in which cp cuts them.
            int64_t to = t->set.seq ? i / width * width + zigzag_position(order, i % width) : i;
            answer.scores[to] = got[i];
            answer.right[to] = got[all + i];
        }
        link_answer(t->link, &answer);
    }
    arena_clear(&a);
    return rc;
}

int asked_run(struct trainer *t, struct err *e)
{
    int rc = 0;
    page_state(t->assignment->page, RANK_RUNNING);
    while (!rc) {
        Weft__Rank__Frame *f;
        rc = link_await_ask(t->link, t->assignment->page, &f, e);
        if (rc || !f)
            break;
        rc = t->compiled.holder == PROGRAM_SCORE ? score_samples(t, f->ask, e)
                                                 : continue_texts(t, f->ask, e);
        weft__rank__frame__free_unpacked(f, NULL);
    }
    return rc;
}
