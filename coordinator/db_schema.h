// SPDX-License-Identifier: Apache-2.0
// The tables of the database. Each step brings them from its index to the next version: what was
// released is never edited. Inside coordinator/ only, for db.c.
#pragma once

enum { DB_VERSION = 12 };
extern const char *const db_migrations[DB_VERSION];
