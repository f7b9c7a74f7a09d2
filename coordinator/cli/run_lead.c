// SPDX-License-Identifier: Apache-2.0
// The leader of an allocation; see run_lead.h.
#include "coordinator/cli/run_lead.h"

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/base/plain.h"
#include "common/ckpt/store.h"
#include "common/plan/schema_list.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/request.h"
#include "coordinator/cli/run_place.h"
#include "coordinator/cli/run_record.h"

enum {
    LOOK_MS = 1000,
    KEEP_LOOKS = 5, // so often looks are made before the history is kept once more
    GONE_S = 15, // a host that is away for as long does not come back, where nobody starts it again
    TOKEN_HOSTS = 1000000, // a pod that comes again is another host
};
#define OTHER_NS    (30 * CLOCK_S)           // for another leader to end, which is being stopped
#define TOKEN_TTL_S (10LL * 365 * 24 * 3600) // it dies with its leader

// ---- what earlier starts left ----

static bool is_own(const struct stat *st)
{
    return st->st_uid == geteuid() && !(st->st_mode & 002);
}

// The newest folder of the job's name that is this user's. Another's may hold anything.
static bool find_store(const struct lead *l, char *out, size_t size)
{
    struct timespec newest = {0};
    size_t n = strlen(l->s.name);
    DIR *d = opendir(l->s.root);
    bool found = false;
    for (struct dirent *f; d && (f = readdir(d));) {
        char path[4700];
        struct stat folder, owner;
        if (strncmp(f->d_name, l->s.name, n) != 0 || f->d_name[n] != '-' ||
            !hex_is(f->d_name + n + 1, 8))
            continue;
        snprintf(path, sizeof path, "%s/%s/OWNER", l->s.root, f->d_name);
        if (fstatat(dirfd(d), f->d_name, &folder, AT_SYMLINK_NOFOLLOW) ||
            !S_ISDIR(folder.st_mode) || lstat(path, &owner) || !S_ISREG(owner.st_mode))
            continue;
        if (!is_own(&folder) || !is_own(&owner)) {
            plain_error("%s/%s is not this user's own: it is left alone", l->s.root, f->d_name);
            continue;
        }
        if (found &&
            (owner.st_mtim.tv_sec < newest.tv_sec ||
             (owner.st_mtim.tv_sec == newest.tv_sec && owner.st_mtim.tv_nsec <= newest.tv_nsec)))
            continue;
        found = (size_t)snprintf(out, size, "%s/%s", l->s.root, f->d_name) < size;
        newest = owner.st_mtim;
    }
    if (d)
        closedir(d);
    return found;
}

// A record of this node's, as the run that made the checkpoint folder would have left it.
static int write_record(const struct lead *l, const struct store_owner *owner, const char *store,
                        const char *base, struct arena *a, struct err *e)
{
    struct record r;
    struct job before;
    struct job_errors errs = {0};
    char cluster[ID_LEN + 1];
    if (!hex_is(owner->cluster, ID_LEN - 1) || !hex_is(owner->job, ID_LEN - 1) ||
        strcmp(owner->name, l->s.name) != 0)
        return err_set(e, ERR_DATA, "%s/OWNER is none of this job's", store);
    if (job_parse(a, &weft_schema, NULL, base, owner->resolved, strlen(owner->resolved), NULL, 0,
                  &before, &errs))
        return err_set(e, ERR_DATA, "%s/OWNER: the job in it cannot be read", store);
    int rc = record_open(&r, l->s.place, l->s.name, e);
    if (rc)
        return rc;
    request_random(r.request);
    job_hash(&before, r.hash);
    snprintf(r.job, sizeof r.job, "%s", owner->job);
    snprintf(r.store, sizeof r.store, "%s", store);
    snprintf(r.base, sizeof r.base, "%s", base);
    snprintf(cluster, sizeof cluster, "%s\n", owner->cluster);
    rc = folder_write(r.dir, "cluster", cluster, FOLDER_LOOSE, e);
    rc = rc ? rc : folder_write(r.dir, "resolved", owner->resolved, FOLDER_LOOSE, e);
    rc = rc ? rc : record_write(&r, e);
    record_close(&r);
    return rc;
}

static int take_up_store(const struct lead *l, const char *base, struct err *e)
{
    char path[4700];
    struct store s = {.fd = -1};
    struct store_owner owner;
    struct arena a = {0};
    if (!find_store(l, path, sizeof path))
        return 0;
    int rc = store_open(&s, NULL, path, e);
    rc = rc ? rc : store_read_owner(&s, &a, &owner, e);
    rc = rc ? rc : write_record(l, &owner, path, base, &a, e);
    store_close(&s);
    arena_clear(&a);
    return rc;
}

