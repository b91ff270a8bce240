// What a resumed run may change: classes of the field table, and configs that an older version wrote.
#include "config/resume_diff.h"

#include "helpers.h"

namespace octet::test {
namespace {

// A resolved config as the first released version wrote it: without the fields that came later.
nlohmann::json part1_resolved() {
  return nlohmann::json::parse(R"({
    "batch": {"global": 8, "micro": 4},
    "ckpt": {"interval": 0, "keep_last": 2, "resume": "never"},
    "data": {"document_mask": false, "eod_id": 256, "eod_mask_loss": false, "prefetch": 4, "reset_position_ids": false, "seed": 1234, "seq_len": 256,
             "split": "99,1,0", "train": [{"path": "data/text"}]},
    "eval": {"interval": 0, "samples": 64}, "guard": {"deadline_s": 0.0, "max_skipped": 3}, "log": {"interval": 1},
    "model": {"attention_bias": false, "head_dim": 32, "hidden_size": 128, "init_scale_output": true, "initializer_range": 0.02, "intermediate_size": 384,
              "max_position_embeddings": 0, "num_attention_heads": 4, "num_hidden_layers": 4, "num_key_value_heads": 4, "partial_rotary_factor": 1.0,
              "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 1.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
              "original_max_position_embeddings": 8192, "rope_type": "default"}, "rope_theta": 10000.0, "tie_word_embeddings": false, "use_qk_norm": false,
              "vocab_pad_multiple": 128, "vocab_size": 257},
    "optim": {"beta1": 0.9, "beta2": 0.95, "clip_norm": 1.0, "eps": 1e-08, "lr": 0.0005, "name": "adamw", "weight_decay": 0.1, "z_loss": 0.0},
    "parallel": {"cp": 1, "ep": 1, "etp": 1, "pp": 1, "sequence_parallel": false, "tp": 1, "zero": 0},
    "precision": {"accumulate": {}, "amax_compute_algo": "max", "amax_history_len": 30, "calibration_steps": 0, "dgrad": "fp8", "emulate": false,
                  "first_last_layers_bf16": 0, "head": "bf16", "margin": 0, "recipe": "custom", "rules": [], "wgrad": "fp8",
                  "custom": {"fprop": {"w": {"amax_epsilon": 0.0, "block": [128, 128], "format": "e4m3", "margin": 0, "rounding": "nearest", "scale": "fp32", "scaling": "current"},
                                       "x": {"amax_epsilon": 0.0, "block": "row", "format": "e4m3", "margin": 0, "rounding": "nearest", "scale": "fp32", "scaling": "current"}}}},
    "recompute": {"modules": []}, "run": {"cpu_gemm": "blas", "device": "auto", "init_perturbation": 0.0, "seed": 1234, "steps": 300, "threads": 0},
    "sched": {"decay_steps": 300, "min_lr_ratio": 0.1, "type": "cosine", "warmup_steps": 0}})");
}

// The same run described to this version.
nlohmann::json resolved_now(const char* patch = "{}") {
  nlohmann::json values = small_config();
  values["precision"] = {{"recipe", "custom"}, {"custom", {{"fprop", {{"w", {{"format", "e4m3"}, {"block", {128, 128}}}}, {"x", {{"format", "e4m3"}, {"block", "row"}}}}}}}};
  values.merge_patch(nlohmann::json::parse(patch));
  return to_json(validated(values));
}

std::vector<std::string> paths(const std::vector<ConfigChange>& changes) {
  std::vector<std::string> out;
  for (const ConfigChange& c : changes) out.push_back(c.path);
  return out;
}

using Paths = std::vector<std::string>;

TEST(ResumeDiff, AConfigOfAnOlderVersionHasTheDefaults) {
  // One default has changed since: data-parallel ranks share out the optimizer's state, which is nothing to one process.
  EXPECT_EQ(paths(config_changes(part1_resolved(), resolved_now())), Paths{"parallel.zero"});
  EXPECT_EQ(paths(config_changes(part1_resolved(), resolved_now(R"({"log": {"console": "megatron"}, "data": {"pad_id": 3}})"))), (Paths{"data.pad_id", "parallel.zero", "log.console"}));
}

