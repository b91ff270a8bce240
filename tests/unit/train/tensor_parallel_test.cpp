// Tensor and sequence parallelism, alone and with data parallelism: ranks as threads against one rank that has everything.
#include "unit/train/parallel_run.h"

#include <limits>
#include <map>

#include "unit/train/deaf_world.h"

namespace octet::test {
namespace {

// Four heads, two key/value heads: with tp 4 two ranks have one. The vocabulary is no multiple of anything, so that the last ranks of tp have less of it, and the MLP is dealt unevenly.
RunConfig tp_config(const std::string& recipe) {
  RunConfig c = parallel_config(recipe);
  c.batch.micro = 1;
  c.batch.global = 4;
  c.model.num_hidden_layers = 2;
  validate(c);
  return c;
}

// Blocks of 128 end where the parts of two ranks do.
RunConfig block_config(const std::string& recipe) {
  RunConfig c = tp_config(recipe);
  c.model.head_dim = 128;
  c.model.hidden_size = 128;
  c.model.num_key_value_heads = 4;
  c.model.intermediate_size = 512;
  c.model.vocab_pad_multiple = 128;
  c.data.seq_len = 256;
  c.batch.global = 2;
  validate(c);
  return c;
}

std::string name_of(const Layouted& l) {
  return "dp " + std::to_string(l.dp) + ", zero " + std::to_string(l.zero) + ", tp " + std::to_string(l.tp) + (l.sequence ? ", sequence" : "") + (l.fp8_gather ? ", codes" : "");
}

Layouted tp(int ranks, bool sequence = false, bool fp8_gather = false, int dp = 1, int64_t zero = 1) { return {dp, zero, 1, true, ranks, sequence, fp8_gather}; }

void expect_close(const Seen& got, const Seen& want, double gradients, double losses, const std::string& where) {
  for (size_t i = 0; i < want.gradients.size(); ++i) EXPECT_LE(relative_l2(got.gradients[i], want.gradients[i]), gradients) << where << ", parameter " << i;
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, losses * want.steps[s].loss) << where << ", step " << s;
    EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 10 * losses * want.steps[s].grad_norm) << where << ", step " << s;
  }
  EXPECT_NEAR(got.validation, want.validation, losses * want.validation) << where;
}

class CutTiedOrNot : public testing::TestWithParam<bool> {};

