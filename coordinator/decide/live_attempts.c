// SPDX-License-Identifier: Apache-2.0
// What concerns all living attempts; see live_attempts.h.
#include "coordinator/decide/live_attempts.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/attempt_storage.h"

void attempts_host_lost(struct coord *c, struct host *host, const char *why)
{
    list_for_each (it, &c->live) {
        struct attempt *at = list_entry(it, struct attempt, link);
        struct attempt_host *h = NULL;
        for (int i = 0; i < at->nhosts; i++)
            if (at->hosts[i].host == host && !strcmp(at->hosts[i].incarnation, host->incarnation))
                h = &at->hosts[i];
        if (!h || h->reaped)
            continue;
        struct fault f = {
            .kind = FAULT_OUTSIDE, .event = EVENT_LOST, .rank = -1, .host = host_name(host)};
        snprintf(f.text, sizeof f.text, "host %s is fenced: %s", host_name(host), why);
        at->job->untidy = UNTIDY_AND_OPEN;
        attempt_host_gone(at, h);
        attempt_fault(at, &f);
    }
}

void attempts_drain_host(struct coord *c, struct host *host, const char *why)
{
    list_for_each (it, &c->live) {
        struct job_record *j = list_entry(it, struct attempt, link)->job;
        if (!attempt_find_host(j->live, host) ||
            (j->state != JOB_RUNNING && j->state != JOB_STARTING) || j->live->fault)
            continue;
        struct job_note n = NOTE(DRAINED);
        char text[300];
        n.host = host_name(host);
        snprintf(text, sizeof text, "host %.100s drains: %.150s", host_name(host), why);
        attempt_drain(j->live, JOB_QUEUED, &n, text);
    }
}

void attempts_hold(struct coord *c, struct host *host)
{
    list_for_each (it, &c->live) {
        struct attempt *at = list_entry(it, struct attempt, link);
        if (attempt_find_host(at, host))
            attempt_hold(at);
    }
}

// ---- time ----

static void take_deadline(struct attempt *at)
{
    struct coord *c = at->job->coord;
    if (!attempt_all_back(at)) { // leases decide about hosts that are away
        at->deadline_ns = c->now_ns + attempt_limit_s(at->phase) * CLOCK_S;
        return;
    }
    if (at->phase > PHASE_FENCE) {
        at->grace_ms = 0;
        attempt_leave(at, PHASE_STOP);
        return;
    }
    attempt_storage_overdue(at);
}

static bool is_cut_off(const struct attempt *at)
{
    bool cut_off = !attempt_all_back(at);
    for (int i = 0; i < at->nhosts; i++)
        cut_off =
            cut_off || (!at->hosts[i].reaped && host_silent(at->job->coord, at->hosts[i].host));
    return cut_off;
}

void attempts_tick(struct coord *c)
{
    list_for_each (it, &c->live) {
        struct attempt *at = list_entry(it, struct attempt, link);
        if (at->deadline_ns && c->now_ns >= at->deadline_ns)
            take_deadline(at);
        else if (at->phase >= PHASE_START)
            attempt_lead(at,
                         (struct leader_event){.kind = LEADER_EV_TICK, .cut_off = is_cut_off(at)});
    }
}

void attempts_renew_leases(struct coord *c, int64_t gap_ns)
{
    list_for_each (it, &c->live) {
        struct attempt *at = list_entry(it, struct attempt, link);
        if (at->deadline_ns)
            at->deadline_ns += gap_ns;
        for (int i = 0; i < at->nhosts; i++)
            at->hosts[i].sent = 0; // what was not heard of goes out again
        attempt_drive(at);
    }
}

void attempts_free(struct coord *c)
{
    list_for_each (it, &c->live) {
        struct attempt *at = list_entry(it, struct attempt, link);
        at->job->live = NULL;
        attempt_free(at);
    }
}
