// Derived values and checks across fields.
#include "helpers.h"

namespace octet::test {
namespace {

TEST(Validate, DerivesWhatIsAbsent) {
  const RunConfig c = validated(patched(R"({"run": {"steps": 3000, "seed": 7}, "sched": {"warmup_steps": 100}})"));
  EXPECT_EQ(c.model.num_key_value_heads, 4);
  EXPECT_EQ(c.model.head_dim, 32);
  EXPECT_EQ(c.precision.amax_history_len, 300);
  EXPECT_EQ(c.data.seed, 7);
  EXPECT_EQ(c.sched.decay_steps, 2900);
  EXPECT_EQ(from_json(to_json(c)), c);
  RunConfig again = c;
  validate(again);
  EXPECT_EQ(again, c);
}

TEST(Validate, HistoryIsCutToATenthOfTheRun) {
  const auto length = [](int64_t steps) {
    nlohmann::json values = small_config();
    values["run"]["steps"] = steps;
    return *validated(values).precision.amax_history_len;
  };
  EXPECT_EQ(length(1), 16);
  EXPECT_EQ(length(169), 16);
  EXPECT_EQ(length(170), 17);
  EXPECT_EQ(length(10239), 1023);
  EXPECT_EQ(length(1000000), 1024);
  EXPECT_EQ(validated(patched(R"({"precision": {"amax_history_len": 1}})")).precision.amax_history_len, 1);
}

TEST(Validate, ExplicitValuesStay) {
  const RunConfig c =
      validated(patched(R"({"model": {"num_key_value_heads": 2, "head_dim": 64}, "data": {"seed": 9}, "sched": {"decay_steps": 5}})"));
  EXPECT_EQ(c.model.num_key_value_heads, 2);
  EXPECT_EQ(c.model.head_dim, 64);
  EXPECT_EQ(c.data.seed, 9);
  EXPECT_EQ(c.sched.decay_steps, 5);
}

TEST(Validate, DecayOfEachSchedule) {
  EXPECT_EQ(validated(patched(R"({"sched": {"type": "constant"}})")).sched.decay_steps, 0);
  EXPECT_EQ(validated(patched(R"({"sched": {"type": "linear", "warmup_steps": 300}})")).sched.decay_steps, 0);
  EXPECT_EQ(validated(patched(R"({"sched": {"type": "wsd"}})")).sched.decay_steps, 30);
  EXPECT_EQ(validated(patched(R"({"sched": {"type": "wsd", "warmup_steps": 290}})")).sched.decay_steps, 10);
}

TEST(Validate, Model) {
  EXPECT_EQ(validate_error(R"({"model": {"num_key_value_heads": 3}})"),
            "model.num_key_value_heads: 4 query heads cannot be shared evenly by 3 key-value heads "
            "(num_attention_heads must be a multiple of num_key_value_heads)");
  EXPECT_EQ(validate_error(R"({"model": {"num_attention_heads": 3}})"),
            "model.num_attention_heads: hidden_size 128 does not divide into 3 heads (change one of the two or set model.head_dim)");
  EXPECT_EQ(validate_error(R"({"model": {"head_dim": 33}})"),
            "model.head_dim: 33 is odd, but rotary embeddings turn pairs of dimensions (make it even)");
  EXPECT_EQ(validate_error(R"({"model": {"partial_rotary_factor": 0.1}})"),
            "model.partial_rotary_factor: 0.1 of head_dim 32 makes 3 rotated dimensions (their number must be even and at least 2)");
  EXPECT_EQ(validate_error(R"({"model": {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 4.0}}})"),
            "model.rope_scaling.high_freq_factor: 4 must be above low_freq_factor 4");
  EXPECT_EQ(validate_error(R"({"model": {"max_position_embeddings": 128}})"),
            "data.seq_len: 256 is longer than model.max_position_embeddings 128 (shorten the samples or raise max_position_embeddings)");
  EXPECT_EQ(validate_error(R"({"model": {"hidden_size": 131072, "intermediate_size": 1048576, "num_hidden_layers": 4096, "num_attention_heads": 4096,
                                         "head_dim": 4096, "vocab_size": 16777216}})"),
            "model: these sizes make 3.77e+16 parameters, more than any machine holds (limit 2e+13) "
            "(check hidden_size, intermediate_size, num_hidden_layers and vocab_size)");
}

