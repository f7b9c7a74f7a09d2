// SPDX-License-Identifier: Apache-2.0
// What a rank's page says of where it is. See peer_page.h.
#include <string.h>

#include "common/base/clock.h"
#include "worker/collective/world.h"

// Publishes the operation that this rank entered last, for its peers and for whoever watches it.
void peer_page_enter(struct world *w, uint64_t number, const char *name, uint32_t hash)
{
    char text[TEXT] = "";
    if (name)
        strncpy(text, name, TEXT - 1);
    for (int i = 0; i < TEXT / 8; i++) {
        uint64_t part;
        memcpy(&part, text + 8 * i, 8);
        atomic_store_explicit(&w->page->text[i], part, memory_order_relaxed);
    }
    atomic_store_explicit(&w->page->entered, number, memory_order_relaxed);
    struct progress_page *p = w->progress;
    if (!p)
        return;
    memcpy(p->collective_text, text, TEXT);
    atomic_store_explicit(&p->collective_name, hash, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->collective_entered, 1, memory_order_relaxed);
    atomic_store_explicit(&p->heartbeat_ns, (uint64_t)clock_mono_ns(), memory_order_relaxed);
}

size_t peer_page_text(const struct peer_page *p, char out[TEXT])
{
    for (int i = 0; i < TEXT / 8; i++) {
        uint64_t part = atomic_load_explicit(&p->text[i], memory_order_relaxed);
        memcpy(out + 8 * i, &part, 8);
    }
    out[TEXT - 1] = 0;
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return strlen(out);
}
