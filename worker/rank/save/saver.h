// SPDX-License-Identifier: Apache-2.0
// The saver is what the step loop calls for checkpoints. It connects the rank's snapshots (staging
// and the writer thread) with the link (reports go up, orders and answers come down) and with the
// state of the job.
#pragma once
#include "common/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "worker/rank/exec/model_state.h"
#include "worker/rank/link/rank_link.h"
#include "worker/rank/save/snapshot.h"

struct saver;

struct saver_options {
    const struct assignment *assignment; // borrowed, as is all below
    struct link *link;
    struct state *state;
    const struct mesh *mesh;
    const struct backend *backend;
    struct device *device;
    const char *algorithms;                // the record of algorithms_agree
    const char *collectives;               // what carries them, for the record of numerics
    const struct manifest_change *changes; // of the job, until now
    int nchanges;
    struct data_identity data;         // that it trains with
    const struct tokenizer *tokenizer; // that made its tokens: of rank 0; null: there is none
    struct manifest_source source;     // that it began with
};

int saver_open(const struct saver_options *o, struct saver **out, struct err *e);
void saver_close(struct saver *s); // null is fine
// The leader is gone, so no answer will come: calls that wait end with ERR_PEER. Any thread.
void saver_lost(struct saver *s, const char *why);
// Call this once a step: if all copies that were queued by the newest begin are done, the writer gets
// them.
int saver_poll(struct saver *s, struct err *e);
bool saver_busy(const struct saver *s);         // raises no_save
int64_t saver_opened_at(const struct saver *s); // step of the newest save begun here, −1
// Begins a save. If saves are not async it waits here for the answer.
int saver_begin(struct saver *s, const struct save_point *at, struct err *e);
// The last checkpoint of the attempt: waits for the open one, saves, waits for its answer.
// ERR_IO, of the host, when it was aborted.
int saver_finish(struct saver *s, const struct save_point *at, struct err *e);