// The bar: gradients of the first step within 1e-5 relative L2, losses and norms of 10 steps within 1e-5.
TEST_P(CutTiedOrNot, GradientsAndLossesAreThoseOfOneRank) {
  RunConfig c = tp_config("fp32");
  c.model.tie_word_embeddings = GetParam();
  c.optim.z_loss = 1e-4;
  const Seen want = run(c, {1, 1, 1}, 10);
  std::vector<Layouted> chosen{tp(2), tp(4), tp(2, true), tp(4, true), tp(2, true, false, 2, 3)};
  if (!GetParam()) chosen.insert(chosen.end(), {tp(2, false, false, 2, 0), tp(2, false, false, 2, 2), tp(4, true, false, 2, 1), tp(4, false, false, 2, 3)});
  for (const Layouted& l : chosen) {
    const Seen got = run(c, l, 10);
    expect_close(got, want, 1e-5, 1e-6, name_of(l));
    for (size_t s = 0; s < want.steps.size(); ++s) EXPECT_NEAR(got.steps[s].z_loss, want.steps[s].z_loss, 1e-5 * want.steps[s].z_loss) << name_of(l);
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, CutTiedOrNot, testing::Bool());

// Tokens that do not divide by the ranks, several micro-batches of several samples, no biases and no norms of heads.
TEST(TensorParallel, OddShapesAreThoseOfOneRank) {
  RunConfig c = tp_config("fp32");
  c.batch.micro = 2;
  c.data.seq_len = 27;
  c.model.use_qk_norm = c.model.attention_bias = false;
  c.model.intermediate_size = 100;
  c.model.vocab_size = 61;
  c.data.document_mask = true;
  const Seen want = run(c, {1, 1, 1}, 3);
  for (const Layouted& l : {tp(4, true), tp(4), tp(2, true, false, 2, 3)}) expect_close(run(c, l, 3), want, 1e-5, 1e-6, name_of(l));
}

// Recomputation makes the same numbers from what is kept, with gathers in backward.
TEST(TensorParallel, RecomputationChangesNoBit) {
  for (const char* recipe : {"bf16", "tensorwise"}) {
    RunConfig c = block_config(recipe);
    c.model.num_hidden_layers = 1;
    for (const Layouted& l : {tp(2), tp(2, true), tp(2, true, true)}) {
      if (l.fp8_gather == (std::string(recipe) == "bf16")) continue;
      c.recompute.modules = {};
      const Seen want = run(c, l, 2);
      for (const auto& modules : {std::vector<std::string>{"norm", "swiglu", "attention"}, {"block"}}) {
        c.recompute.modules = modules;
        const Seen got = run(c, l, 2);
        EXPECT_EQ(got.steps.back().loss, want.steps.back().loss) << recipe << ", " << name_of(l) << ", " << modules.front();
        EXPECT_TRUE(got.masters == want.masters) << recipe << ", " << name_of(l) << ", " << modules.front();
      }
    }
  }
}

class EveryRecipeCut : public testing::TestWithParam<std::string> {};

// Losses near one rank's, the same counts of elements and the same sites with statistics. Sums over tp add addends that were rounded to BF16: an addend more on the other side of an edge
// between two codes is a difference as of slightly other weights, which is what gradients are held to: those of a run whose weights are 1e-3 apart.
TEST_P(EveryRecipeCut, CountsAndLossesAreThoseOfOneRank) {
  if (GetParam() == "custom") return;   // its blocks fit no cut
  RunConfig c = block_config(GetParam());
  c.log.stats_interval = 2;
  const Seen want = run(c, {1, 1, 1}, 2);
  const bool quantizes = GetParam() != "fp32" && GetParam() != "bf16";
  RunConfig twin = c;
  twin.run.init_perturbation = 1e-3;
  const Seen other = run(twin, {1, 1, 1}, 1);
  std::vector<Layouted> chosen{tp(2), tp(4, true)};
  if (quantizes) chosen.push_back(tp(2, true, true));
  for (const Layouted& l : chosen) {
    const Seen got = run(c, l, 2);
    expect_close(got, want, GetParam() == "fp32" ? 1e-5 : 1.0, GetParam() == "fp32" ? 1e-6 : 1e-3, name_of(l));
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      EXPECT_LE(relative_l2(got.gradients[i], want.gradients[i]), 1.5 * relative_l2(other.gradients[i], want.gradients[i])) << name_of(l) << ", parameter " << i;
    }
    expect_same_counts(got, want);
    ASSERT_EQ(got.steps[1].health.size(), want.steps[1].health.size());
    for (size_t i = 0; i < want.steps[1].health.size(); ++i) {
      const QuantRegistry::HealthEntry &g = got.steps[1].health[i], &w = want.steps[1].health[i];
      EXPECT_EQ(g.site, w.site);
      // Padding of the vocabulary is measured too, and with tp there is more of it.
      if (g.site.rfind("head/", 0) != 0) {
        EXPECT_EQ(g.values.elements, w.values.elements) << name_of(l) << ", " << g.site << "." << g.image;
      }
      // A part, or addends, would be far off; with OpenBLAS' sums of one processor or another up to 2.4 % were seen.
      EXPECT_NEAR(g.values.sum_xx, w.values.sum_xx, 5e-2 * w.values.sum_xx) << name_of(l) << ", " << g.site << "." << g.image;
    }
  }
}

