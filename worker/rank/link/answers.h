// SPDX-License-Identifier: Apache-2.0
// Inside worker/rank/link/ only. The leader's answers to this rank's questions, kept until the link
// closes: an answer may come before anyone waits for it, and a question that is asked again has the
// same answer.
#pragma once
#include <stdint.h>

#include "common/base/list.h"

enum { ANSWER_TEXT_MAX = 400 };
enum answer_kind { ANSWER_PUT, ANSWER_VALUE, ANSWER_BARRIER, ANSWER_READY };
struct answer_key {
    enum answer_kind kind;
    const char *name; // of the key or the barrier; "" for READY
    int64_t seq;      // of a barrier, else 0
};
struct answer {
    struct list link;
    struct answer_key key;
    char *name, *value, *failed; // failed: "", or why the question has no good answer
};

void answers_add(struct list *l, const struct answer_key *key, const char *value,
                 const char *failed);
const struct answer *answers_find(const struct list *l, const struct answer_key *key); // or null
void answers_clear(struct list *l);
// For messages: "put/NAME", "kv/NAME", "barrier/NAME/SEQ", "ready"; cut off where it is too long.
void answer_key_text(const struct answer_key *key, char out[ANSWER_TEXT_MAX]);
