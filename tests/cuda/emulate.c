// SPDX-License-Identifier: Apache-2.0
// Blocks of threads as fibers. See emulate.h.
//
// The scheduler is the caller's own stack. It lets every thread of a block run until it has to
// wait, in ascending or descending order, and again, until all have returned; a thread that nobody
// waits for takes the stack of the one before. If nothing can run and not all threads stand at the
// same barrier, the kernel is broken and the program ends. One launch runs at a time
// (fake_queue.c's lock), so the state is one static block.
//
// Blocks and threads take turns in another order from launch to launch. In the scene `orders`
// (fake_runtime.c) every launch runs in all of them, each time from the memory it found and over
// shared memory filled otherwise, and has to leave the same bits.
#include "tests/cuda/emulate.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK ((size_t)256 << 10)
#else
#define STACK ((size_t)64 << 10)
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

enum { THREADS = 1024, LANES = 32, PAGE = 4096, MARGIN = 128 };
#define MOST_IN_ALL_ORDERS ((size_t)1 << 30)

enum state { NEW, READY, AT_BARRIER, AT_WARP, AT_WAIT, DONE };
enum meeting { SHUFFLE, BALLOT };
enum turns { ASCENDING, DESCENDING, MIXED, TURNS };

struct fiber {
    char *stack;
    struct fiber *next; // of those that are free
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
};

struct thread {
    enum state state;
    bool waited; // for the kernels before this one
    enum meeting meeting;
    struct emulate_at at;
    unsigned mask;
    uint64_t value, result; // brought to a meeting, taken from it
    int from;
    struct fiber *fiber;
};

struct emulate_now emulate_now;

static struct {
    const struct emulate_kernel *kernel;
    const void *args;
    struct thread thread[THREADS];
    uint3 index[THREADS]; // of each in its block
    int threads, now;
    struct fiber self, *running, *free;
    char *shared; // dynamic
    size_t shared_room;
    enum turns turns; // of this block's threads
    char filling;     // of shared memory when a block begins
    bool closed;      // device memory, until this block has waited
    uint64_t launches;
} run;

// ---- the end -----------------------------------------------------------------------------------

