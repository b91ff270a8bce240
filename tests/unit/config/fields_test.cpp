// Types, ranges, choices and names of single fields; the round trip of the whole table.
#include <algorithm>
#include <set>

#include "config/fields.h"
#include "config/help.h"
#include "config/nearest.h"
#include "helpers.h"

namespace octet::test {
namespace {

TEST(Fields, DefaultsAreThoseOfTheStructs) {
  const RunConfig c = from_json(small_config());
  RunConfig expected;
  expected.model.vocab_size = 257;
  expected.model.hidden_size = 128;
  expected.model.intermediate_size = 384;
  expected.model.num_hidden_layers = 4;
  expected.model.num_attention_heads = 4;
  expected.data.train = {DataSource{"data/text", {}, "auto", {}}};
  expected.data.seq_len = 256;
  expected.batch = {4, 8};
  expected.optim.lr = 0.0005;
  expected.run.steps = 300;
  EXPECT_EQ(c, expected);
}

// A value of the field that differs from its default.
nlohmann::json other_value(const FieldInfo& f) {
  if (f.path == "data.train") return nlohmann::json::parse(R"([{"path": "a/b", "weight": 0.25, "format": "llmc", "index_cache": "c/d"}])");
  if (f.path == "data.valid") return nlohmann::json::parse(R"([{"name": "n", "path": "a/b", "format": "megatron"}])");
  if (f.path == "precision.rules") return nlohmann::json::parse(R"([{"match": "layers.0.*", "recipe": "bf16"}])");
  if (f.path == "precision.custom") {
    return nlohmann::json::parse(R"({"wgrad": {
      "dy": {"format": "e5m2", "block": [1, 64], "scale": "e8m0", "scaling": "static", "static_amax": 3.0, "hadamard": true, "rounding": "stochastic", "margin": 2, "amax_epsilon": 0.5},
      "x": {"format": "e3m2", "block": "row", "scale": "ue4m3", "scaling": "current", "hadamard": false, "rounding": "nearest", "margin": 0, "amax_epsilon": 0.0}}})");
  }
  switch (f.kind) {
    case FieldKind::integer: {
      const int64_t v = std::max<int64_t>(f.min ? static_cast<int64_t>(*f.min) : 0, 2);
      return f.fallback == v ? v + 1 : v;
    }
    case FieldKind::number: {
      const double v = std::max(f.min ? *f.min : 0.0, 0.375);
      return f.fallback == v ? v + 0.125 : v;
    }
    case FieldKind::boolean: return f.fallback != true;
    case FieldKind::text_list: return f.choices.empty() ? nlohmann::json::array({"a", "b"}) : nlohmann::json::array({f.choices.at(0), f.choices.at(1)});
    case FieldKind::text: break;
    case FieldKind::operands:
    case FieldKind::block:
    case FieldKind::object_list: ADD_FAILURE() << f.path << " has no test value"; break;
  }
  if (f.choices.empty()) return "some text";
  return f.fallback == f.choices[0] && f.choices.size() > 1 ? f.choices[1] : f.choices[0];
}

nlohmann::json::json_pointer pointer_to(const std::string& path) {
  std::string p = std::string("/") + path;
  std::replace(p.begin(), p.end(), '.', '/');
  return nlohmann::json::json_pointer(p);
}

TEST(Fields, EveryFieldSurvivesTheRoundTrip) {
  nlohmann::json all = small_config();
  for (const Field<RunConfig>& f : run_fields()) {
    ConfigTree tree{small_config(), {}};
    const nlohmann::json value = other_value(f);
    tree.set(f.path, value, "test");
    const RunConfig c = from_json(tree.values);
    const nlohmann::json written = to_json(c);
    const auto pointer = pointer_to(f.path);
    ASSERT_TRUE(written.contains(pointer)) << f.path;
    EXPECT_EQ(written.at(pointer), value) << f.path;
    EXPECT_EQ(from_json(written), c) << f.path;
    EXPECT_EQ(c == from_json(small_config()), value == f.fallback) << f.path;
    all[pointer] = value;
  }
  const RunConfig c = from_json(all);
  EXPECT_EQ(from_json(to_json(c)), c);
  EXPECT_EQ(to_json(from_json(nlohmann::json::parse(to_json(c).dump()))), to_json(c));
}

TEST(Fields, AnEmptyTextIsNotTheDefaultUnlessThatIsEmpty) {
  const RunConfig c = from_json(patched(R"({"data": {"split": ""}, "run": {"dir": ""}})"));
  EXPECT_EQ(to_json(c)["data"]["split"], "");
  EXPECT_FALSE(to_json(c)["run"].contains("dir"));
  EXPECT_EQ(from_json(to_json(c)), c);
}

