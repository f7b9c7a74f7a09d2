// SPDX-License-Identifier: Apache-2.0
// Notices to the receivers that jobs name; see notices.h.
#include "coordinator/decide/notices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/deadline.h"
#include "common/base/heap.h"
#include "common/base/json.h"
#include "common/base/plain.h"
#include "coordinator/decide/job_status.h"
#include "coordinator/decide/outbox.h"

static struct receiver *find_receiver(const struct coord *c, const char *name)
{
    for (int i = 0; i < c->nreceivers; i++)
        if (!strcmp(c->receivers[i].name, name))
            return &c->receivers[i];
    return NULL;
}

// ---- life ----

void notices_init(struct coord *c, const char *const *names, int n)
{
    list_init(&c->notices);
    c->receivers = heap_alloc(sizeof *c->receivers * (size_t)(n + 1));
    c->nreceivers = n;
    for (int i = 0; i < n; i++)
        snprintf(c->receivers[i].name, sizeof c->receivers[i].name, "%s", names[i]);
}

static void keep_notice(struct coord *c, struct notice *n)
{
    struct receiver *r = find_receiver(c, n->receiver);
    list_append(&c->notices, &n->link);
    if (r)
        r->waiting++;
}

static void free_notice(struct notice *n)
{
    record_clear(ROW_NOTICE, n);
    free(n);
}

static void drop_notice(struct coord *c, struct notice *n)
{
    struct receiver *r = find_receiver(c, n->receiver);
    if (job_find(c, n->job)) // else its row has gone with the job's
        out_erase(c, ROW_NOTICE, n);
    if (r)
        r->waiting--;
    if (r && r->sent == n)
        r->sent = NULL;
    list_remove(&n->link);
    free_notice(n);
}

void notices_free(struct coord *c)
{
    list_for_each (it, &c->notices)
        free_notice(list_entry(it, struct notice, link));
    free(c->receivers);
}

int notice_load(struct coord *c, const struct row *row, struct err *e)
{
    struct notice *n = heap_alloc(sizeof *n);
    record_init(ROW_NOTICE, n);
    int rc = row_read(row, n, e);
    if (rc || !job_find(c, n->job))
        free_notice(n);
    else
        keep_notice(c, n);
    return rc;
}

// ---- submit ----

void notices_refuse(const struct coord *c, const char *names, bool own, struct buf *no)
{
    struct arena a = {0};
    char *word;
    for (char *rest = arena_strdup(&a, names); (word = strsep(&rest, " ")) && *word;) {
        if (find_receiver(c, word))
            continue;
        buf_printf(no, "%snotify: this coordinator has no receiver %.63s", no->len ? "; " : "",
                   word);
        for (int i = 0; i < c->nreceivers; i++)
            buf_printf(no, "%s%s", i ? ", " : ", only ", c->receivers[i].name);
        buf_printf(no, " (%s --notify NAME=URL)", own ? "weft run" : "weft-coordinator");
    }
    arena_clear(&a);
}

// ---- what a notice says ----

static const char *const says[NOTICE_KINDS] = {
    [NOTICE_STARTED] = "started", [NOTICE_STALLED] = "stalled",     [NOTICE_HELD] = "is held",
    [NOTICE_FAILED] = "failed",   [NOTICE_SUCCEEDED] = "succeeded",
};

// A line for chats. What their servers would take for a link or for a call of everybody is made
// harmless: <, > and & as Slack wants it, and behind an @ stands a space without width.
static void print_line(const struct job_record *j, const struct notice *n, bool escapes,
                       struct buf *out)
{
    struct buf line = {0};
    buf_printf(&line, "%s (%.8s) %s", j->name, j->id, says[n->kind]);
    if (n->step >= 0 && j->steps)
        buf_printf(&line, " at step %" PRId64 " of %" PRId64, n->step, j->steps);
    buf_printf(&line, ", attempt %" PRIu64 "%s%s", n->attempt, *n->reason ? ": " : "", n->reason);
    for (const char *p = line.data; *p; p++) {
        const char *as = !escapes    ? NULL
                         : *p == '<' ? "&lt;"
                         : *p == '>' ? "&gt;"
                         : *p == '&' ? "&amp;"
                                     : NULL;
        if (as)
            buf_puts(out, as);
        else
            buf_putc(out, *p);
        if (*p == '@')
            buf_puts(out, "\xe2\x80\x8b");
    }
    buf_clear(&line);
}

