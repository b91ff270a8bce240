#include "optim/weight_codes.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/reduce.h"

namespace octet {

WeightCodes::WeightCodes(const Mesh& mesh, Model& model, const std::map<const Param*, Pieces>& pieces, QuantRegistry& quant) : mesh_(mesh), pieces_(pieces) {
  const std::vector<Param*>& first = model.units().front().params;   // the embedding's
  for (const Unit& u : model.units()) {
    std::vector<Weight>& weights = units_.emplace_back();
    for (const Linear* l : u.linears) {
      if (!l->recipe().w_row.quantized()) continue;
      if (!l->images_by_rows()) {
        throw Error(ExitCode::config, fmt::format("true, but {} with recipe {} has two images of each weight, which together are no smaller than BF16", l->module(), l->recipe().name),
                    "parallel.fp8_param_gather", "set it to false, or choose a recipe with square blocks of weights, as tensorwise, delayed or blockwise");
      }
      for (size_t i = 0; i < l->parts().size(); ++i) {
        Param* p = l->parts()[i].weight;
        if (&u == &model.units().front() || std::find(first.begin(), first.end(), p) != first.end()) continue;   // the embedding reads it
        p->by_codes = true;
        quant.cut_by_rows(l->parts()[i].site_w);
        // The scale of a whole tensor comes from the first shard that has rows.
        Pieces blocks{{0}};
        const QuantSpec& s = l->recipe().w_row;
        const Pieces& rows = pieces.at(p);
        for (int shard = 0; shard < mesh.layout().shards; ++shard) {
          const int64_t end = rows.begin[static_cast<size_t>(shard) + 1] / p->row_elements();
          blocks.begin.push_back(s.block_rows == 0 ? std::min<int64_t>(end, 1) : block_count(end, s.block_rows));
        }
        weights.push_back({l, i, {}, blocks});
      }
    }
  }
}

void WeightCodes::allocate(Arena& arena) {
  int64_t all = 0, number = 0;
  for (const auto& weights : units_) all += static_cast<int64_t>(weights.size());
  maxima_ = arena.alloc(Dtype::f32, {all});
  for (auto& weights : units_) {
    for (Weight& w : weights) w.amax = {maxima_.data ? maxima_.as<float>() + number++ : nullptr, Dtype::f32, {1}};
  }
}

void WeightCodes::exchange_maxima(Ctx& ctx, QuantRegistry& quant) {
  bool any = false;
  ops::zero(ctx, maxima_);
  for (const auto& weights : units_) {
    for (const Weight& w : weights) {
      if (!w.linear->needs_weight_amax(w.of(), quant)) continue;
      any = true;
      if (w.of().weight->own_elements() > 0) ops::shared_amaxes(ctx, w.of().weight->own_working, w.linear->recipe().w_row, false, w.amax);
    }
  }
  if (!any || ctx.planning()) return;
  for (Comm* group : {mesh_.shards(), mesh_.tp()}) {
    if (group) group->wait(group->all_reduce(maxima_, Reduce::max));
  }
}

void WeightCodes::quantize(Ctx& ctx, QuantRegistry& quant, size_t unit, bool again, std::map<Dtype, std::vector<TensorInPieces>>& gathers) {
  for (const Weight& w : units_[unit]) {
    const Linear::Part& part = w.of();
    w.linear->quantize_own_rows(ctx, quant, part, w.linear->needs_weight_amax(part, quant) ? w.amax : Tensor{}, again);
    gathers[part.w_row.data.dtype].push_back({part.w_row.codes(), pieces_.at(part.weight)});
    const Tensor scales = part.w_row.scales();
    Pieces of_scales = w.block_rows;
    for (int64_t& begin : of_scales.begin) begin *= scales.cols();
    gathers[Dtype::f32].push_back({scales, of_scales});
  }
}

void WeightCodes::prove(size_t unit, Machine& machine) const {
  const Layout& l = mesh_.layout();
  // Of a shard's rows, as this rank has them.
  const auto first_codes = [&](const Weight& w, int shard) {
    const Pieces& pieces = pieces_.at(w.of().weight);
    std::string codes(static_cast<size_t>(std::min<int64_t>(pieces.count(shard), 16)), 0);
    if (!codes.empty()) machine.copy_out(codes.data(), static_cast<const char*>(w.of().w_row.data.data) + pieces.first(shard), codes.size());
    return codes;
  };
  std::string own;
  for (const Weight& w : units_[unit]) own += first_codes(w, l.shard);
  const std::vector<std::string> all = exchange(*mesh_.all(), std::move(own));
  std::vector<size_t> at(static_cast<size_t>(l.shards));
  for (const Weight& w : units_[unit]) {
    for (int s = 0; s < l.shards; ++s) {
      const std::string here = first_codes(w, s);
      const std::string& theirs = all[static_cast<size_t>((l.replica * l.shards + s) * l.tp + l.tp_rank)];
      OCTET_CHECK(theirs.compare(at[static_cast<size_t>(s)], here.size(), here) == 0, "the codes of {} that shard {} keeps did not come", w.of().weight->name, s);
      at[static_cast<size_t>(s)] += here.size();
    }
  }
}

}  // namespace octet
