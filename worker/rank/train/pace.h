// SPDX-License-Identifier: Apache-2.0
// Inside worker/rank/train/ only. The recent mean of a step's time, for people: single steps are
// uneven, and the first ones slow. It is over the steps of about the last ten seconds, and over
// sixteen at least.
#pragma once

struct pace {         // zeroed before the first step
    double steps, ms; // how many steps, and their time; older ones count for less
};
double pace_add(struct pace *p, double ms); // one more step took `ms`; returns the mean, ms
