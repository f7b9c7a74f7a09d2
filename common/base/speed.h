// SPDX-License-Identifier: Apache-2.0
// A speed for people to read: single steps are uneven, so each counts an eighth of what is shown.
#pragma once

// *speed is 0 before the first. What is no positive number is left out.
static inline void speed_add(double *speed, double now)
{
    if (now > 0)
        *speed = *speed > 0 ? *speed + (now - *speed) / 8 : now;
}
