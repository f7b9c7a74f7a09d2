// SPDX-License-Identifier: Apache-2.0
// Marks. See marks.h.
#include "worker/rank/exec/marks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/compile/graph/node_work.h"

enum {
    LOOK_MS = 50, // well below the shortest restart.hang_after
    // The most between marks of instructions with hardly any work, which still take a device some
    // five µs each, and of those that move data between devices, whose time no work foretells.
    MOST_OPS = 1024,
    MOST_OTHERS = 128,
};
// The most work between marks. It takes a device with 10¹⁵ FLOP/s and 5 TB/s five milliseconds or
// so, and one that is a hundred times slower half a second.
#define MOST_FLOPS 0x1p42
#define MOST_BYTES 0x1p35

// The words that the device writes, two for each kind of mark: the step, and how many steps began;
// the place (microbatch and phase), and how many instructions began.
enum { STEP, STEPS, PLACE, INSTRS, WORDS };

struct marks {
    const struct backend *backend;
    struct device *device;
    struct progress_page *page;
    uint64_t *words;        // pinned
    uint64_t steps, instrs; // as they were last written to the page
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool runs, stops;
};

// ---- where marks are ---------------------------------------------------------------------------

// Finds an instruction's part of what may lie between two marks.
static double find_share(const struct program *p, const struct instr *i)
{
    if (i->kind != INSTR_OP)
        return program_goes_with(p, i) ? 0 : 1.0 / MOST_OTHERS;
    const struct node *n = &p->graph->nodes[i->node];
    return 1.0 / MOST_OPS + node_flops(p->graph, &p->mesh, n) / MOST_FLOPS +
           node_bytes(p->graph, &p->mesh, n) / MOST_BYTES;
}

void marks_plan(const struct program *p, int *begins)
{
    int at = -1, before = 0; // the newest mark; what begins before the first
    double share = 0;        // since the newest mark
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        bool op = in->kind == INSTR_OP;
        begins[i] = 0;
        if (in->kind == INSTR_MARK || (op && (at < 0 || share >= 1))) {
            begins[i] = at < 0 ? before : 0;
            at = i;
            share = 0;
        }
        const int last = i + (op ? in->with : 0);
        for (int k = i; k <= last; k++) {
            begins[k] = k > i ? 0 : begins[k];
            *(at < 0 ? &before : &begins[at]) += 1;
            share += find_share(p, &p->instrs[k]);
        }
        i = last;
    }
}

// ---- marking -----------------------------------------------------------------------------------

int marks_step(struct marks *m, struct stream_q *q, int64_t step, struct err *e)
{
    return m->backend->stream.mark(q, m->words + STEP, (uint64_t)step, 1, e);
}

int marks_put(struct marks *m, struct stream_q *q, const struct instr *at, int begins,
              struct err *e)
{
    uint64_t place = (uint64_t)(uint32_t)at->microbatch << 2 | (uint64_t)at->phase;
    return m->backend->stream.mark(q, m->words + PLACE, place, (uint64_t)begins, e);
}

// ---- telling -----------------------------------------------------------------------------------

// The device writes while this reads.
static uint64_t read_word(const struct marks *m, int word)
{
    return __atomic_load_n(&m->words[word], __ATOMIC_ACQUIRE);
}

void marks_show(struct marks *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    uint64_t steps = read_word(m, STEPS);
    if (steps != m->steps)
        page_step(m->page, (int64_t)read_word(m, STEP));
    m->steps = steps;
    uint64_t instrs = read_word(m, INSTRS);
    if (instrs != m->instrs) {
        uint64_t place = read_word(m, PLACE);
        atomic_store_explicit(&m->page->ops, instrs, memory_order_relaxed);
        page_phase(m->page, (int)(place & 3), (int)(place >> 2));
    }
    m->instrs = instrs;
    pthread_mutex_unlock(&m->lock);
}

static bool stops_within(struct marks *m, int64_t ns)
{
    int64_t until = clock_mono_ns() + ns;
    pthread_mutex_lock(&m->lock);
    while (!m->stops && clock_cond_wait(&m->wake, &m->lock, until))
        ;
    bool stops = m->stops;
    pthread_mutex_unlock(&m->lock);
    return stops;
}

static void *run_looker(void *marks)
{
    while (!stops_within(marks, LOOK_MS * CLOCK_MS))
        marks_show(marks);
    return NULL;
}

// ---- life --------------------------------------------------------------------------------------

int marks_open(const struct backend *b, struct device *d, struct progress_page *page,
               struct marks **out, struct err *e)
{
    *out = NULL;
    if (!b->stream.mark || !page)
        return 0;
    struct marks *m = heap_alloc(sizeof *m);
    *m = (struct marks){.backend = b, .device = d, .page = page};
    pthread_mutex_init(&m->lock, NULL);
    clock_cond_init(&m->wake);
    void *words = NULL;
    int rc = b->memory.host_alloc(d, WORDS * sizeof *m->words, &words, e);
    m->words = words;
    if (!rc) {
        memset(words, 0, WORDS * sizeof *m->words);
        m->runs = !pthread_create(&m->thread, NULL, run_looker, m);
        rc = m->runs
                 ? 0
                 : err_set(e, ERR_NOMEM, "cannot start the thread that reads the device's marks");
    }
    if (rc)
        marks_close(m);
    else
        *out = m;
    return rc;
}

void marks_close(struct marks *m)
{
    if (!m)
        return;
    if (m->runs) {
        pthread_mutex_lock(&m->lock);
        m->stops = true;
        pthread_cond_signal(&m->wake);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
        marks_show(m);
    }
    if (m->words)
        m->backend->memory.host_free(m->device, m->words);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
