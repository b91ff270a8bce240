// WeightCodes: gathers of quantized weights as codes and scales (parallel.fp8_param_gather). Each shard quantizes its rows with the scales of the whole tensor, so that images are bit for bit those that
// gathered BF16 weights would give, for half the bytes (a device that stores column images by themselves transposes them then); other shards' rows of the BF16 weights are never there. As Megatron-LM's --fp8-param-gather.
#pragma once
#include <map>
#include <vector>

#include "comm/mesh.h"
#include "model/model.h"

namespace octet {

class WeightCodes {
 public:
  // Chooses the weights: of quantized linears, but for one that is the embedding too. Marks them (Param::by_codes), before memory is allocated. Errors: Error(config)
  // for a recipe with two images of a weight, which together are no smaller than BF16. mesh, model and pieces outlive it.
  WeightCodes(const Mesh& mesh, Model& model, const std::map<const Param*, Pieces>& pieces, QuantRegistry& quant);

  // Of the maxima of the weights, one each.
  void allocate(Arena& arena);
  // Weights have changed: the maxima of those that scale by their own are exchanged, all at once. Waits.
  void exchange_maxima(Ctx& ctx, QuantRegistry& quant);
  // Quantizes the own rows of the unit's weights, and adds to `gathers` what the unit's gathers must move: codes (u8) and scales (f32). again: they were quantized in this step before.
  void quantize(Ctx& ctx, QuantRegistry& quant, size_t unit, bool again, std::map<Dtype, std::vector<TensorInPieces>>& gathers);

  // Of the start-up proof, behind the gather of a unit: the first codes of each shard's rows are those that it has itself. Called by all ranks. Error(internal) names the tensor.
  void prove(size_t unit, Machine& machine) const;

 private:
  struct Weight {
    const Linear* linear;
    size_t part;
    Tensor amax;
    Pieces block_rows;   // rows of blocks
    const Linear::Part& of() const { return linear->parts()[part]; }
  };
  const Mesh& mesh_;
  const std::map<const Param*, Pieces>& pieces_;
  std::vector<std::vector<Weight>> units_;
  Tensor maxima_;
};

}  // namespace octet
