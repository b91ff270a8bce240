#include "data/bpe_model.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace octet::data {
namespace {
constexpr size_t short_bytes = 64;
}  // namespace

BpeModel::BpeModel(const TokenizerJson& json) : ignore_merges_(json.ignore_merges) {
  byte_ids_.fill(-1);
  int32_t largest = -1;
  for (const auto& [token, id] : json.vocab) largest = std::max(largest, id);
  std::vector<const std::string*> by_id(static_cast<size_t>(largest) + 1);
  for (const auto& [token, id] : json.vocab) by_id[static_cast<size_t>(id)] = &token;
  std::string bytes;
  std::vector<bool> reachable(by_id.size());
  for (size_t id = 0; id < by_id.size(); ++id) {
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (!by_id[id]) continue;
    reachable[id] = byte_level_decode(*by_id[id], bytes);
    bytes_ += reachable[id] ? bytes : *by_id[id];
    if (reachable[id] && bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = static_cast<int32_t>(id);
  }
  begins_.push_back(static_cast<uint32_t>(bytes_.size()));
  if (ignore_merges_) {
    for (size_t id = 0; id < by_id.size(); ++id) {
      if (reachable[id]) whole_.emplace(this->bytes(static_cast<int32_t>(id)), static_cast<int32_t>(id));
    }
  }
  add_merges(json.merges);
}

void BpeModel::add_merges(const std::vector<Merge>& merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, 2 * merges.size() + 1));
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  slots_.assign(size, {0, no_rank});
  results_.reserve(merges.size());
  for (const Merge& merge : merges) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t i = mix(pair) >> shift_;
    while (slots_[i].rank != no_rank && slots_[i].pair != pair) i = (i + 1) & mask_;
    slots_[i] = {pair, static_cast<uint32_t>(results_.size())};  // a pair given twice has its later rank, as in the package
    results_.push_back(merge.result);
  }
}

std::string_view BpeModel::bytes(int32_t id) const {
  const auto i = static_cast<size_t>(id);
  if (id < 0 || i + 1 >= begins_.size()) return {};
  return std::string_view(bytes_).substr(begins_[i], begins_[i + 1] - begins_[i]);
}

void BpeModel::encode_word(std::string_view bytes, BpeScratch& scratch, TokenBuffer& out) const {
  if (ignore_merges_) {
    if (const auto found = whole_.find(bytes); found != whole_.end()) return out.push(found->second);
  }
  if (bytes.size() <= short_bytes) out.advance(merge_short(bytes, out.room(bytes.size())));
  else merge_long(bytes, scratch, out);
}

size_t BpeModel::merge_short(std::string_view bytes, int32_t* ids) const {
  size_t n = bytes.size();
  std::array<uint32_t, short_bytes> ranks;  // ranks[i]: of ids[i], ids[i + 1]
  for (size_t i = 0; i < n; ++i) ids[i] = byte_ids_[static_cast<unsigned char>(bytes[i])];
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) best = ranks[i] < ranks[best] ? i : best;
    if (ranks[best] == no_rank) break;
    ids[best] = results_[ranks[best]];
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    if (best + 2 < n) std::copy(ranks.begin() + static_cast<ptrdiff_t>(best) + 2, ranks.begin() + static_cast<ptrdiff_t>(n) - 1,
                                ranks.begin() + static_cast<ptrdiff_t>(best) + 1);
    --n;
    if (best > 0) ranks[best - 1] = rank(ids[best - 1], ids[best]);
    if (best + 1 < n) ranks[best] = rank(ids[best], ids[best + 1]);
  }
  return n;
}

void BpeModel::merge_long(std::string_view bytes, BpeScratch& scratch, TokenBuffer& out) const {
  const auto n = static_cast<uint32_t>(bytes.size());
  std::vector<int32_t>& ids = scratch.ids;   // no structured binding: Clang 14 cannot capture one
  std::vector<uint32_t>&ranks = scratch.ranks, &next = scratch.next, &previous = scratch.previous;
  std::vector<uint64_t>& heap = scratch.heap;
  ids.resize(n);
  ranks.resize(n);
  next.resize(n);
  previous.resize(n);
  heap.clear();
  // A heap entry is (rank, position): the smallest is the merge to make, if it still is that position's rank.
  const auto update = [&](uint32_t at) {
    ranks[at] = next[at] < n ? rank(ids[at], ids[next[at]]) : no_rank;
    if (ranks[at] == no_rank) return;
    heap.push_back(uint64_t{ranks[at]} << 32 | at);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (uint32_t i = 0; i < n; ++i) {
    ids[i] = byte_ids_[static_cast<unsigned char>(bytes[i])];
    next[i] = i + 1;
    previous[i] = i - 1;  // of the first: larger than n
  }
  for (uint32_t i = 0; i < n; ++i) update(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto at = static_cast<uint32_t>(heap.back());
    const auto found = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (ranks[at] != found) continue;
    const uint32_t gone = next[at];
    ids[at] = results_[found];
    ranks[gone] = no_rank;
    next[at] = next[gone];
    if (next[at] < n) previous[next[at]] = at;
    update(at);
    if (previous[at] < n) update(previous[at]);
  }
  for (uint32_t i = 0; i < n; i = next[i]) out.push(ids[i]);
}

}  // namespace octet::data
