// The configs in configs/: every one parses and composes, and the models have the sizes their publishers state.
#include <filesystem>
#include <set>

#include "config/model_size.h"
#include "helpers.h"
#include "source_dir.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(octet::test::source_dir() + "/configs/" + folder)) {
    if (entry.is_regular_file()) out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string config_path(const std::string& name) { return octet::test::source_dir() + "/configs/" + name; }

RunConfig composed(std::initializer_list<std::string> paths) {
  ConfigTree tree;
  for (const std::string& p : paths) tree.merge_file(p);
  RunConfig config = from_json(tree.values, tree.origins);
  validate(config);
  return config;
}

TEST(Shipped, ModelsRecipesAndRunsCompose) {
  std::set<std::string> recipes;
  for (const std::string& run : files_in("runs")) {
    for (const std::string& model : files_in("models")) {
      for (const std::string& recipe : files_in("recipes")) {
        const RunConfig c = composed({model, recipe, run});
        EXPECT_EQ(from_json(to_json(c)), c) << model << recipe << run;
        recipes.insert(c.precision.recipe);
      }
    }
  }
  EXPECT_EQ(recipes, (std::set<std::string>{"fp32", "bf16", "delayed", "tensorwise", "static", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "mxfp6",
                                             "nvfp4", "custom"}));
  for (const std::string& bench : files_in("bench")) EXPECT_GT(composed({bench}).batch.global, 0) << bench;
  EXPECT_EQ(composed({config_path("bench/llama3_8b_h200.json")}).model, composed({config_path("models/llama3_8b.json"), config_path("bench/llama3_8b_h200.json")}).model);
}

TEST(Shipped, ARecipeFileReplacesTheCustomOneBeforeIt) {
  const RunConfig c = composed({config_path("models/tiny_byte.json"), config_path("runs/quickstart.json"), config_path("recipes/harm_e2m1.json"),
                                config_path("recipes/blockwise.json")});
  EXPECT_EQ(c.precision.recipe, "blockwise");
  EXPECT_TRUE(c.precision.custom.empty());
  const RunConfig f = composed({config_path("models/tiny_byte.json"), config_path("runs/quickstart.json"), config_path("recipes/harm_e2m1.json"),
                                config_path("recipes/fprop_only_fp8.json")});
  EXPECT_EQ(f.precision.custom.size(), 2u);
  EXPECT_EQ(f.precision.custom.at("fprop.w").format, "e4m3");
}

TEST(Shipped, QuickstartIsTheDesignsSize) {
  const RunConfig c = composed({config_path("models/tiny_byte.json"), config_path("runs/quickstart.json")});
  EXPECT_EQ(c.batch.global * c.data.seq_len, 1024);
  EXPECT_EQ(c.model.num_hidden_layers, 4);
  EXPECT_EQ(c.model.hidden_size, 128);
  EXPECT_EQ(c.model.vocab_size, 257);
  EXPECT_EQ(c.model.num_attention_heads * c.model.head_dim, 128);
  EXPECT_EQ(c.optim.lr, 2.5e-4);
}

// Totals: Hugging Face model cards and safetensors indices of the five models.
TEST(ModelSize, PublishedTotals) {
  const struct {
    const char* name;
    int64_t parameters;
  } models[] = {
      {"llama3_8b", 8030261248}, {"llama3_70b", 70553706496}, {"llama3_405b", 405853388800}, {"qwen2.5_1.5b", 1543714304}, {"qwen3_8b", 8190735360}};
  for (const auto& m : models) {
    const RunConfig c = composed({config_path("models/" + std::string(m.name) + ".json"), config_path("runs/quickstart.json")});
    EXPECT_EQ(parameter_count(c.model), m.parameters) << m.name;
    EXPECT_EQ(padded_parameter_count(c.model), m.parameters) << m.name;   // these vocabularies are multiples of 128
  }
}

TEST(ModelSize, HandCounts) {
  ModelConfig m;
  m.vocab_size = 257;
  m.hidden_size = 8;
  m.intermediate_size = 16;
  m.num_hidden_layers = 2;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 6;
  // q 8*24, k and v 8*12 each, o 24*8, mlp 3*8*16
  const int64_t linear = 192 + 2 * 96 + 192 + 384;
  EXPECT_EQ(parameter_count(m), 2 * 257 * 8 + 2 * (linear + 2 * 8) + 8);
  EXPECT_EQ(padded_vocab_size(m), 384);
  EXPECT_EQ(padded_parameter_count(m) - parameter_count(m), 2 * (384 - 257) * 8);
  EXPECT_EQ(matmul_parameter_count(m), 2 * linear + 257 * 8);
  EXPECT_EQ(flops_per_token(m, 100), 6.0 * static_cast<double>(2 * linear + 257 * 8) + 6.0 * 2 * 24 * 100);
  m.tie_word_embeddings = true;
  m.attention_bias = true;
  m.use_qk_norm = true;
  EXPECT_EQ(parameter_count(m), 257 * 8 + 2 * (linear + 2 * 8 + 24 + 2 * 12 + 2 * 6) + 8);
  EXPECT_EQ(matmul_parameter_count(m), 2 * linear + 257 * 8);   // a tied head multiplies all the same
  m.num_key_value_heads = 0;
  m.head_dim = 0;   // derived: 4 heads of 2
  EXPECT_EQ(matmul_parameter_count(m), 2 * (4 * 8 * 8 + 384) + 257 * 8);
}

}  // namespace
}  // namespace octet::test