TEST(ResumeDiff, NamesFieldsWithBothValues) {
  const auto changes = config_changes(resolved_now(), resolved_now(R"({"optim": {"lr": 0.002}, "run": {"steps": 400}, "data": {"train": [{"path": "b", "weight": 2}]},
    "precision": {"custom": {"fprop": {"x": {"block": "tensor"}}}}})"));
  EXPECT_EQ(paths(changes), (Paths{"data.train.0.path", "data.train.0.weight", "optim.lr", "sched.decay_steps", "precision.amax_history_len",
                                   "precision.custom.fprop.x.block", "run.steps"}));
  std::map<std::string, ConfigChange> by_path;
  for (const ConfigChange& c : changes) by_path[c.path] = c;
  EXPECT_EQ(by_path["optim.lr"].before, 0.0005);
  EXPECT_EQ(by_path["optim.lr"].now, 0.002);
  EXPECT_EQ(by_path["optim.lr"].on_resume, OnResume::warn);
  EXPECT_EQ(by_path["data.train.0.path"].on_resume, OnResume::warn);
  EXPECT_TRUE(by_path["data.train.0.weight"].before.is_null());
  EXPECT_EQ(by_path["data.train.0.weight"].on_resume, OnResume::forbidden);
  EXPECT_EQ(by_path["run.steps"].on_resume, OnResume::free);
  EXPECT_EQ(change_text(by_path["precision.custom.fprop.x.block"].before), "\"row\"");
}

TEST(ResumeDiff, KeysOfANewerVersionAreNamed) {
  nlohmann::json saved = resolved_now();
  saved["optim"]["momentum"] = 0.5;
  saved["moe"] = {{"experts", 8}};
  const auto changes = config_changes(saved, resolved_now());
  EXPECT_EQ(paths(changes), (Paths{"moe", "optim.momentum"}));
  for (const ConfigChange& c : changes) EXPECT_EQ(c.on_resume, OnResume::warn);
}

TEST(ResumeDiff, DamagedConfigsAreComparedSafely) {
  for (const char* saved : {"{}", R"({"model": 3, "data": [1], "run": null})", R"({"data": {"train": [1, "x"]}, "precision": {"custom": {"fprop": 1}}})", R"({"a.b": {"": {}}})"}) {
    EXPECT_FALSE(config_changes(nlohmann::json::parse(saved), resolved_now()).empty()) << saved;
  }
}

std::string refusal(const char* patch, const std::vector<std::string>& allowed = {}) {
  auto changes = config_changes(resolved_now(), resolved_now(patch));
  return error_of([&] { check_config_changes(changes, allowed); });
}

TEST(ResumeDiff, ForbiddenChangesAreRefusedUnlessNamed) {
  EXPECT_EQ(refusal(R"({"run": {"seed": 7}, "data": {"seed": 1234}})"),
            "run.seed: the run was started with 1234, resumed with 7 (keep the old value, start a new run with --init-from, or add --allow-config-change run.seed)");
  EXPECT_EQ(refusal(R"({"data": {"train": [{"path": "data/text"}], "split": "9,1", "seed": 5}})"),
            "data.split: the run was started with \"99,1,0\", resumed with \"9,1\"; 1 more like it (keep the old value, start a new run with --init-from, or add "
            "--allow-config-change data.split)");
  auto changes = config_changes(resolved_now(), resolved_now(R"({"data": {"split": "9,1", "train": [{"path": "data/text", "weight": 2}]}})"));
  EXPECT_NO_THROW(check_config_changes(changes, {"data.split", "data.train"}));
  EXPECT_TRUE(changes.at(0).allowed);
  EXPECT_EQ(refusal(R"({"data": {"train": [{"path": "data/text", "weight": 2}]}})"),
            "data.train.0.weight: the run was started with -, resumed with 2.0 (keep the old value, start a new run with --init-from, or add --allow-config-change data.train)");
}

TEST(ResumeDiff, ShapesCanNeverChange) {
  const std::string message = "model.intermediate_size: the run was started with 384, resumed with 192, but the checkpoint's tensors have the shape of the old value "
                              "(keep the old value, or start a new run)";
  EXPECT_EQ(refusal(R"({"model": {"intermediate_size": 192}})"), message);
  EXPECT_EQ(refusal(R"({"run": {"seed": 7}, "data": {"seed": 1234}, "model": {"intermediate_size": 192}})", {"model.intermediate_size", "run.seed"}), message);
}

TEST(ResumeDiff, AllowedNamesMustBeFields) {
  std::vector<ConfigChange> none;
  EXPECT_EQ(error_of([&] { check_config_changes(none, {"run.sed"}); }), "--allow-config-change: \"run.sed\" is no key of the config (did you mean run.seed?)");
  EXPECT_NO_THROW(check_config_changes(none, {"run.seed"}));
}

}  // namespace
}  // namespace octet::test