static bool another_leads(const struct lead *l, struct leader_file *f)
{
    return !leader_file_read(l->s.root, l->s.name, &l->s.secret, f, NULL) && f->ended < 0 &&
           several_leader_answers(&l->s, f, l->worker->signals);
}

// One that is being stopped is waited for a while.
static int check_alone(const struct lead *l)
{
    struct leader_file other;
    struct err e = {0};
    int64_t until = clock_mono_ns() + OTHER_NS;
    while (another_leads(l, &other)) {
        if (clock_mono_ns() > until) {
            err_set(&e, ERR_EXISTS, "another weft run leads this job, at %s%s%s", other.address[0],
                    *other.allocation ? ", of " : "", other.allocation);
            complain(l->verb, e.text, l->s.root, "wait for it, or stop it");
            return SEVERAL_AGAIN;
        }
        if (own_worker_asked_to_stop(l->worker, LOOK_MS)) {
            plain_error("it was asked to stop while it looked whether another weft run leads "
                        "this job");
            return CLIENT_INTERRUPTED;
        }
    }
    return CLIENT_OK;
}

int lead_find(struct lead *l, const struct job *job, const char *base)
{
    struct err e = {0};
    if (l->s.a.kind == ALLOCATION_NONE)
        return CLIENT_OK;
    snprintf(l->kind, sizeof l->kind, "%s", job_device_kind(job->resources.kind));
    l->devices = job->resources.devices;
    snprintf(l->base, sizeof l->base, "%s", base);
    int rc = several_open(&l->s, job, base, &e);
    if (rc) {
        complain(l->verb, e.text, *l->s.place ? l->s.place : l->s.root,
                 rc == ERR_EXISTS ? "wait for it, or stop it"
                                  : "mend it, or name another TMPDIR or checkpoint.dir");
        return rc == ERR_EXISTS ? SEVERAL_AGAIN : CLIENT_USAGE;
    }
    if ((rc = check_alone(l)))
        return rc;
    l->leads = true;
    if (take_up_store(l, base, &e)) {
        complain(l->verb, e.text, l->s.root, "move that folder away, or put its OWNER back");
        return CLIENT_USAGE;
    }
    return CLIENT_OK;
}

// ---- the file ----

static void add_address(struct leader_file *f, const char *host, int port)
{
    bool six = strchr(host, ':') != NULL;
    if (f->naddresses == LEADER_ADDRESSES || !*host)
        return;
    char *out = f->address[f->naddresses];
    snprintf(out, LEADER_ADDRESS, "%s%s%s:%d", six ? "[" : "", host, six ? "]" : "", port);
    for (int i = 0; i < f->naddresses; i++)
        if (strcmp(f->address[i], out) == 0)
            return;
    f->naddresses++;
}

static bool resolves(const char *host)
{
    struct addrinfo *list = NULL;
    bool does = !getaddrinfo(host, NULL, NULL, &list);
    if (does)
        freeaddrinfo(list);
    return does;
}

// What it may be reached by: what the scheduler calls it, its name, its addresses. The agents try them
// in turn, and see by the authority's hash whether it is the one.
static void list_addresses(const struct lead *l, struct leader_file *f, int port)
{
    char host[256] = "";
    struct ifaddrs *all = NULL;
    const char *node = getenv("SLURMD_NODENAME");
    f->naddresses = 0;
    // A word for ssh need not be a name for others.
    if (l->s.a.kind != ALLOCATION_UP || resolves(l->s.a.host))
        add_address(f, l->s.a.host, port);
    if (node && resolves(node))
        add_address(f, node, port);
    (void)gethostname(host, sizeof host - 1);
    if (getifaddrs(&all))
        all = NULL;
    for (const struct ifaddrs *it = all; it; it = it->ifa_next) {
        char text[NI_MAXHOST];
        int family = it->ifa_addr ? it->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) || !(it->ifa_flags & IFF_UP) ||
            it->ifa_flags & IFF_LOOPBACK || f->naddresses >= LEADER_ADDRESSES - 2)
            continue;
        socklen_t n = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if (!getnameinfo(it->ifa_addr, n, text, sizeof text, NULL, 0, NI_NUMERICHOST) &&
            !strchr(text, '%')) // of the link alone
            add_address(f, text, port);
    }
    if (all)
        freeifaddrs(all);
    if (resolves(host))
        add_address(f, host, port);
    add_address(f, "127.0.0.1", port); // of agents on this node
}

