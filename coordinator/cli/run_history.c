// SPDX-License-Identifier: Apache-2.0
// What a job did in allocations; see run_history.h.
#include "coordinator/cli/run_history.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "coordinator/cli/run_file.h"

enum { WHY_HISTORY_MAX = 16 << 20 };

// Whether sums and differences of its numbers are numbers too. Fields that no event
// has would be carried on.
static bool is_within_limits(const Weft__V1__WhyReply *r)
{
    bool is = r->n_events <= HISTORY_EVENTS && r->n_spent <= HISTORY_SPENT;
    for (size_t i = 0; is && i < r->n_events; i++) {
        const Weft__V1__Event *e = r->events[i];
        is =
            e->step >= -1 && e->step <= HISTORY_NUMBER && e->t_ms >= 0 && e->t_ms <= HISTORY_NUMBER;
    }
    for (size_t i = 0; is && i < r->n_spent; i++)
        is = !r->spent[i]->base.n_unknown_fields && r->spent[i]->ms >= 0 &&
             r->spent[i]->ms <= HISTORY_NUMBER;
    return is;
}

int run_history_parse(const void *bytes, size_t len, Weft__V1__WhyReply **out, struct err *e)
{
    *out = weft__v1__why_reply__unpack(NULL, len, bytes);
    if (*out && is_within_limits(*out))
        return 0;
    if (*out)
        weft__v1__why_reply__free_unpacked(*out, NULL);
    *out = NULL;
    return err_set(e, ERR_DATA, "it is no history of a job");
}

int run_history_read(const char *root, const char *name, Weft__V1__WhyReply **out, struct err *e)
{
    struct buf bytes = {0};
    *out = NULL;
    int rc = run_file_read(root, name, "history", WHY_HISTORY_MAX, &bytes, e);
    if (!rc && (rc = run_history_parse(buf_str(&bytes), bytes.len, out, e)))
        err_wrap(e, "%s/.weft/%s.history", root, name);
    buf_clear(&bytes);
    return rc;
}

// Times of both, each kind once.
static size_t add_times(Weft__V1__Spent *all, const Weft__V1__WhyReply *r, size_t n)
{
    for (size_t i = 0; i < r->n_spent; i++) {
        size_t at = 0;
        while (at < n && strcmp(all[at].what, r->spent[i]->what) != 0)
            at++;
        if (at == HISTORY_SPENT)
            continue;
        if (at == n) {
            all[n] = *r->spent[i];
            all[n++].ms = 0;
        }
        all[at].ms += r->spent[i]->ms;
        all[at].ms = all[at].ms < HISTORY_NUMBER ? all[at].ms : HISTORY_NUMBER;
    }
    return n;
}

void run_history_pack(const Weft__V1__WhyReply *before, const Weft__V1__WhyReply *now,
                      struct buf *out)
{
    size_t nbefore = before ? before->n_events : 0, all = nbefore + now->n_events;
    size_t first = all > HISTORY_EVENTS ? all - HISTORY_EVENTS : 0;
    size_t nspent = (before ? before->n_spent : 0) + now->n_spent;
    Weft__V1__Event **events = heap_alloc((all + 1) * sizeof *events);
    Weft__V1__Spent *spent = heap_alloc((nspent + 1) * sizeof *spent);
    Weft__V1__Spent **list = heap_alloc((nspent + 1) * sizeof *list);
    Weft__V1__WhyReply whole = *now;
    for (size_t i = 0; i < all; i++)
        events[i] = i < nbefore ? before->events[i] : now->events[i - nbefore];
    nspent = before ? add_times(spent, before, 0) : 0;
    nspent = add_times(spent, now, nspent);
    for (size_t i = 0; i < nspent; i++)
        list[i] = &spent[i];
    whole.spent = list;
    whole.n_spent = nspent;
    size_t len;
    for (;; first += (all - first + 1) / 2) {
        whole.events = events + first;
        whole.n_events = all - first;
        whole.trimmed = now->trimmed || first || (before && before->trimmed);
        len = weft__v1__why_reply__get_packed_size(&whole);
        if (len <= WHY_HISTORY_MAX || first == all)
            break; // else texts are long, and nobody could read it
    }
    buf_reserve(out, len);
    weft__v1__why_reply__pack(&whole, (uint8_t *)out->data + out->len);
    out->len += len;
    free(events);
    free(spent);
    free(list);
}

int run_history_write(const char *root, const char *name, const Weft__V1__WhyReply *before,
                      const Weft__V1__WhyReply *now, struct err *e)
{
    struct buf bytes = {0};
    run_history_pack(before, now, &bytes);
    int rc = run_file_write(root, name, "history", true, bytes.data, bytes.len, e);
    buf_clear(&bytes);
    return rc;
}
