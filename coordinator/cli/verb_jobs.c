// SPDX-License-Identifier: Apache-2.0
// weft jobs, status, workers and checkpoints: each asks one question and prints one table or one
// object.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/job_scores.h"
#include "coordinator/cli/message_json.h"

typedef void print_fn(const void *reply, struct buf *out); // for a person

static void put_reply(const struct args *a, const ProtobufCMessage *reply, print_fn *print)
{
    struct buf out = {0};
    if (a->json)
        json_message(&out, true, reply);
    else
        print(reply, &out);
    put_out(&out);
}

static int read_and_print(const struct verb *v, const struct args *a, enum cli_link_method m,
                          const ProtobufCMessage *request, print_fn *print)
{
    struct cli_link l = {0};
    ProtobufCMessage *reply;
    int rc = cli_link_open(&l, v, a);
    if (rc)
        return rc;
    rc = cli_link_ask(&l, m, request, &reply);
    if (!rc) {
        put_reply(a, reply, print);
        cli_link_free(reply);
    }
    cli_link_close(&l);
    return rc;
}

static int read_job(const struct verb *v, const struct args *a, enum cli_link_method m,
                    print_fn *print)
{
    V1_NEW(JobRequest, job_request, req);
    req.job = frame_text(a->pos[0]);
    return read_and_print(v, a, m, &req.base, print);
}

// ---- jobs ----

// Which jobs are shown, and in which order.
struct selection {
    bool state[WEFT__V1__JOB_STATE__CANCELLED + 1]; // none: all
    bool states;
    int64_t since_ms;
    const char *tags; // "a,b"; null: any
    int column;       // of `orders`; below 0: by submission
    bool backwards;
};

static double find_loss(const Weft__V1__JobStatus *s)
{
    return s->reported ? s->loss : (double)NAN;
}

static int compare_numbers(double a, double b)
{
    return isnan(a) || isnan(b) ? isnan(a) - isnan(b) : (a > b) - (a < b);
}

#define BY_TEXT(member)                                                                \
    static int by_##member(const Weft__V1__JobStatus *a, const Weft__V1__JobStatus *b) \
    {                                                                                  \
        return strcmp(a->member, b->member);                                           \
    }
#define BY_NUMBER(column, number)                                                      \
    static int by_##column(const Weft__V1__JobStatus *a, const Weft__V1__JobStatus *b) \
    {                                                                                  \
        const Weft__V1__JobStatus *s = a;                                              \
        double first = (double)(number);                                               \
        s = b;                                                                         \
        return compare_numbers(first, (double)(number));                               \
    }
BY_TEXT(name)
BY_TEXT(owner)
BY_NUMBER(state, s->state)
BY_NUMBER(step, s->step)
BY_NUMBER(loss, find_loss(s))
BY_NUMBER(ranks, s->ranks)
BY_NUMBER(prio, s->priority)
BY_NUMBER(age, -s->submitted_ms)

static const struct {
    const char *column;
    int (*compare)(const Weft__V1__JobStatus *a, const Weft__V1__JobStatus *b);
} orders[] = {{"name", by_name},   {"state", by_state}, {"step", by_step}, {"loss", by_loss},
              {"ranks", by_ranks}, {"prio", by_prio},   {"age", by_age},   {"owner", by_owner}};
enum { ORDERS = sizeof orders / sizeof *orders };

// "running,failed"
static int read_states(const struct verb *v, const char *text, struct selection *out)
{
    for (size_t n; text && *text; text += n + (text[n] == ',')) {
        int s = 1;
        n = strcspn(text, ",");
        while (s <= WEFT__V1__JOB_STATE__CANCELLED &&
               (strlen(word_state((Weft__V1__JobState)s)) != n ||
                strncasecmp(word_state((Weft__V1__JobState)s), text, n) != 0))
            s++;
        if (s > WEFT__V1__JOB_STATE__CANCELLED)
            return usage(v, "--state takes queued, starting, running, draining, recovering, held, "
                            "succeeded, failed or cancelled");
        out->state[s] = out->states = true;
    }
    return CLIENT_OK;
}

// "90m" ago, or "2026-11-28", in local time.
static int read_since(const struct verb *v, const char *text, struct selection *out)
{
    static const char units[] = "smhd";
    static const int64_t unit_ms[] = {1000, 60000, 3600000, 86400000};
    char *end;
    struct tm tm = {.tm_isdst = -1};
    if (!text)
        return CLIENT_OK;
    double n = strtod(text, &end);
    const char *unit = *end && !end[1] ? strchr(units, *end) : NULL;
    const char *rest = strptime(text, "%Y-%m-%d", &tm);
    if (unit && n >= 0 && n < 1e6)
        out->since_ms = clock_wall_ms() - (int64_t)(n * (double)unit_ms[unit - units]);
    else if (rest && !*rest)
        out->since_ms = (int64_t)mktime(&tm) * 1000;
    else
        return usage(v, "--since takes 30m, 2h or 7d, or a date as 2026-11-28");
    return CLIENT_OK;
}

