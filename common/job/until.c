// SPDX-License-Identifier: Apache-2.0
// When a training is to stop; see until.h.
#include "common/job/until.h"

#include <ctype.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/duration.h"

enum { DAY_S = 24 * 3600 };

// Two digits below `end`; moves on.
static bool take_pair(const char **at, int end, int *out)
{
    const char *s = *at;
    if (!isdigit((unsigned char)s[0]) || !isdigit((unsigned char)s[1]))
        return false;
    *out = (s[0] - '0') * 10 + s[1] - '0';
    *at = s + 2;
    return *out < end;
}

// HH:MM
static bool read_clock(const char *text, int *hour, int *minute)
{
    return take_pair(&text, 24, hour) && *text++ == ':' && take_pair(&text, 60, minute) && !*text;
}

bool until_ok(const char *text)
{
    int hour, minute;
    int64_t ns;
    return read_clock(text, &hour, &minute) || (!duration_read(text, &ns, NULL) && ns > 0);
}

int64_t until_end_ms(const char *text, int64_t now_ms)
{
    int hour, minute;
    int64_t ns = 0;
    if (!read_clock(text, &hour, &minute)) {
        (void)duration_read(text, &ns, NULL);
        return now_ms + ns / CLOCK_MS;
    }
    time_t now = (time_t)(now_ms / 1000);
    struct tm day;
    localtime_r(&now, &day);
    for (int later = 0;; later++) { // mktime mends a day beyond the month's last
        struct tm at = {.tm_year = day.tm_year,
                        .tm_mon = day.tm_mon,
                        .tm_mday = day.tm_mday + later,
                        .tm_hour = hour,
                        .tm_min = minute,
                        .tm_isdst = -1};
        int64_t ms = (int64_t)mktime(&at) * 1000;
        if (ms > now_ms || later > 1)
            return ms;
    }
}

int64_t until_read_time_left(const char *text)
{
    int64_t part[4] = {0}; // days, and what colons part
    int n = 0, days = 0;
    for (const char *at = text;; at++) {
        size_t digits = strspn(at, "0123456789");
        if (!digits || digits > 7)
            return -1;
        for (; digits; digits--)
            part[n] = part[n] * 10 + *at++ - '0';
        n++;
        if (!*at || *at == '\n')
            break;
        if (n == 4 || (*at == '-' && n != 1) || (*at != '-' && *at != ':'))
            return -1;
        days |= *at == '-';
    }
    int64_t seconds = 0;
    for (int i = days; i < n; i++)
        seconds = seconds * 60 + part[i];
    return n - days >= 2 && n - days <= 3 ? seconds + (days ? part[0] * DAY_S : 0) : -1;
}
