// SPDX-License-Identifier: Apache-2.0
// A rank that trains nothing: it holds the parameters of a checkpoint and one program, which it runs as
// often as it is asked to (Ask of proto/rank.proto). Inside worker/rank/train/ only.
//
// Every rank gets every question and does the same with it; rank 0 answers,
// of texts the first rank that has their logits. Between two questions all
// of them wait for the link, none for another, so that a stop finds all alike.
#pragma once
#include "worker/rank/train/trainer.h"

// `t` is open. Returns 0 when it was asked to stop.
int asked_run(struct trainer *t, struct err *e);