TEST(Fields, RowsAreCompleteAndDistinct) {
  std::set<std::string> paths, flags;
  const std::string help = config_help();
  for (const Field<RunConfig>& f : run_fields()) {
    EXPECT_TRUE(paths.insert(f.path).second) << f.path;
    EXPECT_FALSE(f.doc.empty()) << f.path;
    EXPECT_NE(help.find("  " + f.path + " "), std::string::npos) << f.path << " is missing in --help";
    EXPECT_NE(help.find(f.doc), std::string::npos) << f.path;
    if (f.flag.name.empty()) continue;
    EXPECT_TRUE(flags.insert(f.flag.name).second) << f.flag.name;
    EXPECT_NE(help.find(f.flag.name), std::string::npos) << f.flag.name;
    EXPECT_EQ(f.flag.name.rfind("--", 0), 0u) << f.flag.name;
    if (f.flag.takes == FlagTakes::nothing || f.flag.takes == FlagTakes::optional_value) {
      ConfigTree tree{small_config(), {}};
      tree.set(f.path, f.flag.implied, f.flag.name);
      EXPECT_EQ(to_json(from_json(tree.values)).at(pointer_to(f.path)), f.flag.implied) << f.flag.name;
    }
  }
  for (const char* flag : {"--fp8-recipe", "--fp8-format", "--fp8-margin", "--fp8-amax-history-len", "--fp8-amax-compute-algo", "--no-fp8-wgrad",
                           "--first-last-layers-bf16", "--data-path", "--resume", "--run-dir", "--lr", "--seed", "--train-iters"}) {
    EXPECT_TRUE(flags.count(flag)) << flag;
  }
}

TEST(Fields, UnknownKeysNameTheNearest) {
  EXPECT_EQ(read_error(R"({"model": {"hiden_size": 1}})"), "unknown key model.hiden_size (did you mean model.hidden_size?)");
  EXPECT_EQ(read_error(R"({"modell": {}})"), "unknown key modell (did you mean model?)");
  EXPECT_EQ(read_error(R"({"model": {"rope_scaling": {"facto": 8}}})"),
            "unknown key model.rope_scaling.facto (did you mean model.rope_scaling.factor?)");
  EXPECT_EQ(read_error(R"({"precision": {"acumulate": {}}})"), "unknown key precision.acumulate (did you mean precision.accumulate?)");
  // Right key, wrong section.
  EXPECT_EQ(read_error(R"({"batch": {"warmup_steps": 3}})"), "unknown key batch.warmup_steps (did you mean sched.warmup_steps?)");
  EXPECT_EQ(read_error(R"({"data": {"train": [{"path": "x", "wieght": 1}]}})"),
            "unknown key data.train.0.wieght (did you mean data.train.0.weight?)");
  EXPECT_EQ(read_error(R"({"precision": {"rules": [{"match": "*", "recipe": "bf16", "recipes": 1}]}})"),
            "unknown key precision.rules.0.recipes (did you mean precision.rules.0.recipe?)");
  EXPECT_EQ(read_error(R"({"optim.lr": 1})"), "the config has the key \"optim.lr\", but keys are nested (write {\"a\": {\"b\": ...}} for a.b)");
  EXPECT_EQ(read_error("{\"optim\": {\"lr\\u0001x\": 1}}"), "unknown key optim.lr?x (did you mean optim.lr?)");
}

TEST(Fields, TypesAreStrict) {
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": 1.5}})"), "model.hidden_size must be an integer, not 1.5");
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": 128.0}})"), "model.hidden_size must be an integer, not 128.0");
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": true}})"), "model.hidden_size must be an integer, not true");
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": "128"}})"), "model.hidden_size must be an integer, not \"128\"");
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": [128]}})"), "model.hidden_size must be an integer, not a list");
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": 18446744073709551615}})"), "model.hidden_size is too large: 18446744073709551615");
  EXPECT_EQ(read_error(R"({"run": {"seed": -1}})"), "run.seed must be at least 0, not -1");
  EXPECT_EQ(read_error(R"({"optim": {"lr": "fast"}})"), "optim.lr must be a number, not \"fast\"");
  EXPECT_EQ(read_error(R"({"optim": {"lr": false}})"), "optim.lr must be a number, not false");
  EXPECT_EQ(read_error(R"({"optim": 3})"), "optim must be an object {...}, not 3");
  EXPECT_EQ(read_error(R"({"model": {"tie_word_embeddings": 1}})"), "model.tie_word_embeddings must be true or false, not 1");
  EXPECT_EQ(read_error(R"({"data": {"split": 99}})"), "data.split must be a string, not 99");
  EXPECT_EQ(read_error(R"({"data": {"train": "x"}})"), "data.train must be a list of objects, not \"x\"");
  EXPECT_EQ(read_error(R"({"data": {"train": ["x"]}})"), "data.train.0 must be an object {...}, not \"x\"");
  EXPECT_EQ(read_error(R"({"recompute": {"modules": "norm"}})"), "recompute.modules must be a list of strings, not \"norm\"");
  EXPECT_EQ(read_error(R"({"run": {"dir": "a\u0000b"}})"), "run.dir contains a NUL character");
  EXPECT_EQ(from_json(patched(R"({"optim": {"lr": 1}})")).optim.lr, 1.0);
  EXPECT_EQ(from_json(patched(R"({"run": {"seed": 18446744073709551615}})")).run.seed, UINT64_MAX);
}

