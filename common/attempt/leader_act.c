// SPDX-License-Identifier: Apache-2.0
// The list of a leader's actions; see leader_act.h.
#include "common/attempt/leader_act.h"

struct leader_action *leader_act(struct leader_out *out, enum leader_action_kind kind)
{
    out->v = arena_grow(out->arena, out->v, sizeof *out->v, out->n, &out->cap);
    struct leader_action *a = &out->v[out->n++];
    *a = (struct leader_action){.kind = kind, .rank = -1};
    return a;
}

Weft__Rank__Frame *leader_send(struct leader_out *out, int rank, Weft__Rank__Frame__BodyCase kind)
{
    Weft__Rank__Frame *f = arena_new(out->arena, Weft__Rank__Frame);
    weft__rank__frame__init(f);
    f->body_case = kind;
    struct leader_action *a = leader_act(out, LEADER_SEND);
    a->rank = rank;
    a->frame = f;
    return f;
}
