// SPDX-License-Identifier: Apache-2.0
// The order of places to look for the coordinator's address; see coordinator_address.h.
#include "common/rpc/coordinator_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *host, *port;
} places[] = {
    {"MASTER_ADDR", "MASTER_PORT"},
    {"SLURM_LAUNCH_NODE_IPADDR", NULL}, // where srun runs
    {"WEFT_COORDINATOR_SERVICE_HOST", "WEFT_COORDINATOR_SERVICE_PORT"},
};

static const char *set(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

static int put(char *out, size_t size, int n, struct err *e)
{
    if (n >= 0 && (size_t)n < size)
        return 0;
    out[0] = 0;
    return err_set(e, ERR_INVALID, "the coordinator's address is too long");
}

static int put_host(const char *host, const char *port_name, char *out, size_t size, struct err *e)
{
    const char *port = set(port_name);
    char *end;
    long number = port ? strtol(port, &end, 10) : RPC_PORT;
    if (port && (*end || number < 1 || number > 65535))
        return err_set(e, ERR_INVALID, "%s is no port: '%s'", port_name, port);
    const char *form = strchr(host, ':') && host[0] != '[' ? "[%s]:%ld" : "%s:%ld";
    return put(out, size, snprintf(out, size, form, host, number), e);
}

int coordinator_address(const char *flag, char *out, size_t size, struct err *e)
{
    const char *given = flag ? flag : set("WEFT_COORDINATOR");
    out[0] = 0;
    if (given)
        return put(out, size, snprintf(out, size, "%s", given), e);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (set(places[i].host))
            return put_host(set(places[i].host), places[i].port, out, size, e);
    return coordinator_address_default(out, size, e);
}

int coordinator_address_default(char *out, size_t size, struct err *e)
{
    const char *run = set("XDG_RUNTIME_DIR");
    if (geteuid() == 0 || !run)
        run = "/run";
    return put(out, size, snprintf(out, size, "unix:%s/weft/coordinator.sock", run), e);
}
