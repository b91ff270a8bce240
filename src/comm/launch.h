// Launch: which launcher started this process, as its environment tells, and whether MPI agrees with it.
#pragma once
#include <functional>
#include <string>

namespace octet {

struct Launch {
  std::string launcher;   // "Open MPI's mpirun", "srun", ...; empty: none, the process is alone
  int rank = -1;          // -1: the environment does not say
  int size = 0;           // 0: the environment does not say
};

using EnvironmentLookup = std::function<const char*(const char*)>;   // a variable's value, or null: std::getenv

// The first of these that is there: Open MPI (OMPI_COMM_WORLD_SIZE), PMI of MPICH, Intel MPI and Cray (PMI_SIZE), MVAPICH (MV2_COMM_WORLD_SIZE), a srun step (SLURM_STEP_ID and SLURM_PROCID
// with SLURM_STEP_NUM_TASKS or SLURM_NTASKS), Cray PALS (PALS_RANKID), PMIx (PMIX_RANK), torchrun (TORCHELASTIC_RUN_ID, WORLD_SIZE), which can not start
// this program and is named in the error. mpirun comes before Slurm: inside an allocation its processes also have the SLURM variables, of the step that started
// its daemons. A program run directly in an allocation (salloc, an sbatch script) is no step, hence alone.
Launch find_launch(const EnvironmentLookup& lookup);

// Error(device) with a hint when MPI has another number of ranks than the launcher started: each process would otherwise train by itself.
void check_launch(const Launch& launch, int mpi_size, const std::string& mpi_library);

// The MPI of this build: "Open MPI v4.1.4".
std::string mpi_library();

}  // namespace octet
