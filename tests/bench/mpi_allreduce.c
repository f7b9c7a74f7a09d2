// SPDX-License-Identifier: Apache-2.0
// The peer of bench_allreduce.c: MPI_Allreduce in place, measured the same way. Built with mpicc.
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/allreduce_sizes.h"

int main(int argc, char **argv)
{
    static double us[MOST_BATCHES];
    int rank;
    void *buf = aligned_alloc(4096, MOST_BYTES);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!buf)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(buf, 0, MOST_BYTES);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int b = -WARM; b < sizes[s].batches; b++) {
            double t = MPI_Wtime();
            for (int i = 0; i < sizes[s].repeats; i++)
                MPI_Allreduce(MPI_IN_PLACE, buf, (int)(sizes[s].bytes / 4), MPI_FLOAT, MPI_SUM,
                              MPI_COMM_WORLD);
            if (b >= 0)
                us[b] = (MPI_Wtime() - t) * 1e6 / sizes[s].repeats;
        }
        if (rank == 0)
            printf("%zu %.2f\n", sizes[s].bytes, median(us, sizes[s].batches));
    }
    MPI_Finalize();
    free(buf);
    return 0;
}
