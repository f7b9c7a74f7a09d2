// SPDX-License-Identifier: Apache-2.0
// One field in one column; see db_value.h.
#include "coordinator/db_value.h"

#include <math.h>

void db_bind_value(sqlite3_stmt *q, int column, const ProtobufCFieldDescriptor *f, const void *at)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        sqlite3_bind_text(q, column, *(char *const *)at, -1, SQLITE_TRANSIENT);
        return;
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *b = at;
        sqlite3_bind_blob(q, column, b->len ? (const void *)b->data : "", (int)b->len,
                          SQLITE_TRANSIENT);
        return;
    }
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
        sqlite3_bind_int64(q, column, *(const int64_t *)at);
        return;
    case PROTOBUF_C_TYPE_BOOL:
        sqlite3_bind_int(q, column, *(const protobuf_c_boolean *)at != 0);
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        sqlite3_bind_double(q, column, *(const double *)at);
        return;
    default: // int32, enum
        sqlite3_bind_int(q, column, *(const int32_t *)at);
    }
}

void db_read_value(sqlite3_stmt *q, int column, const ProtobufCFieldDescriptor *f, void *at,
                   struct arena *a)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = (const char *)sqlite3_column_text(q, column);
        *(char **)at = arena_strdup(a, text ? text : "");
        return;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        ProtobufCBinaryData *b = at;
        b->len = (size_t)sqlite3_column_bytes(q, column);
        b->data = b->len ? arena_dup(a, sqlite3_column_blob(q, column), b->len) : NULL;
        return;
    }
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
        *(int64_t *)at = sqlite3_column_int64(q, column);
        return;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = sqlite3_column_int(q, column) != 0;
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at =
            sqlite3_column_type(q, column) == SQLITE_NULL ? NAN : sqlite3_column_double(q, column);
        return;
    default:
        *(int32_t *)at = sqlite3_column_int(q, column);
    }
}
