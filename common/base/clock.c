// SPDX-License-Identifier: Apache-2.0
// Time. See clock.h.
#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t clock_mono_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * CLOCK_S + t.tv_nsec;
}

int64_t clock_wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / CLOCK_MS;
}

void clock_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool clock_cond_wait(pthread_cond_t *c, pthread_mutex_t *held, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / CLOCK_S, .tv_nsec = until_ns % CLOCK_S};
    return pthread_cond_timedwait(c, held, &until) == 0;
}

void clock_boot(char out[CLOCK_BOOT])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, CLOCK_BOOT - 1);
    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

void clock_sleep_ms(int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * CLOCK_MS};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
        ;
}