int lead_open(struct lead *l, const char *folder, struct own_coordinator *o, struct err *e)
{
    struct leader_file names = {0};
    const char *sans[LEADER_ADDRESSES];
    if (l->s.a.kind == ALLOCATION_NONE)
        return CLIENT_OK;
    list_addresses(l, &names, 0);
    for (int i = 0; i < names.naddresses; i++) {
        char *name = names.address[i];
        *strrchr(name, ':') = 0;
        if (*name == '[') {
            name++;
            name[strlen(name) - 1] = 0;
        }
        sans[i] = name;
    }
    snprintf(l->tls, sizeof l->tls, "%s/tls", folder);
    snprintf(l->listen, sizeof l->listen, "[::]:%d", l->s.a.port);
    o->listen = l->listen;
    o->tls_dir = l->tls;
    return tls_ca_init(l->tls, sans, names.naddresses, e);
}

// ---- while it leads ----

struct hosts {
    int ready, known; // known: that joined, gone or not
    int64_t devices;  // of those that are ready
};

static int ask_hosts(const struct lead *l, struct cli_link *link, struct hosts *out)
{
    V1_NEW(WorkersRequest, workers_request, req);
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    struct err e = {0};
    *out = (struct hosts){0};
    int rc = cli_link_try(link, LINK_WORKERS, &req.base, LINK_TIMEOUT_S * CLOCK_S, &m, &code, &e);
    if (rc)
        return rc;
    const Weft__V1__WorkersReply *all = (const Weft__V1__WorkersReply *)(const void *)m;
    out->known = (int)all->n_workers;
    for (size_t i = 0; i < all->n_workers; i++) {
        const Weft__V1__WorkerStatus *w = all->workers[i];
        if (strcmp(w->state, "away") == 0 || strcmp(w->state, "fenced") == 0)
            continue;
        out->ready++;
        for (size_t k = 0; k < w->n_devices; k++)
            out->devices += strcmp(w->devices[k]->device->kind, l->kind) == 0;
    }
    cli_link_free(m);
    return 0;
}

static void end_now(struct lead *l, int code, const char *what, const char *todo)
{
    complain(l->verb, what, l->s.root, todo);
    l->code = code;
    (void)eventfd_write(l->stop, 2);
}

// Whether all is well with who takes part. `missing_ns`: since when some are, 0: none is.
static bool check_hosts(struct lead *l, const struct hosts *h, bool *complete, int64_t *missing_ns)
{
    struct err e = {0};
    int64_t now = clock_mono_ns();
    if (h->ready >= l->s.a.size) {
        *missing_ns = 0;
        if (!*complete && h->devices < l->devices) {
            err_set(
                &e, ERR_INVALID,
                "the allocation is smaller than the mesh: %d hosts have %lld %s devices, and it "
                "wants %lld",
                h->ready, (long long)h->devices, l->kind, (long long)l->devices);
            end_now(l, SEVERAL_PERSON, e.text, "ask for more nodes, or make the mesh smaller");
            return false;
        }
        *complete = true;
        return true;
    }
    *complete |= h->known >= l->s.a.size; // one may come and go between two looks
    *missing_ns = *missing_ns ? *missing_ns : now;
    bool gone = *complete && !allocation_replaces(&l->s.a);
    if (now - *missing_ns < (gone ? GONE_S * CLOCK_S : l->s.wait_ns))
        return true;
    err_set(&e, ERR_PEER, "%d of %d hosts are here%s", h->ready, l->s.a.size,
            *complete ? ", others are gone" : "");
    end_now(l, SEVERAL_AGAIN, e.text,
            *complete ? "it is to be started again, and continues from its last checkpoint"
                      : "see the output of the others; WEFT_WAIT=10m waits longer");
    return false;
}

// Keeps what the job did until now. That it cannot is no reason to stop.
static void keep_history(const struct lead *l, struct cli_link *link)
{
    V1_NEW(JobRequest, job_request, req);
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    req.job = frame_text(l->s.name);
    if (cli_link_try(link, LINK_WHY, &req.base, LINK_TIMEOUT_S * CLOCK_S, &m, &code, NULL))
        return;
    (void)run_history_write(l->s.root, l->s.name, l->before,
                            (const Weft__V1__WhyReply *)(const void *)m, NULL);
    cli_link_free(m);
}

