// SPDX-License-Identifier: Apache-2.0
// Four ranks' snapshots and a decider in one process: what rank processes do over frames is a queue
// here. Storage that fails costs one checkpoint, never the run.
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "common/ckpt/commit.h"
#include "tests/support/stderr_to.h"
#include "tests/unit/ckpt_fixture.h"
#include "worker/rank/save/snapshot.h"

// ---- the bus: everything the writer threads hand over ----
enum note_kind { NOTE_SHARD, NOTE_DONE, NOTE_DELETED };
struct note {
    enum note_kind kind;
    struct shard_report report;
    struct hash128 digests[FX_PARTS];
    struct store_entry id;
    int code;
    char text[200];
};
struct bus {
    struct fixture f;
    struct snapshot *rank[FX_RANKS];
    struct store store[FX_RANKS]; // as each rank's process has opened it
    struct manifest base;
    struct commit commit;
    struct shard_report reports[FX_RANKS]; // of the open checkpoint, for the writer
    struct hash128 digests[FX_RANKS][FX_PARTS];
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct note notes[64];
    int n;
    int aborted, committed, dones; // answers given to all; answers of the writer
    char why[200];
    bool later;              // copies wait for arrive()
    int furnished, refusals; // so often; so many of them fail
    struct rank_arg {
        struct bus *bus;
        int rank;
        int ncopies;
        struct {
            void *to;
            const char *from;
            uint64_t bytes;
        } copies[64];
    } arg[FX_RANKS];
};

static void put(struct bus *b, const struct note *n)
{
    pthread_mutex_lock(&b->lock);
    assert_true(b->n < 64);
    b->notes[b->n++] = *n;
    pthread_cond_signal(&b->some);
    pthread_mutex_unlock(&b->lock);
}

static int copy(void *arg, int part, uint64_t at, void *to, uint64_t bytes, struct err *e)
{
    struct rank_arg *a = arg;
    (void)e;
    if (!a->bus->later) {
        memcpy(to, a->bus->f.part[part] + at, bytes);
        return 0;
    }
    assert_true(a->ncopies < 64);
    a->copies[a->ncopies].to = to;
    a->copies[a->ncopies].from = (const char *)a->bus->f.part[part] + at;
    a->copies[a->ncopies++].bytes = bytes;
    return 0;
}

// What begin only queued is carried out, and said to have come.
static void arrive(struct bus *b, int r)
{
    struct rank_arg *a = &b->arg[r];
    for (int i = 0; i < a->ncopies; i++)
        memcpy(a->copies[i].to, a->copies[i].from, a->copies[i].bytes);
    a->ncopies = 0;
    snapshot_staged(b->rank[r]);
}

static void report(void *arg, const struct shard_report *r)
{
    struct rank_arg *a = arg;
    struct note n = {.kind = NOTE_SHARD, .report = *r};
    memcpy(n.digests, r->digests, sizeof *r->digests * (size_t)r->n);
    put(a->bus, &n);
}

static void commit_done(void *arg, int64_t step, int code, const char *text)
{
    struct rank_arg *a = arg;
    struct note n = {.kind = NOTE_DONE, .id = {1, step}, .code = code};
    snprintf(n.text, sizeof n.text, "%s", text);
    put(a->bus, &n);
}

static void deleted(void *arg, struct store_entry id, int code)
{
    struct rank_arg *a = arg;
    struct note n = {.kind = NOTE_DELETED, .id = id, .code = code};
    put(a->bus, &n);
}

static int furnish(void *arg, struct err *e)
{
    struct bus *b = ((struct rank_arg *)arg)->bus;
    return ++b->furnished <= b->refusals ? err_set(e, ERR_IO, "not now") : 0;
}

static void open_stores(struct bus *b)
{
    for (int r = 0; r < FX_RANKS; r++)
        assert_int_equal(store_open(&b->store[r], NULL, b->f.store.path, NULL), 0);
}

static void close_stores(struct bus *b)
{
    for (int r = 0; r < FX_RANKS; r++)
        store_close(&b->store[r]);
}

