// find_launch: which launcher, from tables of environment variables; check_launch: singletons.
#include "comm/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "comm/world.h"
#include "core/error.h"

using namespace octet;

namespace {

struct LaunchCase {
  const char* what;
  std::map<std::string, std::string> environment;
  const char* launcher;   // a part of it; null: none
  int rank, size;
};

const LaunchCase kLaunches[] = {
    {"a shell", {{"HOME", "/root"}, {"RANK", "3"}, {"WORLD_SIZE", "8"}}, nullptr, -1, 0},
    {"Open MPI", {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "2"}}, "Open MPI", 2, 4},
    {"Open MPI of one rank", {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, "Open MPI", 0, 1},
    {"MPICH or Intel MPI", {{"PMI_RANK", "7"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "3"}}, "PMI", 7, 8},
    {"MVAPICH", {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}}, "MVAPICH", 1, 2},
    {"srun", {{"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "16"}}, "srun", 5, 16},
    {"a step smaller than its allocation", {{"SLURM_STEP_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_STEP_NUM_TASKS", "2"}}, "srun", 0, 2},
    {"srun with PMIx", {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"PMIX_RANK", "1"}}, "srun", 1, 2},
    {"mpirun in a Slurm allocation: Slurm counts daemons", {{"OMPI_COMM_WORLD_RANK", "9"}, {"OMPI_COMM_WORLD_SIZE", "16"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}},
     "Open MPI", 9, 16},
    {"in a shell of salloc", {{"SLURM_JOB_ID", "9"}, {"SLURM_NTASKS", "16"}}, nullptr, -1, 0},
    {"in an sbatch script", {{"SLURM_JOB_ID", "9"}, {"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}}, nullptr, -1, 0},
    {"Cray PALS", {{"PALS_RANKID", "3"}, {"PALS_LOCAL_RANKID", "1"}}, "PALS", 3, 0},
    {"PMIx alone", {{"PMIX_RANK", "6"}, {"PMIX_NAMESPACE", "x"}}, "PMIx", 6, 0},
    {"torchrun", {{"TORCHELASTIC_RUN_ID", "none"}, {"RANK", "1"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}, "torchrun", 1, 8},
    {"no numbers", {{"OMPI_COMM_WORLD_SIZE", "four"}, {"PMI_SIZE", ""}, {"MV2_COMM_WORLD_SIZE", "-2"}, {"SLURM_STEP_ID", "0x"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}, nullptr, -1, 0},
    {"numbers too large", {{"OMPI_COMM_WORLD_SIZE", "99999999999999"}, {"PMI_SIZE", "0"}}, nullptr, -1, 0},
};

TEST(Launch, by_environment) {
  for (const LaunchCase& c : kLaunches) {
    const Launch found = find_launch([&](const char* name) -> const char* {
      const auto at = c.environment.find(name);
      return at == c.environment.end() ? nullptr : at->second.c_str();
    });
    EXPECT_EQ(found.rank, c.rank) << c.what;
    EXPECT_EQ(found.size, c.size) << c.what;
    if (c.launcher) {
      EXPECT_NE(found.launcher.find(c.launcher), std::string::npos) << c.what << ": " << found.launcher;
    } else {
      EXPECT_EQ(found.launcher, "") << c.what;
    }
  }
}

TEST(Launch, singletons_are_refused_with_a_hint) {
  check_launch({"srun", 0, 4}, 4, "Open MPI v4");
  check_launch({"a PMIx launcher", 0, 0}, 4, "Open MPI v4");
  try {
    check_launch({"srun", 2, 4}, 1, "Open MPI v4");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::device);
    for (const char* part : {"srun started 4 processes", "MPI sees 1", "--mpi=pmix", "Open MPI v4"}) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
  EXPECT_THROW(check_launch({"torchrun", 0, 8}, 1, "Open MPI v4"), Error);
}

TEST(World, scratch_of_a_group_is_bounded) {
  const size_t mib = 1 << 20;
  EXPECT_EQ(World::scratch_bytes(1), 0u);
  EXPECT_EQ(World::scratch_bytes(2), 2 * mib);
  EXPECT_EQ(World::scratch_bytes(9), 16 * mib);
  EXPECT_LE(World::scratch_bytes(100), 16 * mib);
  EXPECT_EQ(World::scratch_bytes(129), 16 * mib);
  EXPECT_EQ(World::scratch_bytes(1025), 128 * mib);
}

}  // namespace