static void *look_after(void *arg)
{
    struct lead *l = arg;
    struct cli_link link = {0};
    struct pollfd p = {.fd = l->over, .events = POLLIN};
    bool dialled = !cli_link_dial(&link, l->verb, l->address, "", NULL);
    bool complete = false;
    int64_t missing_ns = 0;
    for (int looks = 1; poll(&p, 1, LOOK_MS) == 0; looks++) {
        struct leader_file now;
        struct hosts h;
        if (!leader_file_read(l->s.root, l->s.name, &l->s.secret, &now, NULL) &&
            strcmp(now.id, l->file.id) != 0) {
            end_now(l, SEVERAL_AGAIN, "another leader has taken this job over",
                    "it was started again while this one could not be seen: let that one work");
            break;
        }
        if (dialled && !l->stopping && !ask_hosts(l, &link, &h) && !l->stopping &&
            !check_hosts(l, &h, &complete, &missing_ns))
            break;
        if (dialled && looks % KEEP_LOOKS == 0)
            keep_history(l, &link);
    }
    if (dialled)
        keep_history(l, &link);
    cli_link_close(&link);
    return NULL;
}

int lead_begin(struct lead *l, const struct own_coordinator *o, int stop, struct err *e)
{
    const struct tls_token what = {"worker", NULL, TOKEN_HOSTS, TOKEN_TTL_S};
    const char *slurm = l->s.a.kind == ALLOCATION_SLURM ? getenv("SLURM_JOB_ID") : NULL;
    struct leader_file *f = &l->file;
    struct err none = {0};
    if (l->s.a.kind == ALLOCATION_NONE)
        return CLIENT_OK;
    const char *port = strrchr(coord_daemon_bound(o->daemon, 1), ':');
    list_addresses(l, f, port ? atoi(port + 1) : 0);
    snprintf(f->allocation, sizeof f->allocation, "%s", l->s.a.id);
    f->ended = -1;
    l->address = o->address;
    l->stop = stop;
    l->over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = l->over < 0 ? err_errno(e, ERR_IO, "cannot make an eventfd") : 0;
    rc = rc ? rc : entropy_id(f->id, e);
    rc = rc ? rc : tls_token_make(l->tls, &what, clock_wall_ms() / 1000, f->token, e);
    rc = rc ? rc : leader_file_write(l->s.root, l->s.name, &l->s.secret, f, e);
    l->published = !rc;
    int unread = rc ? 0 : run_history_read(l->s.root, l->s.name, &l->before, &none);
    if (unread && unread != ERR_NOTFOUND)
        plain_error("what earlier starts did is not kept: %s", none.text);
    // A pod's job file lies where nothing can be written.
    if (!rc)
        (void)run_place_write(l->base, l->s.name, slurm ? slurm : "", l->s.root, NULL);
    if (!rc && pthread_create(&l->thread, NULL, look_after, l))
        rc = err_set(e, ERR_IO, "cannot start a thread");
    l->watches = !rc;
    if (!rc)
        plain_error("leads %d host%s (%s), at %s; its file is %s/.weft/%s.leader", l->s.a.size,
                    l->s.a.size == 1 ? "" : "s", l->s.a.text, f->address[0], l->s.root, l->s.name);
    return rc;
}

void lead_stops(struct lead *l)
{
    l->stopping = true;
}

int lead_end(struct lead *l, int code, int signal)
{
    struct err e = {0};
    if (l->s.a.kind == ALLOCATION_NONE || l->ended)
        return code;
    l->ended = true;
    if (l->watches) {
        (void)eventfd_write(l->over, 1);
        pthread_join(l->thread, NULL);
    }
    l->watches = false;
    if (l->before)
        cli_link_free(l->before);
    l->before = NULL;
    code = l->code ? l->code : several_exit(code, signal);
    if (l->published) {
        if (leader_file_end(l->s.root, l->s.name, &l->s.secret, l->file.id, code, &e))
            plain_error("the agents do not learn how it ended: %s", e.text);
        l->published = false;
    } else if (l->leads) {
        struct leader_file f = {.ended = code};
        snprintf(f.allocation, sizeof f.allocation, "%s", l->s.a.id);
        // Agents that wait for a leader end as it does; where no word says which start it is they wait.
        if (*f.allocation && !entropy_id(f.id, NULL))
            (void)leader_file_write(l->s.root, l->s.name, &l->s.secret, &f, NULL);
    }
    if (*l->tls) { // keys and tokens, which nobody needs any more
        static const char *const parts[] = {"/tokens", "/names", ""};
        char path[sizeof l->tls + 16];
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s%s", l->tls, parts[i]);
            folder_remove(path);
        }
    }
    if (l->over > 0)
        close(l->over);
    l->over = 0;
    return code;
}
