// SPDX-License-Identifier: Apache-2.0
// weft why: a job's history. It prints every event with its time (checkpoints in a row as one), what
// the job waits for, where the time went, and goodput: the share of `running` in all time, without
// what a person held the job for, what it spent failed or cancelled, and what nobody measured.
// Of a run in Slurm it joins what squeue says with what the job's starts have left (run_history.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/folder.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/message_json.h"
#include "coordinator/cli/run_history.h"
#include "coordinator/cli/slurm_queue.h"
#include "coordinator/cli/slurm_record.h"

// The share of the time in which the job ran, of all in which it was meant to; below 0: there was none.
static double find_goodput(const Weft__V1__WhyReply *r)
{
    static const char *const others[] = {"held", "failed", "cancelled", "unknown"};
    int64_t all = 0, running = 0;
    for (size_t i = 0; i < r->n_spent; i++) {
        const Weft__V1__Spent *spent = r->spent[i];
        bool counts = true;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            counts = counts && strcmp(others[k], spent->what) != 0;
        all += counts ? spent->ms : 0;
        running += strcmp(spent->what, "running") == 0 ? spent->ms : 0;
    }
    return all > 0 ? (double)running / (double)all : -1;
}

// The event of a rank's end has the last lines of its log behind its own first line.
static void print_logs(const Weft__V1__WhyReply *r, struct buf *out)
{
    for (size_t i = 0; i < r->n_events; i++) {
        const Weft__V1__Event *e = r->events[i];
        const char *rest = strchr(e->text, '\n');
        char when[40] = "before the first step";
        if (!rest || !rest[1])
            continue;
        if (e->step >= 0)
            snprintf(when, sizeof when, "at step %lld", (long long)e->step);
        buf_printf(out, "last lines of rank %d, %s:%s%s", e->rank, when, rest,
                   rest[strlen(rest) - 1] == '\n' ? "" : "\n");
    }
}

// Whether it says no more than that a checkpoint was saved.
static bool is_routine(const Weft__V1__Event *e)
{
    char usual[64];
    snprintf(usual, sizeof usual, "checkpoint of step %lld", (long long)e->step);
    return strcmp(e->kind, "committed") == 0 && strcmp(e->text, usual) == 0;
}

// How many events from `first` on are one row: several checkpoints in a row, else one.
static size_t count_folded(const Weft__V1__WhyReply *r, size_t first)
{
    enum { LEAST = 3 };
    size_t n = first;
    while (n < r->n_events && is_routine(r->events[n]) &&
           r->events[n]->state == r->events[first]->state)
        n++;
    return n - first >= LEAST ? n - first : 1;
}

// "40 checkpoints: steps 100 to 4000, every 100"
static void add_folded(struct table *t, Weft__V1__Event *const *e, size_t n)
{
    int64_t every = e[1]->step - e[0]->step;
    char apart[32] = "";
    for (size_t i = 1; i < n; i++)
        if (e[i]->step - e[i - 1]->step != every)
            every = 0;
    if (every)
        snprintf(apart, sizeof apart, ", every %lld", (long long)every);
    table_add(t, "%zu checkpoints: steps %lld to %lld%s", n, (long long)e[0]->step,
              (long long)e[n - 1]->step, apart);
}

static void print_events(const Weft__V1__WhyReply *r, bool full, struct buf *out)
{
    struct table t;
    char at[WORD_MAX], since[WORD_MAX];
    int64_t before = r->n_events ? r->events[0]->t_ms : 0; // of the line above
    table_init(&t, "WHEN >SINCE STATE EVENT >STEP WHERE WHAT");
    for (size_t i = 0, n; i < r->n_events; i += n) {
        n = full ? 1 : count_folded(r, i);
        const Weft__V1__Event *e = r->events[i], *last = r->events[i + n - 1];
        table_add(&t, "%s", word_time(e->t_ms, at));
        table_add(&t, "%s", word_duration((double)(e->t_ms - before) / 1000, since));
        before = last->t_ms;
        table_add(&t, "%s", word_state(e->state));
        table_add(&t, "%s", e->kind);
        if (last->step >= 0)
            table_add(&t, "%lld", (long long)last->step);
        else
            table_add(&t, "-");
        if (e->rank >= 0)
            table_add(&t, "%s%srank %d", e->host, *e->host ? " " : "", e->rank);
        else
            table_add(&t, "%s", e->host);
        if (n > 1)
            add_folded(&t, &r->events[i], n);
        else
            table_add(&t, "%.*s", (int)strcspn(e->text, "\n"), e->text);
    }
    table_print(&t, out);
    print_logs(r, out);
}