TEST(Validate, Data) {
  EXPECT_EQ(validate_error(R"({"data": {"train": []}})"), "data.train: the list is empty (name token files: --data-path PREFIX)");
  EXPECT_NO_THROW(validated(patched(R"({"data": {"train": [{"path": "a"}, {"path": "b"}]}})")));
  EXPECT_NO_THROW(validated(patched(R"({"data": {"train": [{"path": "a", "weight": 1}, {"path": "b", "weight": 3}]}})")));
  EXPECT_EQ(validate_error(R"({"data": {"train": [{"path": "a", "weight": 1}, {"path": "b"}]}})"),
            "data.train.1.weight: is absent, but given for the first source (give a weight for every source, or for none: then their sizes count)");
  EXPECT_EQ(validate_error(R"({"data": {"train": [{"path": "a"}, {"path": "b"}, {"path": "c", "weight": 1}]}})"),
            "data.train.2.weight: is given, but not for the first source (give a weight for every source, or for none: then their sizes count)");
  EXPECT_EQ(validate_error(R"({"data": {"train": [{"path": "a"}], "blend_cache": "c"}})"),
            "data.blend_cache: is given, but data.train has one source (list the sources of the cached blend, in its order)");
  EXPECT_EQ(validate_error(R"({"data": {"valid": [{"name": "w", "path": "a"}, {"name": "w", "path": "b"}]}})"),
            "data.valid.1.name: \"w\" is the name of two sets (rename one)");
  EXPECT_NO_THROW(validated(patched(R"({"data": {"split": "100,0,0", "valid": [{"name": "w", "path": "a"}]}, "eval": {"interval": 10}})")));
  EXPECT_EQ(validate_error(R"({"data": {"pad_id": 257}})"),
            "data.pad_id: 257 is not a token id of a vocabulary of 257 (set it to the tokenizer's padding id, or leave it out)");
  EXPECT_EQ(validate_error(R"({"data": {"split": "100,0,0"}, "eval": {"interval": 10}})"),
            "eval.interval: validation every 10 steps, but data.split \"100,0,0\" leaves no validation text "
            "(use a split such as 99,1,0, name sets in data.valid, or set eval.interval to 0)");
  EXPECT_EQ(validate_error(R"({"data": {"eod_id": 257, "document_mask": true}})"),
            "data.eod_id: 257 is not a token id of a vocabulary of 257 (set it to the tokenizer's end-of-document id)");
  EXPECT_NO_THROW(validated(patched(R"({"data": {"eod_id": 257}})")));
}

TEST(Validate, SeedOfTheSampleOrderHas32Bits) {
  EXPECT_EQ(validate_error(R"({"data": {"seed": -1}})"), "data.seed must be at least 0 and at most 4294967295, not -1");
  EXPECT_EQ(validate_error(R"({"data": {"seed": 4294967296}})"), "data.seed must be at least 0 and at most 4294967295, not 4294967296");
  EXPECT_EQ(validated(patched(R"({"data": {"seed": 4294967295}})")).data.seed, 4294967295);
  EXPECT_EQ(validated(patched(R"({"run": {"seed": 4294967295}})")).data.seed, 4294967295);
  EXPECT_EQ(validate_error(R"({"run": {"seed": 4294967296}})"),
            "run.seed: 4294967296 is too large to serve as data.seed, which is at most 4294967295 (set data.seed)");
  EXPECT_NO_THROW(validated(patched(R"({"run": {"seed": 18446744073709551615}, "data": {"seed": 0}})")));
}

