// SPDX-License-Identifier: Apache-2.0
// Finds out what devices this host has. A short-lived process does it, so that no driver is ever
// loaded into a daemon. Inside worker/rank/ only.
#pragma once
#include "common/base/buf.h"
#include "common/base/err.h"

// One line of JSON to `out`:
// {"kind":"cpu","devices":[{"index":0,"model":"cpu","memory":8589934592,"isa":"avx2","driver":"",
// "pci":"","uuid":"","peers":""}]}: struct device_info's words. devices: 0, as many as the backend
// counts; a CPU may be taken for several. Each is opened once.
int probe_devices(const char *kind, int devices, struct buf *out, struct err *e);