static void print_spent(const Weft__V1__WhyReply *r, struct buf *out)
{
    enum { BAR = 40 };
    char word[WORD_MAX];
    double goodput = find_goodput(r), all = 0;
    for (size_t i = 0; i < r->n_spent; i++)
        all += r->spent[i]->ms > 0 ? (double)r->spent[i]->ms : 0;
    if (all <= 0) {
        buf_puts(out, "time: none yet\n");
        return;
    }
    buf_printf(out, "time: %s in all", word_duration(all / 1000, word));
    if (goodput >= 0)
        buf_printf(out, ", goodput %.1f %%", 100 * goodput);
    buf_putc(out, '\n');
    for (size_t i = 0; i < r->n_spent; i++) {
        double share = (double)r->spent[i]->ms / all;
        if (share <= 0)
            continue;
        buf_printf(out, "  %-10s  %8s  %3.0f %%%s", r->spent[i]->what,
                   word_duration((double)r->spent[i]->ms / 1000, word), 100 * share,
                   share * BAR >= 0.5 ? "  " : "");
        for (int k = 0; k < (int)(share * BAR + 0.5); k++)
            buf_puts(out, "█");
        buf_putc(out, '\n');
    }
}

static void print_head(const Weft__V1__JobStatus *s, struct buf *out)
{
    struct buf before = {0};
    buf_printf(&before, "%s (%s): %s", s->name, s->job, word_state(s->state));
    if (s->step >= 0)
        buf_printf(&before, " at step %lld of %lld", (long long)s->step, (long long)s->steps);
    buf_printf(&before, ", attempt %llu, %d restarts%s", (unsigned long long)s->attempt,
               s->restarts, *s->text ? ": " : "");
    print_lines(out, buf_str(&before), s->text);
    buf_clear(&before);
    print_threads(s, "threads: ", out);
}

static void print_text(const Weft__V1__WhyReply *r, bool full, struct buf *out)
{
    if (r->status)
        print_head(r->status, out);
    if (r->trimmed)
        buf_puts(out, "older events were dropped\n");
    print_events(r, full, out);
    print_spent(r, out);
    if (*r->next)
        print_lines(out, "next: ", r->next);
}

// ---- in Slurm ----

struct slurm_said {
    struct slurm_record record;
    struct slurm_line line[SLURM_LINES];
    int n;
    char why[400]; // squeue says nothing; "": it does
};

static void print_slurm(const struct slurm_said *s, struct buf *out)
{
    if (*s->why)
        plain_line(out, "Slurm's job %s: %s", s->record.job, s->why);
    for (int i = 0; i < s->n; i++) {
        const struct slurm_line *l = &s->line[i];
        const char *means = slurm_reason_means(l->reason),
                   *plural = l->nodes[1] || *l->nodes != '1' ? "s" : "";
        if (strcmp(l->state, "PENDING") == 0)
            plain_line(
                out,
                "Slurm's job %s: PENDING (%s)%s%s; %s node%s, submitted %s, expected to start: %s",
                l->id, l->reason, means ? ": " : "", means ? means : "", l->nodes, plural,
                l->submitted, l->starts);
        else
            plain_line(out, "Slurm's job %s: %s; %s node%s, submitted %s, started %s, ran %s",
                       l->id, l->state, l->nodes, plural, l->submitted, l->starts, l->ran);
    }
}

