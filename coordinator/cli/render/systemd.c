// SPDX-License-Identifier: Apache-2.0
// A unit of systemd for a job on one machine: `weft run`, started again as its exit codes say, and shut off
// from what it does not need.
#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cli/render/cluster_facts.h"

// An argument of ExecStart: no specifier, no variable, no end of line.
static void print_argument(const char *text, struct buf *out)
{
    buf_putc(out, '"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            buf_printf(out, "\\%c", *text);
        else if (*text == '%' || *text == '$')
            buf_printf(out, "%c%c", *text, *text);
        else if (*text == '\n')
            buf_puts(out, "\\n");
        else
            buf_putc(out, *text);
    buf_putc(out, '"');
}

// A folder that the job writes. In lists of paths a backslash is itself and no quote can be written within
// its own kind.
static int print_writable(const char *folder, struct buf *out, struct err *e)
{
    const char quote = strchr(folder, '"') ? '\'' : '"';
    if (strchr(folder, '\n') || strchr(folder, quote))
        return err_set(e, ERR_INVALID,
                       "a unit cannot name the folder %s: it has a line break, or quotes of both "
                       "kinds; move it",
                       folder);
    buf_printf(out, "ReadWritePaths=%c", quote);
    for (; *folder; folder++)
        buf_printf(out, *folder == '%' ? "%%%%" : "%c", *folder);
    buf_printf(out, "%c\n", quote);
    return 0;
}

int render_systemd(const struct render_facts *f, struct arena *a, struct buf *out, struct err *e)
{
    const struct job_restart *r = &f->job->restart;
    const char *checkpoints = job_path(f->job, a, f->job->checkpoint.dir);
    render_head(f, "into /etc/systemd/system, then systemctl enable --now; log: journalctl -u",
                out);
    buf_printf(out,
               "[Unit]\n"
               "Description=weft run of job %s\n"
               "Wants=network-online.target\n"
               "After=network-online.target remote-fs.target\n"
               "StartLimitIntervalSec=%" PRId64 "\n"
               "StartLimitBurst=%" PRId64 "\n"
               "\n"
               "[Service]\n"
               "User=%s\n"
               "ExecStart=",
               f->job->name, (int64_t)((r->per + CLOCK_S - 1) / CLOCK_S), r->budget + 1,
               f->o->user ? f->o->user : "weft");
    render_command(f, print_argument, "", out);
    buf_printf(out,
               "\n"
               "Restart=on-failure\n"
               "RestartSec=%" PRId64 "ms\n"
               "RestartForceExitStatus=75\n"
               "RestartPreventExitStatus=2 65 66 76 78\n"
               "SuccessExitStatus=130\n"
               "KillMode=mixed\n"
               "TimeoutStopSec=%d\n"
               "OOMPolicy=continue\n"
               "MemoryLow=%" PRIu64 "M\n"
               "CPUQuota=%d%%\n"
               "NoNewPrivileges=yes\n"
               "CapabilityBoundingSet=\n"
               "SystemCallFilter=@system-service\n"
               "RestrictNamespaces=yes\n"
               "RestrictSUIDSGID=yes\n"
               "LockPersonality=yes\n"
               "ProtectSystem=strict\n"
               "ProtectHome=read-only\n"
               "ProtectKernelTunables=yes\n"
               "ProtectKernelModules=yes\n"
               "ProtectControlGroups=yes\n"
               "PrivateTmp=yes\n",
               (int64_t)(r->backoff[0] / CLOCK_MS), f->stop_s, f->memory_mib, f->cores * 100);
    if (f->job->resources.kind == JOB_CPU)
        buf_puts(out, "PrivateDevices=yes\n");
    int rc = print_writable(f->o->folder, out, e);
    size_t n = strlen(f->o->folder);
    if (!rc && (strncmp(checkpoints, f->o->folder, n) != 0 || checkpoints[n] != '/'))
        rc = print_writable(checkpoints, out, e);
    buf_puts(out, "\n[Install]\nWantedBy=multi-user.target\n");
    return rc;
}
