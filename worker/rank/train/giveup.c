// SPDX-License-Identifier: Apache-2.0
// Giving up. See giveup.h.
#include "worker/rank/train/giveup.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

static struct {
    atomic_flag begun;
    int64_t ns;
    int code;
    char why[400];
} end = {.begun = ATOMIC_FLAG_INIT};

// Nothing is cleared: that would wait for the device as well.
static void *wait_and_end(void *arg)
{
    (void)arg;
    clock_sleep_ms(end.ns / CLOCK_MS);
    log_error("rank", "ended without the device, which lets go of nothing: %s", end.why);
    _exit(end.code);
}

void give_up_after(int64_t ns, int code, const char *why)
{
    pthread_t thread;
    if (atomic_flag_test_and_set(&end.begun))
        return;
    end.ns = ns;
    end.code = code;
    snprintf(end.why, sizeof end.why, "%s", why);
    if (!pthread_create(&thread, NULL, wait_and_end, NULL))
        pthread_detach(thread);
}
