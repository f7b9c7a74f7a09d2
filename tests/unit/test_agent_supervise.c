// SPDX-License-Identifier: Apache-2.0
// Rank processes under a supervisor: what they say, that none survives it, what ranks.lock proves.
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/agent_double.h"
#include "tests/unit/unit.h"
#include "worker/poll_loop.h"
#include "worker/rank_logs.h"
#include "worker/rankslock.h"
#include "worker/supervise.h"

enum { SLOTS = 4 };

struct rig {
    char dir[64], lock[100], runs[100];
    struct poll_loop *loop;
    struct logs *logs;
    struct supervise *s;
    int pid[SLOTS];
    bool ended[SLOTS], ready[SLOTS];
    int code[SLOTS], signal[SLOTS], frames[SLOTS];
    char last[SLOTS][2000];
    struct page_view page[SLOTS];
    struct buf heard;             // by a follower
    int64_t heard_from, heard_to; // positions of what it heard last
    bool lags;                    // the way to it is full
    size_t room;                  // and is, as soon as it has heard so many bytes; 0: never
};

static void on_frame(void *ctx, int slot, const Weft__Rank__Frame *f)
{
    struct rig *r = ctx;
    r->frames[slot]++;
    if (f->body_case == WEFT__RANK__FRAME__BODY_READY)
        r->ready[slot] = true;
}

static void on_page(void *ctx, int slot, const struct page_view *v)
{
    ((struct rig *)ctx)->page[slot] = *v;
}

static void on_ended(void *ctx, int slot, int code, int sig, const char *log)
{
    struct rig *r = ctx;
    r->ended[slot] = true;
    r->code[slot] = code;
    r->signal[slot] = sig;
    snprintf(r->last[slot], sizeof r->last[slot], "%s", log);
}

static void on_chunk(void *ctx, const Weft__V1__LogChunk *c)
{
    struct rig *r = ctx;
    if (c->text.len) {
        r->heard_from = c->ends_at - (int64_t)c->text.len;
        r->heard_to = c->ends_at;
    }
    buf_append(&r->heard, c->text.data, c->text.len);
    if (c->end)
        buf_puts(&r->heard, "<end>");
}

static bool lags(void *ctx)
{
    const struct rig *r = ctx;
    return r->lags || (r->room && r->heard.len >= r->room);
}

static void rig_open(struct rig *r)
{
    char jobs[100];
    assert_int_equal(poll_loop_open(&r->loop, NULL), 0);
    snprintf(jobs, sizeof jobs, "%s/jobs", r->dir);
    r->logs = logs_new(jobs, &(struct logs_ops){r, on_chunk, lags});
    struct supervise_config c = {.loop = r->loop,
                                 .logs = r->logs,
                                 .state = r->dir,
                                 .runs = r->runs,
                                 .rank = "/proc/self/exe",
                                 .share = "here",
                                 .ops = {r, on_frame, on_page, on_ended}};
    assert_int_equal(supervise_open(&c, &r->s, NULL), 0);
}

static void rig_close(struct rig *r)
{
    supervise_close(r->s);
    logs_free(r->logs);
    poll_loop_close(r->loop);
}

static int set_up(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof r);
    if (temp_folder_make(r.dir, "supervise"))
        return -1;
    snprintf(r.lock, sizeof r.lock, "%s/ranks.lock", r.dir);
    snprintf(r.runs, sizeof r.runs, "%s/meet", r.dir);
    if (mkdir(r.runs, 0700))
        return -1;
    rig_open(&r);
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    rig_close(r);
    buf_clear(&r->heard);
    return temp_folder_remove(r->dir);
}

static void start(struct rig *r, int slot, const char *does)
{
    Weft__Rank__Assign a;
    weft__rank__assign__init(&a);
    a.rank = slot;
    a.job_text = frame_text(does);
    struct agent_spawn sp = {.job = "job1", .attempt = 2, .rank = slot, .assign = &a};
    struct err e = {0};
    if (supervise_spawn(r->s, slot, &sp, &r->pid[slot], &e))
        fail_msg("%s", e.text);
}

static void until(struct rig *r, const bool *what)
{
    int64_t watchdog = clock_mono_ns() + 60 * CLOCK_S;
    while (!*what) {
        assert_true(clock_mono_ns() < watchdog);
        poll_loop_run_once(r->loop, 20 * CLOCK_MS);
        supervise_look(r->s);
    }
}

