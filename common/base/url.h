// SPDX-License-Identifier: Apache-2.0
// weft works on files and folders alone. A path with a scheme in front ("gs://bucket/x", "hdfs:/x")
// would be taken for a folder of that name, or for a file that is not there: it is refused by one
// rule wherever a path is given. "./gs:/x" is a path.
#pragma once
#include "common/base/err.h"

#define URL_WHY "is a URL, and weft works on files and folders alone: mount what it names"

// ERR_INVALID where the path begins with a scheme: two or more letters, digits, +, - or ., the first
// of them a letter, then ":/".
int url_refuse(const char *path, struct err *e);