static int read_order(const struct verb *v, const char *text, struct selection *out)
{
    out->column = -1;
    if (!text)
        return CLIENT_OK;
    out->backwards = *text == '-';
    for (int i = 0; i < ORDERS; i++)
        if (strcasecmp(orders[i].column, text + out->backwards) == 0)
            out->column = i;
    return out->column >= 0
               ? CLIENT_OK
               : usage(v, "--sort takes name, state, step, loss, ranks, prio, age or owner");
}

static bool has_tags(const Weft__V1__JobStatus *s, const char *tags)
{
    bool all = true;
    for (size_t n; tags && *tags; tags += n + (tags[n] == ',')) {
        bool has = false;
        n = strcspn(tags, ",");
        for (size_t i = 0; i < s->n_tags; i++)
            has |= strlen(s->tags[i]) == n && strncmp(s->tags[i], tags, n) == 0;
        all &= has;
    }
    return all;
}

static int compare_jobs(const void *x, const void *y, void *by)
{
    const Weft__V1__JobStatus *a = *(Weft__V1__JobStatus *const *)x,
                              *b = *(Weft__V1__JobStatus *const *)y;
    const struct selection *s = by;
    bool known = isnan(find_loss(a)) == isnan(find_loss(b)) || orders[s->column].compare != by_loss;
    int order = orders[s->column].compare(a, b);
    if (!known) // those without a loss come last, whichever way
        return order;
    order = order ? order : compare_numbers((double)a->submitted_ms, (double)b->submitted_ms);
    return s->backwards ? -order : order;
}

// Keeps the jobs of the answer that are asked for, in the order that is.
static void select_jobs(Weft__V1__JobsReply *r, struct selection *by)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_jobs; i++) {
        Weft__V1__JobStatus *s = r->jobs[i];
        bool state =
            s->state > 0 && s->state <= WEFT__V1__JOB_STATE__CANCELLED && by->state[s->state];
        if ((!by->states || state) && s->submitted_ms >= by->since_ms && has_tags(s, by->tags))
            r->jobs[kept++] = s;
        else
            weft__v1__job_status__free_unpacked(s, NULL);
    }
    r->n_jobs = kept;
    if (by->column >= 0 && kept)
        qsort_r(r->jobs, kept, sizeof *r->jobs, compare_jobs, by);
}

static void add_job(struct table *t, const Weft__V1__JobStatus *s)
{
    char age[WORD_MAX];
    table_add(t, "%.12s", s->job);
    table_add(t, "%s", s->name);
    table_add(t, "%s", word_state(s->state));
    if (s->step < 0)
        table_add(t, "-/%lld", (long long)s->steps);
    else
        table_add(t, "%lld/%lld", (long long)s->step, (long long)s->steps);
    if (s->reported)
        table_add(t, "%.4g", s->loss);
    else
        table_add(t, "-");
    table_add(t, "%d", s->ranks);
    table_add(t, "%lld", (long long)s->priority);
    table_add(t, "%s",
              s->submitted_ms > 0
                  ? word_duration((double)(clock_wall_ms() - s->submitted_ms) / 1000, age)
                  : "-");
    table_add(t, "%s", s->owner);
    table_add(t, "%s", s->text);
}

static void print_jobs(const void *reply, struct buf *out)
{
    const Weft__V1__JobsReply *r = reply;
    struct table t;
    if (*r->notice)
        plain_line(out, "%s", r->notice);
    table_init(&t, "JOB NAME STATE >STEP >LOSS >RANKS >PRIO >AGE OWNER WHY");
    t.drop = "OWNER PRIO RANKS AGE WHY LOSS JOB";
    for (size_t i = 0; i < r->n_jobs; i++)
        add_job(&t, r->jobs[i]);
    table_print(&t, out);
}

// Moves a page's jobs to the end of those of the pages before it.
static void add_page(Weft__V1__JobsReply *all, Weft__V1__JobsReply *page)
{
    size_t n = all->n_jobs + page->n_jobs;
    all->jobs = realloc(all->jobs, sizeof *all->jobs * (n + 1));
    PRE(all->jobs != NULL);
    if (page->n_jobs)
        memcpy(all->jobs + all->n_jobs, page->jobs, sizeof *page->jobs * page->n_jobs);
    all->n_jobs = n;
    page->n_jobs = 0;
}