static bool lock_is_free(const struct rig *r)
{
    int fd = open(r->lock, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    bool got = !flock(fd, LOCK_EX | LOCK_NB);
    close(fd);
    return got;
}

// ---- what comes back ----

static void a_rank_is_assigned_and_its_frames_page_and_lines_come_back(void **state)
{
    struct rig *r = *state;
    start(r, 0, "ready page 7 say hello exit 65");
    until(r, &r->ended[0]);
    assert_true(r->ready[0]);
    assert_int_equal(r->page[0].step, 7);
    assert_int_equal(r->code[0], 65);
    assert_string_equal(r->last[0], "hello\n");
}

static void a_killed_rank_is_known_by_its_signal(void **state)
{
    struct rig *r = *state;
    start(r, 0, "ready stay");
    until(r, &r->ready[0]);
    supervise_kill(r->s, 0, SIGKILL);
    until(r, &r->ended[0]);
    assert_int_equal(r->signal[0], SIGKILL);
}

static void a_stopped_rank_is_reported_as_stopped_until_it_continues(void **state)
{
    struct rig *r = *state;
    start(r, 0, "page 7 ready stay");
    until(r, &r->ready[0]);
    supervise_kill(r->s, 0, SIGSTOP);
    until(r, &r->page[0].stopped);
    supervise_kill(r->s, 0, SIGCONT);
    supervise_look(r->s);
    assert_false(r->page[0].stopped);
}

static void a_frame_reaches_its_rank(void **state)
{
    struct rig *r = *state;
    start(r, 0, "ready hold");
    until(r, &r->ready[0]);
    FRAME_BODY(stop, Stop, stop);
    FRAME(f, STOP, stop, &stop);
    supervise_frame(r->s, 0, &f);
    until(r, &r->ended[0]);
    assert_int_equal(r->code[0], 75);
}

static void what_a_rank_said_last_is_heard_whole(void **state)
{
    struct rig *r = *state;
    siginfo_t dead;
    start(r, 0, "ready chatter");
    until(r, &r->ready[0]);
    FRAME_BODY(stop, Stop, stop);
    FRAME(f, STOP, stop, &stop);
    supervise_frame(r->s, 0, &f);
    assert_int_equal(waitid(P_PID, (id_t)r->pid[0], &dead, WEXITED | WNOWAIT), 0);
    until(r, &r->ended[0]);
    assert_int_equal(r->code[0], 0);
    assert_int_equal(r->frames[0], 1 + CHATTER_FRAMES);
}

static void a_rank_that_speaks_garbage_is_killed(void **state)
{
    struct rig *r = *state;
    start(r, 0, "garbage stay");
    until(r, &r->ended[0]);
    assert_int_equal(r->signal[0], SIGKILL);
}

static void a_program_that_is_not_there_is_an_error(void **state)
{
    struct rig *r = *state;
    struct supervise_config c = {.loop = r->loop,
                                 .logs = r->logs,
                                 .state = r->dir,
                                 .runs = r->runs,
                                 .rank = "/no/such",
                                 .share = "here"};
    struct supervise *s;
    struct err e = {0};
    int pid;
    Weft__Rank__Assign a;
    weft__rank__assign__init(&a);
    struct agent_spawn sp = {.job = "j", .attempt = 1, .assign = &a};
    assert_int_equal(supervise_open(&c, &s, NULL), 0);
    assert_int_not_equal(supervise_spawn(s, 0, &sp, &pid, &e), 0);
    assert_non_null(strstr(e.text, "/no/such"));
    sp.job = "../up";
    assert_int_equal(supervise_spawn(s, 0, &sp, &pid, &e), ERR_INVALID);
    supervise_close(s);
}

static void an_attempts_folder_is_private_and_goes_when_it_is_forgotten(void **state)
{
    struct rig *r = *state;
    char path[120];
    struct stat st;
    start(r, 0, "page 1 exit 0");
    until(r, &r->ended[0]);
    snprintf(path, sizeof path, "%s/job1.a2", r->runs);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    strcat(path, "/page-0009"); // of another worker's rank
    close(open(path, O_WRONLY | O_CREAT, 0600));
    supervise_forget(r->s, "job1", 2);
    assert_int_equal(stat(path, &st), 0);
    unlink(path);
    supervise_forget(r->s, "job1", 2);
    *strrchr(path, '/') = 0;
    assert_int_equal(stat(path, &st), -1);
    snprintf(path, sizeof path, "%s/jobs/job1.a2/rank-0000.log", r->dir);
    assert_int_equal(stat(path, &st), 0); // the log stays
}

// ---- the proof ----

static void the_lock_is_held_by_the_ranks_alone(void **state)
{
    struct rig *r = *state;
    assert_true(lock_is_free(r));
    start(r, 0, "ready stay");
    start(r, 1, "ready stay");
    until(r, &r->ready[1]);
    assert_false(lock_is_free(r));
    supervise_kill(r->s, 0, SIGKILL);
    until(r, &r->ended[0]);
    assert_false(lock_is_free(r));
    supervise_kill(r->s, 1, SIGKILL);
    until(r, &r->ended[1]);
    assert_true(lock_is_free(r)); // while the supervisor itself lives on
}

// A process of its own that supervises two ranks; their pids come through the pipe.
static int worker_process(struct rig *r, int out)
{
    int pid = fork();
    if (pid)
        return pid;
    rig_open(r);
    start(r, 0, "ready stay");
    start(r, 1, "ready stay");
    until(r, &r->ready[0]);
    until(r, &r->ready[1]);
    (void)!write(out, r->pid, sizeof r->pid);
    for (;;)
        pause();
}

static void no_rank_survives_the_kill_of_its_worker(void **state)
{
    struct rig *r = *state;
    int p[2], pids[SLOTS];
    assert_int_equal(pipe(p), 0);
    int worker = worker_process(r, p[1]);
    assert_int_equal(read(p[0], pids, sizeof pids), sizeof pids);
    assert_true(lives(pids[0]) && lives(pids[1]));
    assert_false(lock_is_free(r));
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
    assert_int_equal(rankslock_prove(r->lock, 30 * CLOCK_S, NULL), 0);
    assert_false(lives(pids[0]) || lives(pids[1]));
    close(p[0]);
    close(p[1]);
}

// A process that holds the lock as a rank would, and does not die with its parent.
static int survivor(const struct rig *r)
{
    int p[2], pid;
    char c;
    assert_int_equal(pipe(p), 0);
    if (!(pid = fork())) {
        int fd = open(r->lock, O_RDWR);
        (void)flock(fd, LOCK_SH);
        (void)!write(p[1], "x", 1);
        for (;;)
            pause();
    }
    assert_int_equal(read(p[0], &c, 1), 1);
    close(p[0]);
    close(p[1]);
    return pid;
}

static void a_recorded_survivor_is_killed_before_the_lock_proves_anything(void **state)
{
    struct rig *r = *state;
    int pid = survivor(r);
    assert_int_equal(rankslock_record(r->lock, pid, true, NULL), 0);
    assert_int_equal(rankslock_prove(r->lock, 30 * CLOCK_S, NULL), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void a_pid_that_was_given_to_somebody_else_is_spared(void **state)
{
    struct rig *r = *state;
    struct err e = {0};
    int pid = survivor(r);
    FILE *f = fopen(r->lock, "a");
    fprintf(f, "%d 1\n", pid); // no process of this machine's life started so early
    fclose(f);
    assert_int_equal(rankslock_prove(r->lock, 200 * CLOCK_MS, &e), ERR_TIMEOUT);
    assert_true(lives(pid));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(rankslock_prove(r->lock, 30 * CLOCK_S, NULL), 0);
}

// ---- what ranks print ----

static void a_flood_of_lines_stays_within_two_files(void **state)
{
    struct rig *r = *state;
    char path[140];
    struct stat st;
    int full = 0;
    start(r, 0, "flood 24 say last exit 0");
    until(r, &r->ended[0]);
    assert_int_equal(r->code[0], 0);
    snprintf(path, sizeof path, "%s/jobs/job1.a2/rank-0000.log", r->dir);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= LOG_FILE_MAX);
    for (int n = 1; n <= 7; n++) { // of those that were full the newest is kept
        snprintf(path, sizeof path, "%s/jobs/job1.a2/rank-0000.log.%d", r->dir, n);
        full += !stat(path, &st);
        assert_true(st.st_size <= LOG_FILE_MAX);
    }
    assert_in_range(full, 0, 1); // what the rank could not print while nobody read is not there
}

// Opens the log of job "j" that a rank of this attempt writes.
static void open_log(struct rig *r, struct log_file *f, int attempt, int rank)
{
    char dir[100];
    snprintf(dir, sizeof dir, "%s/jobs", r->dir);
    assert_int_equal(log_file_open(f, dir, "j", (uint64_t)attempt, rank, NULL), 0);
}

static void appending_rotates_and_keeps_the_newest(void **state)
{
    struct rig *r = *state;
    char text[1024], path[200];
    struct log_file f;
    struct stat st;
    struct buf b = {0};
    open_log(r, &f, 1, 3);
    for (int i = 0; i < 12 * 1024; i++) { // 12 MiB
        memset(text, 'a', sizeof text);
        snprintf(text, sizeof text, "line %d", i);
        text[strlen(text)] = ' ';
        text[1023] = '\n';
        log_file_append(&f, text, sizeof text);
    }
    log_file_append(&f, "the end\n", 8);
    log_tail(f.path, 2, 1 << 20, &b);
    assert_memory_equal(b.data, "line 12287", 10);
    assert_string_equal(b.data + 1024, "the end\n");
    snprintf(path, sizeof path, "%s.3", f.path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= LOG_FILE_MAX);
    assert_int_equal(stat(f.path, &st), 0);
    assert_true(st.st_size <= LOG_FILE_MAX);
    buf_clear(&b);
    log_file_close(&f);
}

static void a_rank_ends_though_nobody_reads_what_it_prints(void **state)
{
    struct rig *r = *state;
    siginfo_t info = {0};
    struct stat st = {0};
    char path[140];
    int64_t watchdog = clock_mono_ns() + 60 * CLOCK_S;
    start(r, 0, "flood 4 exit 0");
    snprintf(path, sizeof path, "%s/jobs/job1.a2/rank-0000.log", r->dir);
    while (!r->ended[0] &&
           (stat(path, &st) || !st.st_size)) { // until it prints; then we stand still
        assert_true(clock_mono_ns() < watchdog);
        poll_loop_run_once(r->loop, CLOCK_MS);
    }
    if (!r->ended[0]) {
        assert_int_equal(waitid(P_PID, (id_t)r->pid[0], &info, WEXITED | WNOWAIT), 0);
        assert_int_equal(info.si_status, 0);
    }
    until(r, &r->ended[0]);
    assert_int_equal(r->code[0], 0);
}

static void print(struct rig *r, struct log_file *f, const char *text)
{
    logs_appended(r->logs, "j", 0, f, text, log_file_append(f, text, strlen(text)));
}

// What a reader of all ranks asks of a job's logs; the test adds to it.
static Weft__V1__LogAsk ask_about(const char *job)
{
    Weft__V1__LogAsk ask;
    weft__v1__log_ask__init(&ask);
    ask.job = frame_text(job);
    ask.rank = -1;
    return ask;
}

static void a_follower_hears_the_tail_then_what_is_appended_in_whole_lines(void **state)
{
    struct rig *r = *state;
    Weft__V1__LogAsk ask = ask_about("j");
    struct log_file f;
    open_log(r, &f, 1, 0);
    log_file_append(&f, "one\ntwo\nthree\n", 14);
    ask.ask = 9;
    ask.lines = 2;
    ask.follow = true;
    logs_ask(r->logs, &ask);
    assert_string_equal(buf_str(&r->heard), "two\nthree\n");
    buf_reset(&r->heard);
    print(r, &f, "fo");
    assert_int_equal(r->heard.len, 0);
    print(r, &f, "ur\nfi");
    assert_string_equal(buf_str(&r->heard), "four\n");
    logs_appended(r->logs, "other", 0, &f, "ve\n", 3);
    assert_string_equal(buf_str(&r->heard), "four\n");
    ask.stop = true;
    logs_ask(r->logs, &ask);
    print(r, &f, "six\n");
    assert_string_equal(buf_str(&r->heard), "four\n");
    log_file_close(&f);
}

static void ask_logs(struct rig *r, int lines, uint64_t attempt)
{
    Weft__V1__LogAsk ask = ask_about("j");
    ask.lines = lines;
    ask.attempt = attempt;
    buf_reset(&r->heard);
    logs_ask(r->logs, &ask);
}

// The newest attempt comes first: whoever asked sorts by time.
static void logs_are_of_all_attempts_or_of_the_one_that_is_named(void **state)
{
    struct rig *r = *state;
    struct log_file f;
    char text[40];
    for (int attempt = 1; attempt <= 3; attempt++) {
        open_log(r, &f, attempt, 0);
        snprintf(text, sizeof text, "a%d\nb%d\n", attempt, attempt);
        log_file_append(&f, text, strlen(text));
        log_file_close(&f);
    }
    ask_logs(r, 0, 0);
    assert_string_equal(buf_str(&r->heard), "a3\nb3\na2\nb2\na1\nb1\n<end>");
    ask_logs(r, 3, 0); // the last three lines of the rank
    assert_string_equal(buf_str(&r->heard), "a3\nb3\nb2\n<end>");
    ask_logs(r, 0, 2);
    assert_string_equal(buf_str(&r->heard), "a2\nb2\n<end>");
}

static void follow_all(struct rig *r)
{
    Weft__V1__LogAsk ask = ask_about("j");
    ask.follow = true;
    logs_ask(r->logs, &ask);
}

static void positions_show_a_follower_what_came_too_fast_for_it(void **state)
{
    struct rig *r = *state;
    struct log_file f;
    open_log(r, &f, 1, 0);
    log_file_append(&f, "one\n", 4);
    follow_all(r);
    r->lags = true;
    print(r, &f, "two\n");
    print(r, &f, "three\n");
    assert_string_equal(buf_str(&r->heard), "one\n");
    assert_int_equal(r->heard_to, 4);
    r->lags = false;
    print(r, &f, "four\nfi");
    assert_string_equal(buf_str(&r->heard), "one\nfour\n");
    assert_int_equal(r->heard_from, 14);
    assert_int_equal(r->heard_to, 19);
    print(r, &f, "ve\n");
    assert_string_equal(buf_str(&r->heard), "one\nfour\nfive\n");
    assert_int_equal(r->heard_from, 19);
    log_file_close(&f);
}

static void open_logs(struct rig *r, struct log_file *f, int n)
{
    char text[40];
    for (int rank = 0; rank < n; rank++) {
        open_log(r, &f[rank], 1, rank);
        snprintf(text, sizeof text, "kept %d\n", rank);
        log_file_append(&f[rank], text, strlen(text));
    }
}

static void close_logs(struct log_file *f, int n)
{
    for (int i = 0; i < n; i++)
        log_file_close(&f[i]);
}

// Else the logs of many ranks, or of many readers, fill the stream and cut this host off.
static void kept_logs_wait_for_room_and_come_before_what_is_printed_meanwhile(void **state)
{
    enum { LOGS = 3 };
    struct rig *r = *state;
    struct log_file f[LOGS];
    open_logs(r, f, LOGS);
    r->room = 1;
    follow_all(r);
    assert_string_equal(buf_str(&r->heard), "kept 0\n");
    logs_resume(r->logs);
    assert_string_equal(buf_str(&r->heard), "kept 0\n");
    logs_appended(r->logs, "j", 2, &f[2], "more 2\n", log_file_append(&f[2], "more 2\n", 7));
    assert_true(logs_waiting(r->logs));
    r->room = 0;
    logs_resume(r->logs);
    assert_string_equal(buf_str(&r->heard), "kept 0\nkept 1\nkept 2\nmore 2\n");
    assert_false(logs_waiting(r->logs));
    print(r, &f[0], "more 0\n");
    assert_string_equal(buf_str(&r->heard), "kept 0\nkept 1\nkept 2\nmore 2\nmore 0\n");
    close_logs(f, LOGS);
}

static void a_rank_that_never_pauses_leaves_room_for_kept_logs(void **state)
{
    enum { LOGS = 3 };
    struct rig *r = *state;
    struct log_file f[LOGS];
    open_logs(r, f, LOGS);
    r->room = 1;
    follow_all(r);
    for (int i = 0; i < LOGS; i++) {
        r->room = r->heard.len + 1; // for one message more
        print(r, &f[0], "more 0\n");
    }
    assert_string_equal(buf_str(&r->heard), "kept 0\nkept 1\nkept 2\nmore 0\n");
    close_logs(f, LOGS);
}

static void readers_of_kept_logs_take_turns_and_may_leave(void **state)
{
    struct rig *r = *state;
    struct log_file f[2];
    Weft__V1__LogAsk ask = ask_about("j");
    open_logs(r, f, 2);
    r->lags = true;
    for (ask.ask = 1; ask.ask <= 3; ask.ask++)
        logs_ask(r->logs, &ask);
    ask.ask = 2;
    ask.stop = true;
    logs_ask(r->logs, &ask);
    r->lags = false;
    logs_resume(r->logs);
    assert_string_equal(buf_str(&r->heard), "kept 0\nkept 0\nkept 1\n<end>kept 1\n<end>");
    close_logs(f, 2);
}

// Appends `n` bytes of lines of 64, each of which says where it begins.
static void append_positions(struct log_file *f, int64_t from, int64_t n)
{
    char line[65];
    for (int64_t at = from; at < from + n; at += 64) {
        snprintf(line, sizeof line, "%-63lld\n", (long long)at);
        assert_int_equal(log_file_append(f, line, 64), 64);
    }
}

// What the tail that was heard says of where it begins is true.
static void assert_tail_ends_at(struct rig *r, int64_t end)
{
    struct buf b = {0};
    char path[200];
    snprintf(path, sizeof path, "%s/jobs/j.a1/rank-0000.log", r->dir);
    assert_int_equal(log_tail(path, 2, 1 << 20, &b), end);
    assert_int_equal(b.len, 128);
    assert_int_equal(atoll(b.data), end - 128);
    buf_reset(&b);
    assert_int_equal(log_tail(path, 0, 1 << 20, &b), end);
    assert_int_equal(atoll(b.data), end - (int64_t)b.len);
    assert_in_range(b.len, (1 << 20) - 64, 1 << 20);
    buf_clear(&b);
}

static void positions_continue_over_full_files_and_a_worker_s_restart(void **state)
{
    struct rig *r = *state;
    char path[200];
    struct log_file f;
    int64_t at = 0;
    for (int i = 0; i < 4; i++) {
        static const int64_t more[] = {LOG_FILE_MAX, 64, 3 * LOG_FILE_MAX, 640};
        open_log(r, &f, 1, 0);
        append_positions(&f, at, more[i]);
        log_file_close(&f);
        at += more[i];
        assert_tail_ends_at(r, at);
    }
    for (int n = 1; n <= 5; n++) { // one full file is kept
        snprintf(path, sizeof path, "%s/jobs/j.a1/rank-0000.log.%d", r->dir, n);
        assert_int_equal(access(path, F_OK), n == 4 ? 0 : -1);
    }
}

static void whoever_does_not_follow_gets_an_end(void **state)
{
    struct rig *r = *state;
    Weft__V1__LogAsk ask = ask_about("never-was-here");
    logs_ask(r->logs, &ask);
    assert_string_equal(buf_str(&r->heard), "<end>");
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
int main(int argc, char **argv)
{
    int code = double_main(argc, argv);
    if (code >= 0)
        return code;
    const struct CMUnitTest tests[] = {
        CASE(a_rank_is_assigned_and_its_frames_page_and_lines_come_back),
        CASE(a_killed_rank_is_known_by_its_signal),
        CASE(a_stopped_rank_is_reported_as_stopped_until_it_continues),
        CASE(a_frame_reaches_its_rank),
        CASE(what_a_rank_said_last_is_heard_whole),
        CASE(a_rank_that_speaks_garbage_is_killed),
        CASE(a_program_that_is_not_there_is_an_error),
        CASE(an_attempts_folder_is_private_and_goes_when_it_is_forgotten),
        CASE(the_lock_is_held_by_the_ranks_alone),
        CASE(no_rank_survives_the_kill_of_its_worker),
        CASE(a_recorded_survivor_is_killed_before_the_lock_proves_anything),
        CASE(a_pid_that_was_given_to_somebody_else_is_spared),
        CASE(a_flood_of_lines_stays_within_two_files),
        CASE(appending_rotates_and_keeps_the_newest),
        CASE(a_rank_ends_though_nobody_reads_what_it_prints),
        CASE(a_follower_hears_the_tail_then_what_is_appended_in_whole_lines),
        CASE(logs_are_of_all_attempts_or_of_the_one_that_is_named),
        CASE(positions_show_a_follower_what_came_too_fast_for_it),
        CASE(kept_logs_wait_for_room_and_come_before_what_is_printed_meanwhile),
        CASE(a_rank_that_never_pauses_leaves_room_for_kept_logs),
        CASE(readers_of_kept_logs_take_turns_and_may_leave),
        CASE(positions_continue_over_full_files_and_a_worker_s_restart),
        CASE(whoever_does_not_follow_gets_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
