// SPDX-License-Identifier: Apache-2.0
// Answers that are kept. See answers.h.
#include "worker/rank/link/answers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"

void answers_add(struct list *l, const struct answer_key *key, const char *value,
                 const char *failed)
{
    struct answer *a = heap_alloc(sizeof *a);
    a->name = heap_strdup(key->name);
    a->value = heap_strdup(value);
    a->failed = heap_strdup(failed);
    a->key = (struct answer_key){key->kind, a->name, key->seq};
    list_append(l, &a->link);
}

const struct answer *answers_find(const struct list *l, const struct answer_key *key)
{
    for (struct list *it = l->next; it != l; it = it->next) {
        const struct answer *a = list_entry(it, struct answer, link);
        if (a->key.kind == key->kind && a->key.seq == key->seq && !strcmp(a->name, key->name))
            return a;
    }
    return NULL;
}

void answers_clear(struct list *l)
{
    list_for_each (it, l) {
        struct answer *a = list_entry(it, struct answer, link);
        list_remove(it);
        free(a->name);
        free(a->value);
        free(a->failed);
        free(a);
    }
}

void answer_key_text(const struct answer_key *key, char out[ANSWER_TEXT_MAX])
{
    switch (key->kind) {
    case ANSWER_PUT:
        snprintf(out, ANSWER_TEXT_MAX, "put/%s", key->name);
        break;
    case ANSWER_VALUE:
        snprintf(out, ANSWER_TEXT_MAX, "kv/%s", key->name);
        break;
    case ANSWER_BARRIER:
        snprintf(out, ANSWER_TEXT_MAX, "barrier/%s/%lld", key->name, (long long)key->seq);
        break;
    case ANSWER_READY:
        snprintf(out, ANSWER_TEXT_MAX, "ready");
        break;
    }
}
