// SPDX-License-Identifier: Apache-2.0
// What a worker is and offers; see worker_setup.h.
#include "worker/worker_setup.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/host_address.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/rpc/coordinator_address.h"
#include "worker/observe.h"

#define ADDRESS_WAIT_NS CLOCK_S // for a call of this host's to its own address

static int find_rank_program(const struct worker_options *f, char *out, size_t size, struct err *e)
{
    if (!f->rank)
        return system_find_program("weft-rank", out, size, e);
    snprintf(out, size, "%s", f->rank);
    return access(out, X_OK) ? err_errno(e, ERR_INVALID, "cannot run %s", out) : 0;
}

// --tls DIR must have its files; STATE/tls is taken if it is there.
static int find_tls_files(const struct worker_options *f, const struct home *h,
                          struct worker_tls *p, struct rpc_tls *out, struct err *e)
{
    char dir[WORKER_PATH];
    snprintf(dir, sizeof dir, "%s", f->tls ? f->tls : h->dir);
    if (!f->tls)
        snprintf(dir + strlen(dir), 5, "/tls");
    int n = snprintf(p->ca, sizeof p->ca, "%s/ca.pem", dir);
    snprintf(p->cert, sizeof p->cert, "%s/worker.pem", dir);
    snprintf(p->key, sizeof p->key, "%s/worker.key", dir);
    if (n > WORKER_PATH - 20)
        return err_set(e, ERR_INVALID, "--tls is too long");
    if (!f->tls && access(p->cert, F_OK))
        return 0;
    const char *const files[] = {p->ca, p->cert, p->key};
    for (int i = 0; i < 3; i++) // a wrong flag, which no restart mends
        if (access(files[i], R_OK))
            return err_errno(e, ERR_INVALID, "--tls: %s", files[i]);
    *out = (struct rpc_tls){p->ca, p->cert, p->key};
    return 0;
}

static int find_roots(const struct worker_options *f, struct worker_setup *w, struct err *e)
{
    if (f->own_rights)
        return 0;
    if (home_folder(&w->home, "data", f->data_root, w->data_root, sizeof w->data_root, e))
        return err_wrap(e, "--data-root");
    if (home_folder(&w->home, "checkpoints", f->checkpoint_root, w->checkpoint_root,
                    sizeof w->checkpoint_root, e))
        return err_wrap(e, "--checkpoint-root");
    w->about.data_root = w->data_root;
    w->about.checkpoint_root = w->checkpoint_root;
    return 0;
}

void worker_choose_name(const struct worker_options *f, char *out, size_t size)
{
    snprintf(out, size, "host");
    if (f->name)
        snprintf(out, size, "%s", f->name);
    else
        (void)gethostname(out, size - 1);
}

// A wrong address is seen only when a job spans hosts, so the worker calls itself by it. It continues if
// that fails: a NAT may serve others and not those behind it.
static void try_address(struct worker_setup *w, const char *address)
{
    struct err why = {0};
    if (!host_address_try(address, ADDRESS_WAIT_NS, &why))
        return;
    log_warn("worker",
             "--address %s: this host does not reach itself by it (%s), and others may not",
             address, why.text);
    w->about.address_doubt = arena_strdup(&w->arena, why.text);
}

// Who this host is to others.
static int describe_host(const struct worker_options *f, struct worker_setup *w, struct err *e)
{
    Weft__V1__Register *a = &w->about;
    int rc = coordinator_address(f->coordinator, w->address, sizeof w->address, e);
    rc = rc ? rc : observe_runs(w->home.dir, w->runs, sizeof w->runs, e);
    if (rc)
        return rc;
    worker_choose_name(f, w->name, sizeof w->name);
    if (f->share)
        snprintf(w->share, sizeof w->share, "%s", f->share);
    else
        observe_share(w->runs, w->share, sizeof w->share);
    if (f->address && host_address_check(f->address, e))
        return err_wrap(e, "--address");
    if (f->address)
        try_address(w, f->address);
    else
        observe_address(w->address, w->own_address, sizeof w->own_address);
    a->host = w->home.host;
    a->name = w->name;
    a->share = w->share;
    a->version = frame_text(WEFT_VERSION);
    a->rack = frame_text(f->rack);
    a->address = f->address ? frame_text(f->address) : w->own_address;
    a->memory = observe_memory();
    a->cores = cores_usable();
    w->c.agent.about = a;
    w->c.agent.grace_ns = f->grace_ns;
    w->c.coordinator = w->address;
    w->c.runs = w->runs;
    w->c.sinks = f->sinks;
    w->c.nsinks = f->nsinks;
    return *w->share ? 0 : err_set(e, ERR_INVALID, "--share is empty");
}

