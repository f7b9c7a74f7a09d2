// SPDX-License-Identifier: Apache-2.0
// A job compiled with other settings, to see what it would need of a device. Inside explain/ only.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/device_models.h"

enum { SETTINGS_MAX = 10 };

struct settings { // texts for -s
    int n;
    const char *text[SETTINGS_MAX];
    int64_t places; // stages times chunks of these settings' mesh; 0: as the job's
};
void settings_put(struct settings *s, const char *text);

struct fitting {
    const struct job *job;
    build_fn build;
    const struct device_model *device;
    struct arena *arena; // the texts of settings are kept here
    const char *resolved;
    uint64_t least;          // the smallest need of what was compiled so far
    struct settings nearest; // those of the smallest estimate among the ones dropped uncompiled
    uint64_t about;          // that estimate; 0: none were dropped
};

uint64_t fit_need(const struct compiled *c, const struct device_model *d);
// What the job needs with these settings; 0: it cannot be, or its sharding is refused. fit_try()
// remembers the least.
uint64_t fit_need_with(const struct fitting *f, const struct settings *s);
uint64_t fit_try(struct fitting *f, const struct settings *s);
// Estimates what the job needs with these settings. Layers are alike: each further one adds the
// same number of bytes, except for buffers that fit into gaps. Returns 0 where there is no
// estimate: the job has few layers, or the small jobs cannot be compiled.
uint64_t fit_about(const struct fitting *f, const struct settings *s);
// Whether an estimate is so far beyond the device that the job need not be compiled as a whole.
bool fit_beyond(const struct fitting *f, uint64_t about);
bool fit_would(struct fitting *f, const struct settings *s);
// What data.batch must be a multiple of with these settings; 0: the job cannot be read with them.
int64_t fit_batch_unit(const struct fitting *f, const struct settings *s);
