// SPDX-License-Identifier: Apache-2.0
// The header of llm.c's token files, 256 little-endian i32:
//
//   byte 0  magic    20240520: ids of u16 (GPT-2's); 20240801: of u32 (llama 3's)
//        4  version  1, or 7 for u32
//        8  tokens   their number
//       12  zeros
//     1024  ids
#include <string.h>

#include "common/data/array_format.h"

enum { LLMC_HEADER = 1024 };

static uint32_t read_word(const struct array *a, size_t i)
{
    uint32_t w;
    memcpy(&w, a->file + i * sizeof w, sizeof w);
    return w;
}

int llmc_parse(struct array *a, struct err *e)
{
    if (a->file_len < LLMC_HEADER)
        return err_set(e, ERR_DATA, "%s: byte %zu: the file ends within its header of %d bytes",
                       a->path, a->file_len, LLMC_HEADER);
    bool wide = memcmp(a->file, LLMC_U32, 4) == 0;
    uint32_t version = read_word(a, 1), want = wide ? 7 : 1;
    if (version != want)
        return err_set(e, ERR_UNSUPPORTED, "%s: byte 4: version %u of llm.c's tokens, not %u",
                       a->path, version, want);
    a->type = wide ? ARRAY_U32 : ARRAY_U16;
    a->shape = (struct shape){1, {read_word(a, 2)}};
    a->offset = LLMC_HEADER;
    return 0;
}
