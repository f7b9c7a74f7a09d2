// SPDX-License-Identifier: Apache-2.0
// Buckets: what the same devices move next to each other is moved by one launch. A small tensor takes
// about as long to start as to send, and a model has many.
//
//   all-reduces                      flat: one of all of them. The memory plan puts their buffers one
//                                    behind the other, so that nothing is copied. The hosts sum element
//                                    by element in the order of the coordinates (worker/collective), so
//                                    no bit of theirs depends on what is in a bucket; NCCL's order
//                                    depends on where an element lies.
//   reduce-scatters, all-gathers,    a group: each its own, started together and waited for together.
//   all-to-alls                      Their buffers lie anywhere, and no sum changes its order.
//
// What nobody needs yet waits in its bucket for the next ones of its kind and devices, until they have
// graph.bucket bytes together, or are GROUP_MOST, one of them is read, or the phase ends; then all stand
// next to each other, with one number (node.bucket), and lowering starts them at once. These wait:
//
//   sums of gradients and gathers of updated parameters, once a step
//   of each microbatch, no longer than their layer: gathers of its parameters, which order.h puts in
//     front of the layer before it, and reduce-scatters of its gradients, which are read behind the
//     layer after it. So both still run beside a layer's compute.
//
// All others, which a microbatch's compute waits for, become a group where they stand together already,
// as those of an attention's operands do. Not in buckets: all-reduces that compute waits for, and a stage
// group's sums, whose stages run other programs.
#pragma once
#include "common/compile/graph/graph.h"

enum {
    GROUP_MOST = COLLECTIVES_OPEN / 2
}; // so that hosts, who start one by one, may have two open

// Nodes change their places and get their buckets' numbers, nothing else. The graph has its stages
// and is checked afterwards like before.
void bucket_nodes(struct graph *g, const struct mesh *m);
