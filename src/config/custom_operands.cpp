// precision.custom: the JSON form of a recipe, read to and written from PrecisionConfig::custom.
#include <fmt/format.h>

#include "config/field_values.h"
#include "config/nearest.h"

namespace octet::config_detail {

const std::vector<GemmOperands>& gemm_operands() {
  static const std::vector<GemmOperands> table = {{"fprop", {"x", "w"}}, {"dgrad", {"dy", "w"}}, {"wgrad", {"dy", "x"}}};
  return table;
}

void read_value(std::map<std::string, CustomOperand>& out, const nlohmann::json& value, const FieldInfo&, const Place& place) {
  require_object(value, place);
  std::vector<std::string> names, paths;
  for (const GemmOperands& g : gemm_operands()) {
    names.push_back(g.gemm);
    for (const std::string& o : g.operands) paths.push_back(g.gemm + "." + o);
  }
  for (const auto& item : value.items()) {
    if (nearest(item.key(), names) != item.key()) fail_unknown(place.at(item.key()), item.key(), paths);
  }
  out.clear();
  for (const GemmOperands& g : gemm_operands()) {
    if (!value.contains(g.gemm)) continue;
    const nlohmann::json& gemm = value.at(g.gemm);
    const Place at = place.at(g.gemm);
    require_object(gemm, at);
    for (const auto& item : gemm.items()) {
      if (item.key() != g.operands[0] && item.key() != g.operands[1]) fail_unknown(at.at(item.key()), g.gemm + "." + item.key(), paths);
    }
    for (const std::string& o : g.operands) {
      if (!gemm.contains(o)) {
        fail(at, fmt::format("needs both operands, \"{}\" and \"{}\"", g.operands[0], g.operands[1]), "leave out the GEMM to keep it in BF16");
      }
      read_object(out[g.gemm + "." + o], gemm.at(o), custom_operand_fields(), at.at(o));
    }
  }
}

nlohmann::json write_value(const std::map<std::string, CustomOperand>& value) {
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [key, operand] : value) put(out, key, write_object(operand, custom_operand_fields()));
  return out;
}

void read_block(CustomOperand& out, const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  if (value == "tensor" || value == "row") {
    out.block_rows = value == "row" ? 1 : 0;
    out.block_cols = 0;
    return;
  }
  if (!value.is_array() || value.size() != 2) {
    fail(place, "must be \"tensor\", \"row\" or [rows, length along the contraction], not " +
                    (value.is_array() ? "a list of " + std::to_string(value.size()) : shown(value)));
  }
  FieldInfo extent = field;
  extent.kind = FieldKind::integer;
  read_value(out.block_rows, value[0], extent, place.at("0"));
  read_value(out.block_cols, value[1], extent, place.at("1"));
}

nlohmann::json write_block(const CustomOperand& operand) {
  if (operand.block_cols == 0 && operand.block_rows == 0) return "tensor";
  if (operand.block_cols == 0 && operand.block_rows == 1) return "row";
  return nlohmann::json::array({operand.block_rows, operand.block_cols});
}

}  // namespace octet::config_detail
