// "Did you mean ...?": the nearest valid name to a misspelt one.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Edit distance with insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). Upper and
// lower case are alike, so are '-' and '_'. Only the first 128 characters of each count.
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the least distance, the first of equals; empty when there are no candidates.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Whether the two are close enough to be a misspelling of each other: at most two edits, or a third of the word.
bool plausible_typo(std::string_view word, std::string_view candidate);

// Shortens text to `limit` characters with "..." and replaces control characters, so that a message stays one short line.
std::string printable(std::string_view text, size_t limit = 80);

}  // namespace octet
