#include "grad/reference_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "config/config_io.h"
#include "source_dir.h"

namespace octet::test {
namespace {

std::filesystem::path directory() { return std::filesystem::path(octet::test::source_dir()) / "tests/golden/model_reference"; }

std::vector<float> read_floats(const SafetensorsFile& f, const TensorInfo& t) {
  std::vector<float> out(static_cast<size_t>(t.shape.elements()));
  f.read(t.name, Dtype::f32, t.shape, out.data());
  return out;
}

std::vector<int32_t> read_ids(const SafetensorsFile& f, const std::string& name) {
  const TensorInfo* t = f.find(name);
  if (!t) throw std::runtime_error("no tensor " + name);
  std::vector<int32_t> out(static_cast<size_t>(t->shape.elements()));
  f.read(name, Dtype::i32, t->shape, out.data());
  return out;
}

}  // namespace

std::vector<std::string> reference_case_names() {
  std::vector<std::string> names;
  for (const auto& e : std::filesystem::directory_iterator(directory())) {
    if (e.path().extension() == ".safetensors") names.push_back(e.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ReferenceCase load_reference_case(const std::string& name) {
  const auto file = SafetensorsFile::open(directory() / (name + ".safetensors"));
  const auto about = nlohmann::json::parse(file.metadata().at("config"));
  ReferenceCase c;
  c.name = name;
  nlohmann::json run = {{"model", about.at("model")},
                        {"data", {{"train", {{{"path", "unused"}}}}, {"seq_len", about.at("seq_len")}}},
                        {"batch", {{"micro", about.at("samples")}, {"global", about.at("samples")}}},
                        {"optim", {{"lr", 1e-3}, {"z_loss", about.value("z_loss", 0.0)}}},
                        {"precision", {{"recipe", "fp32"}}},
                        {"eval", {{"interval", 1}}},
                        {"run", {{"steps", 10}, {"threads", 2}}}};
  c.config = from_json(run);
  validate(c.config);
  c.batch.samples = about.at("samples");
  c.batch.seq_len = about.at("seq_len");
  c.batch.tokens = read_ids(file, "tokens");
  c.batch.labels = read_ids(file, "labels");
  c.batch.positions = read_ids(file, "positions");
  c.batch.document_start = read_ids(file, "document_start");
  c.config.data.document_mask = std::any_of(c.batch.document_start.begin(), c.batch.document_start.end(), [](int32_t s) { return s != 0; });
  for (int32_t l : c.batch.labels) c.batch.valid_tokens += l >= 0;
  for (const TensorInfo& t : file.tensors()) {
    if (t.dtype != Dtype::f32) continue;
    if (t.name == "loss") {
      c.loss = read_floats(file, t)[0];
    } else if (t.name.rfind("grad/", 0) == 0) {
      c.gradients[t.name.substr(5)] = read_floats(file, t);
    } else {
      c.weights[t.name] = read_floats(file, t);
    }
  }
  return c;
}

void set_weights(Engine& engine, const ReferenceCase& c) {
  for (const auto& p : engine.model().params()) {
    const auto& w = c.weights.at(p->name);
    if (w.size() != static_cast<size_t>(p->shape.elements())) throw std::runtime_error(p->name + ": size differs from the reference");
    memcpy(p->master.data, w.data(), w.size() * sizeof(float));
  }
  engine.weights_loaded();
}

data::StepBatch split_batch(const ReferenceCase& c, int64_t micro) {
  data::StepBatch step;
  step.valid_tokens = c.batch.valid_tokens;
  const auto cut = [&](const std::vector<int32_t>& v, int64_t begin) {
    return std::vector<int32_t>(v.begin() + begin * c.batch.seq_len, v.begin() + (begin + micro) * c.batch.seq_len);
  };
  for (int64_t s = 0; s < c.batch.samples; s += micro) {
    data::MicroBatch b;
    b.samples = micro;
    b.seq_len = c.batch.seq_len;
    b.tokens = cut(c.batch.tokens, s);
    b.labels = cut(c.batch.labels, s);
    b.positions = cut(c.batch.positions, s);
    b.document_start = cut(c.batch.document_start, s);
    for (int32_t l : b.labels) b.valid_tokens += l >= 0;
    step.micro.push_back(std::move(b));
  }
  return step;
}

double relative_l2(const float* a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace octet::test