static void open_bus_where(struct bus *b, int keep, bool later)
{
    struct commit_config config = {.nranks = FX_RANKS, .keep = keep};
    struct err e = {0};
    memset(b, 0, sizeof *b);
    b->later = later;
    fx_init(&b->f);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->some, NULL);
    commit_init(&b->commit, &config);
    commit_fence(&b->commit, 1, NULL, 0);
    b->base = fx_manifest(&b->f, 1, 0);
    open_stores(b);
    for (int r = 0; r < FX_RANKS; r++) {
        b->arg[r].bus = b;
        b->arg[r].rank = r;
        struct snapshot_config c = {
            .store = &b->store[r],
            .owner = fx_owner,
            .attempt_id = "a1",
            .rank = r,
            .nranks = FX_RANKS,
            .attempt = 1,
            .parts = fx_parts,
            .nparts = FX_PARTS,
            .specs = fx_specs,
            .deal = &b->f.deal,
            .base = &b->base,
            .later = later,
            .ops = {&b->arg[r], copy, report, commit_done, deleted, furnish},
        };
        assert_int_equal(snapshot_new(&b->rank[r], &c, &e), 0);
        assert_true(snapshot_can_stage(b->rank[r]));
    }
}

static void open_bus(struct bus *b, int keep)
{
    open_bus_where(b, keep, false);
}

static void close_bus(struct bus *b)
{
    for (int r = 0; r < FX_RANKS; r++)
        snapshot_free(b->rank[r]);
    close_stores(b);
    commit_clear(&b->commit);
    fx_clear(&b->f);
}

static void carry_out(struct bus *b, const struct commit_action *a)
{
    if (a->kind == COMMIT_DO_ORDER)
        snapshot_order_commit(b->rank[0], a->id.step, b->reports);
    if (a->kind == COMMIT_DO_DELETE)
        snapshot_order_delete(b->rank[0], a->id);
    b->committed += a->kind == COMMIT_DO_COMMITTED && a->rank < 0;
    if (a->kind == COMMIT_DO_ABORTED && a->rank < 0) {
        b->aborted++;
        snprintf(b->why, sizeof b->why, "%s", a->text);
    }
    for (int r = 0; r < FX_RANKS; r++) {
        if (a->kind == COMMIT_DO_COMMITTED && (a->rank < 0 || a->rank == r))
            snapshot_committed(b->rank[r], a->id.step);
        if (a->kind == COMMIT_DO_ABORTED && (a->rank < 0 || a->rank == r))
            snapshot_aborted(b->rank[r], a->id.step, a->text);
    }
}

static void keep_report(struct bus *b, const struct note *n)
{
    int rank = n->report.rank;
    memcpy(b->digests[rank], n->digests, sizeof n->digests);
    b->reports[rank] = n->report;
    b->reports[rank].digests = b->digests[rank];
}

static bool is_ordered(const struct bus *b)
{
    return b->commit.open >= 0 && b->commit.records[b->commit.open].state == COMMIT_ORDERED;
}

static void hand_on(struct bus *b, struct note *n)
{
    struct arena a;
    struct commit_actions acts = {0};
    struct commit_event ev = {.id = n->id, .ok = n->code == 0, .text = n->text};
    arena_init(&a);
    if (n->kind == NOTE_SHARD) {
        keep_report(b, n);
        ev.kind = COMMIT_EV_SHARD;
        ev.id = (struct store_entry){1, n->report.step};
        ev.report = &n->report;
    } else {
        ev.kind = n->kind == NOTE_DONE ? COMMIT_EV_DONE : COMMIT_EV_DELETED;
        b->dones += n->kind == NOTE_DONE;
    }
    commit_step(&b->commit, &ev, &a, &acts);
    for (int i = 0; i < acts.n; i++)
        carry_out(b, &acts.v[i]);
    arena_clear(&a);
}

static void next_note(struct bus *b)
{
    struct timespec at;
    struct note n;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += 60; // a watchdog only
    pthread_mutex_lock(&b->lock);
    while (!b->n)
        assert_int_equal(pthread_cond_timedwait(&b->some, &b->lock, &at), 0);
    n = b->notes[0];
    memmove(b->notes, b->notes + 1, sizeof n * (size_t)--b->n);
    pthread_mutex_unlock(&b->lock);
    hand_on(b, &n);
}

