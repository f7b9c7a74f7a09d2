// SPDX-License-Identifier: Apache-2.0
// The search for a gang's hosts; see placement.h.
#include "coordinator/decide/placement.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"

struct pick { // a host that may take part, with what it can take in whole blocks
    int host, room;
    const struct place_host *h;
};

static int compare_racks(const void *a, const void *b)
{
    const struct pick *x = a, *y = b;
    int d = strcmp(x->h->rack, y->h->rack);
    d = d ? d : strcmp(x->h->name, y->h->name);
    return d ? d : x->host - y->host;
}

static int compare_rooms(const void *a, const void *b)
{
    const struct pick *x = a, *y = b;
    return x->room != y->room ? y->room - x->room : compare_racks(a, b);
}

static int choose_one_host(const struct place_want *w, const struct place_host *hosts, int n,
                           struct place_share *out)
{
    int best = -1;
    struct pick at = {0}, other = {0};
    for (int i = 0; i < n; i++) {
        if (hosts[i].free < w->ranks)
            continue;
        other = (struct pick){i, 0, &hosts[i]};
        if (best < 0 || hosts[i].free < hosts[best].free ||
            (hosts[i].free == hosts[best].free && compare_racks(&other, &at) < 0)) {
            best = i;
            at = other;
        }
    }
    if (best < 0)
        return 0;
    out[0] = (struct place_share){best, w->ranks};
    return 1;
}

// Takes as few of these hosts as possible. Reorders `picks`.
static int choose_fewest(const struct place_want *w, struct pick *picks, int n, int block,
                         struct place_share *out)
{
    int most = w->max_hosts > 0 && w->max_hosts < n ? w->max_hosts : n, taken = 0, sum = 0;
    for (int i = 0; i < n; i++)
        picks[i].room = picks[i].h->free / block * block;
    qsort(picks, (size_t)n, sizeof *picks, compare_rooms);
    while (taken < most && sum < w->ranks && picks[taken].room > 0)
        sum += picks[taken++].room;
    if (sum < w->ranks)
        return 0;
    qsort(picks, (size_t)taken, sizeof *picks, compare_racks);
    int left = w->ranks, used = 0;
    for (int i = 0; i < taken && left > 0; i++) {
        int take = picks[i].room < left ? picks[i].room : left;
        out[used++] = (struct place_share){picks[i].host, take};
        left -= take;
    }
    return used;
}

static int choose_by_rack(const struct place_want *w, const struct pick *all, int n, int block,
                          struct pick *scratch, struct place_share *out)
{
    for (int from = 0, to; from < n; from = to) {
        for (to = from; to < n && !strcmp(all[to].h->rack, all[from].h->rack); to++)
            scratch[to - from] = all[to];
        int used = choose_fewest(w, scratch, to - from, block, out);
        if (used)
            return used;
    }
    memcpy(scratch, all, sizeof *all * (size_t)n);
    return choose_fewest(w, scratch, n, block, out);
}

// The hosts that reach each other: all that have an address (share is null), or all of one share.
static int collect_reachable(const struct place_host *hosts, int n, const char *share,
                             struct pick *out)
{
    int used = 0;
    for (int i = 0; i < n; i++)
        if (hosts[i].free > 0 && (share ? !strcmp(hosts[i].share, share) : hosts[i].address))
            out[used++] = (struct pick){i, 0, &hosts[i]};
    qsort(out, (size_t)used, sizeof *out, compare_racks);
    return used;
}

static int choose_reachable(const struct place_want *w, const struct place_host *hosts, int n,
                            int block, struct pick *picks, struct place_share *out)
{
    struct pick *scratch = picks + n;
    int found =
        choose_by_rack(w, picks, collect_reachable(hosts, n, NULL, picks), block, scratch, out);
    for (int i = 0; i < n && !found; i++) {
        bool seen = !hosts[i].share[0] || hosts[i].free == 0;
        for (int k = 0; k < i && !seen; k++)
            seen = hosts[k].free > 0 && !strcmp(hosts[k].share, hosts[i].share);
        if (!seen)
            found = choose_by_rack(w, picks, collect_reachable(hosts, n, hosts[i].share, picks),
                                   block, scratch, out);
    }
    return found;
}

int placement_find(const struct place_want *w, const struct place_host *hosts, int n,
                   struct place_share *out)
{
    long total = 0;
    for (int i = 0; i < n; i++)
        total += hosts[i].free;
    if (total < w->ranks)
        return 0;
    int used = choose_one_host(w, hosts, n, out);
    if (used || w->max_hosts == 1)
        return used;
    struct pick *picks = heap_alloc(sizeof *picks * (2 * (size_t)n + 1));
    for (int inner = 1; inner <= w->naxes && !used; inner++) {
        int block = 1;
        for (int i = inner; i < w->naxes; i++)
            block *= w->axes[i];
        used = choose_reachable(w, hosts, n, block, picks, out);
    }
    free(picks);
    return used;
}
