// SPDX-License-Identifier: Apache-2.0
// Room in file systems. See disk_room.h.
#include "worker/disk_room.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/heap.h"

enum { ROOM_LOOK_S = 20, ROOM_END_S = 1 };

struct disk_room {
    char *folder[AGENT_ROOMS]; // null: none
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool ends, news;
    struct agent_room seen;
};

// What a user other than root may still write. Unknown (size 0) where it cannot be looked at.
static void look(const char *folder, int64_t *free, int64_t *size)
{
    struct statvfs s;
    bool known = folder && !statvfs(folder, &s) && s.f_blocks;
    *free = known ? (int64_t)(s.f_bavail * s.f_frsize) : 0;
    *size = known ? (int64_t)(s.f_blocks * s.f_frsize) : 0;
}

static void *watch(void *arg)
{
    struct disk_room *r = arg;
    pthread_mutex_lock(&r->mutex);
    while (!r->ends) {
        struct agent_room now;
        pthread_mutex_unlock(&r->mutex);
        for (int i = 0; i < AGENT_ROOMS; i++)
            look(r->folder[i], &now.free[i], &now.size[i]);
        pthread_mutex_lock(&r->mutex);
        r->seen = now;
        r->news = true;
        int64_t until = clock_mono_ns() + ROOM_LOOK_S * CLOCK_S;
        while (!r->ends && clock_cond_wait(&r->wake, &r->mutex, until))
            ;
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static void free_room(struct disk_room *r)
{
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->wake);
    for (int i = 0; i < AGENT_ROOMS; i++)
        free(r->folder[i]);
    free(r);
}

int disk_room_open(const char *state, const char *checkpoints, struct disk_room **out,
                   struct err *e)
{
    struct disk_room *r = heap_alloc(sizeof *r);
    r->folder[AGENT_ROOM_STATE] = heap_strdup(state);
    if (checkpoints && *checkpoints)
        r->folder[AGENT_ROOM_CHECKPOINTS] = heap_strdup(checkpoints);
    pthread_mutex_init(&r->mutex, NULL);
    clock_cond_init(&r->wake);
    if ((errno = pthread_create(&r->thread, NULL, watch, r))) {
        free_room(r);
        return err_errno(e, ERR_IO, "cannot start a thread");
    }
    *out = r;
    return 0;
}

bool disk_room_take(struct disk_room *r, struct agent_room *out)
{
    pthread_mutex_lock(&r->mutex);
    bool news = r->news;
    *out = r->seen;
    r->news = false;
    pthread_mutex_unlock(&r->mutex);
    return news;
}

void disk_room_close(struct disk_room *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->mutex);
    r->ends = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->mutex);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ROOM_END_S;
    if (pthread_timedjoin_np(r->thread, NULL, &until))
        pthread_detach(r->thread);
    else
        free_room(r);
}
