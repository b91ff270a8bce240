#include "checkpoint/save_rounds.h"

#include <fmt/format.h>

#include "core/check.h"
#include "core/error_text.h"

namespace octet {
namespace {

// The first character of an exchanged text.
constexpr char went_well = '+', went_wrong = '-';

// The work's outcome as a text; who: added to the message of an error.
std::string outcome(const std::function<std::string()>& work, const std::string& who) {
  try {
    return went_well + work();
  } catch (const Error& e) {
    return went_wrong + error_text({e.code, e.message + who, e.where, e.fix});
  } catch (const std::exception& e) {
    return went_wrong + error_text({ExitCode::internal, fmt::format("saving failed: {}{}", e.what(), who)});
  } catch (...) {
    return went_wrong + error_text({ExitCode::internal, "saving failed for an unknown reason" + who});
  }
}

[[noreturn]] void throw_failure(std::string_view text, size_t failures) {
  const Error one = error_of_text(text.substr(1));
  Error all(one.code, failures > 1 ? fmt::format("{}, and {} more", one.message, failures - 1) : one.message, one.where, one.fix);
  all.shared = true;
  throw all;
}

}  // namespace

std::string rank_name(int rank, const std::string& host) {
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} on host {}", rank, host);
}

SaveRounds::SaveRounds(const SaveGroup& group) : group_(group) {
  OCTET_CHECK(group.size >= 1 && group.rank >= 0 && group.rank < group.size && (group.size == 1 || group.exchange), "rank {} of {} saves", group.rank,
              group.size);
}

std::vector<std::string> SaveRounds::exchange(const std::string& mine) const {
  auto texts = group_.exchange(mine);
  OCTET_CHECK(texts.size() == static_cast<size_t>(group_.size), "the exchange of {} ranks returned {} texts", group_.size, texts.size());
  const std::string* first = nullptr;
  size_t failures = 0;
  for (auto& text : texts) {
    OCTET_CHECK(text.starts_with(went_well) || text.starts_with(went_wrong), "the exchange returned a text that no rank of a save sent");
    if (text.front() == went_wrong && failures++ == 0) first = &text;
  }
  if (first) throw_failure(*first, failures);
  for (auto& text : texts) text.erase(0, 1);
  return texts;
}

std::vector<std::string> SaveRounds::all(const std::function<std::string()>& work) const {
  if (single()) return {work()};
  return exchange(outcome(work, ", " + rank_name(group_.rank, group_.host)));
}

std::string SaveRounds::leader(const std::function<std::string()>& work) const {
  if (single()) return work();
  return exchange(leads() ? outcome(work, {}) : std::string(1, went_well)).front();
}

}  // namespace octet
