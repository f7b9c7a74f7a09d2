// SPDX-License-Identifier: Apache-2.0
// Who hangs; see watch.h.
#include "common/attempt/watch.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/protocol_rule.h"

void watch_init(struct watch *w, int ranks, int64_t hang_after_ns)
{
    memset(w, 0, sizeof *w);
    w->n = ranks;
    w->entries = heap_alloc(sizeof *w->entries * (size_t)ranks);
    w->hang_after_ns = hang_after_ns;
}

void watch_clear(struct watch *w)
{
    free(w->entries);
    memset(w, 0, sizeof *w);
}

void watch_see(struct watch *w, int rank, const struct page_view *v, int64_t now_ns)
{
    struct watch_entry *en = &w->entries[rank];
    if (en->seen && page_view_equal(&en->view, v)) {
        en->view = *v; // whom it waits for may be new
        return;
    }
    bool running = v->state == RANK_RUNNING && en->seen && en->view.state == RANK_RUNNING;
    if (running && v->step > en->view.step && en->stepped_ns) {
        int64_t took = (now_ns - en->stepped_ns) / (v->step - en->view.step);
        if (took > w->longest_step_ns)
            w->longest_step_ns = took;
    }
    if (!running || v->step != en->view.step)
        en->stepped_ns = now_ns;
    en->view = *v;
    en->seen = true;
    en->changed_ns = now_ns;
}

void watch_gone(struct watch *w, int rank)
{
    w->entries[rank].gone = true;
}

static int64_t running_limit(const struct watch *w)
{
    return w->hang_after_ns ? w->hang_after_ns + w->longest_step_ns : 0;
}

// The rank that r waits for, −1: nobody that is still there.
static int find_awaited(const struct watch *w, int r)
{
    int awaits = w->entries[r].view.awaits, p = awaits > 0 ? awaits - 1 : -1;
    bool there = p >= 0 && p < w->n && p != r && w->entries[p].seen && !w->entries[p].gone;
    return there ? p : -1;
}

// Whether waiting ends at rank r: it waits for nobody, or is one of a circle that waits.
static bool is_end(const struct watch *w, int r)
{
    int at = find_awaited(w, r);
    for (int k = 0; k < w->n && at >= 0 && at != r; k++)
        at = find_awaited(w, at);
    return find_awaited(w, r) < 0 || at == r;
}

// Whether what a rank said of whom it waits for is out of date: that one has gone on since.
static bool is_stale(const struct watch *w, int r)
{
    int p = find_awaited(w, r);
    return p >= 0 && w->entries[p].view.collective_entered > w->entries[r].view.awaits_entered;
}

// Negative when ra is the more likely culprit.
static int64_t compare_ranks(const struct watch *w, int ra, int rb)
{
    const struct watch_entry *a = &w->entries[ra], *b = &w->entries[rb];
    bool a_waits = find_awaited(w, ra) >= 0, b_waits = find_awaited(w, rb) >= 0;
    if (a_waits != b_waits)
        return a_waits ? 1 : -1;
    if (a_waits && a->view.stopped != b->view.stopped)
        return a->view.stopped ? -1 : 1;
    if (a_waits && is_stale(w, ra) != is_stale(w, rb))
        return is_stale(w, ra) ? -1 : 1;
    if (a->view.step != b->view.step)
        return a->view.step < b->view.step ? -1 : 1;
    if (a->view.collective_entered != b->view.collective_entered)
        return a->view.collective_entered < b->view.collective_entered ? -1 : 1;
    if (a->view.stopped != b->view.stopped)
        return a->view.stopped ? -1 : 1;
    if (a->view.collective_left != b->view.collective_left)
        return a->view.collective_left < b->view.collective_left ? -1 : 1;
    if (a->view.ops != b->view.ops)
        return a->view.ops < b->view.ops ? -1 : 1;
    return a->changed_ns - b->changed_ns;
}

// Whether a rank stands still for too long, or its process does while it should write.
static bool is_still(const struct watch *w, struct watch_entry *en, int64_t now_ns)
{
    int state = en->view.state;
    int64_t stopped = running_limit(w);
    int64_t limit = state == RANK_RUNNING                    ? stopped
                    : state >= 0 && state < RANK_STATE_COUNT ? w->limit_ns[state]
                                                             : 0;
    if (en->view.state != RANK_SAVING || !en->view.stopped || !WEFT_RULE(stopped_saver))
        en->stopped_ns = 0;
    else if (!en->stopped_ns)
        en->stopped_ns = now_ns;
    return (limit && now_ns - en->changed_ns > limit) ||
           (en->stopped_ns && stopped && now_ns - en->stopped_ns > stopped);
}

bool watch_hung(struct watch *w, int64_t now_ns, struct watch_verdict *out)
{
    bool hung = false;
    int worst = -1;
    for (int r = 0; r < w->n; r++) {
        struct watch_entry *en = &w->entries[r];
        if (en->seen && !en->gone && is_still(w, en, now_ns))
            hung = true;
    }
    for (int r = 0; r < w->n && hung; r++) {
        const struct watch_entry *en = &w->entries[r];
        if (en->seen && !en->gone && is_end(w, r) && (worst < 0 || compare_ranks(w, r, worst) < 0))
            worst = r;
    }
    if (worst < 0)
        return false;
    // A running one whose page changed in time: whoever waits for it has no reason to move.
    if (w->entries[worst].view.state == RANK_RUNNING && running_limit(w) &&
        now_ns - w->entries[worst].changed_ns <= running_limit(w))
        return false;
    out->rank = worst;
    out->still_ns = now_ns - w->entries[worst].changed_ns;
    return true;
}

void watch_postpone(struct watch *w, int64_t ns, int64_t now_ns)
{
    for (int r = 0; r < w->n; r++) {
        int64_t later = w->entries[r].changed_ns + ns;
        w->entries[r].changed_ns = later < now_ns ? later : now_ns;
        if (w->entries[r].stopped_ns)
            w->entries[r].stopped_ns += ns;
    }
}