TEST(Fields, RangesAreNamed) {
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": 0}})"), "model.hidden_size must be at least 1 and at most 131072, not 0");
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": -128}})"), "model.hidden_size must be at least 1 and at most 131072, not -128");
  EXPECT_EQ(read_error(R"({"model": {"vocab_size": 4294967296}})"), "model.vocab_size must be at least 2 and at most 16777216, not 4294967296");
  EXPECT_EQ(read_error(R"({"optim": {"lr": 0}})"), "optim.lr must be above 0.0 and at most 1000.0, not 0");
  EXPECT_EQ(read_error(R"({"optim": {"beta2": 1.0}})"), "optim.beta2 must be at least 0.0 and below 1.0, not 1.0");
  EXPECT_EQ(read_error(R"({"optim": {"beta1": -0.5}})"), "optim.beta1 must be at least 0.0 and below 1.0, not -0.5");
  EXPECT_EQ(read_error(R"({"precision": {"amax_history_len": 0}})"), "precision.amax_history_len must be at least 1 and at most 1048576, not 0");
  EXPECT_EQ(read_error(R"({"data": {"train": [{"path": "x", "weight": 0}]}})"), "data.train.0.weight must be above 0.0, not 0");
  EXPECT_EQ(read_error(R"({"data": {"train": [{"path": ""}]}})"), "data.train.0.path must not be empty");
}

TEST(Fields, ChoicesNameTheNearest) {
  EXPECT_EQ(read_error(R"({"precision": {"recipe": "blokwise"}})"),
            "precision.recipe must be one of fp32, bf16, delayed, tensorwise, static, rowwise, rowwise_with_gw_hp, blockwise, mxfp8, mxfp6, nvfp4, custom, not \"blokwise\" (did you mean "
            "\"blockwise\"?)");
  EXPECT_EQ(
      read_error(R"({"precision": {"recipe": "MXFP8"}})"),
      "precision.recipe must be one of fp32, bf16, delayed, tensorwise, static, rowwise, rowwise_with_gw_hp, blockwise, mxfp8, mxfp6, nvfp4, custom, not \"MXFP8\" (did you mean \"mxfp8\"?)");
  EXPECT_EQ(read_error(R"({"precision": {"rules": [{"match": "head", "recipe": "bf61"}]}})"),
            "precision.rules.0.recipe must be one of fp32, bf16, delayed, tensorwise, static, rowwise, rowwise_with_gw_hp, blockwise, mxfp8, mxfp6, nvfp4, custom, not \"bf61\" (did you mean "
            "\"bf16\"?)");
  EXPECT_EQ(read_error(R"({"precision": {"format": "e5m2"}})"),
            "precision.format = \"e5m2\": Pure E5M2 training is not supported, two mantissa bits are too few for weights and activations; use hybrid "
            "or e4m3");
  EXPECT_EQ(read_error(R"({"precision": {"wgrad": "b16"}})"), "precision.wgrad must be one of fp8, bf16, not \"b16\" (did you mean \"bf16\"?)");
  EXPECT_EQ(read_error(R"({"precision": {"accumulate": {"fprop": ""}}})"),
            "precision.accumulate.fprop must be one of fast, accurate, not \"\" (did you mean \"fast\"?)");
  EXPECT_EQ(read_error(R"({"sched": {"type": "cosin"}})"),
            "sched.type must be one of constant, linear, cosine, wsd, not \"cosin\" (did you mean \"cosine\"?)");
  EXPECT_EQ(read_error(R"({"recompute": {"modules": ["norm", "swigl"]}})"),
            "recompute.modules.1 must be one of norm, swiglu, attention, block, not \"swigl\" (did you mean \"swiglu\"?)");
}

