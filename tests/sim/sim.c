// SPDX-License-Identifier: Apache-2.0
// The simulator's engine. See sim.h.
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "common/base/err.h"
#include "common/base/rand.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

struct sim_event {
    int64_t at;
    uint64_t number, tag;
    sim_fn *fn;
    void *arg;
};

// ---- time ----
void sim_init(struct sim *s, uint64_t seed, bool tracing)
{
    *s = (struct sim){.seed = seed, .tracing = tracing, .now = 1000 * S, .wall0_ms = 1700000000000};
    arena_init(&s->arena);
}

void sim_clear(struct sim *s)
{
    free(s->heap);
    arena_clear(&s->arena);
}

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at < b->at || (a->at == b->at && a->number < b->number);
}

void sim_after(struct sim *s, int64_t delay, sim_fn *fn, void *arg, uint64_t tag)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        s->heap = realloc(s->heap, sizeof *s->heap * (size_t)s->cap);
        PRE(s->heap);
    }
    struct sim_event ev = {s->now + (delay > 0 ? delay : 0), s->numbered++, tag, fn, arg};
    int i = s->n++;
    for (; i > 0 && before(&ev, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = ev;
}

bool sim_next(struct sim *s)
{
    if (s->n == 0)
        return false;
    struct sim_event top = s->heap[0], last = s->heap[--s->n];
    int i = 0;
    for (int child = 1; child < s->n; child = 2 * i + 1) {
        if (child + 1 < s->n && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    s->now = top.at;
    s->handled++;
    top.fn(top.arg, top.tag);
    return true;
}

// ---- randomness ----
uint32_t sim_word(struct sim *s)
{
    if (s->draws % 4 == 0) {
        uint32_t counter[4] = {(uint32_t)(s->draws / 4), (uint32_t)(s->draws >> 34), 0, 7};
        uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)};
        philox4x32(counter, key, s->words);
    }
    return s->words[s->draws++ % 4];
}

int sim_below(struct sim *s, int n)
{
    return n > 0 ? (int)(((uint64_t)sim_word(s) * (uint64_t)n) >> 32) : 0;
}

int64_t sim_between(struct sim *s, int64_t lo, int64_t hi)
{
    uint64_t wide = (uint64_t)sim_word(s) << 32 | sim_word(s);
    return lo + (int64_t)(wide % (uint64_t)(hi - lo + 1));
}

bool sim_chance(struct sim *s, int per_mille)
{
    return sim_below(s, 1000) < per_mille;
}

void sim_hex(struct sim *s, char out[33])
{
    for (int i = 0; i < 4; i++)
        snprintf(out + 8 * i, 9, "%08" PRIx32, sim_word(s));
}

// ---- the trace ----
static void say_when(const struct sim *s, const char *who)
{
    printf("%10.4f  %-16s  ", (double)(s->now - 1000 * S) / (double)S, who);
}

void sim_say(struct sim *s, const char *who, const char *fmt, ...)
{
    va_list ap;
    say_when(s, who);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

void sim_say_message(struct sim *s, const char *from, const char *to, const char *what,
                     const char *why)
{
    say_when(s, from);
    printf(*why ? "to %-14s %-44s %s\n" : "to %-14s %s\n", to, what, why);
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
    va_list ap;
    if (s->failed)
        return;
    s->failed = true;
    va_start(ap, fmt);
    vsnprintf(s->why, sizeof s->why, fmt, ap);
    va_end(ap);
    TRACE(s, "VIOLATED", "%s", s->why);
}

// ---- fibers ----
enum { STACK = 256 << 10 };
struct fiber {
    ucontext_t here, back;
    char *stack;
    struct proc *proc;
    enum fiber_act act;
    void (*body)(void *);
    void (*done)(void *);
    void *arg;
    bool ended, due; // due: its pause was over while the process was stopped
    uint64_t turn;
    struct fiber *next; // in the process, or among the free ones
    void *fake;
};
static struct fiber *running, *idle;

struct proc *fiber_proc(void)
{
    return running ? running->proc : NULL;
}

enum fiber_act fiber_doing(void)
{
    return running ? running->act : ACT_NONE;
}

#ifdef WITH_ASAN
static const void *main_bottom;
static size_t main_size;
#endif

static void enter(struct fiber *f)
{
#ifdef WITH_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK);
#endif
    swapcontext(&f->back, &f->here);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

static void leave(struct fiber *f)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(f->ended ? NULL : &f->fake, main_bottom, main_size);
#endif
    swapcontext(&f->here, &f->back);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(f->fake, &main_bottom, &main_size);
#endif
}

static void fiber_main(void)
{
    struct fiber *f = running;
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(NULL, &main_bottom, &main_size);
#endif
    f->body(f->arg);
    f->ended = true;
    leave(f);
}

static void forget(struct fiber *f)
{
    for (struct fiber **at = &f->proc->fibers; *at; at = &(*at)->next)
        if (*at == f) {
            *at = f->next;
            break;
        }
    f->next = idle;
    idle = f;
}

static void run(struct fiber *f)
{
    struct fiber *outer = running; // a death may unwind another process's fiber from inside one
    running = f;
    enter(f);
    running = outer;
    if (!f->ended)
        return;
    struct proc *p = f->proc;
    forget(f);
    if (!p->dead && f->done)
        f->done(f->arg);
}

static void resume(void *arg, uint64_t turn)
{
    struct fiber *f = arg;
    if (f->turn != turn)
        return;
    if (f->proc->stopped && !f->proc->dead) {
        f->due = true;
        return;
    }
    f->turn++;
    run(f);
}

static void prepare(ucontext_t *c, char *stack)
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = STACK;
    c->uc_link = NULL;
    makecontext(c, fiber_main, 0);
}

void fiber_start(struct proc *p, enum fiber_act act, void (*body)(void *), void (*done)(void *),
                 void *arg)
{
    struct fiber *f = idle;
    if (f)
        idle = f->next;
    else {
        f = calloc(1, sizeof *f);
        PRE(f);
        f->stack = malloc(STACK);
        PRE(f->stack);
    }
    f->proc = p;
    f->act = act;
    f->body = body;
    f->done = done;
    f->arg = arg;
    f->ended = f->due = false;
    f->turn++;
    f->next = p->fibers;
    p->fibers = f;
    prepare(&f->here, f->stack);
    sim_after(p->sim, sim_between(p->sim, 10000, 100000), resume, f, f->turn);
}

bool fiber_pause(int64_t ns)
{
    struct fiber *f = running;
    if (f->proc->dead)
        return false;
    f->turn++;
    sim_after(f->proc->sim, ns, resume, f, f->turn);
    leave(f);
    return !f->proc->dead;
}

// ---- processes ----
struct proc_note {
    struct proc *proc;
    sim_fn *fn;
    void *arg;
    uint64_t tag;
    struct proc_note *next;
};

void proc_init(struct proc *p, struct sim *s, const char *fmt, ...)
{
    va_list ap;
    *p = (struct proc){.sim = s};
    va_start(ap, fmt);
    vsnprintf(p->who, sizeof p->who, fmt, ap);
    va_end(ap);
}

static void keep_for_later(struct proc *p, struct proc_note *n)
{
    n->next = NULL;
    if (p->backlog)
        p->backlast->next = n;
    else
        p->backlog = n;
    p->backlast = n;
}

static void arrive(void *arg, uint64_t tag)
{
    struct proc_note *n = arg;
    (void)tag;
    if (n->proc->dead)
        return;
    if (n->proc->stopped || n->proc->backlog)
        keep_for_later(n->proc, n);
    else
        n->fn(n->arg, n->tag);
}

void proc_after(struct proc *p, int64_t delay, sim_fn *fn, void *arg, uint64_t tag)
{
    struct proc_note *n = arena_new(&p->sim->arena, struct proc_note);
    *n = (struct proc_note){p, fn, arg, tag, NULL};
    sim_after(p->sim, delay, arrive, n, 0);
}

// What waited comes first, one after the other.
static void catch_up(void *arg, uint64_t tag)
{
    struct proc *p = arg;
    (void)tag;
    if (p->dead || p->stopped || !p->backlog)
        return;
    struct proc_note *n = p->backlog;
    p->backlog = n->next;
    n->fn(n->arg, n->tag);
    sim_after(p->sim, 1000, catch_up, p, 0);
}

void proc_die(struct proc *p)
{
    p->dead = true;
    while (p->fibers) {
        struct fiber *f = p->fibers;
        f->turn++;
        run(f); // to its end: every call fails
        PRE(p->fibers != f);
    }
}

void proc_stop(struct proc *p)
{
    p->stopped = true;
}

void proc_wake(struct proc *p)
{
    p->stopped = false;
    sim_after(p->sim, sim_between(p->sim, 1000, 5 * MS), catch_up, p, 0);
    for (struct fiber *f = p->fibers; f; f = f->next)
        if (f->due) {
            f->due = false;
            sim_after(p->sim, sim_between(p->sim, 1000, 20 * MS), resume, f, f->turn);
        }
}

void fiber_free_all(void)
{
    while (idle) {
        struct fiber *f = idle;
        idle = f->next;
        free(f->stack);
        free(f);
    }
}
