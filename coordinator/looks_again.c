// SPDX-License-Identifier: Apache-2.0
// Second questions about a job's data; see looks_again.h.
#include "coordinator/looks_again.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/plain.h"
#include "coordinator/data_question.h"
#include "coordinator/host.h"
#include "coordinator/kept_text.h"
#include "coordinator/outbox.h"

enum { LOOKS_AGAIN = 8 };  // half of the looks that a worker takes at once: submits ask too
enum { LOOK_WAIT_S = 10 }; // nobody waits for the answer, and storage may be slow
enum { TICKS_A_S = 10 };

struct asked {
    uint64_t conn;
    char host[ID_LEN];
    bool waits; // for its answer
};
struct second_look { // a question about one job
    struct list link;
    struct arena arena;
    char id[ID_LEN];
    char job[ID_LEN], hash[65]; // of its text, which may change
    int64_t due_ns;
    struct data_question asks;
    int nhosts, waiting; // waiting: for so many answers
    struct asked *hosts;
    int first;       // of hosts: the first that has said that it lacks the data
    const char *why; // its reason; null: none has said so
};

static void free_look(struct coord *c, struct second_look *k)
{
    list_remove(&k->link);
    arena_clear(&k->arena);
    free(k);
    c->nlooks--;
}

void looks_again_free(struct coord *c)
{
    list_for_each (it, &c->looks)
        free_look(c, list_entry(it, struct second_look, link));
}

// ---- asking ----

static bool may_be_asked(const struct job_record *j, const struct host *h)
{
    return h->conn && h->look_ns <= j->coord->now_ns && job_is_lacking_on(j, h->incarnation);
}

static void ask_host(struct coord *c, struct second_look *k, const struct host *h)
{
    char *paths[DATA_PATHS];
    Weft__V1__Storage s;
    data_question_message(&k->asks, k->id, 0, paths, &s);
    DOWN(d, STORAGE, storage, &s);
    out_down(c, h->conn, &d);
    struct asked *a = &k->hosts[k->nhosts++];
    *a = (struct asked){.conn = h->conn, .waits = true};
    memcpy(a->host, h->id, ID_LEN);
    k->waiting++;
}

static struct second_look *add_look(struct job_record *j, int hosts)
{
    struct coord *c = j->coord;
    struct second_look *k = calloc(1, sizeof *k);
    PRE(k != NULL);
    arena_init(&k->arena);
    list_append(&c->looks, &k->link);
    c->nlooks++;
    coord_new_id(c, k->id);
    memcpy(k->job, j->id, ID_LEN);
    memcpy(k->hash, j->job_hash, sizeof k->hash);
    k->due_ns = c->now_ns + LOOK_WAIT_S * CLOCK_S;
    k->hosts = arena_array(&k->arena, struct asked, hosts);
    return k;
}

// Workers may lie: two of them may give one incarnation.
static int count_hosts(const struct job_record *j)
{
    int n = 0;
    list_for_each (it, &j->coord->hosts)
        n += may_be_asked(j, list_entry(it, struct host, link));
    return n;
}

static void ask_about(struct job_record *j)
{
    struct coord *c = j->coord;
    int hosts = count_hosts(j);
    if (!hosts)
        return;
    struct second_look *k = add_look(j, hosts);
    struct job *job = arena_new(&k->arena, struct job);
    if (!job_read_text(j, &k->arena, job, NULL)) {
        data_question_init(&k->asks, job);
        list_for_each (it, &c->hosts) {
            const struct host *h = list_entry(it, struct host, link);
            if (may_be_asked(j, h))
                ask_host(c, k, h);
        }
    }
    if (!k->waiting)
        free_look(c, k);
}

// ---- the end of a question ----

// The job that it is about. Null: it does not wait any more, or has another text.
static struct job_record *find_job(const struct coord *c, const struct second_look *k)
{
    struct job_record *j = job_find(c, k->job);
    return j && j->in_queue && !strcmp(j->job_hash, k->hash) ? j : NULL;
}

// What is told to people is what a host says now: one of two files may have come. Of several hosts it
// is the first, whoever answers first.
static void renew_reason(struct coord *c, const struct second_look *k)
{
    struct job_record *j = find_job(c, k);
    const struct host *h = k->why ? host_find(c, k->hosts[k->first].host) : NULL;
    if (!j || !h || !job_is_lacking_on(j, h->incarnation))
        return;
    char *before = arena_strdup(c->out->arena, j->lacking_why);
    job_add_lacking(j, h->incarnation, k->why);
    if (strcmp(before, j->lacking_why))
        job_publish(j);
}

static void end_look(struct coord *c, struct second_look *k)
{
    renew_reason(c, k);
    free_look(c, k);
}

// ---- time ----

// The list stays in the order in which its jobs are asked about: `ns` is now, or no less than the
// others'.
static void look_at(struct job_record *j, int64_t ns)
{
    struct coord *c = j->coord;
    list_remove(&j->lacks);
    list_append(ns > c->now_ns ? &c->lacks : c->lacks.next, &j->lacks);
    j->look_ns = ns;
}