TEST(Fields, MissingKeysAreListed) {
  nlohmann::json values = small_config();
  values["model"].erase("vocab_size");
  values.erase("optim");
  EXPECT_EQ(error_of([&] { from_json(values); }),
            "the config lacks model.vocab_size, optim.lr (give each in a --config file or as a flag, for example --set model.vocab_size=257; "
            "configs/runs/quickstart.json with configs/models/tiny_byte.json is a complete config)");
  const std::string all = error_of([] { from_json(nlohmann::json::object()); });
  for (const char* path : {"model.vocab_size", "model.hidden_size", "model.intermediate_size", "model.num_hidden_layers", "model.num_attention_heads",
                           "data.train", "data.seq_len", "batch.micro", "batch.global", "optim.lr", "run.steps"}) {
    EXPECT_NE(all.find(path), std::string::npos) << path;
  }
  EXPECT_EQ(read_error(R"({"data": {"train": [{"weight": 1}]}})"), "the config lacks data.train.0.path (for example \"path\": \"data/text\")");
}

TEST(Fields, CustomOperands) {
  const RunConfig c = from_json(patched(R"({"precision": {"recipe": "custom", "custom": {
    "fprop": {"x": {"format": "e4m3", "block": [1, 128]}, "w": {"format": "e4m3", "block": [128, 128], "scale": "pow2"}},
    "dgrad": {"dy": {"format": "e5m2", "block": "row"}, "w": {"format": "e2m1"}}}}})"));
  ASSERT_EQ(c.precision.custom.size(), 4u);
  const CustomOperand& w = c.precision.custom.at("fprop.w");
  EXPECT_EQ(w.block_rows, 128);
  EXPECT_EQ(w.block_cols, 128);
  EXPECT_EQ(w.scale, "pow2");
  EXPECT_EQ(c.precision.custom.at("fprop.x").block_rows, 1);
  EXPECT_EQ(c.precision.custom.at("dgrad.dy").block_rows, 1);
  EXPECT_EQ(c.precision.custom.at("dgrad.dy").block_cols, 0);
  EXPECT_EQ(c.precision.custom.at("dgrad.w").block_rows, 0);
  EXPECT_EQ(from_json(to_json(c)), c);
}

TEST(Fields, CustomErrors) {
  const auto error = [](const std::string& custom) { return read_error(("{\"precision\": {\"custom\": " + custom + "}}").c_str()); };
  EXPECT_EQ(error(R"({"fpropp": {}})"), "unknown key precision.custom.fpropp (did you mean precision.custom.fprop?)");
  EXPECT_EQ(error(R"({"FPROP": {}})"), "unknown key precision.custom.FPROP (did you mean precision.custom.fprop?)");
  EXPECT_EQ(error(R"({"wgrad": {"w": {}}})"), "unknown key precision.custom.wgrad.w (did you mean precision.custom.wgrad.x?)");
  EXPECT_EQ(error(R"({"fprop": {"x": {"format": "e4m3"}}})"),
            "precision.custom.fprop needs both operands, \"x\" and \"w\" (leave out the GEMM to keep it in BF16)");
  EXPECT_EQ(error(R"({"fprop": {"x": {}, "w": {}}})"), "the config lacks precision.custom.fprop.x.format (for example \"format\": \"e4m3\")");
  EXPECT_EQ(error(R"({"fprop": {"x": {"format": "e4m4"}, "w": {}}})"),
            "precision.custom.fprop.x.format must be one of bf16, e4m3, e5m2, e3m2, e2m3, e2m1, not \"e4m4\" (did you mean \"e4m3\"?)");
  EXPECT_EQ(error(R"({"fprop": {"x": {"format": "e4m3", "block": [1]}, "w": {}}})"),
            "precision.custom.fprop.x.block must be \"tensor\", \"row\" or [rows, length along the contraction], not a list of 1");
  EXPECT_EQ(error(R"({"fprop": {"x": {"format": "e4m3", "block": [1, -1]}, "w": {}}})"),
            "precision.custom.fprop.x.block.1 must be at least 0 and at most 1048576, not -1");
  EXPECT_EQ(error(R"({"fprop": {"x": {"format": "e4m3", "block": "column"}, "w": {}}})"),
            "precision.custom.fprop.x.block must be \"tensor\", \"row\" or [rows, length along the contraction], not \"column\"");
  EXPECT_EQ(error("3"), "precision.custom must be an object {...}, not 3");
}

TEST(Nearest, Distances) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("wieght", "weight"), 1u);   // neighbours swapped
  EXPECT_EQ(edit_distance("FP8-Recipe", "fp8_recipe"), 0u);
  EXPECT_EQ(edit_distance(std::string(1u << 20, 'a'), "a"), 127u);   // bounded work
  EXPECT_EQ(nearest("trian", {"data", "train", "bench"}), "train");
  EXPECT_EQ(nearest("x", {}), "");
}

}  // namespace
}  // namespace octet::test
