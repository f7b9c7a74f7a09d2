// SPDX-License-Identifier: Apache-2.0
// Inside worker/rank/train/ only. How long a step takes of late, for people: single steps are uneven,
// and the first ones slow. The mean of the steps of about the last ten seconds, and of sixteen at
// least.
#pragma once

struct pace {         // zeroed before the first step
    double steps, ms; // so many took so long; what is older counts for less
};
double pace_add(struct pace *p, double ms); // of one more step; returns the mean, ms
