// SPDX-License-Identifier: Apache-2.0
// Clients: they submit jobs, act on them, repeat a call until it is answered, and in the end see
// that every job ends.
#include <stdio.h>
#include <string.h>

#include "coordinator/decide/words.h"
#include "tests/sim/sim_check.h"

static void sends(void *arg, uint64_t tag)
{
    struct call *c = arg;
    struct sim *s = &c->w->sim;
    (void)tag;
    if (c->answered || c->refused || c->tries > 400)
        return;
    c->tries++;
    sim_coordinator_call(c->w, c);
    sim_after(s, sim_between(s, S, 3 * S), sends, c, 0);
}

static struct call *new_call(struct world *w)
{
    struct call *c = arena_new(&w->sim.arena, struct call);
    c->w = w;
    c->id = ++w->next_call;
    sim_hex(&w->sim, c->request);
    c->next = w->calls;
    w->calls = c;
    return c;
}

static void submit(struct world *w, const struct variant *v, int64_t delay)
{
    struct call *c = new_call(w);
    c->submit = true;
    c->variant = v;
    sim_after(&w->sim, delay, sends, c, 0);
}

void client_act(struct world *w, Weft__V1__Verb verb, const char *target)
{
    struct call *c = new_call(w);
    c->verb = verb;
    snprintf(c->target, sizeof c->target, "%s", target);
    sends(c, 0);
}

static void again(void *arg, uint64_t tag)
{
    struct call *c = arg;
    (void)tag;
    sim_coordinator_call(c->w, c);
}

void client_answered(struct call *c, const uint8_t *reply, size_t len)
{
    struct sim *s = &c->w->sim;
    if (c->reply && !c->w->db_harmed && (len != c->reply_len || memcmp(c->reply, reply, len) != 0))
        sim_fail(s, "request %.8s is answered otherwise when it is repeated", c->request);
    c->reply = arena_dup(&s->arena, reply, len + 1);
    c->reply_len = len;
    if (c->answered || sim_chance(s, 100))
        return; // the client has gone before it heard, and asks again
    c->answered = true;
    if (c->submit) {
        Weft__V1__SubmitReply *r = weft__v1__submit_reply__unpack(NULL, len, reply);
        snprintf(c->target, sizeof c->target, "%s", r->job);
        weft__v1__submit_reply__free_unpacked(r, NULL);
    }
    TRACE(s, "client", "%s of %.8s is answered", c->submit ? "submit" : "act", c->target);
    if (sim_chance(s, 150) && !c->w->quiet) // somebody repeats it all the same
        sim_after(s, sim_between(s, 0, 10 * S), again, c, 0);
}

void client_refused(struct call *c, int code, const char *text)
{
    struct sim *s = &c->w->sim;
    TRACE(s, "client", "call %d is refused: %d %s", (int)c->id, code, text);
    if (c->answered && !c->w->db_harmed)
        sim_fail(s, "request %.8s was answered and is refused when it is repeated: %s", c->request,
                 text);
    else if (c->submit && !c->answered)
        sim_fail(s, "a submit is refused: %s", text);
    c->refused = true;
}

// ---- as faults ----
static const char *any_job(struct world *w)
{
    const char *pick = NULL;
    int n = 0;
    for (struct call *c = w->calls; c; c = c->next)
        if (c->submit && c->answered && sim_below(&w->sim, ++n) == 0)
            pick = c->target;
    return pick;
}

void client_fault(struct world *w)
{
    static const Weft__V1__Verb verbs[] = {WEFT__V1__VERB__CANCEL,  WEFT__V1__VERB__HOLD,
                                           WEFT__V1__VERB__PREEMPT, WEFT__V1__VERB__RESUME,
                                           WEFT__V1__VERB__CORDON,  WEFT__V1__VERB__UNCORDON,
                                           WEFT__V1__VERB__DRAIN,   WEFT__V1__VERB__PREEMPT};
    Weft__V1__Verb verb = verbs[sim_below(&w->sim, 8)];
    bool of_host = verb == WEFT__V1__VERB__CORDON || verb == WEFT__V1__VERB__UNCORDON ||
                   verb == WEFT__V1__VERB__DRAIN;
    const char *target = of_host ? w->hosts[sim_below(&w->sim, w->nhosts)].id : any_job(w);
    if (target)
        client_act(w, verb, target);
}