static void json_slurm(struct json_out *w, const struct slurm_said *s)
{
    if (!s) {
        json_null(w, "slurm");
        return;
    }
    json_array(w, "slurm");
    for (int i = 0; i < s->n; i++) {
        const struct slurm_line *l = &s->line[i];
        json_object(w, NULL);
        json_str(w, "job", l->id);
        json_str(w, "state", l->state);
        json_str(w, "reason", l->reason);
        json_str(w, "nodes", l->nodes);
        json_str(w, "submitted", l->submitted);
        json_str(w, "starts", l->starts);
        json_str(w, "ran", l->ran);
        json_end(w);
    }
    json_end(w);
}

static void print_json(const Weft__V1__WhyReply *r, const struct slurm_said *s, struct buf *out)
{
    struct json_out w;
    double goodput = find_goodput(r);
    json_print_start(&w, out, true);
    json_members(&w, &r->base);
    json_slurm(&w, s);
    if (goodput < 0)
        json_null(&w, "goodput");
    else
        json_double(&w, "goodput", goodput);
    json_print_end(&w);
}

static void show(const Weft__V1__WhyReply *r, const struct slurm_said *s, const struct args *a)
{
    struct buf out = {0};
    if (a->json)
        print_json(r, s, &out);
    else {
        if (s)
            print_slurm(s, &out);
        print_text(r, a->full, &out);
    }
    put_out(&out);
}

// Whether the newest run of this name that was started in this folder is one of Slurm's.
static bool is_in_slurm(const struct args *a, struct slurm_record *out)
{
    const char *named = getenv("WEFT_COORDINATOR");
    char path[100];
    struct stat own, slurm;
    struct err e = {0};
    if (a->coordinator || (named && *named) || !folder_name_ok(a->pos[0]))
        return false;
    snprintf(path, sizeof path, ".weft/%s/job", a->pos[0]);
    bool alone = !stat(path, &own);
    snprintf(path, sizeof path, ".weft/%s.slurm", a->pos[0]);
    if (stat(path, &slurm) || (alone && own.st_mtime > slurm.st_mtime))
        return false;
    if (!slurm_record_read(".", a->pos[0], out, &e))
        return true;
    plain_error("weft why: of a run in Slurm nothing is looked for: %s", e.text);
    return false;
}

static int explain_in_slurm(const struct args *a, struct slurm_said *s)
{
    Weft__V1__WhyReply none, *r = NULL;
    struct err e = {0};
    if (slurm_queue_ask(s->record.job, s->line, &s->n, &e))
        snprintf(s->why, sizeof s->why, "%s", e.text);
    else if (!s->n)
        snprintf(s->why, sizeof s->why,
                 "squeue does not list it: it has left the queue, or Slurm does not answer");
    e = (struct err){0};
    if (run_history_read(s->record.root, a->pos[0], &r, &e))
        plain_error("weft why: what it did is not known%s: %s",
                    e.code == ERR_NOTFOUND ? " yet" : "", e.text);
    weft__v1__why_reply__init(&none);
    show(r ? r : &none, s, a);
    cli_link_free(r);
    return CLIENT_OK;
}

int verb_why(const struct verb *v, const struct args *a)
{
    static struct slurm_said slurm;
    Weft__V1__JobRequest req;
    struct cli_link l = {0};
    ProtobufCMessage *m;
    if (is_in_slurm(a, &slurm.record))
        return explain_in_slurm(a, &slurm);
    weft__v1__job_request__init(&req);
    int rc = cli_link_open(&l, v, a);
    if (rc)
        return rc;
    req.job = arena_strdup(&l.arena, a->pos[0]);
    rc = cli_link_ask(&l, LINK_WHY, &req.base, &m);
    if (!rc) {
        show((const Weft__V1__WhyReply *)(const void *)m, NULL, a);
        cli_link_free(m);
    }
    cli_link_close(&l);
    return rc;
}
