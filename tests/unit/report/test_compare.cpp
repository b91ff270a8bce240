#include <cmath>
#include <gtest/gtest.h>

#include "core/error.h"
#include "fixture.h"
#include "report/compare.h"

namespace octet::report {
namespace {

using namespace octet::test;

RunShape shape(const std::string& recipe, uint64_t seed, double gap = 0) {
  RunShape s;
  s.recipe = recipe;
  s.name = recipe + "-" + std::to_string(seed);
  s.seed = seed;
  s.gap_percent = gap;
  return s;
}

RunMetrics run(const std::string& recipe, uint64_t seed, double gap = 0) { return make_run(shape(recipe, seed, gap)); }

ExitCode compare_code(CompareInput input) {
  try {
    compare(std::move(input), {});
  } catch (const Error& error) {
    return error.code;
  }
  return ExitCode::ok;
}

TEST(Judge, VerdictsOfNonInferiority) {
  // Half width of three gaps d apart: t(0.975, 2) d / sqrt(3) = 2.484 d.
  const auto around = [](double center, double d) { return std::vector<double>{center - d, center, center + d}; };
  EXPECT_EQ(judge(around(0.10, 0.05), 0.25).verdict, Verdict::pass);          // upper 0.224
  EXPECT_EQ(judge(around(0.10, 0.07), 0.25).verdict, Verdict::inconclusive);  // upper 0.274
  EXPECT_EQ(judge(around(0.50, 0.09), 0.25).verdict, Verdict::fail);          // lower 0.276
  EXPECT_EQ(judge(around(0.50, 0.11), 0.25).verdict, Verdict::inconclusive);  // lower 0.227
  EXPECT_EQ(judge(around(-3.0, 0.10), 0.25).verdict, Verdict::pass);
  const Judgement j = judge(around(0.10, 0.05), 0.25);
  EXPECT_NEAR(j.gap_percent, 0.10, 1e-12);
  EXPECT_NEAR(*j.upper_percent, 0.10 + 4.302653 * 0.05 / std::sqrt(3.0), 1e-6);
  EXPECT_NEAR(*j.lower_percent, 0.10 - 4.302653 * 0.05 / std::sqrt(3.0), 1e-6);
}

TEST(Judge, InconclusiveSaysHowManySeeds) {
  const Judgement j = judge({0.0, 0.1, 0.2, 0.3}, 0.25);  // mean 0.15, s 0.129
  EXPECT_EQ(j.verdict, Verdict::inconclusive);
  EXPECT_EQ(j.more_seeds, 5);  // n = 9: 2.306 * 0.1291 / 3 = 0.0992 < 0.1; n = 8: 2.365 * 0.1291 / sqrt(8) = 0.1079
}

TEST(Judge, ASinglePairHasNoIntervalAndADivergedOneFails) {
  const Judgement one = judge({0.01}, 0.25);
  EXPECT_EQ(one.verdict, Verdict::single_pair);
  EXPECT_FALSE(one.upper_percent || one.lower_percent || one.stddev_percent);
  EXPECT_EQ(judge({INFINITY}, 0.25).verdict, Verdict::fail);
  EXPECT_EQ(judge({0.01, INFINITY, 0.02}, 0.25).verdict, Verdict::fail);
}

TEST(ComparePair, KnownGapByValidation) {
  const Pair pair = compare_pair(run("blockwise", 1, 0.3), run("bf16", 1), Measure::validation, 1);
  EXPECT_NEAR(pair.gap_percent, 0.3, 1e-9);
  EXPECT_EQ(pair.tokens, 200 * 1024);
  EXPECT_NEAR(pair.baseline_loss, ideal_loss(200) + 0.05, 1e-12);
  EXPECT_NEAR(pair.max_abs_gap_percent, 0.3, 1e-9);
  EXPECT_NEAR(*pair.grad_norm_ratio, 1, 1e-12);
  EXPECT_NEAR(*pair.throughput_ratio, 1, 1e-12);
  EXPECT_FALSE(pair.divergence);
}

TEST(ComparePair, TrainingLossIsTheMeanOfTheWindow) {
  RunShape a = shape("bf16", 1), b = shape("blockwise", 1);
  a.steps = b.steps = 500;  // window 40
  b.extra_percent = [](int64_t step) { return step > 460 ? 2.0 : 50.0; };
  EXPECT_NEAR(compare_pair(make_run(b), make_run(a), Measure::training, 1).gap_percent, 2, 1e-9);
  a.steps = b.steps = 200;  // window 20
  b.extra_percent = [](int64_t step) { return step > 180 ? 2.0 : 50.0; };
  EXPECT_NEAR(compare_pair(make_run(b), make_run(a), Measure::training, 1).gap_percent, 2, 1e-9);
  b.extra_percent = [](int64_t step) { return step > 181 ? 2.0 : 50.0; };
  EXPECT_GT(compare_pair(make_run(b), make_run(a), Measure::training, 1).gap_percent, 3);
}

TEST(ComparePair, AlignsByTokensNotSteps) {
  RunShape a = shape("bf16", 1), b = shape("blockwise", 1, 0.5);
  a.noise = b.noise = 0;
  b.tokens_per_step = 2048;  // same curve over steps, so twice as fast over tokens
  b.steps = 100;
  RunMetrics slow = make_run(a), fast = make_run(b);
  for (auto& p : fast.train) p.loss = ideal_loss(2 * p.step) * 1.005;  // now the same over tokens
  fast.valid = {{50, 102400, 1.01 * slow.valid[1].loss}, {75, 102400 + 1, 3}};
  const Pair valid = compare_pair(fast, slow, Measure::validation, 1);
  EXPECT_EQ(valid.tokens, 102400);
  EXPECT_NEAR(valid.gap_percent, 1, 1e-9);
  const Pair train = compare_pair(fast, slow, Measure::training, 1);
  EXPECT_EQ(train.tokens, 204800);
  EXPECT_NEAR(train.gap_percent, 0.5, 0.2);  // windows of 10 steps of 2048 and 20 of 1024 cover the same tokens
}

TEST(ComparePair, ALongerRunIsComparedWhereBothHaveData) {
  RunShape a = shape("bf16", 1), b = shape("blockwise", 1, 0.5);
  a.steps = 120;
  const Pair valid = compare_pair(make_run(b), make_run(a), Measure::validation, 1);
  EXPECT_EQ(valid.tokens, 100 * 1024);
  EXPECT_NEAR(valid.gap_percent, 0.5, 1e-9);
  const Pair train = compare_pair(make_run(b), make_run(a), Measure::training, 1);
  EXPECT_EQ(train.tokens, 120 * 1024);
  EXPECT_NEAR(train.gap_percent, 0.5, 1e-9);
}

TEST(ComparePair, ARunThatEndedEarlyHasNoGap) {
  RunShape b = shape("blockwise", 1, -0.5);
  b.steps = 120;
  for (const Measure measure : {Measure::validation, Measure::training}) {
    const Pair pair = compare_pair(make_run(b), run("bf16", 1), measure, 1);
    EXPECT_EQ(pair.failure, "ended at 122880 of 204800 tokens");
    EXPECT_TRUE(std::isinf(pair.gap_percent) && std::isfinite(pair.loss));
  }
  b.steps = 199;  // one step short: a different count of the last step
  EXPECT_EQ(compare_pair(make_run(b), run("bf16", 1), Measure::training, 1).failure, "");
  b.steps = 198;
  EXPECT_EQ(compare_pair(make_run(b), run("bf16", 1), Measure::training, 1).failure, "ended at 202752 of 204800 tokens");
  RunMetrics sparse = run("blockwise", 1);  // every tenth step: its last row may lie up to ten steps before the end
  std::erase_if(sparse.train, [](const TrainPoint& p) { return p.step % 10 != 5; });
  EXPECT_EQ(compare_pair(sparse, run("bf16", 1), Measure::validation, 1).failure, "");
  sparse.train.pop_back();
  EXPECT_EQ(compare_pair(sparse, run("bf16", 1), Measure::validation, 1).failure, "ended at 189440 of 204800 tokens");
}

TEST(ComparePair, FirstDivergenceLastsToTheEnd) {
  RunShape b = shape("blockwise", 1);
  b.noise = 0;
  RunShape a = shape("bf16", 1);
  a.noise = 0;
  b.extra_percent = [](int64_t step) { return step > 20 && step < 60 ? 5.0 : 0.0; };  // comes back
  EXPECT_FALSE(compare_pair(make_run(b), make_run(a), Measure::training, 1).divergence);
  b.extra_percent = [](int64_t step) { return (step > 20 && step < 60) || step > 150 ? 5.0 : 0.0; };
  const auto d = compare_pair(make_run(b), make_run(a), Measure::training, 1).divergence;
  ASSERT_TRUE(d);
  EXPECT_EQ(d->step, 155);  // 4 of 20 steps of the window at 5 %: still 1 % or less; at the fifth it is above
  EXPECT_EQ(d->tokens, 155 * 1024);
}

TEST(ComparePair, ADivergedRunHasAnInfiniteGap) {
  RunShape b = shape("blockwise", 1);
  b.extra_percent = [](int64_t step) { return step > 110 ? NAN : 0.0; };
  b.steps = 120;
  b.valid_every = 100;  // the last validation was still fine
  const Pair pair = compare_pair(make_run(b), run("bf16", 1), Measure::validation, 1);
  EXPECT_TRUE(std::isinf(pair.gap_percent) && std::isnan(pair.loss));
  ASSERT_TRUE(pair.divergence);
  EXPECT_GT(pair.divergence->step, 110);
}

TEST(ComparePair, ASkippedStepUnderwayIsForgivenAtTheEndItIsNot) {
  RunShape b = shape("blockwise", 1, 0.2);
  b.extra_percent = [](int64_t step) { return step == 150 ? NAN : 0.0; };
  EXPECT_NEAR(compare_pair(make_run(b), run("bf16", 1), Measure::training, 1).gap_percent, 0.2, 1e-9);
  const auto failure = [](const std::function<void(RunMetrics&)>& spoil) {
    RunMetrics last = run("blockwise", 1, 0.2);
    spoil(last);
    const Pair pair = compare_pair(last, run("bf16", 1), Measure::validation, 1);
    EXPECT_TRUE(std::isinf(pair.gap_percent));
    EXPECT_EQ(judge({pair.gap_percent}, 0.25).verdict, Verdict::fail);
    return pair.failure;
  };
  EXPECT_EQ(failure([](RunMetrics& r) { r.train.back().loss = NAN; }), "last step had non-finite values");
  EXPECT_EQ(failure([](RunMetrics& r) { r.train.back().non_finite = true; }), "last step had non-finite values");
  EXPECT_EQ(failure([](RunMetrics& r) { r.train.back().skipped = true; }), "last step was skipped: non-finite values");
  EXPECT_EQ(failure([](RunMetrics& r) { r.train[198].skipped = r.train[199].skipped = true; }), "last 2 steps were skipped: non-finite values");
  EXPECT_EQ(failure([](RunMetrics& r) { r.non_finite_after_end = true; }), "the step after the last one recorded had non-finite values");
  EXPECT_EQ(failure([](RunMetrics& r) {
              r.train.resize(150);
              r.train.back().skipped = true;
            }),
            "last step was skipped: non-finite values; ended at 153600 of 204800 tokens");
}

TEST(ComparePair, ABaselineWithoutALossIsRefused) {
  RunMetrics base = run("bf16", 1);
  base.valid.back().loss = NAN;
  EXPECT_THROW(compare_pair(run("blockwise", 1), base, Measure::validation, 1), Error);
}

TEST(Compare, PairsBySeedWhateverTheOrder) {
  CompareInput input;
  input.runs = {run("blockwise", 2, 0.2), run("bf16", 1), run("mxfp8", 1, -0.1), run("bf16", 2), run("blockwise", 1, 0.1), run("mxfp8", 2, -0.3)};
  const Comparison c = compare(input, {});
  EXPECT_EQ(c.baseline.label, "bf16");
  ASSERT_EQ(c.groups.size(), 2u);
  const Group& g = c.groups[0];
  EXPECT_EQ(g.label, "blockwise");
  EXPECT_EQ(g.measure, Measure::validation);
  ASSERT_EQ(g.pairs.size(), 2u);
  EXPECT_EQ(g.pairs[0].baseline, "bf16-2");
  EXPECT_EQ(g.pairs[1].baseline, "bf16-1");
  EXPECT_NEAR(g.pairs[0].gap_percent, 0.2, 1e-9);
  EXPECT_NEAR(g.gap_percent, 0.15, 1e-9);
  EXPECT_NEAR(*g.upper_percent - g.gap_percent, 12.7062 * 0.05, 1e-5);
  EXPECT_NEAR(c.groups[1].gap_percent, -0.2, 1e-9);
  EXPECT_TRUE(c.notes.empty());
  EXPECT_FALSE(g.curves.loss.empty() || g.curves.gap_percent.empty() || g.curves.valid.empty() || c.baseline.curves.loss.empty());
  for (double y : g.curves.gap_percent.y) EXPECT_NEAR(y, 0.15, 1e-6);
}

TEST(Compare, MaxGapTestsTheUpperBoundOrTheSingleGap) {
  CompareInput one;
  one.runs = {run("bf16", 1), run("blockwise", 1, 0.3)};
  CompareInput two;
  two.runs = {run("bf16", 1), run("bf16", 2), run("a", 1, -0.2), run("a", 2, -0.21)};  // upper -0.205 + 0.0635
  const auto within = [](const CompareInput& input, double max_gap) {
    CompareOptions options;
    options.max_gap_percent = max_gap;
    return compare(input, options).within_max_gap();
  };
  EXPECT_TRUE(within(one, 0.4));
  EXPECT_FALSE(within(one, 0.2));
  EXPECT_FALSE(within(one, -0.1));
  EXPECT_TRUE(within(two, -0.1));
  EXPECT_FALSE(within(two, -0.15));
  EXPECT_TRUE(compare(one, {}).within_max_gap());
  CompareInput mixed = two;
  mixed.runs.push_back(run("worse", 1, 5));
  EXPECT_FALSE(within(mixed, 0.4));
  RunShape dead = shape("dead", 1);
  dead.extra_percent = [](int64_t) { return NAN; };
  RunShape early = shape("early", 1, -1);
  early.steps = 150;
  CompareInput ended = one;
  ended.runs.push_back(make_run(early));
  EXPECT_FALSE(within(ended, 1e9));
  CompareInput diverged = one;
  diverged.runs.push_back(make_run(dead));
  EXPECT_FALSE(within(diverged, 1e9));
}

TEST(Compare, WithoutValidationTheSmoothedTrainingLossIsUsed) {
  RunShape csv = shape("blockwise", 1, 0.25);
  csv.valid_every = 0;
  CompareInput input;
  input.runs = {run("bf16", 1), run("bf16", 2), make_run(csv), run("blockwise", 2, 0.25)};
  const Comparison c = compare(input, {});
  EXPECT_EQ(c.groups[0].measure, Measure::training);  // the whole group
  EXPECT_NEAR(c.groups[0].gap_percent, 0.25, 1e-9);
}

TEST(Compare, RunsWithoutSeedsPairWithTheOnlyBaseline) {
  RunShape a = shape("first", 1), b = shape("second", 1, 1), d = shape("third", 1, 2);
  a.seed = b.seed = d.seed = std::nullopt;
  CompareInput input;
  input.runs = {make_run(a), make_run(b), make_run(d)};
  const Comparison c = compare(input, {});
  EXPECT_EQ(c.baseline.label, "first");
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_NEAR(c.groups[1].gap_percent, 2, 0.5);
}

TEST(Compare, AutomaticBaseline) {
  CompareInput same;
  same.runs = {run("bf16", 1), run("bf16", 1, 1)};  // all bf16: the first
  same.runs[1].name = "other";
  const Comparison c = compare(same, {});
  EXPECT_EQ(c.baseline.names, (std::vector<std::string>{"bf16-1"}));
  EXPECT_NEAR(c.groups.at(0).gap_percent, 1, 1e-9);
  CompareInput no_bf16;
  no_bf16.runs = {run("fp32", 1), run("a", 1), run("fp32", 2), run("a", 2)};
  EXPECT_EQ(compare(no_bf16, {}).baseline.names, (std::vector<std::string>{"fp32-1", "fp32-2"}));
  CompareInput named;
  named.baselines = {run("a", 1)};
  named.runs = {run("bf16", 1, 1)};
  EXPECT_EQ(compare(named, {}).baseline.label, "a");
}

TEST(Compare, WhatCannotBePairedIsSaid) {
  CompareInput input;
  input.runs = {run("bf16", 1), run("bf16", 3), run("a", 1), run("a", 2)};
  const Comparison c = compare(input, {});
  EXPECT_EQ(c.groups[0].pairs.size(), 1u);
  ASSERT_EQ(c.notes.size(), 2u);
  EXPECT_EQ(c.notes[0], "a-2: left out, no baseline has its seed (seed 2)");
  EXPECT_EQ(c.notes[1], "bf16-3: a baseline (seed 3) that no run is paired with");

  CompareInput none;
  none.runs = {run("bf16", 1), run("a", 2)};
  EXPECT_EQ(compare_code(none), ExitCode::data);
  CompareInput twice;
  twice.runs = {run("bf16", 1), run("bf16", 1), run("a", 1)};
  EXPECT_EQ(compare_code(twice), ExitCode::data);
  CompareInput alone;
  alone.runs = {run("bf16", 1)};
  EXPECT_EQ(compare_code(alone), ExitCode::usage);
  EXPECT_EQ(compare_code({}), ExitCode::usage);
}

TEST(Compare, OneRecipeWithTwoConfigsIsTwoGroups) {
  CompareInput input;
  input.runs = {run("bf16", 1), run("bf16", 2), run("a", 1), run("a", 2), run("a", 1, 1), run("a", 2, 1)};
  for (auto& r : input.runs) r.config = {{"precision", {{"recipe", r.recipe}, {"margin", 0}}}, {"run", {{"seed", *r.seed}}}};
  for (size_t i : {size_t{4}, size_t{5}}) {
    input.runs[i].name += "-margin";
    input.runs[i].config["precision"]["margin"] = 1;
  }
  const Comparison c = compare(input, {});
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_EQ(c.groups[0].label, "a [a-1]");
  EXPECT_EQ(c.groups[1].label, "a [a-1-margin]");
  EXPECT_EQ(c.groups[1].pairs.size(), 2u);
  EXPECT_EQ(c.groups[1].config_differences.at("precision.margin"), std::make_pair(std::string("0"), std::string("1")));
  EXPECT_FALSE(c.groups[1].config_differences.contains("run.seed"));
  EXPECT_TRUE(c.notes.empty());
}

TEST(Compare, OneSeedTwiceBecomesGroupsOfTheirOwn) {
  CompareInput input;
  input.runs = {run("bf16", 1), run("a", 1), run("a", 1, 1)};
  const Comparison c = compare(input, {});
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_EQ(c.groups[0].label, "a [a-1]");
  EXPECT_EQ(c.groups[1].label, "a [a-1] #2");
}

TEST(Compare, ConfoundersAndSilentFallbacksAreNoted) {
  CompareInput input;
  input.runs = {run("bf16", 1), run("a", 1)};
  input.runs[0].config = {{"batch", {{"global", 16}}}, {"precision", {{"recipe", "bf16"}}}};
  input.runs[1].config = {{"batch", {{"global", 32}}}, {"precision", {{"recipe", "a"}}}};
  input.runs[1].quantized = {{"x.e4m3", 0}};
  input.runs[1].train.pop_back();
  const Comparison c = compare(input, {});
  ASSERT_EQ(c.notes.size(), 3u);
  EXPECT_NE(c.notes[0].find("ends at 203776 tokens, its baseline bf16-1 at 204800"), std::string::npos) << c.notes[0];
  EXPECT_EQ(c.notes[1], "a-1: recipe a quantized no element at all");
  EXPECT_EQ(c.notes[2], "a: differs from its baseline in batch.global, so the gap is not the recipe's alone");
}

TEST(Compare, OtherTokenFilesAreNoted) {
  CompareInput input;
  input.runs = {run("bf16", 1), run("a", 1)};
  input.runs[0].data = R"([{"sequences":44101,"tokens":245127577}])";
  EXPECT_TRUE(compare(input, {}).notes.empty()) << "an older run does not say";
  input.runs[1].data = input.runs[0].data;
  EXPECT_TRUE(compare(input, {}).notes.empty());
  input.runs[1].data = R"([{"sequences":44101,"tokens":245125314}])";
  EXPECT_EQ(compare(input, {}).notes, std::vector<std::string>{
      R"(a-1: trained on other token files ([{"sequences":44101,"tokens":245125314}]) than its baseline bf16-1 ([{"sequences":44101,"tokens":245127577}]): the two are no pair, whatever their paths say)"});
}

TEST(Compare, ALongerRunAndABadlyEndedBaselineAreNoted) {
  RunShape base = shape("bf16", 1), longer = shape("a", 1, 0.1);
  base.steps = 120;
  CompareInput input;
  input.runs = {make_run(base), make_run(longer)};
  Comparison c = compare(input, {});
  EXPECT_NEAR(c.groups[0].gap_percent, 0.1, 1e-9);
  EXPECT_EQ(c.groups[0].verdict, Verdict::single_pair);
  EXPECT_EQ(c.notes, (std::vector<std::string>{
                         "a-1: ends at 204800 tokens, its baseline bf16-1 at 122880; compared at 102400 tokens, which both have"}));
  input.runs[0] = run("bf16", 1);
  input.runs[0].train.back().skipped = true;
  c = compare(input, {});
  EXPECT_EQ(c.notes, (std::vector<std::string>{"bf16-1 (a baseline): last step was skipped: non-finite values"}));
}

TEST(Compare, OneEndedRunFailsItsGroup) {
  CompareInput input;
  RunShape early = shape("a", 2);
  early.steps = 150;
  input.runs = {run("bf16", 1), run("bf16", 2), run("a", 1), make_run(early)};
  const Group g = compare(input, {}).groups.at(0);
  EXPECT_EQ(g.verdict, Verdict::fail);
  EXPECT_EQ(g.failure(), "a-2: ended at 153600 of 204800 tokens");
  EXPECT_FALSE(g.diverged() || g.upper_percent);
  input.twins = {make_run(early)};
  EXPECT_EQ(compare(input, {}).notes.back(), "a-2 (twin): ended at 153600 of 204800 tokens");
}

TEST(Compare, TwinsShowWhatChanceDoes) {
  CompareInput input;
  input.runs = {run("bf16", 1), run("bf16", 2), run("a", 1, 0.1), run("a", 2, 0.1)};
  input.twins = {run("bf16", 1, 0.03), run("bf16", 2, -0.04)};
  const Comparison c = compare(input, {});
  ASSERT_TRUE(c.twins);
  EXPECT_NEAR(c.twins->max_gap_percent, 0.04, 1e-9);
  EXPECT_NEAR(c.twins->rms_gap_percent, std::sqrt((0.03 * 0.03 + 0.04 * 0.04) / 2), 1e-9);
  EXPECT_NEAR(c.twins->max_abs_curve_percent, 0.04, 1e-9);
  EXPECT_EQ(c.groups.size(), 1u);
  input.twins.push_back(run("bf16", 9));
  EXPECT_EQ(compare_code(input), ExitCode::data);
  CompareInput only;
  only.runs = {run("bf16", 1), run("bf16", 2)};
  only.twins = {run("bf16", 1, 0.03)};
  EXPECT_TRUE(compare(only, {}).groups.empty());
}

TEST(Curves, MeanInterpolationAndGaps) {
  EXPECT_EQ(trailing_mean({1, 3, 5, 7}, 2), (std::vector<double>{1, 2, 4, 6}));
  const auto holes = trailing_mean({NAN, NAN, 4, 8, NAN}, 2);
  EXPECT_TRUE(std::isnan(holes[0]) && std::isnan(holes[1]));
  EXPECT_EQ(holes[2], 4);
  EXPECT_EQ(holes[4], 8);
  EXPECT_EQ(smoothing_window(3), 1u);
  EXPECT_EQ(smoothing_window(250), 25u);
  EXPECT_EQ(smoothing_window(4000), 40u);
  const Curve c{{10, 20, 40}, {1, 2, 6}};
  EXPECT_EQ(interpolate(c, 10), 1);
  EXPECT_EQ(interpolate(c, 15), 1.5);
  EXPECT_EQ(interpolate(c, 30), 4);
  EXPECT_TRUE(std::isnan(interpolate(c, 9)) && std::isnan(interpolate(c, 41)));
  const Curve m = mean_curve({c, {{20, 40}, {4, 8}}}, 100);
  EXPECT_EQ(m.x, (std::vector<double>{20, 40}));
  EXPECT_EQ(m.y, (std::vector<double>{3, 7}));
  EXPECT_EQ(mean_curve({{std::vector<double>(5000, 0), std::vector<double>(5000, 1)}}, 1).x.size(), 1u);
  const Curve d = relative_difference_percent({{15, 30, 50}, {3, 2, 9}}, c);
  EXPECT_EQ(d.x, (std::vector<double>{15, 30}));
  EXPECT_EQ(d.y, (std::vector<double>{100, -50}));
}

}  // namespace
}  // namespace octet::report