static _Noreturn void die(int thread, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void die(int thread, const char *fmt, ...)
{
    va_list args;
    uint3 t = run.index[thread < 0 ? 0 : thread], b = emulate_now.block;
    fflush(stdout);
    fprintf(stderr, "emulate: kernel %s (%s:%d): block (%u,%u,%u)", run.kernel->name,
            run.kernel->at.file, run.kernel->at.line, b.x, b.y, b.z);
    if (thread >= 0)
        fprintf(stderr, " thread (%u,%u,%u)", t.x, t.y, t.z);
    fputs(": ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

// Where the Makefile's ALIGNED traps.
static void misaligned(int signal)
{
    (void)signal;
    die(run.now, "it reads or writes at an address that is no multiple of the access's size");
}

static void hasty(int signal)
{
    (void)signal;
    die(run.now, "it touches device memory before it waits for the kernels before it");
}

// Device memory is closed to a block that has not waited yet; who touches it is reported.
static void close_memory(bool closed)
{
    static struct sigaction usual;
    run.closed = closed;
    fake_memory_hide(closed);
    if (closed)
        sigaction(SIGSEGV, &(struct sigaction){.sa_handler = hasty}, &usual);
    else
        sigaction(SIGSEGV, &usual, NULL);
}

// ---- fibers ------------------------------------------------------------------------------------

static void fiber_main(void);

#ifdef __x86_64__
void fiber_jump(void **save, void *load);
__asm__(".text\n.type fiber_jump, @function\nfiber_jump:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n.size fiber_jump, .-fiber_jump\n");

static void fiber_prepare(struct fiber *f)
{
    void **sp = (void **)(void *)(f->stack + STACK);
    *--sp = NULL; // where fiber_main would return to; it never does
    *--sp = (void *)fiber_main;
    for (int saved = 0; saved < 6; saved++)
        *--sp = NULL;
    f->sp = sp;
}

static void fiber_to(struct fiber *from, struct fiber *to)
{
    fiber_jump(&from->sp, to->sp);
}
#else
static void fiber_prepare(struct fiber *f)
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, fiber_main, 0);
}

static void fiber_to(struct fiber *from, struct fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

static struct fiber *fiber_take(void)
{
    struct fiber *f = run.free;
    if (f) {
        run.free = f->next;
        return f;
    }
    f = calloc(1, sizeof *f);
    char *map =
        mmap(NULL, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!f || map == MAP_FAILED ||
        mprotect(map, PAGE, PROT_NONE)) // a stack that is too short faults
        die(-1, "no memory for a thread's stack");
    f->stack = map + PAGE;
    fiber_prepare(f);
    return f;
}

#ifdef __SANITIZE_ADDRESS__
// The stack of the thread that launched: a fiber is entered from there alone.
static const void *main_stack;
static size_t main_bytes;
#endif

static void switch_to(struct fiber *to)
{
    struct fiber *from = run.running;
    run.running = to;
#ifdef __SANITIZE_ADDRESS__
    void *fake = NULL;
    const void *stack = to == &run.self ? main_stack : to->stack;
    __sanitizer_start_switch_fiber(&fake, stack, to == &run.self ? main_bytes : STACK);
    fiber_to(from, to);
    if (from == &run.self)
        __sanitizer_finish_switch_fiber(fake, NULL, NULL);
    else
        __sanitizer_finish_switch_fiber(fake, &main_stack, &main_bytes);
#else
    fiber_to(from, to);
#endif
}

static void fiber_main(void)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &main_stack, &main_bytes);
#endif
    for (;;) {
        run.kernel->call(run.args);
        if (run.kernel->when != EMULATE_ALONE && !run.thread[run.now].waited)
            die(run.now, "it ends and has never waited for the kernels before it: kernel_begin()");
        run.thread[run.now].state = DONE;
        switch_to(&run.self);
    }
}

// ---- meeting: the thread's side ----------------------------------------------------------------

static uint64_t wait_as(enum state state)
{
    int me = run.now;
    run.thread[me].state = state;
    switch_to(&run.self);
    return run.thread[me].result;
}

void emulate_barrier(struct emulate_at at)
{
    run.thread[run.now].at = at;
    wait_as(AT_BARRIER);
}

void emulate_wait(struct emulate_at at)
{
    run.thread[run.now].waited = true;
    run.thread[run.now].at = at;
    if (run.closed)
        wait_as(AT_WAIT);
}

static uint64_t meet(enum meeting meeting, struct emulate_at at, unsigned mask, uint64_t value,
                     int from)
{
    struct thread *t = &run.thread[run.now];
    if (!(mask >> run.now % LANES & 1))
        die(run.now, "%s:%d: the caller's lane is not in its mask %08x", at.file, at.line, mask);
    t->meeting = meeting;
    t->at = at;
    t->mask = mask;
    t->value = value;
    t->from = from < 0 ? run.now % LANES : from;
    return wait_as(AT_WARP);
}

uint64_t emulate_shuffle(struct emulate_at at, unsigned mask, uint64_t mine, int from)
{
    return meet(SHUFFLE, at, mask, mine, from);
}

unsigned emulate_ballot(struct emulate_at at, unsigned mask, bool predicate)
{
    return (unsigned)meet(BALLOT, at, mask, predicate, -1);
}

// ---- lanes -------------------------------------------------------------------------------------

static int lane_in(int width, int *first)
{
    int lane = run.now % LANES;
    if (width < 1 || width > LANES || (width & (width - 1)))
        die(run.now, "a shuffle's width is %d, not a power of two up to 32", width);
    *first = lane & ~(width - 1);
    return lane;
}

int emulate_lane_idx(int source, int width)
{
    int first;
    lane_in(width, &first);
    return first + (source & (width - 1));
}

int emulate_lane_up(unsigned delta, int width)
{
    int first, lane = lane_in(width, &first);
    return lane - (int)delta < first ? -1 : lane - (int)delta;
}