int verb_jobs(const struct verb *v, const struct args *a)
{
    V1_NEW(JobsRequest, jobs_request, req);
    Weft__V1__JobsReply *all = NULL;
    ProtobufCMessage *reply;
    struct cli_link l = {0};
    struct selection by = {.tags = a->tag};
    req.all = a->all || a->state || a->since || a->tag;
    int rc = read_states(v, a->state, &by);
    rc = rc ? rc : read_since(v, a->since, &by);
    rc = rc ? rc : read_order(v, a->sort, &by);
    rc = rc ? rc : cli_link_open(&l, v, a);
    if (rc)
        return rc;
    do {
        rc = cli_link_ask(&l, LINK_JOBS, &req.base, &reply);
        if (rc)
            break;
        Weft__V1__JobsReply *page = (Weft__V1__JobsReply *)(void *)reply;
        req.after = page->next;
        if (all) {
            add_page(all, page);
            cli_link_free(page);
        } else {
            all = page;
        }
    } while (req.after);
    if (!rc) {
        select_jobs(all, &by);
        if (a->metrics)
            rc = job_scores_print(&l, all, a->json);
        else
            put_reply(a, &all->base, print_jobs);
    }
    cli_link_free(all);
    cli_link_close(&l);
    return rc;
}

// ---- status ----

static void print_where(const Weft__V1__JobStatus *s, struct buf *out)
{
    char word[WORD_MAX];
    struct buf hosts = {0}, tags = {0};
    for (size_t i = 0; i < s->n_hosts; i++)
        buf_printf(&hosts, "%s%s", i ? ", " : " on ", s->hosts[i]);
    plain_line(out, "ranks       %d %s%s", s->ranks, s->mesh, buf_str(&hosts));
    buf_clear(&hosts);
    buf_printf(out, "priority    %lld\n", (long long)s->priority);
    for (size_t i = 0; i < s->n_tags; i++)
        buf_printf(&tags, " %s", s->tags[i]);
    if (tags.len)
        plain_line(out, "tags       %s", buf_str(&tags));
    buf_clear(&tags);
    print_threads(s, "threads     ", out);
    buf_printf(out, "restarts    %d, attempt %llu\n", s->restarts, (unsigned long long)s->attempt);
    if (s->unsaved)
        plain_line(out, "not saved   since %s, %d save%s failed: %s",
                   word_time(s->unsaved_since_ms, word), s->unsaved, s->unsaved == 1 ? "" : "s",
                   s->unsaved_why);
    if (s->checkpoint_step >= 0)
        plain_line(out, "checkpoint  step %lld of attempt %llu in %s",
                   (long long)s->checkpoint_step, (unsigned long long)s->checkpoint_attempt,
                   s->store);
}

static void print_status(const void *reply, struct buf *out)
{
    const Weft__V1__JobStatus *s = reply;
    char word[WORD_MAX], state[80];
    plain_line(out, "job         %s", s->job);
    plain_line(out, "name        %s", s->name);
    snprintf(state, sizeof state, "state       %s%s%s%s", word_state(s->state),
             s->goal ? ", then " : "", s->goal ? word_state(s->goal) : "", *s->text ? ": " : "");
    print_lines(out, state, s->text);
    if (s->step >= 0)
        buf_printf(out, "step        %lld of %lld\n", (long long)s->step, (long long)s->steps);
    else if (s->steps)
        buf_printf(out, "step        none yet of %lld\n", (long long)s->steps);
    if (s->reported)
        buf_printf(out, "loss        %.6g, %s %s/s\n", s->loss,
                   word_rate(s->tokens_per_s > 0 ? s->tokens_per_s : s->samples_per_s, word),
                   s->tokens_per_s > 0 ? "tokens" : "samples");
    if (s->evaluated && isnan(s->eval_accuracy)) // a decoder has no accuracy
        buf_printf(out, "evaluation  loss %.6g\n", s->eval_loss);
    else if (s->evaluated)
        buf_printf(out, "evaluation  accuracy %.2f %%, loss %.6g\n", 100 * s->eval_accuracy,
                   s->eval_loss);
    print_where(s, out);
    plain_line(out, "submitted   %s by %s", word_time(s->submitted_ms, word), s->owner);
}

int verb_status(const struct verb *v, const struct args *a)
{
    return read_job(v, a, LINK_STATUS, print_status);
}

// ---- workers ----

// Prints a host's devices, "4 cpu + 2 NVIDIA H200 (sm_90)", counting neighbours that are alike.
static void print_models(const Weft__V1__WorkerStatus *w, struct buf *to)
{
    for (size_t d = 0, end; d < w->n_devices; d = end) {
        const Weft__V1__Device *x = w->devices[d]->device;
        for (end = d + 1; end < w->n_devices && !strcmp(w->devices[end]->device->model, x->model);
             end++)
            ;
        buf_puts(to, d ? " + " : "");
        if (end - d < w->n_devices)
            buf_printf(to, "%zu ", end - d);
        buf_puts(to, x->model);
        if (*x->isa && strcmp(x->kind, "cpu") != 0)
            buf_printf(to, " (%s)", x->isa);
    }
}

