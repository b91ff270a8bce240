/* Preloaded into a process under test: counts the bytes of point-to-point sends on all communicators, and writes them to $PMPI_COUNT.<rank> at MPI_Finalize. An oracle for Comm's own counts. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static long long bytes, messages;

static void count(int n, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  bytes += (long long)n * size;
  ++messages;
}

int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  count(n, type);
  return PMPI_Isend(data, n, type, to, tag, comm, request);
}

int MPI_Send(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  count(n, type);
  return PMPI_Send(data, n, type, to, tag, comm);
}

int MPI_Finalize(void) {
  const char* prefix = getenv("PMPI_COUNT");
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (prefix) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", prefix, rank);
    FILE* file = fopen(path, "w");
    if (file) {
      fprintf(file, "%lld %lld\n", bytes, messages);
      fclose(file);
    }
  }
  return PMPI_Finalize();
}
