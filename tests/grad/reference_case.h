// A case of tests/golden/model_reference: a tiny model, a batch, and the loss and gradients of an independent implementation.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/loader.h"
#include "train/engine.h"

namespace octet::test {

struct ReferenceCase {
  std::string name;
  RunConfig config;                                   // recipe fp32
  data::MicroBatch batch;                             // all samples
  std::map<std::string, std::vector<float>> weights;  // padded rows included
  std::map<std::string, std::vector<float>> gradients;
  double loss = 0;
};

std::vector<std::string> reference_case_names();
ReferenceCase load_reference_case(const std::string& name);

// The case's weights into an engine's masters.
void set_weights(Engine& engine, const ReferenceCase& c);
// The case's samples cut into micro-batches of `micro`.
data::StepBatch split_batch(const ReferenceCase& c, int64_t micro);
// ||a - b|| / ||b||, 0 when both are 0.
double relative_l2(const float* a, const std::vector<float>& b);

}  // namespace octet::test