// Codes that travel are those that gathered BF16 values would have been quantized to: the same bits, for weights over the shards and activations over tp. Fewer bytes move.
TEST_P(EveryRecipeCut, FP8CommunicationChangesNoBit) {
  if (GetParam() == "custom" || GetParam() == "fp32" || GetParam() == "bf16") return;
  RunConfig c = block_config(GetParam());
  c.log.stats_interval = 2;
  const bool square = GetParam() != "rowwise" && GetParam() != "mxfp8";   // one image of a weight for both products
  for (const int64_t zero : {1, 3}) {
    Layouted l = tp(2, true, false, 2, zero);
    const Seen want = run(c, l, 2);
    l.fp8_gather = true;
    l.fp8_params = square;
    const Seen got = run(c, l, 2);
    EXPECT_TRUE(got.masters == want.masters) << GetParam() << ", zero " << zero;
    EXPECT_TRUE(got.scales == want.scales) << GetParam() << ", zero " << zero;
    EXPECT_EQ(got.validation, want.validation) << GetParam() << ", zero " << zero;
    expect_same_counts(got, want);
    for (size_t s = 0; s < want.steps.size(); ++s) {
      EXPECT_EQ(got.steps[s].loss, want.steps[s].loss) << GetParam() << ", zero " << zero;
      ASSERT_EQ(got.steps[s].health.size(), want.steps[s].health.size());
      for (size_t i = 0; i < want.steps[s].health.size(); ++i) {
        const QuantRegistry::HealthEntry &g = got.steps[s].health[i], &w = want.steps[s].health[i];
        EXPECT_EQ(g.values.elements, w.values.elements) << GetParam() << ", " << g.site << "." << g.image;
        EXPECT_EQ(g.values.amax, w.values.amax) << GetParam() << ", " << g.site << "." << g.image;
        EXPECT_EQ(g.values.underflow, w.values.underflow) << GetParam() << ", " << g.site << "." << g.image;
        EXPECT_NEAR(g.values.sum_ee, w.values.sum_ee, 1e-9 * w.values.sum_ee) << GetParam() << ", " << g.site << "." << g.image;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipeCut, testing::ValuesIn(all_recipes()), [](const auto& recipe) { return recipe.param; });

// What ranks of tp both have stays the same on them, bit for bit.
TEST(TensorParallel, CopiesStayAlike) {
  for (const std::string recipe : {"fp32", "tensorwise", "rowwise"}) {
    RunConfig c = tp_config(recipe);
    c.model.num_key_value_heads = 2;
    for (const bool sequence : {false, true}) {
      c.parallel.tp = 4;
      c.parallel.sequence_parallel = sequence;
      c.optim.moments = recipe == "fp32" ? "fp32" : "bf16";
      std::mutex mutex;
      std::map<std::pair<std::string, int64_t>, std::vector<float>> seen;
      run_local_ranks(4, [&](World& world) {
        const Mesh mesh(c, world);
        Engine e(c, Engine::Memory::poisoned, {}, &mesh);
        for (int64_t s = 0; s < 3; ++s) e.step(random_step(c, s), s);
        const std::lock_guard lock(mutex);
        int copies = 0;
        for (const auto& p : e.model().params()) {
          if (p->copies == 1) continue;
          ++copies;
          std::vector<float> values(p->master.as<float>(), p->master.as<float>() + p->master.elements());
          const auto [at, is_new] = seen.try_emplace({p->name, p->first_row}, values);
          EXPECT_TRUE(is_new || at->second == values) << recipe << ", " << p->name << (sequence ? ", sequence" : "");
        }
        EXPECT_EQ(copies, 2 * (2 + 2 + 4) + 1) << "norms, norms of heads, k and v with their biases; the last norm";
      });
    }
  }
}

// Codes and scales of every weight are those of one rank, wherever it is cut.
TEST(TensorParallel, WeightsHaveTheCodesOfOneRank) {
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise", "mxfp8"}) {
    RunConfig c = block_config(recipe);
    Engine one(c);
    one.evaluate(random_step(c, 0).micro);
    std::vector<const Linear*> whole;
    for (const Unit& u : one.model().units()) whole.insert(whole.end(), u.linears.begin(), u.linears.end());
    for (const int ranks : {2, 4}) {
      c.parallel.tp = ranks;
      run_local_ranks(ranks, [&](World& world) {
        const Mesh mesh(c, world);
        Engine e(c, Engine::Memory::plain, {}, &mesh);
        e.evaluate(random_step(c, 0).micro);
        size_t number = 0;
        for (const Unit& u : e.model().units()) {
          for (const Linear* l : u.linears) {
            for (size_t i = 0; i < l->parts().size(); ++i) {
              const Linear::Part &part = l->parts()[i], &want = whole[number]->parts()[i];
              for (const bool column : {false, true}) {
                const PlainImage got = plain_image(column ? part.w_col : part.w_row, column), all = plain_image(column ? want.w_col : want.w_row, column);
                const int64_t rows = part.weight->logical_rows;
                int64_t differ = 0;
                for (int64_t r = 0; r < rows; ++r) {
                  for (int64_t k = 0; k < got.cols; ++k) {
                    const int64_t R = r + part.weight->first_row, K = k + part.weight->first_col;
                    differ += got.codes[static_cast<size_t>(r * got.cols + k)] != all.codes[static_cast<size_t>(R * all.cols + K)];
                    const auto scale = [](const PlainImage& image, int64_t row, int64_t col, const Operand& o) {
                      const int64_t grid_row = o.block_rows == 0 ? 0 : row / o.block_rows, grid_col = o.block_cols == 0 ? 0 : col / o.block_cols;
                      return image.scale_inv[static_cast<size_t>(grid_row * image.grid_cols + grid_col)];
                    };
                    differ += scale(got, r, k, column ? part.w_col : part.w_row) != scale(all, R, K, column ? want.w_col : want.w_row);
                  }
                }
                EXPECT_EQ(differ, 0) << recipe << ", tp " << ranks << ", " << l->module() << "/" << part.name << (column ? ", column" : ", row");
              }
            }
            ++number;
          }
        }
      });
    }
  }
}

// A NaN that one rank of tp meets: all skip the step alike.
TEST(TensorParallel, AStepThatIsNotFiniteOnOneRankIsSkippedByAll) {
  RunConfig c = block_config("blockwise");
  c.parallel.tp = 2;
  for (const bool sequence : {false, true}) {
    c.parallel.sequence_parallel = sequence;
    run_local_ranks(2, [&](World& world) {
      const Mesh mesh(c, world);
      Engine e(c, Engine::Memory::poisoned, {}, &mesh);
      e.step(random_step(c, 0), 0);
      if (!mesh.first()) {
        for (const auto& p : e.model().params()) {
          if (p->name.find("down_proj") != std::string::npos) p->master.as<float>()[0] = std::numeric_limits<float>::infinity();
        }
      }
      const auto before = masters(e);
      e.weights_loaded(1);
      const StepResult r = e.step(random_step(c, 1), 1);
      EXPECT_TRUE(r.skipped);
      EXPECT_GT(r.nonfinite, 0);
      EXPECT_EQ(masters(e), before);
      EXPECT_FALSE(r.offender.empty());
      EXPECT_EQ(e.updates(), 1);
    });
  }
}

TEST(TensorParallel, TheProofFindsAddendsThatAreSummedOverTheWrongRanks) {
  for (const char* deaf : {"", "tp", "kv", "shard"}) {
    run_local_ranks(8, [&](World& world) {
      RunConfig c = tp_config("bf16");
      c.parallel.tp = 4;
      c.parallel.sequence_parallel = true;
      const bool found = proof_with_deaf_group(c, world, deaf).find("is summed over other ranks than") != std::string::npos;
      EXPECT_EQ(found, *deaf != 0) << deaf;
    });
  }
}

std::string refusal(const RunConfig& c) {
  std::string text;
  std::mutex mutex;
  run_local_ranks(static_cast<int>(c.parallel.tp), [&](World& world) {
    const Mesh mesh(c, world);
    try {
      Engine e(c, Engine::Memory::plan_only, {}, &mesh);
    } catch (const Error& e) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(e.code, ExitCode::config);
      if (mesh.first()) text = e.what();
    }
  });
  return text;
}

TEST(TensorParallel, CutsThroughBlocksAreRefused) {
  RunConfig c = tp_config("blockwise");
  c.parallel.tp = 2;
  EXPECT_EQ(refusal(c), "parallel.tp: 2, which cuts q_proj of layers.0.attn.qkv at output 64 of 128, inside a block of recipe blockwise (lower it, or choose a recipe without such blocks, as tensorwise, "
                        "rowwise or bf16)");
  c.precision.recipe = "mxfp8";
  EXPECT_EQ(refusal(c), "");
  c = block_config("blockwise");
  c.parallel.tp = 4;
  c.parallel.sequence_parallel = c.parallel.fp8_activation_gather = true;
  EXPECT_EQ(refusal(c), "parallel.fp8_activation_gather: true, but 256 tokens of a micro-batch do not divide into 4 parts of whole blocks of 128 tokens (head) (set it to false, or change "
                        "batch.micro or data.seq_len)");
}

}  // namespace
}  // namespace octet::test