static void begin_all(struct bus *b, int64_t step)
{
    struct err e = {0};
    fx_set_step(&b->f, step);
    for (int r = 0; r < FX_RANKS; r++) {
        assert_false(snapshot_open(b->rank[r]));
        assert_int_equal(snapshot_begin(b->rank[r],
                                        &(struct save_point){.step = step, .samples = step * 64},
                                        &e),
                         0);
        assert_true(snapshot_open(b->rank[r]));
    }
    fx_set_step(&b->f, -1000); // training continues in the memory that was staged
}

// Saves and waits until every rank has its answer and nothing is left to do.
static void save_all(struct bus *b, int64_t step)
{
    int before = b->aborted + b->committed;
    struct err e = {0};
    begin_all(b, step);
    while (b->aborted + b->committed == before)
        next_note(b);
    for (int r = 0; r < FX_RANKS; r++) {
        bool ok;
        assert_int_equal(snapshot_drain(b->rank[r], 60 * CLOCK_S, &ok, &e), 0);
        assert_int_equal(ok, b->aborted + b->committed > before && b->why[0] == 0);
    }
    pthread_mutex_lock(&b->lock);
    int n = b->n;
    pthread_mutex_unlock(&b->lock);
    while (n--)
        next_note(b);
}

static void expect_loads(struct bus *b, int64_t step)
{
    struct load l;
    struct err e = {0};
    assert_int_equal(load_open_newest_good(&l, &b->f.store, NULL, NULL, &e), 0);
    assert_int_equal(l.manifest.step, step);
    assert_int_equal(l.manifest.samples, step * 64);
    assert_int_equal(fx_read_all(&l, step, &e), 0);
    load_close(&l);
}

// ---- tests ----
static void four_ranks_commit_what_they_staged(void **state)
{
    (void)state;
    static struct bus b;
    open_bus(&b, 2);
    for (int step = 10; step <= 40; step += 10) {
        save_all(&b, step);
        expect_loads(&b, step);
    }
    assert_int_equal(b.committed, 4);
    assert_false(fx_exists(&b.f, "step-00000010.a1"));
    assert_false(fx_exists(&b.f, "step-00000020.a1"));
    assert_true(fx_exists(&b.f, "step-00000030.a1"));
    close_bus(&b);
}

static void an_order_repeated_is_answered_the_same(void **state)
{
    (void)state;
    static struct bus b;
    struct err e = {0};
    open_bus(&b, 0);
    begin_all(&b, 10);
    while (!is_ordered(&b))
        next_note(&b);
    snapshot_order_commit(b.rank[0], 10, b.reports);
    while (b.dones < 2)
        next_note(&b);
    assert_int_equal(b.committed, 1);
    assert_int_equal(b.aborted, 0);
    assert_int_equal(snapshot_drain(b.rank[0], 60 * CLOCK_S, NULL, &e), 0);
    expect_loads(&b, 10);
    close_bus(&b);
}

// Beside a device's computation: until the copies have come nothing of them is read, however long.
static void what_is_copied_beside_the_computation_is_written_when_it_has_come(void **state)
{
    (void)state;
    static struct bus b;
    struct err e = {0};
    open_bus_where(&b, 3, true);
    begin_all(&b, 10);
    for (int r = 0; r < FX_RANKS; r++)
        assert_int_equal(snapshot_wait(b.rank[r], CLOCK_S / 50, NULL, &e), ERR_TIMEOUT);
    assert_int_equal(b.n, 0);
    fx_set_step(&b.f, 10);
    for (int r = 0; r < FX_RANKS; r++)
        arrive(&b, r);
    while (!b.committed)
        next_note(&b);
    expect_loads(&b, 10);
    close_bus(&b);
}

