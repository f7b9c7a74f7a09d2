// SPDX-License-Identifier: Apache-2.0
// Schedules. See schedule.h.
#include "common/compile/schedule.h"

void schedule_build(struct schedule *s, struct arena *a, enum program_kind kind, int microbatches)
{
    *s = (struct schedule){.microbatches = microbatches};
    s->slots = arena_array(a, struct slot, 2 * microbatches + 1);
    for (int m = 0; m < microbatches; m++) {
        s->slots[s->n++] = (struct slot){PHASE_FORWARD, m};
        if (kind == PROGRAM_TRAIN)
            s->slots[s->n++] = (struct slot){PHASE_BACKWARD, m};
    }
    s->slots[s->n++] = (struct slot){PHASE_UPDATE, microbatches - 1};
}

int schedule_verify(const struct schedule *s, enum program_kind kind, struct err *e)
{
    int done[PHASE_COUNT] = {0};
    for (int i = 0; i < s->n; i++) {
        struct slot t = s->slots[i];
        bool update = t.phase == PHASE_UPDATE;
        if (!update && t.microbatch != done[t.phase])
            return err_set(e, ERR_INTERNAL, "schedule: %s of microbatch %d out of order",
                           phase_name(t.phase), t.microbatch);
        if (t.phase == PHASE_BACKWARD && t.microbatch >= done[PHASE_FORWARD])
            return err_set(e, ERR_INTERNAL,
                           "schedule: backward of microbatch %d before its forward", t.microbatch);
        done[t.phase]++;
        if (update && i != s->n - 1)
            return err_set(e, ERR_INTERNAL, "schedule: the update is not the last slot");
    }
    int backward = kind == PROGRAM_TRAIN ? s->microbatches : 0;
    if (done[PHASE_FORWARD] != s->microbatches || done[PHASE_BACKWARD] != backward ||
        done[PHASE_UPDATE] != 1)
        return err_set(e, ERR_INTERNAL, "schedule: %d forward, %d backward, %d update slots",
                       done[PHASE_FORWARD], done[PHASE_BACKWARD], done[PHASE_UPDATE]);
    return 0;
}
