// SPDX-License-Identifier: Apache-2.0
// Places in a model at which activations get a spec, from the rules or from the job's
// sharding.activations.
#pragma once

#define POINT_TABLE(X)                  \
    X(NONE, none)                       \
    X(IDS, act_ids)                     \
    X(SEQ, act_seq)                     \
    X(ATT, act_att)                     \
    X(HIDDEN, act_hidden)               \
    X(LOGITS, act_logits)               \
    X(SLOTS, act_slots)                 \
    X(EXPERT, act_expert)               \
    X(EXPERT_HIDDEN, act_expert_hidden) \
    X(LATENT, act_latent)
enum point {
#define X(id, name) POINT_##id,
    POINT_TABLE(X)
#undef X
        POINT_COUNT
};
const char *point_name(enum point p);
