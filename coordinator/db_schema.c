// SPDX-License-Identifier: Apache-2.0
// The tables, version by version; see db_schema.h. A column that no row has any more stays, and is
// null from then on: checkpoint.pinned.
#include "coordinator/db_schema.h"

const char *const db_migrations[DB_VERSION] = {
    "CREATE TABLE meta(cluster TEXT, next_seq INTEGER, next_audit INTEGER,"
    " one TEXT PRIMARY KEY DEFAULT 'meta');" // the only row
    "CREATE TABLE job(id TEXT PRIMARY KEY, name TEXT, owner TEXT, state INTEGER, goal INTEGER,"
    " goal_why TEXT, seq INTEGER, submitted_ms INTEGER, queued_ms INTEGER, ended_ms INTEGER,"
    " priority INTEGER, resolved TEXT, job_hash TEXT, base_dir TEXT, ranks INTEGER, kind TEXT,"
    " max_hosts INTEGER, steps INTEGER, run_id TEXT, epoch INTEGER, attempt_id TEXT, key BLOB,"
    " fenced INTEGER, restore TEXT, restore_step INTEGER, last_step INTEGER, committed_step "
    "INTEGER,"
    " committed_epoch INTEGER, budget_used INTEGER, same_failure_step INTEGER,"
    " same_failures INTEGER, barren INTEGER, not_before_ms INTEGER, restarts INTEGER,"
    " exit_code INTEGER, diagnosis TEXT, events INTEGER, committed_since INTEGER, spent_ms "
    "INTEGER, store TEXT) WITHOUT ROWID;"
    "CREATE TABLE job_placement(job TEXT, n INTEGER, rank INTEGER, host TEXT, incarnation TEXT,"
    " device INTEGER, reaped INTEGER, PRIMARY KEY(job, n)) WITHOUT ROWID;"
    "CREATE TABLE job_spent(job TEXT, n INTEGER, what TEXT, ms INTEGER, PRIMARY KEY(job, n))"
    " WITHOUT ROWID;"
    "CREATE TABLE job_failures_ms(job TEXT, n INTEGER, value INTEGER, PRIMARY KEY(job, n))"
    " WITHOUT ROWID;"
    "CREATE TABLE host(id TEXT PRIMARY KEY, name TEXT, incarnation TEXT, cordoned INTEGER,"
    " draining INTEGER, seen_ms INTEGER) WITHOUT ROWID;"
    "CREATE TABLE fenced(host TEXT, incarnation TEXT, why TEXT, t_ms INTEGER,"
    " PRIMARY KEY(host, incarnation)) WITHOUT ROWID;"
    "CREATE TABLE checkpoint(job TEXT, epoch INTEGER, step INTEGER, state INTEGER, bad INTEGER,"
    " pinned INTEGER, why TEXT, t_ms INTEGER, PRIMARY KEY(job, epoch, step)) WITHOUT ROWID;"
    "CREATE TABLE event(job TEXT, seq INTEGER, t_ms INTEGER, state INTEGER, kind TEXT, rank "
    "INTEGER,"
    " host TEXT, step INTEGER, text TEXT, PRIMARY KEY(job, seq)) WITHOUT ROWID;"
    "CREATE TABLE request(id TEXT PRIMARY KEY, digest BLOB, reply BLOB, t_ms INTEGER) WITHOUT "
    "ROWID;"
    "CREATE TABLE audit(seq INTEGER PRIMARY KEY, t_ms INTEGER, who TEXT, role TEXT, verb TEXT,"
    " target TEXT, result TEXT);",
    "CREATE TABLE bound(host TEXT PRIMARY KEY, certificate TEXT) WITHOUT ROWID;",
    "ALTER TABLE meta ADD COLUMN lost_ms INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE job ADD COLUMN mesh TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE job ADD COLUMN reported INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN loss REAL;" // a number that is none is stored as null
    "ALTER TABLE job ADD COLUMN tokens_per_s REAL;"
    "ALTER TABLE job ADD COLUMN samples_per_s REAL;"
    "ALTER TABLE job ADD COLUMN evaluated INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN eval_loss REAL;"
    "ALTER TABLE job ADD COLUMN eval_accuracy REAL;",
    "ALTER TABLE job ADD COLUMN spent_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN spent_boot TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE job ADD COLUMN since_ckpt_ms INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE job ADD COLUMN untidy INTEGER NOT NULL DEFAULT 0;",
    "ALTER TABLE job ADD COLUMN found TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE job ADD COLUMN unsaved INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN unsaved_ms INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN unsaved_ns INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN unsaved_why TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE bound ADD COLUMN print TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE job ADD COLUMN threads INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN threads_why TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE job ADD COLUMN removed TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE job ADD COLUMN goes_on INTEGER NOT NULL DEFAULT 0;",
};