TEST(Validate, Split) {
  const auto near = [](const char* text, double a, double b, double c) {
    const auto s = parse_split(text);
    EXPECT_DOUBLE_EQ(s[0], a) << text;
    EXPECT_DOUBLE_EQ(s[1], b) << text;
    EXPECT_DOUBLE_EQ(s[2], c) << text;
  };
  near("99,1,0", 0.99, 0.01, 0);
  near("969, 30, 1", 0.969, 0.03, 0.001);
  near("1", 1, 0, 0);
  near("3,1", 0.75, 0.25, 0);
  near("0.5,0.25,0.25", 0.5, 0.25, 0.25);
  for (const char* bad : {"", ",", "1,", "1,2,3,4", "a", "1;2", "-1,2", "1,nan,0", "1,inf", "1 2"}) {
    EXPECT_EQ(error_of([&] { parse_split(bad); }),
              "data.split: \"" + std::string(bad) + "\" is not one to three shares (write train,valid,test shares such as 99,1,0)");
  }
  for (const char* bad : {"0", "0,1,0", "0,0,0", "1e308,1e308,1e308"}) {
    EXPECT_EQ(error_of([&] { parse_split(bad); }),
              "data.split: \"" + std::string(bad) + "\" leaves no training text (write train,valid,test shares such as 99,1,0)");
  }
}

TEST(Validate, BatchAndSchedule) {
  EXPECT_EQ(validate_error(R"({"batch": {"micro": 3}})"),
            "batch.global: 8 is not a multiple of batch.micro 3 (an optimizer step is a whole number of micro-batches)");
  EXPECT_EQ(validate_error(R"({"batch": {"micro": 1048576, "global": 1048576}, "data": {"seq_len": 4194304}})"),
            "batch.micro: 1048576 samples of 4194304 tokens are 4398046511104 tokens in one forward pass (limit 2^31) "
            "(lower batch.micro; batch.global may stay)");
  EXPECT_EQ(validate_error(R"({"batch": {"micro": 1, "global": 16777216}, "data": {"seq_len": 4194304}, "run": {"steps": 1000000000}})"),
            "run.steps: the run would see 7.04e+22 tokens, more than can be counted (check run.steps and batch.global)");
  EXPECT_EQ(validate_error(R"({"sched": {"warmup_steps": 301}})"),
            "sched.warmup_steps: 301 steps of warm-up in a run of 300 steps (warm-up must end within run.steps)");
  for (const char* type : {"linear", "cosine", "wsd"}) {
    nlohmann::json values = patched(R"({"sched": {"warmup_steps": 200, "decay_steps": 101}})");
    values["sched"]["type"] = type;
    EXPECT_EQ(error_of([&] { validated(values); }),
              "sched.decay_steps: 101 steps of decay do not fit between 200 of warm-up and the end at 300 (shorten one of them or raise run.steps)");
    values["sched"]["decay_steps"] = 100;
    EXPECT_EQ(validated(values).sched.decay_steps, 100);
  }
  EXPECT_NO_THROW(validated(patched(R"({"sched": {"type": "constant", "warmup_steps": 200, "decay_steps": 101}})")));
}

TEST(Validate, Precision) {
  EXPECT_EQ(validate_error(R"({"precision": {"recipe": "custom"}})"),
            "precision.custom: recipe \"custom\" needs its operands here (configs/recipes/harm_e2m1.json is an example)");
  EXPECT_EQ(
      validate_error(R"({"precision": {"recipe": "bf16", "custom": {"fprop": {"x": {"format": "e4m3"}, "w": {"format": "e4m3"}}}}})"),
      "precision.custom: is given, but the recipe is \"bf16\" and would ignore it (set precision.recipe to \"custom\", or precision.custom to null)");
  EXPECT_EQ(validate_error(R"({"precision": {"recipe": "mxfp8", "first_last_layers_bf16": 2}})"),
            "precision.first_last_layers_bf16: 2 at each end of 4 layers leaves none for recipe \"mxfp8\" (lower it, or choose recipe bf16)");
  EXPECT_NO_THROW(validated(patched(R"({"precision": {"recipe": "mxfp8", "first_last_layers_bf16": 1}})")));
  EXPECT_NO_THROW(validated(patched(R"({"precision": {"rules": [{"match": "head", "recipe": "custom"}],
                                        "custom": {"fprop": {"x": {"format": "e4m3"}, "w": {"format": "e4m3"}}}}})")));
}

TEST(Validate, TracedSteps) {
  EXPECT_EQ(validate_error(R"({"log": {"profile": true, "profile_start": 5, "profile_end": 5}})"),
            "log.profile_end: 5, which is not behind log.profile_start 5 (it names the step after the last of the trace)");
  EXPECT_NO_THROW(validated(patched(R"({"log": {"profile_start": 50}})")));  // without a trace the two are idle
}

