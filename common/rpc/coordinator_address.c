// SPDX-License-Identifier: Apache-2.0
// Where the coordinator's address is looked for, in order. See coordinator_address.h.
#include "common/rpc/coordinator_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *host, *port;
} sources[] = {
    {"MASTER_ADDR", "MASTER_PORT"},
    {"SLURM_LAUNCH_NODE_IPADDR", NULL}, // where srun runs
    {"WEFT_COORDINATOR_SERVICE_HOST", "WEFT_COORDINATOR_SERVICE_PORT"},
};

static const char *get_variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

static int check_fit(char *out, size_t size, int n, struct err *e)
{
    if (n >= 0 && (size_t)n < size)
        return 0;
    out[0] = 0;
    return err_set(e, ERR_INVALID, "the coordinator's address is too long");
}

static int put_host(const char *host, const char *port_name, char *out, size_t size, struct err *e)
{
    const char *port = get_variable(port_name);
    char *end;
    long number = port ? strtol(port, &end, 10) : RPC_PORT;
    if (port && (*end || number < 1 || number > 65535))
        return err_set(e, ERR_INVALID, "%s is no port: '%s'", port_name, port);
    const char *form = strchr(host, ':') && host[0] != '[' ? "[%s]:%ld" : "%s:%ld";
    return check_fit(out, size, snprintf(out, size, form, host, number), e);
}

int coordinator_address(const char *flag, char *out, size_t size, struct err *e)
{
    const char *given = flag ? flag : get_variable("WEFT_COORDINATOR");
    out[0] = 0;
    if (given)
        return check_fit(out, size, snprintf(out, size, "%s", given), e);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        if (get_variable(sources[i].host))
            return put_host(get_variable(sources[i].host), sources[i].port, out, size, e);
    return coordinator_address_default(out, size, e);
}

int coordinator_address_default(char *out, size_t size, struct err *e)
{
    const char *run = get_variable("XDG_RUNTIME_DIR");
    if (geteuid() == 0 || !run)
        run = "/run";
    return check_fit(out, size, snprintf(out, size, "unix:%s/weft/coordinator.sock", run), e);
}
