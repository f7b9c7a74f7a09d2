// SPDX-License-Identifier: Apache-2.0
// What the places of a step's small vectors mean: metrics, control word, clip, hyperparameters.
#pragma once

// The metrics vector, summed over all ranks once a step: norm, loss and the control word travel
// together. The control word's bits are each summed as 0 or 1. Parts of the loss (accuracy) follow
// from METRIC_PARTS on.
enum metric_slot {
    METRIC_LOSS,   // Σ over the step's samples, already divided by their number
    METRIC_SQNORM, // Σ g² of the final gradients, each shard counted by its owner
    METRIC_STOP,
    METRIC_NO_SAVE,
    METRIC_PARTS
};
enum control_slot { CONTROL_STOP, CONTROL_NO_SAVE, CONTROL_SLOTS }; // f32 vector set by the host

// What CLIP makes of the summed metrics.
enum clip_slot {
    CLIP_SCALE, // min(1, clip_norm / norm); 1 without clipping
    CLIP_SKIP,  // 1 when loss or norm is not finite: the update is dropped
    CLIP_SLOTS
};

// Device scalars of the step, set by the host before it: one captured graph serves every step.
enum hyper_slot {
    HYPER_LR,
    HYPER_BIAS1, // 1 / (1 − β1^t), t = step + 1
    HYPER_BIAS2, // 1 / (1 − β2^t)
    HYPER_SLOTS
};
