// SPDX-License-Identifier: Apache-2.0
// A batch script for Slurm: one task a node, each `weft run`. Slurm's --signal reaches the tasks before the
// time limit, and preemption's grace does; a job that ends within either is not queued again by Slurm
// itself, so the script does it on 75. The leader's code is read from its own file (leader_file.h): srun
// ends with the highest of all nodes, as 137 of one that was killed. The file is believed where it is
// this user's and of this very start.
#include <inttypes.h>

#include "coordinator/cli/render/cluster_facts.h"

static void print_word(const char *text, struct buf *out)
{
    buf_putc(out, '\'');
    for (; *text; text++)
        if (*text == '\'')
            buf_puts(out, "'\\''");
        else
            buf_putc(out, *text);
    buf_putc(out, '\'');
}

int render_slurm(const struct render_facts *f, struct arena *a, struct buf *out, struct err *e)
{
    (void)a;
    enum { SIGNAL_MAX = 65535 };
    if (f->stop_s > SIGNAL_MAX)
        return err_set(e, ERR_INVALID,
                       "it takes %d s to save and end, and Slurm's --signal comes at most %d s "
                       "before the time limit: if the storage is faster say so with --write-rate",
                       f->stop_s, SIGNAL_MAX);
    buf_puts(out, "#!/bin/sh\n");
    render_head(f, "sbatch THIS-FILE; its options may also be given to sbatch, which then wins",
                out);
    buf_printf(out,
               "#SBATCH --job-name=%s\n"
               "#SBATCH --nodes=%d\n"
               "#SBATCH --ntasks-per-node=1\n"
               "#SBATCH --cpus-per-task=%d\n"
               "#SBATCH --mem=%" PRIu64 "M\n",
               f->name, f->nodes, f->cores, f->memory_mib);
    if (f->job->resources.kind == JOB_CUDA)
        buf_printf(out, "#SBATCH --gpus-per-node=%d\n", f->per_node);
    if (f->o->queue)
        buf_printf(out, "#SBATCH --partition=%s\n", f->o->queue);
    buf_printf(out,
               "#SBATCH --signal=TERM@%d\n"
               "#SBATCH --requeue\n"
               "#SBATCH --open-mode=append\n"
               "#SBATCH --output=%s-%%j.log\n"
               "set -- # of an array's tasks each is a job of its own\n"
               "[ -z \"${SLURM_ARRAY_TASK_ID:-}\" ] || set -- -s \"name=%s-$SLURM_ARRAY_TASK_ID\"\n"
               "srun --ntasks-per-node=1 --cpus-per-task=%d --kill-on-bad-exit=0 --wait=%d ",
               f->stop_s, f->name, f->job->name, f->cores, // srun inherits no --cpus-per-task
               f->stop_s); // once one has ended, the node of another may be lost
    render_command(f, print_word, " \"$@\"", out);
    buf_puts(out, "\ncode=$? said=\nfile=");
    if (f->job->checkpoint.dir[0] != '/') {
        print_word(f->o->folder, out);
        buf_putc(out, '/');
    }
    print_word(f->job->checkpoint.dir, out);
    buf_printf(
        out,
        "/.weft/%s${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}.leader\n"
        "[ ! -f \"$file\" ] || [ ! -O \"$file\" ] || said=$(sed -n \"/^allocation slurm "
        "$SLURM_JOB_ID"
        "\\.[0-9]* start ${SLURM_RESTART_COUNT:-0}\\$/,\\$s/^ended \\([0-9]*\\) .*/\\1/p\" "
        "\"$file\")\n"
        "code=${said:-$code} # the leader's; srun has the highest of all nodes\n"
        "failures=%s-$SLURM_JOB_ID.failures # Slurm's own count has preemptions and time limits "
        "too\n"
        "case $code in\n"
        "0 | 2 | 65 | 66 | 76 | 78) rm -f $failures ;; # done, or the same would happen again\n"
        "75) scontrol requeue \"$SLURM_JOB_ID\" ;;\n"
        "*) echo $code >>$failures\n"
        "   [ \"$(wc -l <$failures)\" -gt %" PRId64 " ] || scontrol requeue \"$SLURM_JOB_ID\" ;;\n"
        "esac\n"
        "exit $code\n",
        f->job->name, f->name, f->job->restart.budget);
    return 0;
}