int emulate_lane_down(unsigned delta, int width)
{
    int first, lane = lane_in(width, &first);
    return lane + (int)delta >= first + width ? -1 : lane + (int)delta;
}

int emulate_lane_xor(int lanes, int width)
{
    int first, lane = lane_in(width, &first), to = lane ^ lanes;
    return to >= first + width || to < 0 ? -1 : to;
}

// ---- meeting: the scheduler's side -------------------------------------------------------------

static bool same_place(struct emulate_at a, struct emulate_at b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// The lane's thread: null where the block ends before it or it has returned.
static struct thread *lane_thread(int warp, int lane)
{
    int t = warp * LANES + lane;
    return t < run.threads && run.thread[t].state != DONE ? &run.thread[t] : NULL;
}

static bool all_there(int warp, const struct thread *t)
{
    for (int i = 0; i < LANES; i++) {
        int lane = run.turns ? i : LANES - 1 - i; // one that comes late is looked at first
        const struct thread *o = t->mask >> lane & 1 ? lane_thread(warp, lane) : NULL;
        if (o && (o->state != AT_WARP || o->mask != t->mask || o->meeting != t->meeting ||
                  !same_place(o->at, t->at)))
            return false;
    }
    return true;
}

// If all whom thread `me` waits for are there, they get what they came for.
static void try_meeting(int me)
{
    const struct thread *mine = &run.thread[me];
    int warp = me / LANES;
    unsigned votes = 0;
    if (!all_there(warp, mine))
        return;
    for (int lane = 0; lane < LANES; lane++) {
        const struct thread *o = mine->mask >> lane & 1 ? lane_thread(warp, lane) : NULL;
        votes |= (unsigned)(o && o->value) << lane;
    }
    for (int lane = 0; lane < LANES; lane++) {
        struct thread *o = mine->mask >> lane & 1 ? lane_thread(warp, lane) : NULL;
        if (!o)
            continue;
        const struct thread *from = mine->mask >> o->from & 1 ? lane_thread(warp, o->from) : NULL;
        if (!from)
            die(warp * LANES + lane, "%s:%d: it reads lane %d, which does not take part",
                mine->at.file, mine->at.line, o->from);
        o->result = mine->meeting == BALLOT ? votes : from->value;
    }
    for (int lane = 0; lane < LANES; lane++) {
        struct thread *o = mine->mask >> lane & 1 ? lane_thread(warp, lane) : NULL;
        if (o)
            o->state = READY;
    }
}

static const char *const where[] = {[NEW] = "has not begun",
                                    [READY] = "runs",
                                    [AT_BARRIER] = "waits at the barrier",
                                    [AT_WARP] = "waits at the shuffle or vote",
                                    [AT_WAIT] = "waits for the kernels before it",
                                    [DONE] = "has returned"};

// Nothing can run: everybody stands at one barrier, or the kernel is broken.
static void release_barrier(void)
{
    int first = 0;
    for (int t = 0; t < run.threads; t++)
        if (run.thread[t].state == AT_WARP)
            first = t;
    if (run.thread[first].state == DONE)
        for (first = 0; run.thread[first].state == DONE;)
            first++;
    const struct thread *a = &run.thread[first];
    for (int t = 0; t < run.threads; t++) {
        const struct thread *b = &run.thread[t];
        uint3 i = run.index[t];
        bool alike = b->state == a->state && same_place(a->at, b->at);
        bool awaited = a->state == AT_BARRIER || (t / LANES == first / LANES &&
                                                  (a->mask >> t % LANES & 1) && b->state != DONE);
        if (awaited && (!alike || (a->state == AT_WARP && a->mask != b->mask)))
            die(first, "%s %s:%d for ever: thread (%u,%u,%u) %s %s:%d", where[a->state], a->at.file,
                a->at.line, i.x, i.y, i.z, where[b->state], b->at.file ? b->at.file : "-",
                b->at.line);
    }
    if (a->state != AT_BARRIER)
        die(first, "%s %s:%d for ever", where[a->state], a->at.file, a->at.line);
    for (int t = 0; t < run.threads; t++)
        run.thread[t].state = READY;
}

// The kernels before this one have ended, and all threads have come to wait for that.
static void release_wait(void)
{
    for (int t = 0; t < run.threads; t++) {
        const struct thread *a = &run.thread[t];
        if (a->state != AT_WAIT)
            die(t, "%s %s:%d and has not waited for the kernels before it", where[a->state],
                a->at.file, a->at.line);
        run.thread[t].state = READY;
    }
    close_memory(false);
}

// ---- shared memory -----------------------------------------------------------------------------

extern char __start_weft_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_weft_shared[] __attribute__((weak, visibility("hidden")));

#ifdef __SANITIZE_ADDRESS__
// Written as it is: a sanitizer's zones between variables are no bar to filling them all.
__attribute__((no_sanitize_address)) static void fill(char *from, const char *to)
{
    for (volatile char *at = from; at < to; at++)
        *at = run.filling;
}
#else
static void fill(char *from, const char *to)
{
    memset(from, run.filling, (size_t)(to - from));
}
#endif

void *emulate_shared(void)
{
    return run.shared + MARGIN;
}

static void shared_room(size_t bytes)
{
    size_t want = (bytes + 2 * MARGIN + PAGE - 1) / PAGE * PAGE;
    if (want <= run.shared_room)
        return;
    if (run.shared)
        munmap(run.shared, run.shared_room);
    run.shared = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (run.shared == MAP_FAILED)
        die(-1, "no memory for %zu bytes of shared memory", bytes);
    run.shared_room = want;
}

// All kernels' static shared memory lies together: what the first block of a launch left unlike the
// filling is what its kernel uses, and what is filled again before the next ones.
static struct {
    char *from, *to;
} used;

static char *static_end(void)
{
    return __start_weft_shared ? __stop_weft_shared : NULL;
}

// Eight bytes at a time: it is all kernels', and looked through at each launch.
__attribute__((no_sanitize_address)) static void used_find(void)
{
    char *from = __start_weft_shared, *to = static_end();
    uint64_t filled, word;
    memset(&filled, run.filling, sizeof filled);
    for (; to - from >= 8; from += 8) {
        __builtin_memcpy(&word, from, sizeof word);
        if (word != filled)
            break;
    }
    for (; to - from >= 8; to -= 8) {
        __builtin_memcpy(&word, to - 8, sizeof word);
        if (word != filled)
            break;
    }
    while (from < to && *from == run.filling)
        from++;
    while (to > from && to[-1] == run.filling)
        to--;
    used.from = from;
    used.to = to;
}

static void shared_begin(size_t bytes)
{
    char *behind = run.shared + MARGIN + bytes;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(run.shared, run.shared_room);
#endif
    if (used.from < used.to)
        fill(used.from, used.to);
    memset(run.shared, 0xa5, MARGIN);
    memset(run.shared + MARGIN, run.filling, bytes);
    memset(behind, 0xa5, MARGIN);
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(run.shared, MARGIN);
    __asan_poison_memory_region(behind, MARGIN);
#endif
}

static void shared_end(size_t bytes)
{
    char *behind = run.shared + MARGIN + bytes;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(run.shared, run.shared_room);
#endif
    for (int i = 0; i < MARGIN; i++)
        if (run.shared[i] != (char)0xa5 || behind[i] != (char)0xa5)
            die(-1, "shared memory was written %s its %zu bytes",
                run.shared[i] != (char)0xa5 ? "before" : "behind", bytes);
}

// ---- blocks ------------------------------------------------------------------------------------

// Who of n has turn i. MIXED: with steps of a prime that n is no multiple of, all come once.
static uint64_t turn_of(enum turns turns, uint64_t i, uint64_t n)
{
    uint64_t step = n % 7919 ? 7919 : 104729;
    if (turns == MIXED)
        return (i * step + n / 2) % n;
    return turns == DESCENDING ? n - 1 - i : i;
}

static void thread_run(int t)
{
    struct thread *me = &run.thread[t];
    if (!me->fiber)
        me->fiber = fiber_take();
    run.now = t;
    emulate_now.thread = run.index[t];
    switch_to(me->fiber);
    if (me->state == DONE) {
        me->fiber->next = run.free;
        run.free = me->fiber;
        me->fiber = NULL;
    } else if (me->state == AT_WARP) {
        try_meeting(t);
    }
}

static bool all_done(void)
{
    for (int t = 0; t < run.threads; t++)
        if (run.thread[t].state != DONE)
            return false;
    return true;
}

static void block_run(void)
{
    bool moved = true;
    for (int t = 0; t < run.threads; t++)
        run.thread[t] = (struct thread){.state = NEW};
    for (;;) {
        moved = false;
        for (int i = 0; i < run.threads; i++) {
            int t = (int)turn_of(run.turns, (uint64_t)i, (uint64_t)run.threads);
            if (run.thread[t].state <= READY) {
                moved = true;
                thread_run(t);
            }
        }
        if (moved)
            continue;
        if (all_done())
            return;
        if (run.closed)
            release_wait();
        else
            release_barrier();
    }
}

// All blocks, in the order `blocks`; the threads of every other one in another order than
// `threads`.
static void grid_run(enum turns blocks, enum turns threads, bool alternate)
{
    const dim3 grid = run.kernel->grid;
    const size_t bytes = run.kernel->shared_bytes;
    uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
    used.from = __start_weft_shared;
    used.to = static_end();
    for (uint64_t i = 0; i < n; i++) {
        uint64_t b = turn_of(blocks, i, n);
        emulate_now.block = (uint3){(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                                    (unsigned)(b / grid.x / grid.y)};
        run.turns = alternate && i & 1 ? (enum turns)(DESCENDING - threads) : threads;
        shared_begin(bytes);
        if (!i && run.kernel->when == EMULATE_EARLY)
            close_memory(true);
        block_run();
        shared_end(bytes);
        if (!i && n > 1)
            used_find();
    }
}

// In every order, from the device's same memory: who sees another's write too early or too late, or
// what nobody wrote, leaves other bits.
static void run_in_all_orders(void)
{
    static const char fillings[TURNS] = {(char)0xff, 0x3c, 0};
    char *before = fake_memory_keep(), *after = NULL;
    for (int i = 0; i < TURNS; i++) {
        const void *at;
        run.filling = fillings[i];
        fake_memory_restore(before);
        grid_run((enum turns)i, (enum turns)i, false);
        if (after && (at = fake_memory_unlike(after)))
            die(-1,
                "what it leaves at %p depends on the order of its blocks or threads, or on what "
                "shared memory held",
                at);
        after = after ? after : fake_memory_keep();
    }
    free(before);
    free(after);
}

void emulate_run(const struct emulate_kernel *k, const void *args)
{
    run.kernel = k;
    run.args = args;
    run.running = &run.self;
    run.threads = (int)(k->block.x * k->block.y * k->block.z);
    run.filling = (char)0xff;
    emulate_now = (struct emulate_now){.block_dim = k->block, .grid_dim = k->grid};
    for (unsigned t = 0, x = k->block.x, y = k->block.y; t < (unsigned)run.threads; t++)
        run.index[t] = (uint3){t % x, t / x % y, t / x / y};
    shared_room(k->shared_bytes);
    signal(SIGILL, misaligned); // some processors'
    signal(SIGTRAP, misaligned);
    run.launches++;
    const bool alone = run.threads == 1 && k->grid.x == 1 && k->grid.y == 1 && k->grid.z == 1;
    // One thread alone may count what the host sees, once. Two copies of much memory would be more
    // than a machine has: 4 GiB of numbers (tests/ops/test_views.c) are written in one order.
    if (fake_scene("orders", NULL) && !alone && fake_memory_bytes() <= MOST_IN_ALL_ORDERS)
        run_in_all_orders();
    else
        grid_run(run.launches / 2 % 2 ? DESCENDING : ASCENDING,
                 run.launches % 2 ? DESCENDING : ASCENDING, true);
}
