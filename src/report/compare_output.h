// A comparison as text for the terminal, and as JSON for machines.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "report/compare.h"

namespace octet::report {

// "+0.031 %"; "diverged" when infinite; "-" when absent.
std::string percent_text(std::optional<double> percent);
// The gap of a pair or group; "diverged" or "-" where a failure leaves none.
std::string gap_text(const Pair& pair);
std::string gap_text(const Group& group);
// "pass", or "fail: " and the first failure.
std::string verdict_text(const Group& group);
// "0.998", "-" when absent.
std::string ratio_text(std::optional<double> ratio);
// "[-0.010, +0.072] %" or "-".
std::string interval_text(const Group& group);
// "step 120" or "-".
std::string divergence_text(const std::optional<Divergence>& divergence);
// One sentence a newcomer understands: verdict, gap, interval, what to do next.
std::string verdict_sentence(const Group& group, const Comparison& comparison);
// The spread of the twins in one sentence.
std::string twins_sentence(const Twins& twins);
// What the numbers mean and how they were made, one paragraph an entry.
std::vector<std::string> method_notes(const Comparison& comparison);

// Table, sentences, elements quantized, notes. Names are made safe for a terminal.
std::string to_text(const Comparison& comparison);

// Every number of the table and the pairs; not-finite numbers are null, and "failure" says why. docs/reference/compare.md lists the keys.
nlohmann::json to_json(const Comparison& comparison);

}  // namespace octet::report
