// SPDX-License-Identifier: Apache-2.0
// What generating with cached keys costs, counted from the programs FILL and STEP: what `weft plan
// --generate` prints, as text for people and as the JSON contract of coordinator/cli/README.md.
#pragma once
#include "common/base/json.h"
#include "common/explain/cost.h"
#include "common/explain/device_models.h"

struct decode_plan {
    const struct compiled *compiled;
    const struct device_model *device;
    int64_t rows; // texts side by side
    uint64_t token,
        row;     // bytes of keys, of all devices together: of a token, of a text's whole context
    int64_t fit; // so many rows fit: the caller's (plan_rows_that_fit); -1: not known
    int64_t
        fit_context; // where no row fits: with so many tokens one does; 0: with none, or not known
    int fullest;     // the stage whose device holds the most
    // Of a step, which is a token of each row, where their contexts are full.
    struct cost cost;       // collectives and what is sent, no more
    uint64_t weights, keys; // bytes that a device of the stage that reads the most reads of them
    double read;            // bytes that the stages read, one after the other
    int ngathered;          // weights that are gathered from other devices
    uint64_t gathered;      // their bytes, as the devices get them
    double seconds;         // at the rate of the device's memory; 0: that is not known
};

// `c` has FILL and STEP. Everything is borrowed.
void decode_plan_make(struct decode_plan *d, const struct compiled *c,
                      const struct device_model *device, struct arena *a);
// Whether the device has room for all that it holds.
bool decode_plan_fits(const struct decode_plan *d);
void decode_plan_text(const struct decode_plan *d, const char *name, int width, struct buf *out);
void decode_plan_json(const struct decode_plan *d, struct json_out *w); // members of an object
