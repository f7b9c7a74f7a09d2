// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as what a job did in allocations. What is accepted is printed as `weft why`
// does, joined with another start's, and read again.
#include <stdlib.h>

#include "common/base/heap.h"
#include "coordinator/cli/message_json.h"
#include "coordinator/cli/run_history.h"
#include "coordinator/cli/why_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Weft__V1__WhyReply *r, *again, now;
    struct buf out = {0};
    struct err e = {0};
    if (run_history_parse(data, size, &r, &e)) {
        must(e.code == ERR_DATA && *e.text && !r);
        return 0;
    }
    must(why_goodput(r) <= 1);
    why_print(r, false, &out);
    why_print(r, true, &out);
    json_message(&out, true, &r->base);
    buf_reset(&out);
    weft__v1__why_reply__init(&now);
    now.n_events = r->n_events; // as if the next start had done the same
    now.events = r->events;
    run_history_pack(r, &now, &out);
    must(!run_history_parse(out.data, out.len, &again, &e));
    must(again->n_events >= r->n_events && again->n_spent <= r->n_spent);
    weft__v1__why_reply__free_unpacked(again, NULL);
    weft__v1__why_reply__free_unpacked(r, NULL);
    buf_clear(&out);
    return 0;
}