static void what_is_aborted_before_it_has_come_is_not_written(void **state)
{
    (void)state;
    static struct bus b;
    struct err e = {0};
    open_bus_where(&b, 3, true);
    begin_all(&b, 10);
    for (int r = 0; r < FX_RANKS; r++) {
        bool ok = true;
        snapshot_aborted(b.rank[r], 10, "lost rank 1");
        assert_true(snapshot_open(b.rank[r])); // its memory is still copied to
        arrive(&b, r);
        assert_int_equal(snapshot_drain(b.rank[r], 60 * CLOCK_S, &ok, &e), 0);
        assert_false(ok);
        assert_false(snapshot_open(b.rank[r]));
    }
    assert_int_equal(b.n, 0);
    begin_all(&b, 20);
    fx_set_step(&b.f, 20);
    for (int r = 0; r < FX_RANKS; r++)
        arrive(&b, r);
    while (!b.committed)
        next_note(&b);
    expect_loads(&b, 20);
    close_bus(&b);
}

// A leader lost before the first save ends whatever is open: there is nothing.
static void an_end_before_the_first_save_aborts_nothing(void **state)
{
    (void)state;
    static struct bus b;
    char said[512] = "";
    open_bus(&b, 3);
    FILE *file = tmpfile();
    assert_non_null(file);
    int before = lead_stderr(fileno(file));
    snapshot_aborted(b.rank[0], -1, "lost rank 1");
    lead_back(before);
    rewind(file);
    (void)!fgets(said, sizeof said, file);
    fclose(file);
    assert_string_equal(said, "");
    close_bus(&b);
}

static void a_drain_without_an_answer_times_out(void **state)
{
    (void)state;
    static struct bus b;
    struct err e = {0};
    open_bus(&b, 0);
    begin_all(&b, 10);
    assert_int_equal(snapshot_drain(b.rank[1], CLOCK_S / 20, NULL, &e), ERR_TIMEOUT);
    assert_true(snapshot_open(b.rank[1]));
    close_bus(&b);
}

static int count_lines_with(const char *path, const char *needle)
{
    char line[2000];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, needle) != NULL;
    if (f)
        fclose(f);
    return n;
}

// One save that must be aborted because of the storage, between two that are committed: the first
// stays what it was, one line is logged, and nothing of the failed one is left.
static void expect_one_lost(struct bus *b, void (*break_it)(struct bus *),
                            void (*mend)(struct bus *), const char *says)
{
    char log[] = "/tmp/weft-log-XXXXXX";
    int fd = mkstemp(log);
    save_all(b, 10);
    int own = lead_stderr(fd);
    break_it(b);
    int before = b->aborted;
    begin_all(b, 20);
    while (b->aborted == before)
        next_note(b);
    for (int r = 0; r < FX_RANKS; r++)
        assert_int_equal(snapshot_drain(b->rank[r], 60 * CLOCK_S, NULL, NULL), 0);
    if (!strstr(b->why, says))
        fail_msg("the reason says: %s", b->why);
    mend(b);
    expect_loads(b, 10);
    assert_int_equal(b->aborted, 1);
    b->n = 0; // reports of the other ranks come too late to matter
    b->why[0] = 0;
    save_all(b, 30);
    lead_back(own);
    assert_int_equal(count_lines_with(log, "checkpoint of step 20 aborted"), 1);
    assert_int_equal(count_lines_with(log, " warn "), 1);
    assert_int_equal(count_lines_with(log, " error "), 0);
    close(fd);
    unlink(log);
    expect_loads(b, 30);
    assert_false(fx_exists(&b->f, "step-00000020.a1"));
    assert_false(fx_exists(&b->f, ".tmp-step-00000020.a1"));
}