void client_begin(struct world *w, int jobs)
{
    struct sim *s = &w->sim;
    int devices = 0;
    for (int i = 0; i < w->nhosts; i++)
        devices += w->hosts[i].ndevices;
    while (jobs > 0) {
        const struct variant *v = variant_at(sim_below(s, variant_count()));
        if (v->ranks > devices)
            continue;
        submit(w, v, sim_between(s, 10 * MS, 6 * S));
        jobs--;
    }
}

// ---- the quiet phase ----
static bool pending_act(const struct world *w)
{
    for (const struct call *c = w->calls; c; c = c->next)
        if (!c->submit && !c->answered && !c->refused)
            return true;
    return false;
}

static bool see_job(struct world *w, struct call *c)
{
    struct arena a;
    struct err e = {0};
    arena_init(&a);
    Weft__V1__JobStatus *s = coord_status(w->coordinator.coord, c->target, &a, &e);
    bool ended = false;
    if (!s) {
        if (!w->db_harmed)
            sim_fail(&w->sim, "job %.8s was acknowledged and nobody knows it: %s", c->target,
                     e.text);
        c->replaced = true;
        submit(w, c->variant, MS);
    } else if ((s->state == WEFT__V1__JOB_STATE__HELD || s->state == WEFT__V1__JOB_STATE__FAILED) &&
               !pending_act(w)) {
        TRACE(&w->sim, "client", "resumes %.8s (%s)", c->target, s->text);
        client_act(w, WEFT__V1__VERB__RESUME, c->target);
    } else {
        ended = s->state == WEFT__V1__JOB_STATE__SUCCEEDED ||
                s->state == WEFT__V1__JOB_STATE__CANCELLED;
    }
    arena_clear(&a);
    return ended;
}

static bool see_hosts(struct world *w)
{
    struct arena a;
    arena_init(&a);
    Weft__V1__WorkersReply *r = coord_workers(w->coordinator.coord, w->sim.now, &a);
    int ready = 0, here = 0;
    for (size_t i = 0; i < r->n_workers; i++) {
        const char *state = r->workers[i]->state;
        ready += !strcmp(state, "ready");
        if ((!strcmp(state, "cordoned") || !strncmp(state, "drain", 5)) && !pending_act(w))
            client_act(w, WEFT__V1__VERB__UNCORDON, r->workers[i]->host);
    }
    for (int i = 0; i < w->nhosts; i++)
        here += !w->hosts[i].gone;
    arena_clear(&a);
    return ready == here;
}

static void say_what_is_open(struct world *w)
{
    struct arena a;
    arena_init(&a);
    for (struct call *c = w->calls; c; c = c->next) {
        if (!c->submit || c->replaced)
            continue;
        Weft__V1__JobStatus *s =
            c->answered ? coord_status(w->coordinator.coord, c->target, &a, NULL) : NULL;
        if (s && s->state < WEFT__V1__JOB_STATE__SUCCEEDED)
            sim_fail(&w->sim,
                     "job %.8s does not end though all faults have: %s, attempt %d, "
                     "step %d: %s",
                     c->target, job_state_word((enum job_state)s->state), (int)s->attempt,
                     (int)s->step, s->text);
    }
    sim_fail(&w->sim, "the cluster does not come to rest: a host is lost, a rank lives, or a "
                      "submit has no answer");
    arena_clear(&a);
}

static void watches(void *arg, uint64_t since)
{
    struct world *w = arg;
    struct sim *s = &w->sim;
    bool all = w->coordinator.proc && !w->coordinator.proc->stopped;
    for (struct call *c = w->calls; c && w->coordinator.proc; c = c->next) {
        if (c->submit && !c->replaced)
            all &= c->answered && see_job(w, c);
    }
    all &= w->coordinator.proc && see_hosts(w);
    for (int i = 0; i < w->nhosts; i++)
        all = all && !w->hosts[i].living && (w->hosts[i].conn || w->hosts[i].gone);
    if (all)
        w->done = true;
    else if (s->now - (int64_t)since > 1200 * S)
        say_what_is_open(w);
    else
        sim_after(s, S, watches, w, since);
}

void client_watch(struct world *w)
{
    sim_after(&w->sim, S, watches, w, (uint64_t)w->sim.now);
}
