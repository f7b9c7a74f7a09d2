// SPDX-License-Identifier: Apache-2.0
// A curve in bounded memory, however many points it is given: for a picture that grows with a job. The
// steps lie in columns of equal width; a column keeps its first, least, greatest and last point, so that
// no peak is lost. Where the columns are full, two become one.
//
// A point ends the validity of all whose step is not below its own, as a row does (rows.h): rows of which
// rows_add() says that they hold, or a leader's reports, may be given in the order in which they come.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { BOUNDED_COLUMNS = 1024, BOUNDED_KEPT = 4, BOUNDED_POINTS = BOUNDED_COLUMNS * BOUNDED_KEPT };

struct bounded_column {
    int n; // points, in the order of their steps
    int64_t step[BOUNDED_KEPT];
    double y[BOUNDED_KEPT];
};
struct bounded_curve {   // zeroed: empty
    int64_t from, width; // the first step of the first column; the steps of a column
    int n;               // columns; the last one has a point
    struct bounded_column column[BOUNDED_COLUMNS];
};

// A y that is not finite ends validity only.
void bounded_curve_add(struct bounded_curve *c, int64_t step, double y);
// All its points; x and y have room for BOUNDED_POINTS. Returns how many.
size_t bounded_curve_points(const struct bounded_curve *c, double *x, double *y);