// `text` is what Slack, Mattermost and the like read, `content` what Discord does.
static const char *print_body(const struct job_record *j, const struct notice *n, const char *id,
                              struct arena *a)
{
    struct buf out = {0}, text = {0}, content = {0};
    struct json_out w;
    print_line(j, n, true, &text);
    print_line(j, n, false, &content);
    json_out_init(&w, &out);
    json_object(&w, NULL);
    json_int(&w, "weft", 1);
    json_str(&w, "id", id);
    json_str(&w, "event", notice_word((int)n->kind));
    json_str(&w, "job", j->id);
    json_str(&w, "name", j->name);
    json_uint(&w, "attempt", n->attempt);
    json_known_int(&w, "step", n->step >= 0, n->step);
    json_int(&w, "steps", j->steps);
    json_str(&w, "reason", n->reason);
    json_int(&w, "t_ms", n->t_ms);
    json_str(&w, "text", buf_str(&text));
    json_str(&w, "content", buf_str(&content));
    json_object(&w, "allowed_mentions"); // Discord: nobody is called
    json_array(&w, "parse");
    json_end(&w);
    json_end(&w);
    json_end(&w);
    json_out_clear(&w);
    buf_clear(&text);
    buf_clear(&content);
    return buf_keep(&out, a);
}

// ---- a new one ----

static const char *explain(const struct job_record *j, enum notice_kind kind, struct arena *a)
{
    if (kind == NOTICE_STARTED)
        return job_next(j, a);
    if (kind == NOTICE_SUCCEEDED)
        return j->steps ? "its last step is done and saved" : "its evaluation is done";
    if (kind == NOTICE_STALLED && j->no_progress < 2)
        return j->last_fault;
    return job_status(j, a)->text;
}

static void add_notice(struct job_record *j, const char *receiver, enum notice_kind kind)
{
    struct coord *c = j->coord;
    const struct receiver *r = find_receiver(c, receiver);
    struct job_note note = NOTE(UNSENT);
    char reason[NOTICE_REASON];
    if (!r || r->waiting == c->config.keep_notices) {
        if (!r)
            job_event(j, &note, "notify: this coordinator has no receiver %s: it is not sent '%s'",
                      receiver, notice_word((int)kind));
        else
            job_event(j, &note, "notify: %d notices wait for %s already: it is not sent '%s'",
                      c->config.keep_notices, receiver, notice_word((int)kind));
        return;
    }
    snprintf(reason, sizeof reason, "%s", explain(j, kind, c->out->arena));
    plain_mask(reason); // it may be cut inside a character
    for (char *p = reason; (p = strchr(p, '\n'));)
        *p = ' ';
    struct notice *n = heap_alloc(sizeof *n);
    *n = (struct notice){.seq = j->events,
                         .kind = kind,
                         .attempt = kind == NOTICE_STALLED ? j->stalls : j->attempt,
                         .step = j->last_step > 0 || j->report.known ? j->last_step : -1,
                         .t_ms = c->wall_ms};
    snprintf(n->job, sizeof n->job, "%s", j->id);
    n->receiver = heap_strdup(receiver);
    n->reason = heap_strdup(reason);
    keep_notice(c, n);
    out_row(c, ROW_NOTICE, n);
}

// Which one the step makes due; NOTICE_KINDS: none. A job that a lost database knew is somebody's
// only once it is adopted.
static enum notice_kind find_due(struct job_record *j)
{
    bool stalls = j->stalls && !j->stalled_at, moved = j->state != j->stored;
    if (j->found[0])
        return NOTICE_KINDS;
    if (moved && j->state == JOB_HELD)
        return NOTICE_HELD;
    if (moved && j->state == JOB_FAILED)
        return NOTICE_FAILED;
    if (moved && j->state == JOB_SUCCEEDED)
        return NOTICE_SUCCEEDED;
    if (stalls)
        j->stalled_at = 1 + (j->last_step > 0 ? j->last_step : 0);
    if (stalls)
        return NOTICE_STALLED;
    if (j->state != JOB_RUNNING || j->start_noticed)
        return NOTICE_KINDS;
    j->start_noticed = true;
    return NOTICE_STARTED;
}

static void judge_job(struct job_record *j)
{
    char *word;
    if (j->stalled_at && j->last_step >= j->stalled_at)
        j->stalled_at = 0; // it has come further than where it stalled
    enum notice_kind kind = find_due(j);
    if (kind != NOTICE_KINDS)
        for (char *rest = arena_strdup(j->coord->out->arena, j->notify);
             (word = strsep(&rest, " ")) && *word;)
            add_notice(j, word, kind);
    j->stalls = 0;
}

// ---- sending ----

// The first of those that were tried least: one that a receiver never takes does not keep the others
// from it.
static struct notice *choose_next(const struct coord *c, const struct receiver *r)
{
    struct notice *best = NULL;
    for (struct list *it = c->notices.next; it != &c->notices; it = it->next) {
        struct notice *n = list_entry(it, struct notice, link);
        if (!strcmp(n->receiver, r->name) && (!best || n->tries < best->tries))
            best = n;
    }
    return best;
}