// People ask the coordinator why no host has such devices, and not this host's log.
static void note_lack(struct worker_setup *w, const char *kind, const char *why)
{
    Weft__V1__Lack *lack = arena_new(&w->arena, Weft__V1__Lack);
    weft__v1__lack__init(lack);
    lack->kind = frame_text(kind);
    lack->why = arena_strdup(&w->arena, why);
    if (!w->about.n_lacks)
        w->about.lacks = arena_array(&w->arena, Weft__V1__Lack *, HOST_LACKS_MAX);
    PRE(w->about.n_lacks < HOST_LACKS_MAX);
    w->about.lacks[w->about.n_lacks++] = lack;
}

// A host need not have any, unless a flag says how many to offer.
static int find_gpus(const struct worker_options *f, struct worker_setup *w, struct err *e)
{
    struct err why = {0};
    int n = 0;
    if (!f->cuda_devices) {
        note_lack(w, "cuda", "its worker was started with --cuda-devices 0");
        return 0;
    }
    if (observe_devices(w->rank, "cuda", 0, &w->arena, &w->about, &n, &why)) {
        if (f->cuda_devices > 0)
            return err_set(e, ERR_INVALID, "--cuda-devices %d: %s", f->cuda_devices, why.text);
        if (!w->about.n_devices)
            return err_set(e, ERR_INVALID, "this host offers no device: %s", why.text);
        log_info("worker", "offers no GPU: %s", why.text);
        note_lack(w, "cuda", why.text);
        return 0;
    }
    if (f->cuda_devices > n)
        return err_set(e, ERR_INVALID, "--cuda-devices %d: this host has %d", f->cuda_devices, n);
    if (f->cuda_devices > 0)
        w->about.n_devices -= (size_t)(n - f->cuda_devices);
    return 0;
}

static int find_devices(const struct worker_options *f, struct worker_setup *w, struct err *e)
{
    int cpus = f->cpu_devices >= 0 ? f->cpu_devices : cores_usable(), n = 0;
    int rc = cpus ? observe_devices(w->rank, "cpu", cpus, &w->arena, &w->about, &n, e) : 0;
    if (rc)
        return rc;
    if (!cpus)
        note_lack(w, "cpu", "its worker was started with --cpu-devices 0");
    if ((rc = find_gpus(f, w, e)))
        return rc;
    return w->about.n_devices ? 0 : err_set(e, ERR_INVALID, "this host offers no device");
}

int worker_setup_open(const struct worker_options *f, struct worker_setup *w, struct err *e)
{
    *w = (struct worker_setup){.home.lock = -1};
    weft__v1__register__init(&w->about);
    int rc = home_open(&w->home, f->state, e);
    rc = rc ? rc : find_rank_program(f, w->rank, sizeof w->rank, e);
    rc = rc ? rc : describe_host(f, w, e);
    rc = rc ? rc : find_tls_files(f, &w->home, &w->tls, &w->c.tls, e);
    rc = rc ? rc : find_roots(f, w, e);
    w->c.home = &w->home;
    w->c.rank = w->rank;
    return rc ? rc : find_devices(f, w, e);
}

void worker_setup_close(struct worker_setup *w)
{
    arena_clear(&w->arena);
    home_close(&w->home);
}
