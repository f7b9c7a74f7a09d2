// SPDX-License-Identifier: Apache-2.0
// The reasons, in the order in which they are looked for; see shortage.h.
//
//   nobody has such devices → all together have too few → those that take work have too few, and who
//   does not take work → the hosts that it may be spread over have too few → they do not reach each
//   other
#include "coordinator/decide/shortage.h"

#include <stdlib.h>

#include "coordinator/decide/host.h"

struct supply {                   // of devices of one kind
    int hosts, devices;           // known
    int open_hosts, open_devices; // on hosts that take work
    int most;                     // on as many of those as the job may be spread over, the largest
    const char *closed;           // hosts that do not take work, and why, with what they have
    const char *unreachable;      // of those that take work: the ones without an address
    int avoided;                  // hosts where it could not open its data: they are closed to it
    int64_t again_ns;             // when it may try on the first of them
};

static const char *end_plural(int n)
{
    return n == 1 ? "" : "s";
}

static const char *add_word(struct arena *a, const char *list, const char *word)
{
    return list ? arena_printf(a, "%s, %s", list, word) : word;
}

static int compare_descending(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

// Why hosts that are there have none of these devices, as their workers say; "" if none says it.
static const char *list_lacks(const struct job_record *j, struct arena *a)
{
    enum { NAMED = 3 };
    const char *list = NULL;
    int n = 0;
    list_for_each (it, &j->coord->hosts) {
        const struct host *h = list_entry(it, struct host, link);
        const char *why = h->conn ? host_lacks(h, j->kind) : NULL;
        if (why && n++ < NAMED)
            list = arena_printf(a, "%s%s%s: %s", list ? list : "", list ? "; " : "", host_name(h),
                                why);
    }
    if (!list)
        return "";
    return n > NAMED ? arena_printf(a, " (%s; and %d more host%s)", list, n - NAMED,
                                    end_plural(n - NAMED))
                     : arena_printf(a, " (%s)", list);
}

static void count_supply(const struct job_record *j, struct supply *s, struct arena *a)
{
    const struct coord *c = j->coord;
    int *open = arena_array(a, int, list_length(&c->hosts) + 1);
    *s = (struct supply){0};
    list_for_each (it, &c->hosts) {
        const struct host *h = list_entry(it, struct host, link);
        int n = host_count_devices(h, j->kind);
        if (!n)
            continue;
        s->hosts++;
        s->devices += n;
        const struct avoided *avoided =
            host_takes_work(h) ? job_find_avoided(j, h->incarnation) : NULL;
        if (avoided && (!s->avoided++ || avoided->until_ns < s->again_ns))
            s->again_ns = avoided->until_ns;
        if (host_takes_work(h) && !avoided) {
            open[s->open_hosts++] = n;
            s->open_devices += n;
            if (!h->about->address[0])
                s->unreachable = add_word(a, s->unreachable, host_name(h));
        } else {
            const char *why = avoided ? "could not open its data" : host_state_word(host_state(h));
            s->closed =
                add_word(a, s->closed, arena_printf(a, "%d on %s (%s)", n, host_name(h), why));
        }
    }
    qsort(open, (size_t)s->open_hosts, sizeof *open, compare_descending);
    for (int i = 0; i < s->open_hosts && (!j->max_hosts || i < j->max_hosts); i++)
        s->most += open[i];
}

static char *find_reason(const struct job_record *j, const struct supply *s, struct arena *a)
{
    const char *kind = job_device_kind(j->kind);
    const char *needs =
        arena_printf(a, "it needs %d %s device%s", j->ranks, kind, end_plural(j->ranks));
    if (!s->devices)
        return arena_printf(a,
                            "no known host has a %s device, it needs %d%s: start weft-worker on a "
                            "host that has them",
                            kind, j->ranks, list_lacks(j, a));
    if (s->devices < j->ranks && j->max_hosts && s->hosts >= j->max_hosts)
        return arena_printf(a,
                            "%s on at most %d host%s, and all known hosts together have %d: start "
                            "weft-worker on %s with more devices",
                            needs, j->max_hosts, end_plural(j->max_hosts), s->devices,
                            j->max_hosts == 1 ? "a host" : "hosts");
    if (s->devices < j->ranks)
        return arena_printf(a, "%s, the known host%s %s %d: start weft-worker on more hosts", needs,
                            end_plural(s->hosts), s->hosts == 1 ? "has" : "have", s->devices);
    if (s->open_devices < j->ranks)
        return arena_printf(a, "%s, hosts that take work have %d; others have %s", needs,
                            s->open_devices, s->closed);
    if (s->most < j->ranks)
        return arena_printf(a, "%s on at most %d host%s, the largest that take work have %d%s%s",
                            needs, j->max_hosts, end_plural(j->max_hosts), s->most,
                            s->closed ? "; others have " : "", s->closed ? s->closed : "");
    if (!s->unreachable)
        return arena_printf(a, "%s, and its mesh does not fit on the hosts that take work", needs);
    return arena_printf(a,
                        "%s on hosts that reach each other: others cannot reach %s, whose worker "
                        "knows no address of its own (start it with --address)",
                        needs, s->unreachable);
}

char *shortage_explain(const struct job_record *j, struct arena *a)
{
    struct supply s;
    count_supply(j, &s, a);
    char *reason = find_reason(j, &s, a);
    if (!s.avoided)
        return reason;
    const char *where = s.avoided == 1 ? "there" : "on these hosts";
    int64_t wait_ns = s.again_ns - j->coord->now_ns;
    if (wait_ns <= 0)
        return arena_printf(a, "%s. %s. It tries %s again when enough devices are free", reason,
                            j->avoided_why, where);
    return arena_printf(a, "%s. %s. It tries %s again in %lld s", reason, j->avoided_why, where,
                        (long long)((wait_ns + CLOCK_S - 1) / CLOCK_S));
}
