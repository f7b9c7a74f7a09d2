// SPDX-License-Identifier: Apache-2.0
// Between the decider's structs and the rows of proto/rows.proto: the only file of the decider that
// knows how a row looks. Rows out go into the step's outbox, rows in come from coord_load; a row
// that is read is checked, because a database may be damaged. Inside coordinator/ only.
#pragma once
#include "coordinator/host.h"
#include "coordinator/job_record.h"
#include "coordinator/requests.h"

struct audit_record {
    uint64_t seq;
    int64_t t_ms;
    const char *who, *role;
    enum audit_verb verb;
    const char *target, *result;
};

void row_write_job(const struct job_record *j);
void row_erase_job(const struct job_record *j);
void row_write_event(struct coord *c, const struct event_record *e);
void row_erase_event(struct coord *c, const char *job, uint64_t seq);
void row_write_checkpoint(const struct job_record *j, const struct checkpoint_record *k);
void row_erase_checkpoint(const struct job_record *j, const struct checkpoint_record *k);
void row_write_host(struct coord *c, const struct host *h);
void row_erase_host(struct coord *c, const struct host *h);
void row_write_fence(struct coord *c, const struct fenced *f);
void row_erase_fence(struct coord *c, const struct fenced *f);
void row_write_request(struct coord *c, const struct request *q);
void row_erase_request(struct coord *c, const struct request *q);
void row_write_audit(struct coord *c, const struct audit_record *a);
void row_erase_audit(struct coord *c, uint64_t seq);
void row_write_meta(struct coord *c); // the cluster's id and the next numbers

int row_read_job(const Weft__Rows__Job *row, struct job_record *j, struct err *e); // a new one
void row_read_host(const Weft__Rows__Host *row, struct host *h);
void row_read_checkpoint(const Weft__V1__Checkpoint *row, struct checkpoint_record *k);
void row_read_fence(const Weft__Rows__Fenced *row, struct fenced *f);
void row_read_request(const Weft__Rows__Request *row, struct request *q);
void row_read_meta(struct coord *c, const Weft__Rows__Meta *row);

// What clients get is of the same form. The texts are borrowed.
void row_fill_spent(const int64_t ms[TIME_KINDS], struct arena *a, Weft__V1__Spent ***out,
                    size_t *n);
void row_of_event(const struct event_record *e, Weft__V1__Event *out);
void row_of_checkpoint(const struct job_record *j, const struct checkpoint_record *k,
                       Weft__V1__Checkpoint *out);
