// SPDX-License-Identifier: Apache-2.0
// Numbers of two bytes. Inside common/weights/ only.
#pragma once
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float float_of_bf16(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

static inline float float_of_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31,
             rest = bits & 0x3ff;
    if (exponent == 31) // infinity, or none
        return float_of_bits(sign | 0x7f800000 | rest << 13);
    if (exponent == 0) { // rest · 2^-24
        float x = (float)rest * 0x1p-24f;
        return sign ? -x : x;
    }
    return float_of_bits(sign | (exponent + 112) << 23 | rest << 13);
}

// To the nearest, of two the even one.
static inline uint16_t bf16_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
