// SPDX-License-Identifier: Apache-2.0
// Choosing a transport. See choose_transport.h.
//
// A rank offers "+VERSION PLACE HOST" where its device can carry collectives, else "-" and why not. PLACE is
// the device's on its host, and "@" with NCCL_HOSTID if that is set: NCCL takes it for the host's name, so
// with one for each rank several may share a GPU. All ranks get all offers, and come to the same.
#include "worker/collective/choose_transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/log.h"
#include "worker/collective/world.h"

enum { VALUE = GATHER_TEXT };

struct offer {
    char version[32], place[VALUE], host[VALUE];
};

static void print_own(const struct transport_options *o, struct collectives_library *library,
                      char value[VALUE])
{
    const struct backend_collectives *by = o->backend->collectives;
    const char *id = getenv("NCCL_HOSTID");
    struct device_info info;
    struct err why = {0};
    if (!by)
        err_set(&why, ERR_UNSUPPORTED,
                "libweft_%s.so was built without NCCL's header: build it where nccl.h is",
                o->backend->name);
    else
        (void)by->load(o->device, !o->world->remotes, library, &why);
    o->backend->device.info(o->device, &info);
    if (why.code)
        snprintf(value, VALUE, "-%s", why.text);
    else
        snprintf(value, VALUE, "+%s %s%s%.60s %s", library->version, info.pci[0] ? info.pci : "?",
                 id && id[0] ? "@" : "", id ? id : "", o->host);
}

// Adds rank r's offer to those of the ranks before it; false: the devices cannot do it, and why.
static bool add_offer(const struct transport_options *o, struct offer *all, int r,
                      const char *value, char why[VALUE])
{
    struct offer *own = &all[r];
    if (sscanf(value, "+%31s %255s %255[^\n]", own->version, own->place, own->host) != 3) {
        snprintf(why, VALUE, "rank %d: %.200s", r, value + (value[0] == '-'));
        return false;
    }
    if (strcmp(own->version, all->version) != 0) {
        snprintf(why, VALUE, "rank %d has NCCL %s, rank 0 %s: install one version on all hosts", r,
                 own->version, all->version);
        return false;
    }
    if (strcmp(own->host, all->host) != 0 && !o->plain) {
        snprintf(why, VALUE,
                 "NCCL encrypts nothing between hosts: resources.network: trusted allows that");
        return false;
    }
    for (int k = 0; k < r; k++)
        if (strcmp(all[k].place, own->place) == 0 && strcmp(all[k].host, own->host) == 0) {
            snprintf(why, VALUE,
                     "ranks %d and %d share the device %s, which NCCL refuses: let each worker of "
                     "the host see other GPUs (CUDA_VISIBLE_DEVICES)",
                     k, r, own->place);
            return false;
        }
    return true;
}

int transport_choose(const struct transport_options *o, const struct transport **out,
                     char by[TRANSPORT_BY], struct err *e)
{
    struct collectives_library library = {0};
    char own[VALUE], why[VALUE];
    *out = &host_transport;
    snprintf(by, TRANSPORT_BY, "hosts");
    if (o->wish == TRANSPORT_HOST)
        return 0;
    char(*got)[VALUE] = heap_alloc(sizeof *got * (size_t)o->ranks);
    struct offer *all = heap_alloc(sizeof *all * (size_t)o->ranks);
    print_own(o, &library, own);
    int rc = world_gather(o->world, "transport", own, got, e);
    bool can = !rc;
    for (int r = 0; r < o->ranks && can; r++)
        can = add_offer(o, all, r, got[r], why);
    if (can) {
        *out = &device_transport;
        snprintf(by, TRANSPORT_BY, "NCCL %s%s", library.version, library.pinned ? ", pinned" : "");
    }
    if (can && o->rank == 0)
        log_info("collectives", "from device to device, by %s", by);
    else if (!rc && !can && o->wish == TRANSPORT_DEVICES)
        rc = err_set(e, ERR_UNSUPPORTED, "resources.collectives is nccl: %s", why);
    else if (!rc && !can && o->rank == 0)
        log_info("collectives", "through the hosts: %s", why);
    free(all);
    free(got);
    return rc;
}
