#include "comm/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <optional>

#include "core/error.h"

namespace octet {
namespace {

std::optional<int> number(const EnvironmentLookup& lookup, const char* name) {
  const char* text = lookup(name);
  if (!text) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < 0) return std::nullopt;
  return value;
}

}  // namespace

Launch find_launch(const EnvironmentLookup& lookup) {
  const auto by_size = [&](const char* launcher, const char* rank, const char* size) -> std::optional<Launch> {
    const std::optional<int> n = number(lookup, size);
    if (!n || *n < 1) return std::nullopt;
    return Launch{launcher, number(lookup, rank).value_or(-1), *n};
  };
  if (auto l = by_size("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) return *l;
  if (auto l = by_size("a PMI launcher (MPICH's or Intel MPI's mpiexec, srun --mpi=pmi2)", "PMI_RANK", "PMI_SIZE")) return *l;
  if (auto l = by_size("MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")) return *l;
  if (number(lookup, "SLURM_STEP_ID") && number(lookup, "SLURM_PROCID")) {
    if (auto l = by_size("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")) return *l;
    if (auto l = by_size("srun", "SLURM_PROCID", "SLURM_NTASKS")) return *l;
  }
  if (const auto rank = number(lookup, "PALS_RANKID")) return {"Cray PALS", *rank, 0};
  if (const auto rank = number(lookup, "PMIX_RANK")) return {"a PMIx launcher", *rank, 0};
  if (lookup("TORCHELASTIC_RUN_ID")) {
    if (auto l = by_size("torchrun", "RANK", "WORLD_SIZE")) return *l;
  }
  return {};
}

void check_launch(const Launch& launch, int mpi_size, const std::string& mpi_library) {
  if (launch.size == 0 || launch.size == mpi_size) return;
  std::string fix = fmt::format("start it with the mpirun of the MPI it was built with: {}", mpi_library);
  if (launch.launcher == "srun") fix = fmt::format("try srun --mpi=pmix or srun --mpi=pmi2 (srun --mpi=list shows what there is), or {}", fix);
  throw Error(ExitCode::device, fmt::format("{} started {} processes, but MPI sees {}: they would train alone, each by itself", launch.launcher, launch.size, mpi_size), "launch", fix);
}

}  // namespace octet
