// SPDX-License-Identifier: Apache-2.0
// The largest batch that fits. See fit_batch.h. What a job needs grows about linearly with its
// batch. So the next batch to try lies where a line between one that fits and one that does not
// meets the device's memory; after many tries it lies in the middle.
#include "common/explain/fit_batch.h"

enum { STRAIGHT = 6 };

struct size { // of a batch
    int64_t units;
    uint64_t need; // 0: the job cannot be
};

void fit_batch_put(const struct fitting *f, struct settings *s, int64_t batch)
{
    settings_put(s, arena_printf(f->arena, "data.batch=%lld", (long long)batch));
}

static struct settings put_batch(const struct fitting *f, struct settings s, int64_t batch)
{
    fit_batch_put(f, &s, batch);
    return s;
}

static int64_t guess_units(const struct fitting *f, struct size fits, struct size not_fits,
                           bool straight)
{
    int64_t between = not_fits.units - fits.units, add = between / 2;
    if (straight && not_fits.need > fits.need)
        add = (int64_t)((double)(f->device->memory - fits.need) /
                        (double)(not_fits.need - fits.need) * (double)between);
    return fits.units + (add < 1 ? 1 : add >= between ? between - 1 : add);
}

int64_t fit_batch_largest(struct fitting *f, const struct settings *s)
{
    int64_t unit = fit_batch_unit(f, s);
    if (!unit || f->job->data.batch < unit)
        return 0;
    struct settings least = put_batch(f, *s, unit);
    if (!fit_would(f, &least))
        return 0;
    struct size fits = {1, fit_need_with(f, &least)}, most = {f->job->data.batch / unit, 0};
    struct settings whole = put_batch(f, *s, most.units * unit);
    most.need = fit_need_with(f, &whole);
    if (most.need && most.need <= f->device->memory)
        return most.units * unit;
    for (int i = 0; most.units - fits.units > 1; i++) {
        struct size mid = {guess_units(f, fits, most, i < STRAIGHT), 0};
        struct settings one = put_batch(f, *s, mid.units * unit);
        mid.need = fit_need_with(f, &one);
        if (mid.need && mid.need <= f->device->memory)
            fits = mid;
        else
            most = mid;
    }
    return fits.units * unit;
}
