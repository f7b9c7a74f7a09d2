// SPDX-License-Identifier: Apache-2.0
// For tests that feed the decider by themselves: job texts are read as the planner's processes do.
#pragma once
#include "common/attempt/frame.h"
#include "coordinator/decide/coord.h"
#include "coordinator/serve/job_facts.h"

// `before`: the text that it goes on from; null: none.
static inline Weft__Plan__JobFacts *read_facts(struct arena *a, const char *text,
                                               const char *base_dir, const char *before)
{
    Weft__Plan__JobText t;
    weft__plan__job_text__init(&t);
    t.text = frame_text(text);
    t.base_dir = frame_text(base_dir);
    t.before = frame_text(before);
    return job_facts_read(&t, a);
}

// Gives the event what the service would. False: it would refuse the call itself.
static inline bool add_facts(struct arena *a, struct coord_event *ev, const char *before)
{
    const Weft__V1__StorageDone *found =
        ev->kind == COORD_EV_UP && ev->up->body_case == WEFT__V1__UP__BODY_STORAGE &&
                ev->up->storage->op == WEFT__V1__STORAGE_OP__STORAGE_FIND
            ? ev->up->storage
            : NULL;
    bool submits = ev->kind == COORD_EV_SUBMIT;
    if (!found && !submits)
        return true;
    size_t n = submits ? 1 : found->n_found;
    Weft__Plan__JobFacts **facts = arena_array(a, Weft__Plan__JobFacts *, n + 1);
    for (size_t i = 0; i < n; i++)
        facts[i] = submits ? read_facts(a, ev->submit->resolved, ev->submit->base_dir, before)
                           : read_facts(a, found->found[i]->resolved, "", found->found[i]->saved);
    ev->facts = facts;
    ev->to = found ? (int)n : 0;
    ev->kind = submits ? COORD_EV_SUBMIT : COORD_EV_FOUND;
    return !submits || !*facts[0]->refused;
}
