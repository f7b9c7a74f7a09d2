// SPDX-License-Identifier: Apache-2.0
// A field of a protobuf message as a column of SQLite. `at` points at the field's value, of a repeated
// field at one element. Inside coordinator/ only, for db.c.
#pragma once
#include <sqlite3.h>

#include "common/base/arena.h"
#include "common/rpc/rpc.h"

void db_bind_value(sqlite3_stmt *q, int column, const ProtobufCFieldDescriptor *f, const void *at);
void db_read_value(sqlite3_stmt *q, int column, const ProtobufCFieldDescriptor *f, void *at,
                   struct arena *a);
