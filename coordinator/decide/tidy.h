// SPDX-License-Identifier: Apache-2.0
// What an attempt was writing when it ended stays in the job's folder until the next attempt's
// fence sweeps it. A job that ends, or is held, may have no next attempt: then one host is asked to
// sweep its folder. Inside coordinator/ only.
#pragma once
#include "coordinator/decide/job_record.h"

struct host;

void tidy_ask(struct job_record *j);    // if there is something to sweep and somebody to ask
void tidy_again(struct job_record *j);  // now and then: nobody was there, or it failed
void tidy_delete(struct job_record *j); // an ended one: its folder goes, then it is forgotten
void tidies_ask(struct coord *c);       // a host has come that may sweep what nobody was asked to
void tidy_take(struct coord *c, const struct host *host, const Weft__V1__StorageDone *d);