static bool has_untried(const struct coord *c, const struct receiver *r)
{
    const struct notice *next = r->waiting ? choose_next(c, r) : NULL;
    return next && !next->tries;
}

static void send_next(struct coord *c, struct receiver *r)
{
    struct notice *n;
    while ((n = choose_next(c, r)) && !job_find(c, n->job))
        drop_notice(c, n);
    if (!n)
        return;
    snprintf(r->posted, sizeof r->posted, "%s-%" PRIu64, n->job, n->seq);
    r->sent = n;
    n->tries++;
    out_post(c, r->name, r->posted, print_body(job_find(c, n->job), n, r->posted, c->out->arena));
}

// When a receiver gets the next; 0: at once.
static int64_t next_try(const struct coord *c, const struct receiver *r)
{
    return c->stops && has_untried(c, r) ? 0 : r->next_ns;
}

void notices_settle(struct coord *c)
{
    list_for_each (it, &c->dirty)
        judge_job(list_entry(it, struct job_record, touched));
    for (int i = 0; i < c->nreceivers; i++) {
        struct receiver *r = &c->receivers[i];
        if (r->waiting && !*r->posted && c->now_ns >= next_try(c, r))
            send_next(c, r);
    }
}

// ---- answers ----

static void give_up(struct coord *c, struct notice *n, const char *why)
{
    struct job_record *j = job_find(c, n->job);
    struct job_note note = NOTE(UNSENT);
    if (j)
        job_event(j, &note, "notify: %s was not sent '%s': %.300s", n->receiver,
                  notice_word((int)n->kind), why);
    drop_notice(c, n);
}

static bool is_too_old(const struct coord *c, const struct notice *n)
{
    return c->wall_ms - n->t_ms >= NOTICE_HOURS * 3600 * INT64_C(1000);
}

void notices_answer(struct coord *c, const struct coord_event *ev)
{
    struct receiver *r = find_receiver(c, ev->target);
    struct arena *a = c->out->arena;
    // After a disk that was full one may come of what was posted before it.
    if (!r || !*r->posted || strcmp(r->posted, ev->id) != 0)
        return;
    struct notice *n = r->sent;
    r->posted[0] = 0;
    r->sent = NULL;
    r->results[ev->posted]++;
    if (ev->posted == POST_FAILED) {
        int64_t most = NOTICE_PAUSE_MOST_S * CLOCK_S;
        r->pause_ns = r->pause_ns ? r->pause_ns * 2 : NOTICE_PAUSE_S * CLOCK_S;
        r->pause_ns = r->pause_ns < most ? r->pause_ns : most;
        r->next_ns = c->now_ns + r->pause_ns;
    } else {
        r->pause_ns = r->next_ns = 0;
    }
    if (!n)
        return;
    if (ev->posted == POST_TAKEN)
        drop_notice(c, n);
    else if (ev->posted == POST_REFUSED)
        give_up(c, n, ev->result);
    else if (is_too_old(c, n))
        give_up(c, n,
                arena_printf(a, "it was tried for %d h, at last: %s", NOTICE_HOURS, ev->result));
}

void notices_sweep(struct coord *c)
{
    list_for_each (it, &c->notices) {
        struct notice *n = list_entry(it, struct notice, link);
        if (!find_receiver(c, n->receiver) && is_too_old(c, n))
            give_up(c, n, "this coordinator has no such receiver any more");
    }
}

int64_t notices_due(const struct coord *c)
{
    int64_t due = 0;
    for (int i = 0; i < c->nreceivers; i++) {
        const struct receiver *r = &c->receivers[i];
        int64_t at = next_try(c, r);
        if (r->waiting && !*r->posted)
            due = deadline_earlier(due, at ? at : c->stepped_ns);
    }
    return due;
}

void coord_stops(struct coord *c)
{
    c->stops = true;
}

bool coord_has_unsent(const struct coord *c)
{
    for (int i = 0; i < c->nreceivers; i++)
        if (*c->receivers[i].posted || has_untried(c, &c->receivers[i]))
            return true;
    return false;
}

int coord_receivers(const struct coord *c, struct arena *a, struct coord_receiver **out)
{
    *out = arena_array(a, struct coord_receiver, c->nreceivers + 1);
    for (int i = 0; i < c->nreceivers; i++) {
        const struct receiver *r = &c->receivers[i];
        (*out)[i] = (struct coord_receiver){.name = r->name, .waiting = r->waiting};
        memcpy((*out)[i].results, r->results, sizeof r->results);
    }
    return c->nreceivers;
}