static void end_late(struct coord *c)
{
    list_for_each (it, &c->looks) {
        struct second_look *k = list_entry(it, struct second_look, link);
        if (c->now_ns < k->due_ns)
            continue;
        for (int i = 0; i < k->nhosts; i++) {
            struct host *h = k->hosts[i].waits ? host_find(c, k->hosts[i].host) : NULL;
            if (h && h->conn == k->hosts[i].conn) // it has not attached anew meanwhile
                h->look_ns = c->now_ns + LOOK_AGAIN_S * CLOCK_S;
        }
        end_look(c, k);
    }
}

static struct job_record *first_to_ask(const struct coord *c)
{
    struct job_record *j =
        list_empty(&c->lacks) ? NULL : list_entry(c->lacks.next, struct job_record, lacks);
    return j && j->look_ns <= c->now_ns ? j : NULL;
}

// So many jobs at most, whether somebody is there to be asked about them or not.
void looks_again_tick(struct coord *c)
{
    struct job_record *j;
    end_late(c);
    for (int i = 0; i < LOOKS_AGAIN && c->nlooks < LOOKS_AGAIN && (j = first_to_ask(c)); i++) {
        look_at(j, c->now_ns + LOOK_AGAIN_S * CLOCK_S);
        ask_about(j);
    }
}

bool looks_again_is_due(const struct coord *c)
{
    return !list_empty(&c->looks) || first_to_ask(c);
}

int64_t looks_again_every_s(const struct coord *c)
{
    int64_t s = c->nlacks / (LOOKS_AGAIN * TICKS_A_S);
    return s > LOOK_AGAIN_S ? s : LOOK_AGAIN_S;
}

// The same worker may have come back because its host was mended.
void looks_again_here(struct coord *c, const struct host *host)
{
    struct arena a;
    struct job_record **of_it;
    int n = 0;
    arena_init(&a);
    of_it = arena_array(&a, struct job_record *, c->nlacks + 1);
    list_for_each (it, &c->lacks) {
        struct job_record *j = list_entry(it, struct job_record, lacks);
        if (job_is_lacking_on(j, host->incarnation))
            of_it[n++] = j;
    }
    while (n > 0)
        look_at(of_it[--n], c->now_ns);
    arena_clear(&a);
}

// ---- hearing ----

static struct second_look *find_look(const struct coord *c, const char *id)
{
    list_for_each (it, &c->looks) {
        struct second_look *k = list_entry(it, struct second_look, link);
        if (!strcmp(k->id, id))
            return k;
    }
    return NULL;
}

static struct asked *find_asked(struct second_look *k, uint64_t conn)
{
    for (int i = 0; i < k->nhosts; i++)
        if (k->hosts[i].conn == conn && k->hosts[i].waits)
            return &k->hosts[i];
    return NULL;
}

static void allow_host(struct job_record *j, const struct host *h)
{
    struct job_note n = NOTE(QUEUED);
    n.host = host_name(h);
    job_drop_lacking(j, h->incarnation);
    job_event(j, &n, "host %s can open its data now", n.host);
    job_publish(j);
    j->coord->round_due = true;
}

static void note_reason(struct second_look *k, const struct asked *a, const struct host *h,
                        const struct data_answer *told)
{
    struct buf why = {0};
    int at = (int)(a - k->hosts);
    if (k->why && k->first < at)
        return;
    for (int i = 0; i <= k->asks.ndata; i++) {
        if (!told->why[i])
            continue;
        data_question_print(&k->asks, i, &why);
        buf_printf(&why, "%s (%.*s)", host_name(h), (int)strcspn(told->why[i], "\n"), told->why[i]);
    }
    k->first = at;
    k->why = arena_strdup(&k->arena, buf_str(&why));
    buf_clear(&why);
}

static void take_answer(struct coord *c, struct second_look *k, const struct asked *a,
                        const struct host *h, const Weft__V1__StorageDone *d)
{
    struct job_record *j = find_job(c, k);
    struct data_answer told;
    if (!j || !job_is_lacking_on(j, h->incarnation))
        return;
    if (!d->ok) // it has too much to do, or does not know the question
        return;
    data_answer_read(&k->asks, d, &told);
    if (!told.lacks)
        allow_host(j, h);
    else if (told.lacks & ~(unsigned)QUESTION_UNKNOWN)
        note_reason(k, a, h, &told);
}

void looks_again_take(struct coord *c, struct host *host, const Weft__V1__StorageDone *d)
{
    struct second_look *k = find_look(c, d->job);
    struct asked *a = k ? find_asked(k, host->conn) : NULL;
    if (!a)
        return;
    a->waits = false;
    take_answer(c, k, a, host, d);
    if (!--k->waiting)
        end_look(c, k);
}