static void limit_files(struct bus *b)
{
    (void)b;
    struct rlimit l = {8192, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static void lift_limit(struct bus *b)
{
    (void)b;
    struct rlimit l = {RLIM_INFINITY, RLIM_INFINITY};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static void a_file_that_may_not_grow_costs_one_checkpoint(void **state)
{
    (void)state;
    static struct bus b;
    open_bus(&b, 0);
    expect_one_lost(&b, limit_files, lift_limit, "File too large");
    close_bus(&b);
}

// A plain file in the way of the directory: mkdir finds it, opening it as a directory fails.
static void block_name(struct bus *b)
{
    fx_put(b->f.store.fd, ".tmp-step-00000020.a1", "", 0);
}

static void unblock_name(struct bus *b)
{
    unlinkat(b->f.store.fd, ".tmp-step-00000020.a1", 0);
}

static void a_directory_that_cannot_be_made_costs_one_checkpoint(void **state)
{
    (void)state;
    static struct bus b;
    open_bus(&b, 0);
    expect_one_lost(&b, block_name, unblock_name, "Not a directory");
    close_bus(&b);
}

// ---- a small file system of its own, as root ----
static void fill_disk(struct bus *b)
{
    static char block[65536];
    memset(block, 1, sizeof block);
    int fd = openat(b->f.store.fd, "filler", O_WRONLY | O_CREAT, 0600);
    while (write(fd, block, sizeof block) > 0) {
    }
    assert_int_equal(ftruncate(fd, lseek(fd, 0, SEEK_END) - 16384),
                     0); // room for names, not for all
    close(fd);
}

static void free_disk(struct bus *b)
{
    unlinkat(b->f.store.fd, "filler", 0);
}

static void make_read_only(struct bus *b)
{
    assert_int_equal(mount(NULL, b->f.dir, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
}

static void make_writable(struct bus *b)
{
    assert_int_equal(mount(NULL, b->f.dir, NULL, MS_REMOUNT, NULL), 0);
}

// The store moves onto a tmpfs of two MiB.
static bool move_to_tmpfs(struct bus *b)
{
    struct err e = {0};
    store_close(&b->f.store);
    close_stores(b);
    bool mounted = !mount("weft-test", b->f.dir, "tmpfs", 0, "size=2m");
    assert_int_equal(store_make(&b->f.store, NULL, b->f.dir, &fx_owner, &e), 0);
    open_stores(b);
    return mounted;
}

static void on_tmpfs(void (*break_it)(struct bus *), void (*mend)(struct bus *), const char *says)
{
    static struct bus b;
    open_bus(&b, 0);
    bool mounted = move_to_tmpfs(&b);
    if (mounted) {
        expect_one_lost(&b, break_it, mend, says);
        store_close(&b.f.store);
        close_stores(&b);
        assert_int_equal(umount(b.f.dir), 0);
    }
    close_bus(&b);
    if (!mounted) {
        print_message("SKIPPED: no right to mount a tmpfs\n");
        skip();
    }
}

static void a_full_disk_costs_one_checkpoint(void **state)
{
    (void)state;
    on_tmpfs(fill_disk, free_disk, "No space left");
}

static void a_read_only_disk_costs_one_checkpoint(void **state)
{
    (void)state;
    on_tmpfs(make_read_only, make_writable, "Read-only");
}

// What is done to the folder between the saves of step 10 and 20.
static void save_around(struct bus *b, const char *command, int64_t step, int refusals)
{
    char line[2400];
    open_bus(b, 0);
    b->refusals = refusals;
    save_all(b, 10);
    snprintf(line, sizeof line, command, b->f.store.path, b->f.store.path);
    assert_int_equal(system(line), 0);
    int before = b->aborted + b->committed;
    begin_all(b, step);
    while (b->aborted + b->committed == before)
        next_note(b);
    for (int r = 0; r < FX_RANKS; r++)
        assert_int_equal(snapshot_drain(b->rank[r], 60 * CLOCK_S, NULL, NULL), 0);
}

static int count_lost(const struct bus *b)
{
    int n = 0;
    for (int i = 0; i < b->commit.n; i++)
        n += b->commit.records[i].state == COMMIT_LOST;
    return n;
}

static void a_directory_that_was_removed_is_made_again(void **state)
{
    (void)state;
    static struct bus b;
    struct err e = {0};
    int64_t greatest;
    save_around(&b, "rm -rf '%s'", 20, 0);
    assert_int_equal(b.committed, 2);
    assert_int_equal(count_lost(&b), 1);
    store_close(&b.f.store);
    assert_int_equal(store_make(&b.f.store, NULL, b.f.dir, &fx_owner, &e), 0);
    expect_loads(&b, 20);
    assert_int_equal(store_fence(&b.f.store, 1, "another attempt", &greatest, &e), ERR_FENCED);
    assert_int_equal(b.furnished, 1);
    close_bus(&b);
}

static void what_lay_beside_its_checkpoints_is_tried_again_with_the_next_save(void **state)
{
    (void)state;
    static struct bus b;
    save_around(&b, "rm -rf '%s'", 20, 1);
    assert_non_null(strstr(b.why, "not now"));
    b.why[0] = 0;
    save_all(&b, 30);
    save_all(&b, 40);
    assert_int_equal(b.furnished, 2);
    close_bus(&b);
}

static void a_directory_that_was_removed_and_brought_back_has_lost_nothing(void **state)
{
    (void)state;
    static struct bus b;
    save_around(&b, "cp -r '%1$s' '%2$s.copy' && rm -rf '%1$s' && mv '%2$s.copy' '%1$s'", 20, 0);
    assert_int_equal(b.committed, 2);
    assert_int_equal(count_lost(&b), 0);
    store_close(&b.f.store);
    assert_int_equal(store_make(&b.f.store, NULL, b.f.dir, &fx_owner, NULL), 0);
    expect_loads(&b, 20);
    assert_true(fx_exists(&b.f, "step-00000010.a1"));
    close_bus(&b);
}

static void a_directory_that_was_removed_is_not_made_again_behind_a_newer_attempt(void **state)
{
    (void)state;
    static struct bus b;
    save_around(&b, "rm -rf '%1$s' && mkdir '%2$s' && touch '%2$s/attempt-2'", 20, 0);
    assert_int_equal(b.committed, 1);
    assert_non_null(strstr(b.why, "attempt 2 has begun"));
    close_bus(&b);
}

static void a_directory_that_was_moved_away_costs_every_checkpoint_and_nothing_else(void **state)
{
    (void)state;
    static struct bus b;
    save_around(&b, "mv '%s' '%s.moved'", 20, 0);
    assert_int_equal(b.aborted, 1);
    assert_non_null(strstr(b.why, "No such file"));
    close_bus(&b);
}

static void a_fenced_writer_commits_nothing_and_says_so(void **state)
{
    (void)state;
    static struct bus b;
    struct err e = {0};
    int64_t greatest;
    open_bus(&b, 0);
    begin_all(&b, 10);
    while (!is_ordered(&b)) {
        // All shards but the last report: then the fence comes before the order is carried out.
        if (b.commit.reported && b.commit.reported[0] + b.commit.reported[1] +
                                         b.commit.reported[2] + b.commit.reported[3] ==
                                     3)
            assert_int_equal(store_fence(&b.f.store, 2, "next", &greatest, &e), 0);
        next_note(&b);
    }
    while (!b.aborted)
        next_note(&b);
    assert_non_null(strstr(b.why, "attempt 2 has begun"));
    assert_false(fx_exists(&b.f, "step-00000010.a1"));
    close_bus(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_ranks_commit_what_they_staged),
        cmocka_unit_test(an_order_repeated_is_answered_the_same),
        cmocka_unit_test(what_is_copied_beside_the_computation_is_written_when_it_has_come),
        cmocka_unit_test(what_is_aborted_before_it_has_come_is_not_written),
        cmocka_unit_test(an_end_before_the_first_save_aborts_nothing),
        cmocka_unit_test(a_drain_without_an_answer_times_out),
        cmocka_unit_test(a_file_that_may_not_grow_costs_one_checkpoint),
        cmocka_unit_test(a_directory_that_cannot_be_made_costs_one_checkpoint),
        cmocka_unit_test(a_full_disk_costs_one_checkpoint),
        cmocka_unit_test(a_read_only_disk_costs_one_checkpoint),
        cmocka_unit_test(a_directory_that_was_removed_is_made_again),
        cmocka_unit_test(what_lay_beside_its_checkpoints_is_tried_again_with_the_next_save),
        cmocka_unit_test(a_directory_that_was_removed_and_brought_back_has_lost_nothing),
        cmocka_unit_test(a_directory_that_was_removed_is_not_made_again_behind_a_newer_attempt),
        cmocka_unit_test(a_directory_that_was_moved_away_costs_every_checkpoint_and_nothing_else),
        cmocka_unit_test(a_fenced_writer_commits_nothing_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