TEST(Validate, WhatThisBuildCannotDo) {
  for (const char* key : {"pp", "cp", "ep", "etp"}) {
    nlohmann::json values = small_config();
    values["parallel"][key] = 2;
    EXPECT_EQ(error_of([&] { validated(values); }), std::string("parallel.") + key + ": 2, but this version has data and tensor parallelism only (set it to 1)");
  }
  for (const int zero : {0, 1, 2, 3}) EXPECT_NO_THROW(validated(patched(fmt::format(R"({{"parallel": {{"zero": {}}}}})", zero).c_str())));
  EXPECT_EQ(validate_error(R"({"recompute": {"modules": ["norm", "block"], "swiglu_inputs": "fp8"}})"),
            "recompute.swiglu_inputs: \"fp8\", but recompute.modules has \"block\", which keeps none of them (set it to \"bf16\", or take \"block\" from the list)");
  EXPECT_EQ(validate_error(R"({"optim": {"master_weights": "bf16_remainder"}, "precision": {"recipe": "fp32"}})"),
            "optim.master_weights: \"bf16_remainder\", but the recipe fp32 has no BF16 weights (set it to \"fp32\", or choose another recipe)");
}

TEST(Validate, TensorParallelism) {
  nlohmann::json values = small_config();
  values["model"]["num_attention_heads"] = 12;
  values["model"]["num_key_value_heads"] = 4;
  values["model"]["head_dim"] = 32;
  values["model"]["intermediate_size"] = 128;
  const auto with = [&](int tp, bool sequence = false, bool codes = false, const char* recipe = "blockwise") {
    nlohmann::json v = values;
    v["precision"]["recipe"] = recipe;
    v["parallel"] = {{"tp", tp}, {"sequence_parallel", sequence}, {"fp8_activation_gather", codes}};
    return v;
  };
  const auto refused = [&](const nlohmann::json& v) { return error_of([&] { validated(v); }); };
  for (const int tp : {1, 2, 4}) EXPECT_NO_THROW(validated(with(tp))) << tp;
  EXPECT_NO_THROW(validated(with(4, true, true)));
  EXPECT_EQ(refused(with(8)), "parallel.tp: 8, which does not divide the 12 attention heads (set it to a divisor)");
  EXPECT_EQ(refused(with(3)), "parallel.tp: 3, which neither divides the 4 key/value heads nor is a multiple of them (set it to a divisor or a multiple)");
  EXPECT_EQ(refused(with(12)), "parallel.tp: 12, which leaves less than 16 of the 128 features of the MLP to a rank (lower it)");
  EXPECT_EQ(refused(with(1, true)), "parallel.sequence_parallel: true, but parallel.tp is 1 (set it to false, or parallel.tp to more than 1)");
  nlohmann::json kept = with(4);
  kept["model"]["intermediate_size"] = 320;   // parts of 128, 64, 64 and 64
  EXPECT_NO_THROW(validated(kept));
  kept["recompute"]["swiglu_inputs"] = "fp8";
  EXPECT_EQ(refused(kept), "recompute.swiglu_inputs: \"fp8\", but 4 ranks cut the 320 features of the MLP inside blocks of 128 (set it to \"bf16\", or lower parallel.tp)");
  kept["model"]["intermediate_size"] = 400;
  EXPECT_NO_THROW(validated(kept));
  EXPECT_EQ(refused(with(2, true, true, "bf16")), "parallel.fp8_activation_gather: true, but recipe bf16 quantizes nothing (set it to false, or choose an FP8 recipe)");
  EXPECT_EQ(refused(with(2, false, true)), "parallel.fp8_activation_gather: true, but without parallel.sequence_parallel nothing is gathered (set that to true, or this to false)");
}

TEST(Validate, ChecksConfigsAssembledInCode) {
  RunConfig c = validated(small_config());
  c.optim.beta2 = 1.0;
  EXPECT_EQ(error_of([&] { validate(c); }), "optim.beta2 must be at least 0.0 and below 1.0, not 1.0");
}

}  // namespace
}  // namespace octet::test
