// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as the file by which agents find their leader, with a secret and without one. The
// file's last mac and that of its end are put right first, so that what lies behind them is reached. One that
// is accepted is printed and read again as it was.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/hash.h"
#include "coordinator/cli/leader_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

static void put_mac(const struct leader_secret *s, const char *text, size_t len, char *at)
{
    unsigned char mac[32];
    char hex[65];
    hmac_sha256(s->text, strlen(s->text), text, len, mac);
    hex_print(mac, sizeof mac, hex);
    memcpy(at, hex, 64);
}

// Writes the macs of `text` over the 64 characters that stand where they belong.
static void seal(const struct leader_secret *s, char *text)
{
    char *mac = strstr(text, "\nmac "), *id = strstr(text, "\nid "), *ended, said[64];
    int code;
    if (!mac || strlen(mac) < 5 + 64)
        return;
    put_mac(s, text, (size_t)(mac + 1 - text), mac + 5);
    ended = strstr(mac + 5 + 64, "\nended ");
    if (!id || !ended || sscanf(ended, "\nended %3d", &code) != 1)
        return;
    char *space = strchr(ended + 7, ' ');
    if (!space || strlen(space) < 1 + 64)
        return;
    int n = snprintf(said, sizeof said, "ended %d %.32s", code, id + 4);
    put_mac(s, said, (size_t)n, space + 1);
}

static void read_it(const struct leader_secret *s, const char *text)
{
    struct leader_file f, again;
    struct buf out = {0};
    struct err e = {0};
    if (leader_file_parse(text, s, &f, &e)) {
        must(e.code == ERR_DATA && *e.text);
        return;
    }
    must(f.naddresses >= 0 && f.naddresses <= LEADER_ADDRESSES && strlen(f.id) == ID_LEN - 1);
    must(f.ended >= -1 && f.ended <= 999 && strlen(f.token) < TLS_TOKEN_MAX);
    leader_file_print(&f, s, &out);
    must(!leader_file_parse(buf_str(&out), s, &again, &e));
    must(again.ended == f.ended && again.naddresses == f.naddresses);
    must(!strcmp(again.id, f.id) && !strcmp(again.allocation, f.allocation));
    for (int i = 0; i < f.naddresses; i++)
        must(!strcmp(again.address[i], f.address[i]));
    buf_clear(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct leader_secret secrets[] = {{""}, {"a secret of sixteen and more"}};
    char *text = malloc(size + 1);
    must(text != NULL);
    for (int i = 0; i < 2; i++) {
        memcpy(text, data, size);
        text[size] = 0;
        read_it(&secrets[i], text);
        seal(&secrets[i], text);
        read_it(&secrets[i], text);
    }
    free(text);
    return 0;
}
