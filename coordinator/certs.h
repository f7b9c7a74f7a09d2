// SPDX-License-Identifier: Apache-2.0
// The coordinator's verbs about the cluster's own authority: init, token, issue, renew. They work
// on its directory, whether a coordinator runs or not. Inside coordinator/ only.
#pragma once

// argv[0] is the verb. Returns the exit code.
int certs_main(int argc, char **argv);
