// Tiles of several tensors as one sequence, so that the pool works on all of them at once: a model has hundreds, most of them shorter than a tile.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/context.h"

namespace octet::cpu {

class TileSequence {
 public:
  // elements_of(i): of tensor i. No tile has elements of two tensors. Takes scratch memory: within a Scope of the caller's.
  template <class ElementsOf>
  TileSequence(Ctx& ctx, size_t tensors, int64_t tile, const ElementsOf& elements_of) : tile_(tile), tensors_(tensors), first_(ctx.scratch().alloc_array<int64_t>(static_cast<int64_t>(tensors))) {
    for (size_t i = 0; i < tensors; ++i) {
      if (first_) first_[i] = tiles_;
      tiles_ += (elements_of(i) + tile - 1) / tile;
    }
  }

  int64_t tiles() const { return tiles_; }
  // Number of the first tile of tensor i; behind the last tensor, of all tiles.
  int64_t first(size_t i) const { return i < tensors_ ? first_[i] : tiles_; }

  // body(tensor, begin of its elements, number of the tile) for each tile. Not while planning.
  template <class Body>
  void run(ThreadPool& pool, const Body& body) const {
    pool.run(tiles_, [&](int64_t number, int) {
      // The last tensor that begins here or before: one without elements begins where the next one does.
      const auto i = static_cast<size_t>(std::upper_bound(first_, first_ + tensors_, number) - first_) - 1;
      body(i, (number - first_[i]) * tile_, number);
    });
  }

 private:
  int64_t tile_, tiles_ = 0;
  size_t tensors_;
  int64_t* first_;   // [tensors]; null while planning
};

}  // namespace octet::cpu
