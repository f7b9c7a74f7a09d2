// SPDX-License-Identifier: Apache-2.0
// A job compiled with other settings, to see what it would need of a device. Inside explain/ only.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/device_models.h"

enum { SETTINGS_MAX = 16, FIT_TIMES = 64 }; // and so often may microbatches be multiplied
struct settings {                           // texts for -s
    int n;
    const char *text[SETTINGS_MAX];
    int64_t places; // stages times chunks of these settings' mesh; 0: as the job's
};
void settings_put(struct settings *s, const char *text);

struct estimate {
    uint64_t about; // 0: none
    struct settings settings;
};

struct fitting {
    const struct job *job;
    build_fn build;
    const struct device_model *device;
    struct arena *arena; // the texts of settings are kept here
    const char *resolved;
    int64_t *work;  // nodes and instructions that may still be compiled; below 0: looking has ended
    uint64_t least; // the smallest need of what was compiled so far
    // The smallest estimates among the settings that were dropped without compiling the whole job.
    // Those with remat: full have their own: their backward makes all layers again, and what that
    // takes can hardly be told from a job of few layers.
    struct estimate nearest, nearest_full;
};

uint64_t fit_need(const struct compiled *c, const struct device_model *d);
// Whether looking has ended before everything was looked at.
bool fit_ended(const struct fitting *f);
// What the job needs with these settings; 0: it cannot be, its sharding is refused, or looking has
// ended. fit_try() remembers the least.
uint64_t fit_need_with(const struct fitting *f, const struct settings *s);
uint64_t fit_try(struct fitting *f, const struct settings *s);
// As fit_need_with(), where the last of the settings makes the job smaller. Returns FIT_NEVER if a
// size does not divide, which it would not in the whole job either.
#define FIT_NEVER UINT64_MAX
uint64_t fit_need_smaller(const struct fitting *f, const struct settings *s);
// Whether the size `layers` is the number of layers, so that fewer can be asked for.
bool fit_sets_layers(const struct fitting *f);
// Estimates what the job needs with these settings. Layers are alike: each further one adds the
// same number of bytes, except for buffers that fit into gaps. Returns 0 where there is no
// estimate: the job has few layers, or the small jobs cannot be compiled; or FIT_NEVER.
uint64_t fit_about(const struct fitting *f, const struct settings *s);
// Whether an estimate is so far beyond the device that the job need not be compiled as a whole.
bool fit_beyond(const struct fitting *f, uint64_t about);
// Whether the job fits with these settings. If it has many microbatches, only as many of the same size
// as are under way at once are tried first: they need no more than all do, and hardly less but for
// the inputs of a step.
bool fit_would(struct fitting *f, const struct settings *s);
// Whether the job is likely to fit, told by few of its microbatches alone. *most: how many a step may
// have, about; 0: not known.
bool fit_might(struct fitting *f, const struct settings *s, int64_t *most);
// The next number of microbatches worth a try, twice as many or a little more, into which the samples
// of a device divide; 0: none.
int64_t fit_more_microbatches(int64_t samples, int64_t than);
// What data.batch must be a multiple of with these settings; 0: the job cannot be read with them.
int64_t fit_batch_unit(const struct fitting *f, const struct settings *s);