// How many of the workers from `first` on have this lack.
static size_t count_lacking(const Weft__V1__WorkersReply *r, size_t first,
                            const Weft__V1__Lack *lack)
{
    size_t n = 0;
    for (size_t i = first; i < r->n_workers; i++)
        for (size_t k = 0; k < r->workers[i]->n_lacks; k++)
            n += !strcmp(r->workers[i]->lacks[k]->kind, lack->kind) &&
                 !strcmp(r->workers[i]->lacks[k]->why, lack->why);
    return n;
}

// One line for all workers that lack the same for the same cause.
static void print_lacks(const Weft__V1__WorkersReply *r, struct buf *out)
{
    for (size_t i = 0; i < r->n_workers; i++) {
        for (size_t k = 0; k < r->workers[i]->n_lacks; k++) {
            const Weft__V1__Lack *lack = r->workers[i]->lacks[k];
            size_t n = count_lacking(r, i, lack);
            if (count_lacking(r, 0, lack) > n) // an earlier one has printed it
                continue;
            if (n == 1)
                plain_line(out, "%s has no %s: %s", r->workers[i]->name, lack->kind, lack->why);
            else
                plain_line(out, "%zu hosts have no %s: %s", n, lack->kind, lack->why);
        }
    }
}

static void print_workers(const void *reply, struct buf *out)
{
    const Weft__V1__WorkersReply *r = reply;
    char word[WORD_MAX];
    struct table t;
    if (*r->notice)
        plain_line(out, "%s", r->notice);
    table_init(&t, "HOST NAME STATE >DEVICES >BUSY MODEL >MEMORY >SEEN VERSION JOBS");
    t.drop = "VERSION MEMORY HOST MODEL SEEN";
    for (size_t i = 0; i < r->n_workers; i++) {
        const Weft__V1__WorkerStatus *w = r->workers[i];
        struct buf jobs = {0}, models = {0};
        int busy = 0;
        for (size_t d = 0; d < w->n_devices; d++) {
            const Weft__V1__DeviceStatus *x = w->devices[d];
            busy += *x->job != 0;
            if (*x->job && !(d && strcmp(x->job, w->devices[d - 1]->job) == 0))
                buf_printf(&jobs, "%s%.12s", jobs.len ? " " : "", x->job);
        }
        table_add(&t, "%.12s", w->host);
        table_add(&t, "%s", w->name);
        table_add(&t, "%s", w->state);
        table_add(&t, "%zu", w->n_devices);
        table_add(&t, "%d", busy);
        print_models(w, &models);
        table_add(&t, "%s", buf_str(&models));
        table_add(&t, "%s", word_bytes(w->memory, word));
        table_add(&t, "%s", word_duration((double)w->seen_ms_ago / 1000, word));
        table_add(&t, "%s", w->version);
        table_add(&t, "%s", buf_str(&jobs));
        buf_clear(&jobs);
        buf_clear(&models);
    }
    table_print(&t, out);
    print_lacks(r, out);
}

int verb_workers(const struct verb *v, const struct args *a)
{
    V1_NEW(WorkersRequest, workers_request, req);
    return read_and_print(v, a, LINK_WORKERS, &req.base, print_workers);
}

// ---- checkpoints ----

static void print_checkpoints(const void *reply, struct buf *out)
{
    const Weft__V1__CheckpointsReply *r = reply;
    char word[WORD_MAX];
    struct table t;
    table_init(&t, ">STEP >ATTEMPT STATE >LOSS TIME WHY");
    for (size_t i = 0; i < r->n_checkpoints; i++) {
        const Weft__V1__Checkpoint *c = r->checkpoints[i];
        table_add(&t, "%lld", (long long)c->step);
        table_add(&t, "%llu", (unsigned long long)c->attempt);
        table_add(&t, "%s%s%s", word_checkpoint(c->state), c->bad ? ", damaged" : "",
                  c->best ? ", best" : "");
        if (c->evaluated)
            table_add(&t, "%.4g", c->eval_loss);
        else
            table_add(&t, "-");
        table_add(&t, "%s", word_time(c->t_ms, word));
        table_add(&t, "%s", c->why);
    }
    table_print(&t, out);
    if (*r->store)
        plain_line(out, "in %s", r->store);
}

int verb_checkpoints(const struct verb *v, const struct args *a)
{
    return read_job(v, a, LINK_CHECKPOINTS, print_checkpoints);
}
