// SPDX-License-Identifier: Apache-2.0
// Credentials and peers. See tls.h.
#include "common/rpc/tls.h"

#include <grpc/support/alloc.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/tls_cert.h"

enum { RELOAD_S = 1, CERT_TEXT_MAX = 16 << 10 };

bool tls_wanted(const struct rpc_tls *t)
{
    return t->ca || t->cert || t->key;
}

static int check_cert(const char *path, X509 **out, struct err *e)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return err_errno(e, ERR_IO, "cannot read certificate %s", path);
    *out = PEM_read_X509(f, NULL, NULL, NULL);
    fclose(f);
    return *out ? 0 : err_set(e, ERR_INVALID, "%s is no PEM certificate", path);
}

static int refuse_password(char *buf, int size, int rw, void *arg)
{
    (void)buf, (void)size, (void)rw, (void)arg;
    return 0;
}

static int check_pair(const struct rpc_tls *t, struct err *e)
{
    X509 *cert = NULL;
    EVP_PKEY *key = NULL;
    int rc = check_cert(t->cert, &cert, e);
    FILE *f = rc ? NULL : fopen(t->key, "re");
    if (!rc && !f)
        rc = err_errno(e, ERR_IO, "cannot read key %s", t->key);
    if (f) {
        key = PEM_read_PrivateKey(f, NULL, refuse_password, NULL);
        fclose(f);
        if (!key)
            rc = err_set(e, ERR_INVALID, "%s is no PEM key without a password", t->key);
        else if (X509_check_private_key(cert, key) != 1)
            rc = err_set(e, ERR_INVALID, "%s is not the key of %s", t->key, t->cert);
    }
    X509_free(cert);
    EVP_PKEY_free(key);
    ERR_clear_error();
    return rc;
}

static int check_files(const struct rpc_tls *t, bool server, struct err *e)
{
    X509 *ca = NULL;
    if (!t->ca || !t->cert != !t->key || (server && !t->cert))
        return err_set(e, ERR_INVALID, "TLS needs %s",
                       server ? "ca, cert and key" : "ca, and cert and key together");
    int rc = check_cert(t->ca, &ca, e);
    X509_free(ca);
    ERR_clear_error();
    return rc || !t->cert ? rc : check_pair(t, e);
}

static grpc_tls_credentials_options *watch_files(const struct rpc_tls *t)
{
    grpc_tls_certificate_provider *files =
        grpc_tls_certificate_provider_file_watcher_create(t->key, t->cert, t->ca, RELOAD_S);
    grpc_tls_credentials_options *o = grpc_tls_credentials_options_create();
    grpc_tls_credentials_options_set_certificate_provider(o, files); // has its own reference
    grpc_tls_certificate_provider_release(files);
    grpc_tls_credentials_options_watch_root_certs(o); // without these the provider is never asked
    if (t->cert)
        grpc_tls_credentials_options_watch_identity_key_cert_pairs(o);
    return o;
}

int tls_server_credentials(const struct rpc_tls *t, grpc_server_credentials **out, struct err *e)
{
    if (!tls_wanted(t)) {
        *out = grpc_insecure_server_credentials_create();
        return 0;
    }
    int rc = check_files(t, true, e);
    if (rc)
        return rc;
    grpc_tls_credentials_options *o = watch_files(t);
    grpc_tls_credentials_options_set_cert_request_type(
        o, GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    *out = grpc_tls_server_credentials_create(o); // takes o
    return 0;
}

int tls_channel_credentials(const struct rpc_tls *t, grpc_channel_credentials **out, struct err *e)
{
    if (!tls_wanted(t)) {
        *out = grpc_insecure_credentials_create();
        return 0;
    }
    int rc = check_files(t, false, e);
    if (!rc)
        *out = grpc_tls_credentials_create(watch_files(t));
    return rc;
}

// ---- peers ----

// The only value of a property as text; false when there is none, several, or it does not fit.
static bool find_property(grpc_auth_context *auth, const char *name, const char *prefix, char *out,
                          size_t size)
{
    grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(auth, name);
    size_t skip = strlen(prefix);
    int found = 0;
    for (const grpc_auth_property *p; (p = grpc_auth_property_iterator_next(&it));) {
        if (p->value_length < skip || memcmp(p->value, prefix, skip))
            continue;
        size_t len = p->value_length - skip;
        if (found++ || len >= size || memchr(p->value, 0, p->value_length))
            return false;
        memcpy(out, p->value + skip, len);
        out[len] = 0;
    }
    return found == 1;
}

static enum rpc_role parse_role(const char *name)
{
    static const enum rpc_role carried[] = {RPC_CLIENT, RPC_WORKER, RPC_ADMIN};
    for (size_t i = 0; i < sizeof carried / sizeof *carried; i++)
        if (!strcmp(name, rpc_role_name(carried[i])))
            return carried[i];
    return RPC_NONE;
}

void tls_peer(grpc_call *call, bool tls, struct rpc_peer *p)
{
    char role[32], hosts[16], pem[CERT_TEXT_MAX];
    char *address = grpc_call_get_peer(call);
    X509 *cert = NULL;
    *p = (struct rpc_peer){.role = tls ? RPC_NONE : RPC_LOCAL};
    snprintf(p->address, sizeof p->address, "%s", address);
    gpr_free(address);
    if (!tls)
        return;
    grpc_auth_context *auth = grpc_call_auth_context(call);
    bool named = find_property(auth, GRPC_X509_CN_PROPERTY_NAME, "", p->name, sizeof p->name);
    if (named && find_property(auth, GRPC_PEER_URI_PROPERTY_NAME, "weft:role:", role, sizeof role))
        p->role = parse_role(role);
    else
        p->name[0] = 0;
    if (p->role == RPC_WORKER &&
        find_property(auth, GRPC_X509_PEM_CERT_PROPERTY_NAME, "", pem, sizeof pem) &&
        !tls_cert_parse(pem, &cert, NULL)) {
        tls_key_sha256(X509_get0_pubkey(cert), p->print);
        X509_free(cert);
    }
    if (p->role == RPC_WORKER)
        p->hosts =
            find_property(auth, GRPC_PEER_URI_PROPERTY_NAME, "weft:hosts:", hosts, sizeof hosts)
                ? atoi(hosts)
                : 1;
    grpc_auth_context_release(auth);
}
