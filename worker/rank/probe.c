// SPDX-License-Identifier: Apache-2.0
// The devices of this host. See probe.h.
#include "worker/rank/probe.h"

#include "common/base/json.h"
#include "kernels/backend.h"

static int probe_one(const struct backend *b, int index, struct json_out *w, struct err *e)
{
    struct device_options o = {.ordinal = index, .threads = 1, .deterministic = true};
    struct device_info info;
    struct device *device;
    int rc = b->device.open(&o, &device, e);
    if (rc)
        return rc;
    b->device.info(device, &info);
    b->device.close(device);
    json_object(w, NULL);
    json_int(w, "index", index);
    json_str(w, "model", info.model);
    json_uint(w, "memory", info.memory);
    json_str(w, "isa", info.isa);
    json_str(w, "driver", info.driver);
    json_str(w, "pci", info.pci);
    json_str(w, "uuid", info.uuid);
    json_str(w, "peers", info.peers);
    json_end(w);
    return 0;
}

int probe_devices(const char *kind, int devices, struct buf *out, struct err *e)
{
    const struct backend *b;
    struct json_out w;
    int rc = backend_load(kind, &b, e);
    if (rc)
        return rc;
    struct err why = {0};
    int n = devices ? devices : b->device.count(&why);
    if (n < 1)
        return err_set(e, ERR_DEVICE, "there is no device of the kind %s%s%s", kind,
                       why.code ? ": " : "", why.text);
    json_out_init(&w, out);
    json_object(&w, NULL);
    json_str(&w, "kind", b->name);
    json_array(&w, "devices");
    for (int i = 0; i < n && !rc; i++)
        rc = probe_one(b, i, &w, e);
    json_end(&w);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(out, '\n');
    return rc;
}
